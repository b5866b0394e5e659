"""The nouns that every other package shares. It refuses I/O, clocks and randomness."""
