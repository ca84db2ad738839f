"""How many devices, for how long, for how much: what a training run costs beside its steps, and which sizes are worth having."""
