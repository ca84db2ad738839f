"""One training step on one rank."""
