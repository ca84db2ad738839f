"""Plans and times that are given: the plan of a task graph file, those of strategy files, and a measuring run of operators."""
