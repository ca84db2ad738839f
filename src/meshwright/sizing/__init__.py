"""How many devices, for how long, for how much: what a training run costs beside its steps, which sizes are worth it."""
