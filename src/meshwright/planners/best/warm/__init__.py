"""The joint search's kernels, compiled before they are needed."""
