"""Truth (archive, journal) and hints (Redis). It refuses to know what a run means: it stores and orders."""
