"""Patches on screen: rows, colours, who made them, which are alike. Refuses to apply one."""
