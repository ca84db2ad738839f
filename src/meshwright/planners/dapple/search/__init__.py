"""DAPPLE's and PipeDream's searches."""
