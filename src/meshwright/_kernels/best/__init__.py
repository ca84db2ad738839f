"""Kernels of `meshwright.planners.best`."""
