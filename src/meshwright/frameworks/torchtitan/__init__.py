"""torchtitan and PyTorch pipelining."""
