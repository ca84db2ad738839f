"""A training loop of the user's own, under a plan: the rank's modules and what the loop asks of them, and scripts to start."""
