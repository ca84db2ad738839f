"""The joint search over all degrees, splits, schedules and recomputation, with a proven bound."""
