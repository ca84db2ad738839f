"""Megatron-LM: what it can run and how it runs it, from its data file."""

from __future__ import annotations

from pathlib import Path

from meshwright.core import framework_file

__all__ = ["FRAMEWORK", "VARIANTS"]

FRAMEWORK, VARIANTS = framework_file.read(Path(__file__).parents[1] / "data" / "megatron.toml")
