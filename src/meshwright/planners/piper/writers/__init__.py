"""Piper's file format."""
