"""Textbook algorithms on small graphs and integers."""
