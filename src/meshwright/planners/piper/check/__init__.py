"""Checks of Piper plans in plain Python, without the search."""
