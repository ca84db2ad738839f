"""Costs of operator partitions."""
