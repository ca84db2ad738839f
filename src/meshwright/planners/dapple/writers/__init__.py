"""PipeDream's profile format."""
