"""Averages."""


def mean(values: list[float]) -> float:
    """The arithmetic mean; 0.0 for no values."""
    return sum(values) / len(values)
