"""Plans that are given: the one of a task graph file, and those of strategy files."""
