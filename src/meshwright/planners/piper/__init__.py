"""Piper (Tarnawski et al., NeurIPS 2021): pipeline stages with data and tensor degrees and recomputation under a memory
limit.
"""
