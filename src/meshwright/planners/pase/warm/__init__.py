"""PaSE's kernels, compiled before they are needed."""
