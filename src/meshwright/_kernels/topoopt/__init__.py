"""Kernels of `meshwright.planners.topoopt`."""
