"""Run a plan with PyTorch, and measure what it does. The only room that needs torch."""
