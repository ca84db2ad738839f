"""A whole run: launch, training loop, checkpoints."""
