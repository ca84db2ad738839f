"""What a run takes, measured."""
