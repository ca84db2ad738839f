"""Kernels of search best."""
