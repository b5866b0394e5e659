"""Whoever answers: one file an adapter. It refuses to run anything a model asks for."""
