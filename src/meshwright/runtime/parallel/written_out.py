"""Attention that a model of ``transformers`` writes out as products, as one call that can be given other keys and masks.

Such models look the function up by a name of their configuration, and have one of their own where it is ``eager``: the only one
that some have (attention sinks of GPT-OSS, capped scores of Gemma 2). Under the name registered here the model's own is called,
and modes of PyTorch see it as they see fused attention.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.overrides import handle_torch_function, has_torch_function

__all__ = ["attend", "hand_over"]

_NAME = "meshwright_written_out"


def attend(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return what the attention that a module's model writes out makes of queries, keys and values, and its scores.

    `query`, `key`, `value`: of shape (rows, heads, tokens, features of a head); the result has tokens before heads.
    `attention_mask`, `options`: as ``transformers`` hands them on.
    """
    given = (query, key, value)
    if has_torch_function(given):
        seen: Any = handle_torch_function(attend, given, module, *given, attention_mask, **options)
        return seen  # type: ignore[no-any-return]
    own = _own(module)
    assert own is not None, "modules are asked before they are handed over"
    result: tuple[torch.Tensor, torch.Tensor | None] = own(module, *given, attention_mask, **options)
    return result


def hand_over(layer: nn.Module) -> None:
    """Let the modules of a layer that write attention out do so by `attend`, in place; others stay as they are."""
    for module in layer.modules():
        config: Any = getattr(module, "config", None)
        if getattr(config, "_attn_implementation", None) == "eager" and _own(module) is not None:
            sys.modules["transformers"].AttentionInterface.register(_NAME, attend)
            own = copy.copy(config)  # layers share it
            own._attn_implementation = _NAME
            module.config = own


def _own(module: nn.Module) -> Callable[..., Any] | None:
    """Return the function by which the model of a module writes attention out; None where it has none."""
    found: Any = getattr(sys.modules.get(type(module).__module__), "eager_attention_forward", None)
    return found if callable(found) and "transformers" in sys.modules else None
