"""Lower bounds for pipelines over graphs of too many downsets to search: prices of blocks, and the best of some nodes."""
