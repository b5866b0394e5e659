"""The boundary: throwaway containers on a volume of their own. It refuses to know runs, models or the archive."""
