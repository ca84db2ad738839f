"""State-space scans while a module is traced: one operator each, as the kernels are that programs train them with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from meshwright.runtime.capture.fused.attention import Notebook

__all__ = ["SCANS", "stand_in"]

_CHUNK = 64
_BACKWARD_PASSES = 3.0  # gradients of both factors of every product, and the forward pass once more inside the kernel
_NOTE = (
    "state-space scans are counted as the fused kernels of mamba-ssm and flash-linear-attention, not as PyTorch's own code "
    "would run them: they keep what they read and what they write, and compute the rest again"
)


def stand_in(function: str, recorder: Notebook) -> Callable[..., Any]:
    """Return what is called in the place of a function of `SCANS` while a module is traced.

    Parameters
    ----------
    function : str
        Its name in the file of the model.
    recorder : Notebook
        Where the scan is recorded, as one operator called ``fused_scan``.
    """
    count, like, pair = SCANS[function]

    def scan(*given: Any, **named: Any) -> Any:
        """Record one scan; the result is as large as what is scanned."""
        named = {**dict(zip(_ARGUMENTS[function], given, strict=False)), **named}
        inputs = [value for value in named.values() if isinstance(value, torch.Tensor) and value.is_floating_point()]
        place = next(i for i, value in enumerate(inputs) if value is named[like])
        recorder.notes[_NOTE] = None
        forward = count(named)
        out = recorder.one_operator(
            "fused_scan", lambda: _Scan.apply(place, *inputs), inputs, causal=False,  # type: ignore[no-untyped-call]
            flops=(forward, _BACKWARD_PASSES * forward),
        )  # fmt: skip
        return (out, None) if pair or named.get("return_last_state") or named.get("return_final_states") else out

    return scan


class _Scan(torch.autograd.Function):
    """A scan without values: what goes in and out, and what its kernel keeps."""

    @staticmethod
    def forward(ctx: Any, place: int, *inputs: torch.Tensor) -> Any:  # type: ignore[override]
        """Return a result like the input at `place`; kept are inputs and result."""
        out = torch.empty_like(inputs[place], memory_format=torch.contiguous_format)
        ctx.save_for_backward(*inputs, out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:  # type: ignore[override]
        """Return gradients of the inputs."""
        return (None, *map(torch.empty_like, ctx.saved_tensors[:-1]))


def _selective(named: Mapping[str, Any]) -> float:
    """Products of Mamba's scan: the state is decayed, fed and read, two operations each, for every channel and state."""
    samples, channels, tokens = named["hidden_states"].shape
    return float(6 * samples * tokens * channels * named["A"].shape[-1])


def _by_chunks(named: Mapping[str, Any]) -> float:
    """Products of Mamba-2's scan in chunks: within a chunk as attention does, between chunks through states.

    References
    ----------
    .. [1] Dao and Gu, "Transformers are SSMs", arXiv 2405.21060, section 6.
    """
    samples, tokens, heads, head = named["hidden_states"].shape
    groups, state = named["B"].shape[-2:]
    chunk = min(int(named["chunk_size"]), tokens)
    return float(2 * samples * tokens * (chunk * (state * groups + head * heads) + 2 * state * head * heads))


def _delta_rule(named: Mapping[str, Any]) -> float:
    """Products of a gated delta rule in chunks: three among keys and queries, two on values, three with the state.

    References
    ----------
    .. [1] Yang et al., "Gated Delta Networks", arXiv 2412.06464, section 3.
    """
    samples, tokens, heads, value = named["value"].shape
    key = named["key"].shape[-1]
    chunk = min(int(named.get("chunk_size", _CHUNK)), tokens)
    return float(2 * samples * tokens * heads * (chunk * (3 * key + 2 * value) + 3 * key * value))


SCANS: Mapping[str, tuple[Callable[[Mapping[str, Any]], float], str, bool]] = MappingProxyType({
    "mamba_selective_scan": (_selective, "hidden_states", False),
    "mamba2_chunk_scan": (_by_chunks, "hidden_states", False),
    "torch_chunk_gated_delta_rule": (_delta_rule, "value", True),
    "chunk_kimi_delta_attention": (_delta_rule, "value", True),
})  # fmt: skip
"""Functions of transformers' models that stand for a kernel of mamba-ssm or flash-linear-attention (5.23): how many floating
point operations that kernel does, which argument its result is like, and whether it always returns a state as well."""

_ARGUMENTS: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "mamba_selective_scan": (
        "hidden_states", "dt", "A", "B", "C", "D", "z", "delta_bias", "delta_softplus", "return_last_state",
    ),
    "mamba2_chunk_scan": ("hidden_states", "dt", "A", "B", "C", "chunk_size", "D", "dt_bias", "initial_states"),
    "torch_chunk_gated_delta_rule": ("query", "key", "value", "g", "beta", "chunk_size", "initial_state", "output_final_state"),
    "chunk_kimi_delta_attention": ("query", "key", "value", "g", "beta", "chunk_size", "initial_state", "output_final_state"),
})  # fmt: skip
