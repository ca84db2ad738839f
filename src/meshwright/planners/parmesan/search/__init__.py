"""Parmesan's searches, and our exact partitioner and mapper."""
