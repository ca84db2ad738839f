"""Planners of others, asked through their own files: ``meshwright bench --planner calculon:PATH``.

An adapter is one file: ``answer(asked, place)`` gets the problem file of the bench and what the user wrote behind the colon,
asks the planner (its command, or an answer that it wrote before) and returns a plan file. Nothing of a planner's code is here;
what it does not take is an `InputError`, which the table counts as declined.
"""
