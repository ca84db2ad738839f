"""The partitioning benchmarks of operator and layer graphs."""
