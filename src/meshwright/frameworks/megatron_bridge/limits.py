"""Megatron-Bridge: what it can run and how it runs it, from its data file and that of Megatron-LM."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from meshwright.base import files
from meshwright.core import framework_file
from meshwright.core.framework import Framework
from meshwright.core.framework_file import Variant
from meshwright.frameworks.megatron import limits

__all__ = ["FRAMEWORK", "VARIANTS", "beside"]

_DATA = Path(__file__).parents[1] / "data" / "megatron_bridge.toml"
_OWN = ("logit_bytes", "loss_forward_bytes", "loss_backward_bytes")
"""What its file says of how it runs: the loss, whatever the variant."""


def beside(base: Framework, others: tuple[Variant, ...]) -> tuple[Framework, tuple[Variant, ...]]:
    """Return the framework and its variants, from those of Megatron-LM.

    Its variants are those of Megatron-LM that its releases had: mixtures of experts under circumstances, and no overlap of the
    tensor axis.
    """
    own, variants = framework_file.of_content(files.read_toml(_DATA), _DATA.stem, _DATA.name, base)
    said = {name: getattr(own, name) for name in _OWN}
    taken = [one for one in others if one.framework.variant == "plain" or one.framework.variant.startswith("experts")]
    return own, (
        *variants,
        *(replace(one, framework=replace(one.framework, name=own.name, limits=own.limits, **said)) for one in taken),
    )


FRAMEWORK, VARIANTS = beside(limits.FRAMEWORK, limits.VARIANTS)
