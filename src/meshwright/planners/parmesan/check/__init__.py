"""Checks of partitions and mappings in plain Python, without the search."""
