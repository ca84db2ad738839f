"""A graph of operators into convex parts."""
