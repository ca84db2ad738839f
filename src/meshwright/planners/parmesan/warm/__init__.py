"""Parmesan's kernels, compiled before they are needed."""
