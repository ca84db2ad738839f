"""Combinatorial blocks on graphs and arrays: textbook algorithms that know no GPU."""
