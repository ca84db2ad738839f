"""What Megatron-LM asks of the environment, first of ``CUDA_DEVICE_MAX_CONNECTIONS``: in how many queues a device takes work.

References
----------
.. [1] Megatron-LM, megatron/training/arguments.py: validate_args; megatron/core/parallel_state.py: the backend UCC (2026);
   megatron/core/models/common/language_module/language_module.py: _set_attention_backend.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from meshwright.core.problem import Problem
from meshwright.core.run_config import RunConfig

__all__ = ["QUEUES", "on_devices", "slowed", "wrong"]

QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"

_BEFORE_BLACKWELL = re.compile(r"(GH|H|A|V|L|T|P)\d+\w*(-.*)?")
"""Names of devices whose compute capability is below 10."""
_BLACKWELL = re.compile(r"G?B\d+(-.*)?")


_KERNELS: Mapping[str, str] = MappingProxyType(
    {"auto": "111", "flash": "100", "fused": "010", "unfused": "001", "local": "000"}
)
"""What each ``--attention-backend`` asks of the variables of `_SWITCHES`."""
_SWITCHES = ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN", "NVTE_UNFUSED_ATTN")
_SLOWED: Mapping[str, str] = MappingProxyType({
    "CUDA_LAUNCH_BLOCKING": "kernels are priced as launched ahead", "NCCL_IB_DISABLE": "hosts are priced with their adapters",
    "NCCL_P2P_DISABLE": "devices are priced as reaching each other",
    "NCCL_SHM_DISABLE": "devices are priced as reaching each other",
    "NCCL_MAX_NCHANNELS": "collectives are priced with the channels that NCCL chooses",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "memory is priced as cached, not allocated anew each time",
})  # fmt: skip
"""Variables that change what a step takes where they are 1, and how it is priced."""

_CHOSEN: Mapping[str, str] = MappingProxyType({
    "NCCL_ALGO": "collectives are priced by the algorithm that NCCL chooses",
    "NCCL_PROTO": "collectives are priced by the protocol that NCCL chooses",
})  # fmt: skip
"""Variables that choose something whatever their value, and how it is priced."""

_OTHERWISE: Mapping[tuple[str, str], str] = MappingProxyType({
    ("TORCH_DISTRIBUTED_DEBUG", "DETAIL"): "collectives are priced without its checks",
    ("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "0"): "attention is priced as not deterministic",
})  # fmt: skip
"""The same of one value."""


def slowed(environment: Mapping[str, tuple[str, int]]) -> Iterator[tuple[int, str]]:
    """Yield what of the environment is priced otherwise: a line, and a sentence without a full stop."""
    for name, what in _SLOWED.items():
        value, line = environment.get(name, ("", 0))
        if value == "1":
            yield line, f"{name} is 1; {what}"
    for name, what in _CHOSEN.items():
        value, line = environment.get(name, ("", 0))
        if value:
            yield line, f"{name} is {value}; {what}"
    for (name, wanted), what in _OTHERWISE.items():
        value, line = environment.get(name, ("", 0))
        if value == wanted:
            yield line, f"{name} is {value}; {what}"


def wrong(options: Mapping[str, tuple[str, ...]], environment: Mapping[str, tuple[str, int]]) -> Iterator[tuple[int, str]]:
    """Yield what stops Megatron-LM on every device: a line, and what is wrong there."""
    backend = " ".join(options.get("--attention-backend", ("auto",)))
    for name, asked in zip(_SWITCHES, _KERNELS.get(backend, ""), strict=False):
        value, line = environment.get(name, ("", 0))
        if value in ("0", "1") and value != asked:
            yield line, f"{name} is {value}; with --attention-backend {backend} Megatron-LM stops: say the backend, not {name}"
    value, line = environment.get(QUEUES, ("", 0))
    if value != "1":
        return
    if "--use-megatron-fsdp" in options:
        yield line, f"{QUEUES} is 1 beside --use-megatron-fsdp: Megatron-LM asks for more than 1, or none; leave it out"
    if options.get("--pipeline-model-parallel-comm-backend") == ("ucc",):
        yield line, f"{QUEUES} is 1 beside --pipeline-model-parallel-comm-backend ucc, which asks for more than 1; leave it out"


def on_devices(said: RunConfig, problem: Problem, path: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what Megatron-LM refuses, and what is to be said, of a run on the devices that it has.

    `path`: the file that was read, for messages.
    """
    one = said.plan.stages[0].strategy
    names = [] if problem.cluster is None else [kind.name for kind in problem.cluster.kinds]
    if one.tensor * one.context == 1 or all(_BLACKWELL.fullmatch(name) for name in names):
        return (), ()
    axis = "tensor" if one.tensor > 1 else "context"
    value, line = said.environment.get(QUEUES, ("", 0))
    place = f"{path}: line {line}: " if line else f"{path}: "
    own = f"{QUEUES} is {value or 'taken out'}" if line else f"{QUEUES} is not set in it"
    if one.shard >= 2:
        return (), (
            f"{place}{own}: before Blackwell a {axis} axis is quickest with 1, and Megatron's FSDP asks for more, or none",
        )
    if said.plan.schedule == "combined_1f1b":
        what = f"a {axis} axis is quickest with 1, exchanges of experts beside computing with 32"
        return (), (f"{place}{own}: before Blackwell {what}",)
    if value == "1":
        return (), ()
    reason = f"beside a {axis} axis Megatron-LM stops before Blackwell unless it is 1"
    if line and all(_BEFORE_BLACKWELL.fullmatch(name) for name in names):
        return (f"{place}{own}; {reason}",), ()
    return (), (f"{place}{own}; {reason}",)
