"""Megatron-LM's command line."""
