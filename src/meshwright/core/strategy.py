"""How one stage, or one layer of it, is parallelised: the degrees of its device mesh and what is sharded or recomputed."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from meshwright.core.graph import Graph

__all__ = [
    "ALTERNATE", "CONTEXT_EXCHANGES", "MODULES", "OFFLOAD", "OFFLOADS", "ON_HOST", "RECOMPUTE", "Strategy",
    "is_recompute", "repeats_dispatch",
]  # fmt: skip

RECOMPUTE = ("none", "selective", "full")
"""What a layer recomputes in its backward pass: nothing, its cheap large activations, or its whole forward."""

MODULES = ("core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts")
"""Parts of a layer that Megatron-LM recomputes each as a whole; a layer may recompute several, joined in
the order of their names: ``layernorm+moe_act``."""

ALTERNATE = "every_second_product"
"""What torchtitan calls selective: every second product is computed again, and all between products that are kept."""

CONTEXT_EXCHANGES = ("ring", "all_gather", "all_to_all", "all_to_all+ring")
"""How the ranks of a context axis let every query meet every key: keys and values go round beside attention (ring attention;
Megatron-LM's ``p2p``); they are gathered before it; queries, keys, values and outputs change from parts of the sequence to
parts of the heads and back (DeepSpeed-Ulysses; Megatron-LM's ``a2a``); or that among neighbours, as many as heads can be split
over, while keys and values go round among ranks of like heads (USP, arXiv 2405.07719; Megatron-LM's ``a2a+p2p``)."""

OFFLOAD = "offload"
"""What a layer does that recomputes nothing and does not keep its activations on the device either: they go to the host behind
its forward pass and come back before its backward pass."""

OFFLOADS = ("none", "optimizer")
"""What lies on the host: nothing, or the optimizer's state, with which the host updates the weights (ZeRO-Offload;
Megatron-LM's ``--optimizer-cpu-offload``)."""

ON_HOST = (*OFFLOADS, "activations")
"""What may be asked for: `OFFLOADS`, and activations, of the layers whose word is `OFFLOAD` (Megatron-LM's
``--cpu-offloading-num-layers``)."""


def is_recompute(word: object) -> bool:
    """Return whether a word says what a layer recomputes: one of `RECOMPUTE`, `ALTERNATE`, `OFFLOAD`, or `MODULES` joined by
    ``+``.
    """
    if not isinstance(word, str):
        return False
    parts = word.split("+")
    return word in (*RECOMPUTE, ALTERNATE, OFFLOAD) or (set(parts) <= set(MODULES) and parts == sorted(set(parts)))


def repeats_dispatch(word: str) -> bool:
    """Return whether what a layer recomputes contains the all-to-alls of its experts, which no pair of tasks does."""
    return bool({"full", ALTERNATE, "moe"} & set(word.split("+")))


@dataclass(frozen=True, slots=True)
class Strategy:
    """Degrees of one stage's device mesh.

    Parameters
    ----------
    data, tensor, context, expert : int
        Degrees, each at least 1. A stage has ``data * context * tensor`` devices; experts are spread over ``expert`` of the
        ``data * context`` ranks, or, where it does not divide that product but all devices of the stage, over those: see
        `folded`.
    sequence_parallel : bool
        Whether norms and residuals are split along the sequence over the tensor axis.
    shard : int
        What the data axis shards: 0 nothing (DDP), 1 optimizer state (ZeRO-1), 2 also gradients (ZeRO-2), 3 also weights
        (ZeRO-3, FSDP).
    shard_degree : int
        Over how many of the data ranks it is sharded (HSDP when smaller than ``data``); 0 means all of them.
    context_exchange : str
        One of `CONTEXT_EXCHANGES`; ``ring`` where the context degree is 1 and nothing is exchanged.
    offload : str
        One of `OFFLOADS`; whose activations are there is told layer by layer (`Stage.recompute`).

    Notes
    -----
    PyTorch calls a split of a tensor *placement*; here that is *sharding*, and placement is which device a stage sits on.
    """

    data: int = 1
    tensor: int = 1
    context: int = 1
    expert: int = 1
    sequence_parallel: bool = False
    shard: int = 0
    shard_degree: int = 0
    context_exchange: str = "ring"
    offload: str = "none"

    def __repr__(self) -> str:
        """Return how it is built; a ring and nothing on the host, as in plans from before there was else, are not told."""
        usual = {"context_exchange": "ring", "offload": "none"}
        told = [one.name for one in fields(self) if usual.get(one.name) != getattr(self, one.name)]
        return f"Strategy({', '.join(f'{name}={getattr(self, name)!r}' for name in told)})"

    @property
    def n_devices(self) -> int:
        """Number of devices of the stage."""
        return self.data * self.context * self.tensor

    def head_ranks(self, graph: Graph) -> int:
        """Return over how many neighbours of the context axis attention is split by heads; all others split it by queries.

        Parameters
        ----------
        graph : Graph
            What is computed; all of its attention is split alike.

        Returns
        -------
        int
            All of the axis by ``all_to_all``; by ``all_to_all+ring`` the largest divisor of its degree that leaves every
            device whole heads of queries and of keys; else 1.
        """
        if self.context_exchange != "all_to_all+ring":
            return self.context if self.context_exchange == "all_to_all" else 1
        cores = [
            one for i, op in enumerate(graph.ops) if not 0 <= op.like < i
            for one in op.body if one.kind in ("attention", "causal_attention")
        ]  # fmt: skip
        heads = math.gcd(*(size for one in cores for size in (one.size("heads"), one.size("kv_heads", one.size("heads")))))
        return math.gcd(self.context, heads // self.tensor) if heads % self.tensor == 0 else 1

    @property
    def folded(self) -> bool:
        """Whether experts are spread over the tensor axis too,
        each whole on its device (Megatron's expert tensor degree of 1).
        """
        return (self.data * self.context) % self.expert != 0
