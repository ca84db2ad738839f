"""Searches over the joint space."""
