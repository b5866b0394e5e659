"""Branches and pull requests of sealed runs, and what people said of patches. Refuses to change a sealed run."""
