"""Kernels of the event simulator: task orders, shared links, queues."""
