"""PaSE's cost model."""
