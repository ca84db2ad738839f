"""Kernels of `meshwright.solvers.mapping`."""
