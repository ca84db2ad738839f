"""PipeDream's profile formats."""
