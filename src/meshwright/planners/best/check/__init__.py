"""Checks answers of ``--search best``: lists the space again, and proves by lemmas of its own that nothing in it is quicker.

Slow and plain. Of the search nothing is used: only what tells how long plans take and what they hold (costs, schedules, simulator).
"""
