"""Kernels of `meshwright.solvers.pipeline`."""
