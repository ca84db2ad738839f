"""DAPPLE's paper: its headline results."""
