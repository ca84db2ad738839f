"""Kernels of routes."""
