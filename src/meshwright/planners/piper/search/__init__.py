"""Piper's searches."""
