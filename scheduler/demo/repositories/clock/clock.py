"""Durations as people write them."""


def minutes(text: str) -> int:
    """Minutes in a duration such as `1h30m`."""
    hours, rest = text.split("h")
    return int(rest.rstrip("m"))
