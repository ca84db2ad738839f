"""Parmesan's topologies."""
