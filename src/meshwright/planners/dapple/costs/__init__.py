"""DAPPLE's cost model."""
