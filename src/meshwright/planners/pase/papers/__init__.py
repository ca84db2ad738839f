"""PaSE's paper: its headline results."""
