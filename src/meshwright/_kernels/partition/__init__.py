"""Kernels of `meshwright.solvers.partition`."""
