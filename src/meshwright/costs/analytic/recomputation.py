"""Which operators of a layer a framework's recomputation setting repeats, and what of their outputs is then not kept.

Modules are Megatron-LM's, each as its code runs it: some are checkpoints (`mlp`, `moe`, `core_attn`, `shared_experts`), which
repeat all of the module, collectives included; others throw outputs away (`layernorm`, `moe_act`, `mla_up_proj`) and repeat
what makes them. Where Transformer Engine fuses a norm with the product after it (dense layers), there is no norm to recompute
by itself, and it belongs to the module of its product.

References
----------
.. [1] Megatron-Core 0.16, transformer/transformer_config.py (recompute_modules), transformer_layer.py, moe/moe_layer.py,
       multi_latent_attention.py.
.. [2] torchtitan 0.3.0, distributed/activation_checkpoint.py (SelectiveAC).
.. [3] PyTorch, torch/utils/checkpoint.py: set_checkpoint_early_stop.
"""

from __future__ import annotations

from typing import NamedTuple

from meshwright.core.graph import Operator
from meshwright.core.strategy import ALTERNATE

__all__ = ["Repeated", "n_rerun", "repeated_parts"]

_LATENT = (
    "attention.query_norm",
    "attention.query_up",
    "attention.key_value_norm",
    "attention.key_value_up",
    "attention.rotary",
)
_CORE = ("attention.core", "attention.softmax")
_PRODUCTS = ("matmul",)


class Repeated(NamedTuple):
    """What is repeated of one operator, and what it keeps.

    Parameters
    ----------
    work_ratio : float
        Share of its forward pass that is repeated.
    kept_ratio : float
        Share of what it saves that is kept.
    extra_elements : int
        Elements that it keeps besides, split as what it saves.
    collectives : tuple of str
        Kinds of its forward collectives that are repeated.
    """

    work_ratio: float = 0.0
    kept_ratio: float = 1.0
    extra_elements: int = 0
    collectives: tuple[str, ...] = ()


_ALL = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
_WHOLE, _NOTHING = Repeated(1.0, 0.0, 0, _ALL), Repeated()


def repeated_parts(body: tuple[Operator, ...], word: str) -> tuple[Repeated, ...]:
    """Return what a setting repeats of each operator of a layer.

    `word`: modules of Megatron-LM joined by ``+``, or `ALTERNATE`. A module that the layer does not have changes nothing.
    """
    if word == ALTERNATE:
        return _alternate(body)
    members = {name for module in word.split("+") for name in _members(body, module)}
    return tuple(_WHOLE if operator.name in members else _NOTHING for operator in body)


def n_rerun(body: tuple[Operator, ...], stops_early: bool) -> int:
    """Return how many operators of a layer, from its first, run again where all of it is recomputed.

    `stops_early`: the second forward pass ends as soon as all that the backward pass reads is there [3]_, or a compiler takes
    out what nothing reads. The last product saves its input only, and sums with the residual nothing, so that neither runs
    again; what drops elements out saves its mask.
    """
    n = len(body)
    if not stops_early:
        return n
    while n and body[n - 1].name.endswith("residual") and not body[n - 1].saved_extra_bytes:
        n -= 1
    return n - 1 if n and body[n - 1].kind in _PRODUCTS else n


def _members(body: tuple[Operator, ...], module: str) -> set[str]:
    """Return the names of the operators of one module."""
    names = [operator.name for operator in body]
    latent, experts = "attention.key_value_up" in names, any(operator.expert for operator in body)
    routed = {name for name in names if name.startswith("mlp.") and name not in ("mlp.norm", "mlp.residual")}
    members: dict[str, set[str]] = {
        "core_attn": set(_CORE),
        "layernorm": {*(("attention.norm",) if latent else ()), *(("mlp.norm",) if experts else ())},
        "mla_up_proj": set(_LATENT) if latent else set(),
        "mlp": set() if experts else {"mlp.norm", *routed},
        "moe": routed if experts else set(),
        "moe_act": {"mlp.experts.activation"},
        "shared_experts": {name for name in routed if name.startswith("mlp.shared.")},
    }
    return members[module] & set(names)


def _alternate(body: tuple[Operator, ...]) -> tuple[Repeated, ...]:
    """Return what torchtitan's selective checkpointing repeats: every second product in the order of calls, norms and
    elementwise operators, all-gathers and all-reduces; outputs of attention, reduce-scatters and exchanges are kept.

    The products of a gated feed-forward network are two, made one after the other; those of queries, keys and values one.
    Routers are repeated and not counted; grouped products are in no list of what is kept.
    """
    found, n_products = [], 0
    for i, operator in enumerate(body):
        if operator.kind in _PRODUCTS and operator.name.rpartition(".")[2] != "router":
            halves = 2 if _gated(body, i) else 1
            n_kept = sum((n_products + half) % 2 == 0 for half in range(halves))
            n_products += halves
            repeated = 1.0 - n_kept / halves
            last = operator.tensor_axis == "in"
            kept = operator.size("sequence") * operator.size("out") if last and n_kept else 0
            found.append(Repeated(repeated, 1.0 if last else n_kept / halves, kept, ("all_gather", "all_reduce")))
        elif operator.kind in ("attention", "causal_attention"):
            found.append(Repeated())
        elif operator.kind in ("dispatch", "combine"):
            moved = operator.size("sequence") * operator.size("top_k") * operator.size("hidden")
            found.append(Repeated(0.0, 1.0, moved if operator.kind == "combine" else 0))
        elif operator.name.endswith("residual"):
            first = next(j for j, other in enumerate(body) if other.name.endswith("residual")) == i
            found.append(Repeated(1.0, 1.0 if first else 0.0))  # the first reads the layer's input
        else:
            found.append(Repeated(1.0, 0.0, 0, ("all_gather", "all_reduce")))
    return tuple(found)


def _gated(body: tuple[Operator, ...], i: int) -> bool:
    """Return whether product `i` is a gate and the product beside it, in one."""
    return body[i].name.endswith(".in") and i + 1 < len(body) and body[i + 1].size("inputs") == 2
