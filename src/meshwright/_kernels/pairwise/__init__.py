"""Kernels of `meshwright.solvers.pairwise`."""
