"""Piper's cost model."""
