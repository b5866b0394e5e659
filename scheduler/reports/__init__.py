"""How runs and batches are told, in words, tables and files. Refuses to change what it tells of."""
