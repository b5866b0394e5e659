"""Owns the demonstration: small repositories, scripts, and what must come of them. It refuses to need a key."""
