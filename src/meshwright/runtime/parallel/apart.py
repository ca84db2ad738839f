"""Whether tokens meet in attention alone, which context parallelism hands all keys, and what samples show of that.

What a layer carries along the sequence otherwise, in a state or a convolution, stops where a rank's part ends. A sample that is
padding for the most part hides that, and so do weights of zero: neither is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.overrides import TorchFunctionMode

from meshwright.runtime.model.meta import copied, fill
from meshwright.runtime.parallel import written_out

__all__ = ["meet_outside_attention", "settings", "unbroken"]

Values = Sequence[torch.Tensor]

_TOLERANCE_RATIO = 1e-5
"""Of the largest output: above the rounding of fp32 where experts have other numbers of tokens."""
_NOISE_RATIO, _LEAST_NOISE = 0.1, 0.05
"""Of the spread of a weight, and at least: so that what is zero at the start carries something."""


def settings(unit: nn.Module, number: int) -> str:
    """Return a text that is the same for layers built alike that also compute alike.

    `number`: of the layer; what is this number, or is called one, is left out.
    """
    own = [
        (name, value)
        for module in unit.modules()
        for name, value in sorted(vars(module).items())
        if _is_plain(value) and not _is_number(name, value, number)
    ]
    nodes = [
        (node.op, str(node.target) if node.op in ("call_function", "call_method") else "", str(_constants(node)))
        for node in getattr(unit, "plan_nodes", ())
    ]
    return f"{own} {nodes}"


def _is_number(name: str, value: object, number: int) -> bool:
    """Whether an attribute says which layer it is of."""
    called = name.endswith(("idx", "index", "number", "layer_id"))
    return isinstance(value, int) and not isinstance(value, bool) and (called or value in (number, number - 1))


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def _constants(node: fx.Node) -> Any:
    """Return what a node is given, but for what other nodes make."""
    return fx.node.map_arg((node.args, node.kwargs), lambda _: None)  # type: ignore[arg-type,return-value]


def unbroken(entering: Values) -> list[Values]:
    """Return what enters a layer as samples without padding and of one piece have it, and as it is.

    Whole numbers may be masks, places in the sequence, numbers of its pieces, or lengths: all tokens are there in one reading,
    and all of one piece in the other.
    """
    length = _length(entering)
    found: list[Values] = []
    for values in (
        [_read(value, length, places=False) for value in entering],
        [_read(value, length, places=True) for value in entering],
        entering,
    ):
        if not any(all(map(torch.equal, values, other)) for other in found):
            found.append(values)
    return found


def _length(entering: Values) -> int:
    """Return how many tokens a sample has: those of the first hidden state."""
    return next((value.shape[1] for value in entering if _is_hidden(value)), 0)


def _is_hidden(value: torch.Tensor) -> bool:
    return value.dim() >= 3 and value.is_floating_point()


def _read(value: torch.Tensor, length: int, *, places: bool) -> torch.Tensor:
    """Return a tensor of whole numbers as a full sample has it; other tensors as they are."""
    if value.is_floating_point() or value.is_complex() or not value.numel() or not value.dim():
        return value
    if value.dim() == 1:
        return torch.full_like(value, length) if value.dtype != torch.bool and int(value.max()) <= length else value
    if places and value.dtype != torch.bool and value.shape[-1] == length and bool(((value != 0) & (value != 1)).any()):
        return torch.arange(length, dtype=value.dtype, device=value.device).expand(value.shape).clone()
    return torch.ones_like(value)


def meet_outside_attention(layer: nn.Module, entering: Values) -> bool:
    """Whether what a layer makes of one half of a sequence hangs on the other half, attention left out.

    `layer`: unchanged.
    `entering`: what it takes; of hidden states the sizes count, not the values.
    """
    generator = torch.Generator().manual_seed(0)
    for noise in (True, False):
        trial = fill(copied(layer)).float().eval().requires_grad_(False)
        written_out.hand_over(trial)
        if noise:
            _stir(trial, generator)
        found = [_differs(trial, entering, late, generator) for late in (True, False)]
        if None not in found:
            return any(found)
    return False  # no value of it is finite: the trial of its parts, which took it as it is, stands


def _stir(layer: nn.Module, generator: torch.Generator) -> None:
    """Change the weights a little."""
    for weight in layer.parameters():
        spread = float(weight.std()) if weight.numel() > 1 else 0.0
        weight.add_(torch.randn(weight.shape, generator=generator) * max(_NOISE_RATIO * spread, _LEAST_NOISE))


def _differs(layer: nn.Module, entering: Values, late: bool, generator: torch.Generator) -> bool | None:
    """Whether half of what a layer gives changes with the other half of what it takes; None where values are not finite."""
    length = _length(entering)
    changed, kept = (slice(length // 2, None), slice(0, length // 2))[:: 1 if late else -1]
    first = [torch.randn(value.shape, generator=generator) if _spans(value, length) else _as_float(value) for value in entering]
    second = [value.clone() for value in first]
    for value in second:
        if _spans(value, length):
            value[:, changed] = 4.0 * torch.randn(value[:, changed].shape, generator=generator)
    given = []
    for values in (first, second):
        with torch.no_grad(), _Severed():
            given.append([value for value in layer(*values) if _spans(value, length)])
    if not all(bool(value.isfinite().all()) for values in given for value in values):
        return None
    pairs = list(zip(*given, strict=True))
    return any(float((a[:, kept] - b[:, kept]).abs().max()) > _TOLERANCE_RATIO * float(a.abs().max()) for a, b in pairs)


def _spans(value: torch.Tensor, length: int) -> bool:
    """Whether a tensor is a hidden state of every token."""
    return _is_hidden(value) and value.shape[1] == length


def _as_float(value: torch.Tensor) -> torch.Tensor:
    return value.detach().float() if value.is_floating_point() else value


class _Severed(TorchFunctionMode):
    """Lets attention make of every token's query, key and value something, and of other tokens' nothing."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of PyTorch."""
        if func is written_out.attend:
            return self._each(*args[1:4]).transpose(1, 2), None
        if func is not nn.functional.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        given = dict(zip(("query", "key", "value"), args, strict=False)) | (kwargs or {})
        return self._each(*(given[name] for name in ("query", "key", "value")))

    def _each(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Return something of every token's own query, key and value."""
        result = query.mean(-1, keepdim=True).expand(*query.shape[:-1], value.shape[-1])
        if key.shape[-2] != query.shape[-2]:
            return result.clone()  # to the tokens of another sequence
        if query.dim() >= 3 and query.shape[-3] != value.shape[-3]:
            value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
            key = key.mean(-3, keepdim=True)
        return result + value + key.mean(-1, keepdim=True)
