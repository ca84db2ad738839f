"""Kernels of `meshwright.planners.dapple`."""
