"""Calls that users of other planners know, answered by this one."""
