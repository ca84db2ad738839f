"""Parmesan's paper: its headline results."""
