"""Calls that run as one kernel on a GPU, and as one operator of a trace: attention, state-space scans."""
