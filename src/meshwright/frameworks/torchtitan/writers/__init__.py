"""PyTorch's pipeline schedules."""
