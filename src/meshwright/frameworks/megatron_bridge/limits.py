"""Megatron-Bridge: what it can run and how it runs it, from its data file and that of Megatron-LM."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from meshwright.base import files
from meshwright.core import framework_file
from meshwright.frameworks.megatron import limits

__all__ = ["FRAMEWORK", "VARIANTS"]

_DATA = Path(__file__).parents[1] / "data" / "megatron_bridge.toml"
FRAMEWORK, _OWN = framework_file.of_content(files.read_toml(_DATA), _DATA.stem, _DATA.name, limits.FRAMEWORK)
VARIANTS = (
    *_OWN,
    *(
        replace(one, framework=replace(one.framework, name=FRAMEWORK.name, limits=FRAMEWORK.limits))
        for one in limits.VARIANTS
        if one.beside or one.framework.variant.startswith("experts")
    ),
)
"""Those of Megatron-LM that its releases had: mixtures of experts under circumstances, and no overlap of the tensor axis."""
