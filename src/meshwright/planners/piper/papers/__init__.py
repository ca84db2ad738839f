"""Piper's paper: its headline results."""
