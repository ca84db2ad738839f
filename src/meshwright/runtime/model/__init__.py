"""The module that is trained: where it comes from, how it is cut, its data."""
