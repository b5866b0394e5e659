"""What may run now and what waits, and why: pure where it can be. Refuses to act on what it plans."""
