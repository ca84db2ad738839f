"""What a training pass does beside its result, looked at before the first step: what a plan cannot bear is refused, what makes
it another training than in one process is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from meshwright.base.errors import InputError
from meshwright.core.plan import Plan
from meshwright.core.strategy import Strategy
from meshwright.runtime.model import meta
from meshwright.runtime.model.as_given import RandomState, evaluating, modes_note, modules_of, untouched
from meshwright.runtime.model.data import Sample, repeated
from meshwright.runtime.step.split_backward import is_hooked

__all__ = ["effects_of"]

_ROUNDING_RATIO = 1e-3
"""Of the largest value: more than products of another number of rows differ by, less than what other rows do."""

_BATCH_NORM = nn.modules.batchnorm._BatchNorm


@dataclass(frozen=True, slots=True)
class _Layer:
    """A layer where the plan puts it.

    `name`: for messages. `unit`: whole. `recompute`: one of `meshwright.core.strategy.RECOMPUTE`.
    `strategy`: of its stage.
    """

    name: str
    unit: nn.Module
    recompute: str
    strategy: Strategy

    @property
    def rows_apart(self) -> str:
        """How ranks come to run it on unlike rows or tokens; empty where they do not."""
        kinds = {"data": self.strategy.data > 1, "context": self.strategy.context > 1}
        return next((f"{kind} degree" for kind, there in kinds.items() if there), "") or (
            "sequence parallelism" if self.strategy.sequence_parallel and self.strategy.tensor > 1 else ""
        )

    @property
    def other_weights(self) -> str:
        """How ranks come to hold its weights as other tensors than the model's; empty where they do not."""
        part, sharded = self.strategy, self.strategy.shard == 3 and self.strategy.data > 1
        kinds = {"tensor degree": part.tensor > 1, "expert degree": part.expert > 1, "shard 3": sharded}
        return next((kind for kind, there in kinds.items() if there), "")


@dataclass(frozen=True, slots=True)
class _Pass:
    """What a training pass of a layer left behind.

    `buffers`: that it changed. `attributes`, `weights`: that change again with every pass.
    `drew`: whether it drew random numbers. `alike`: whether a second one on the same rows, and numbers, gave the same.
    `mixes`: whether what it gives for a row goes by the other rows of the batch.
    """

    buffers: tuple[str, ...]
    attributes: tuple[str, ...]
    weights: tuple[str, ...]
    drew: bool
    alike: bool
    mixes: bool


def effects_of(
    model: nn.Module, units: Sequence[nn.Module], names: Sequence[str], plan: Plan, sample: Sample, place: str
) -> list[str]:
    """Return sentences about what makes training another one than in one process.

    `model`: whole. `units`, `names`: its layers, and what they are called.
    `sample`: one sample of every input. `place`: what begins messages.
    Raises `InputError` where training would go wrong without a word: tables with norms, frequencies or sparse gradients of
    their own, hooks on weights, weights and attributes that a pass changes, where the plan does not let that work.
    """
    layers = [
        _Layer(names[op], units[op], (stage.recompute or ("none",) * len(stage.ops))[i], stage.strategy)
        for stage in plan.stages
        for i, op in enumerate(stage.ops)
    ]
    paths = modules_of(model)
    for layer in layers:
        _check_sharded(layer, paths, place)
        _check_tables(layer, layers, place)
        _check_hooks(layer, paths, place)
    passes = list(_passes(layers, paths, sample, place))
    for layer, seen in zip(layers, passes, strict=True):
        _check_pass(layer, seen, place)
    return [*modes_note(model), *_notes(layers, passes, units[-1], plan.n_microbatches)]


def _check_sharded(layer: _Layer, paths: dict[nn.Module, str], place: str) -> None:
    """Refuse weights that `fully_shard` does not take together."""
    if layer.strategy.shard != 3 or layer.strategy.data == 1:
        return
    weights = dict(layer.unit.named_parameters())
    kinds = sorted({str(weight.dtype) for weight in weights.values()})
    odd = next((name for name, weight in weights.items() if not weight.is_contiguous()), "")
    if len(kinds) > 1 or odd:
        what = (
            f"weights of {' and '.join(kinds)}"
            if len(kinds) > 1
            else f"a weight that is no contiguous one ('{_full_name(paths, layer.unit, odd)}')"
        )
        raise InputError(
            f"{place}: layer '{layer.name}' has {what}, which shard 3 (FSDP2) does not take; make them of one type and "
            "contiguous, or plan with --set shard=0,1,2"
        )


def _check_tables(layer: _Layer, layers: Sequence[_Layer], place: str) -> None:
    """Refuse tables whose lookups do more than look up, where ranks look up unlike words."""
    for part in layer.unit.modules():
        if not isinstance(part, (nn.Embedding, nn.EmbeddingBag)):
            continue
        if part.sparse:
            raise InputError(
                f"{place}: a table of layer '{layer.name}' has sparse gradients (sparse=True), which are not added up over "
                "micro-batches and ranks here; make it with sparse=False"
            )
        apart = layer.rows_apart or layer.other_weights
        if part.max_norm is None and not part.scale_grad_by_freq:
            continue
        what = "max_norm" if part.max_norm is not None else "scale_grad_by_freq"
        if not apart and part.max_norm is not None and _is_elsewhere(part.weight, layer, layers):
            apart = "weights shared with another layer"
        if apart:
            raise InputError(
                f"{place}: a table of layer '{layer.name}' has {what}, which goes by the words of a whole step, and with "
                f"{apart} a rank looks up some of them, or holds the table otherwise; leave {what} out, or plan with --set "
                "data=1,tensor=1,context=1"
            )


def _is_elsewhere(weight: torch.Tensor, layer: _Layer, layers: Iterable[_Layer]) -> bool:
    return any(own is weight for other in layers if other is not layer for own in other.unit.parameters())


def _check_hooks(layer: _Layer, paths: dict[nn.Module, str], place: str) -> None:
    """Refuse hooks on weights that ranks hold as other tensors, which have none."""
    for part in layer.unit.modules():
        for name, weight in part._parameters.items():
            if not is_hooked(weight):
                continue
            full = f"{paths.get(part, layer.name)}.{name}"
            help_ = "hook its module (register_full_backward_hook), or plan with --set shard=0,tensor=1,expert=1"
            why = layer.other_weights or ("weights on the meta device" if weight is not None and weight.is_meta else "")
            if why:
                raise InputError(
                    f"{place}: weight '{full}' has a hook, which is lost with {why}: ranks hold another tensor in its place; "
                    f"{help_}"
                )
            if getattr(weight, "_post_accumulate_grad_hooks", None) and layer.strategy.shard == 2 and layer.strategy.data > 1:
                raise InputError(
                    f"{place}: weight '{full}' has a hook for accumulated gradients, which shard 2 sends away after every "
                    f"micro-batch; {help_}"
                )


@torch.no_grad()
def _passes(layers: Sequence[_Layer], paths: dict[nn.Module, str], sample: Sample, place: str) -> Iterator[_Pass]:
    """Send some rows through the layers in training mode, through each twice, and yield what each left behind."""
    carried: Any = repeated(sample)
    for layer in layers:
        unit = layer.unit
        with untouched(unit) as first:
            numbers = RandomState()
            with meta.filled(unit):
                result = unit(*_fresh(carried))
                kept = _fresh(result)
                numbers.restore()
                with untouched(unit, weights=True) as second:
                    again = unit(*_fresh(carried))
        buffers, attributes, weights = (
            tuple(_full_name(paths, unit, name) for name in sorted(names))
            for names in (first.buffers, second.attributes, second.weights)
        )
        alike = all(_equal(one, other) for one, other in zip(kept, again, strict=True))
        steady = alike and not second.drew and not (buffers or attributes)
        yield _Pass(
            buffers,
            attributes,
            weights,
            second.drew,
            alike,
            steady and _mixes(unit, carried),
        )
        if getattr(unit, "calm", None) is not None:
            _check_shapes(layer, kept, carried, place)
        carried = kept


def _check_shapes(layer: _Layer, trained: Sequence[Any], carried: Sequence[Any], place: str) -> None:
    """Refuse a layer that hands on other shapes in evaluation."""
    with evaluating(layer.unit), meta.filled(layer.unit):
        calm = layer.unit(*_fresh(carried))
    if [_kind(value) for value in trained] != [_kind(value) for value in calm]:
        raise InputError(
            f"{place}: layer '{layer.name}' hands on other shapes in training than in evaluation (if self.training), and "
            "stages exchange what has one shape; hand on the same"
        )


def _kind(value: Any) -> Any:
    return (value.shape, value.dtype) if isinstance(value, torch.Tensor) else type(value)


def _full_name(paths: dict[nn.Module, str], unit: nn.Module, name: str) -> str:
    """Return the name in the model of what a module of a layer has; that in the layer where the model's own is not run."""
    path, _, attribute = name.rpartition(".")
    return f"{paths.get(unit.get_submodule(path), path)}.{attribute}".lstrip(".")


def _mixes(unit: nn.Module, carried: Sequence[Any]) -> bool:
    """Return whether a layer, which gives the same when it runs again, gives something else for rows of a batch where the last
    one is missing; False where it does not run on fewer rows.
    """
    n_rows = next((len(value) for value in carried if isinstance(value, torch.Tensor) and value.dim()), 0)
    if n_rows < 2:
        return False

    def by_rows(value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.dim() > 0 and len(value) == n_rows

    generator = torch.Generator().manual_seed(0)
    unlike = [
        value + torch.randn(value.shape, generator=generator).to(value)
        if by_rows(value) and value.is_floating_point()
        else value
        for value in carried
    ]
    try:
        found = []
        for n in (n_rows, n_rows - 1):
            with untouched(unit), meta.filled(unit):
                found.append(unit(*_fresh(value[:n] if by_rows(value) else value for value in unlike)))
    except (RuntimeError, ValueError, IndexError, TypeError):
        return False
    pairs = zip(*found, strict=True)
    return any(by_rows(whole) and _far_apart(whole[: n_rows - 1], part) for whole, part in pairs)


def _far_apart(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two results differ by more than another order of sums makes them; of short types that cannot be said."""
    if one.shape != other.shape or one.dtype not in (torch.float32, torch.float64):
        return False
    return bool((one - other).abs().max() > _ROUNDING_RATIO * one.abs().max())


def _fresh(values: Iterable[Any]) -> list[Any]:
    return [value.clone() if isinstance(value, torch.Tensor) else value for value in values]


def _equal(one: Any, other: Any) -> bool:
    """Whether what two passes gave is the same but for the order of sums."""
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return True
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-4, atol=1e-6, equal_nan=True)


def _check_pass(layer: _Layer, seen: _Pass, place: str) -> None:
    """Refuse what recomputation, or ranks with unlike rows, would make another training."""
    told = f"{place}: layer '{layer.name}'"
    if seen.weights:
        raise InputError(
            f"{told} changes its weight '{seen.weights[0]}' as it runs, which replicas, micro-batches and the optimizer do not "
            "follow; make it a buffer, or change it after the step"
        )
    if layer.recompute == "none":
        return
    help_ = "make it a buffer, or plan with --set recompute=none"
    if seen.attributes:
        raise InputError(
            f"{told} changes its attribute '{seen.attributes[0]}' in every pass, and recompute {layer.recompute} runs it "
            f"twice; {help_}"
        )
    if not seen.alike and not seen.buffers:
        raise InputError(
            f"{told} gives something else when it runs again on the same rows with the same random numbers, and recompute "
            f"{layer.recompute} runs it twice; what it goes by: {help_}"
        )


def _notes(layers: Sequence[_Layer], passes: Sequence[_Pass], last: nn.Module, n_microbatches: int) -> list[str]:
    """Return sentences about random numbers, losses of routers, and what replicas keep apart."""
    found = []
    if any(seen.drew for seen in passes):
        found.append(
            "the model draws random numbers when it trains, as for dropout: processes draw them for other rows and layers than "
            "one process does, so losses differ from its"
        )
    routing: Any = getattr(last, "routing", None)
    if routing is not None:
        found.append(
            f"the loss of the model's routers (output_router_logits), times {routing.coefficient_ratio:g}, is added to that of "
            "every micro-batch"
        )
    norms = apart = False
    kept: list[str] = []
    mixing: list[str] = []
    for layer, seen in zip(layers, passes, strict=True):
        normed = any(isinstance(part, _BATCH_NORM) and part.training for part in layer.unit.modules())
        if seen.mixes and not normed and (n_microbatches > 1 or layer.strategy.data > 1):
            mixing.append(layer.name)
        if not layer.rows_apart:
            continue
        modules = [part for part in layer.unit.modules() if isinstance(part, _BATCH_NORM) and part.training]
        norms = norms or bool(modules)
        own = tuple(f".{name}" for name in ("running_mean", "running_var", "num_batches_tracked"))
        kept += [name for name in seen.buffers if not (modules and name.endswith(own))]
        kept += seen.attributes
        apart = apart or any(is_hooked(weight) for weight in layer.unit.parameters())
    if norms:
        found.append("the model has batch norms: every replica takes the statistics of its own rows, so losses differ a little")
    if mixing:
        found.append(
            f"what layer '{mixing[0]}' gives for a sample goes by the others of its batch: every replica and micro-batch has "
            "its own rows alone, so losses differ from those of the whole batch"
        )
    if kept:
        more = f" and {len(kept) - 3} more" if len(kept) > 3 else ""
        found.append(
            f"a training pass changes {', '.join(kept[:3])}{more}: every replica keeps its own; state_dict and checkpoints "
            "have the first one's buffers"
        )
    if apart:
        found.append(
            "hooks on weights are called in every replica, with the gradient of its own rows of one micro-batch, before sums"
        )
    return found
