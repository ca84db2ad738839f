"""Parmesan (TCAD 2024): a captured graph cut into partitions and mapped onto any device topology."""
