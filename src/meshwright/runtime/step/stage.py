"""One stage of a plan as a module: its layers in order, each recomputed in the backward pass as the plan says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import checkpoint

from meshwright.base.errors import InputError
from meshwright.runtime.ranks.random_numbers import LayerNumbers

__all__ = ["StageModule"]


class _Recomputed(nn.Module):
    """A layer that keeps nothing, or only its products, for the backward pass.

    Notes
    -----
    Buffers that a pass changes (statistics of batch norms, moving averages) are changed once for each micro-batch: the second
    pass begins with what they were before the first, and what it makes of them is forgotten. Which ones change is seen in the
    first pass.
    """

    def __init__(self, layer: nn.Module, how: str) -> None:
        super().__init__()
        self.layer, self.how = layer, how
        self.changing: frozenset[tuple[nn.Module, str]] | None = None

    def forward(self, *carried: torch.Tensor) -> Any:
        """Run the layer under a checkpoint."""
        if not torch.is_grad_enabled():
            return self.layer(*carried)
        contexts: dict[str, Any] = {}
        if self.how == "selective":
            contexts["context_fn"] = _keep_products
        before = _values(self.layer, self.changing)
        again = _Again(self.layer, before)
        versions = _versions(self.layer)
        result = checkpoint.checkpoint(again, *carried, use_reentrant=False, **contexts)
        changed = {place for place, was in versions.items() if was != _version(*place)}
        if self.changing is None:
            changed |= {place for place, value in before.items() if not torch.equal(value, _buffer(*place))}
            self.changing = frozenset(changed)
            again.keep(self.changing)
        elif changed - self.changing:
            raise InputError(
                f"buffer '{next(iter(changed - self.changing))[1]}' of a {type(self.layer).__name__} changes in some passes "
                "only, and it is recomputed; plan with --set recompute=none"
            )
        return result


class _Again:
    """A layer that runs once as it is, and then with the buffers that it had.

    `layer`: the layer.
    `before`: values of its buffers.
    """

    def __init__(self, layer: nn.Module, before: dict[tuple[nn.Module, str], torch.Tensor]) -> None:
        self.layer, self.before, self.ran = layer, before, False

    def keep(self, places: Iterable[tuple[nn.Module, str]]) -> None:
        """Forget the values of other buffers."""
        self.before = {place: self.before[place] for place in places}

    def __call__(self, *carried: torch.Tensor) -> Any:
        """Return what the layer gives."""
        if not self.ran:
            self.ran = True
            return self.layer(*carried)
        now = {(part, name): _buffer(part, name) for part, name in self.before}
        for (part, name), value in self.before.items():
            part._buffers[name] = value
        try:
            return self.layer(*carried)
        finally:
            for (part, name), value in now.items():
                part._buffers[name] = value


def _places(layer: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    return ((part, name) for part in layer.modules() for name, buffer in part._buffers.items() if buffer is not None)


def _buffer(part: nn.Module, name: str) -> torch.Tensor:
    found = part._buffers[name]
    assert found is not None
    return found


def _values(layer: nn.Module, places: Iterable[tuple[nn.Module, str]] | None) -> dict[tuple[nn.Module, str], torch.Tensor]:
    """Return copies of buffers, of those at these places or of all; one copy of what stands at several."""
    found = {place: _buffer(*place) for place in (_places(layer) if places is None else places)}
    copies = {id(buffer): buffer.detach().clone() for buffer in found.values()}
    return {place: copies[id(buffer)] for place, buffer in found.items()}


def _version(part: nn.Module, name: str) -> tuple[int, int]:
    """Return what changes when a buffer is replaced or changed in place."""
    buffer = _buffer(part, name)
    return id(buffer), 0 if buffer.is_inference() else buffer._version


def _versions(layer: nn.Module) -> dict[tuple[nn.Module, str], tuple[int, int]]:
    return {place: _version(*place) for place in _places(layer)}


def _keep_products() -> tuple[Any, Any]:
    """Return contexts that keep the results of matrix products of weights and recompute everything else."""
    kept = [torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.linear.default]
    made: tuple[Any, Any] = checkpoint.create_selective_checkpoint_contexts(kept)
    return made


class StageModule(nn.Module):
    """Layers of one stage.

    `layers`: in order; each takes what the one before returns.
    `recompute`: one of `meshwright.core.strategy.RECOMPUTE` for each layer.
    `before`: what is done to hidden states before a layer, by its place, or after the last.
    `own`: by which number every layer begins the random numbers that it draws, see
    `meshwright.runtime.ranks.random_numbers.own_number`; none where those of a layer go on from the one before.
    """

    def __init__(
        self,
        layers: Sequence[nn.Module],
        recompute: Sequence[str],
        before: Mapping[int, Sequence[Callable[..., Any]]],
        own: Sequence[int] = (),
    ) -> None:
        super().__init__()
        how = tuple(recompute) or ("none",) * len(layers)
        self.layers = nn.ModuleList(
            layer if kind == "none" else _Recomputed(layer, kind) for layer, kind in zip(layers, how, strict=True)
        )
        self.before, self.own = before, tuple(own)
        self.numbers: LayerNumbers | None = None

    def forward(self, *carried: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return what the next stage needs."""
        for i, layer in enumerate(self.layers):
            for change in self.before.get(i, ()):
                carried = change(carried)
            if self.numbers is not None and self.own:
                self.numbers.begin(self.own[i])
            carried = layer(*carried)
        for change in self.before.get(len(self.layers), ()):
            carried = change(carried)
        return carried
