"""Models whose forward cannot be traced, but which run a list of layers one after the other:
cut by watching one sample pass.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from meshwright.base.errors import InputError
from meshwright.runtime.model.as_given import evaluating, untouched
from meshwright.runtime.model.data import Sample, repeated
from meshwright.runtime.model.naming import first_tensor
from meshwright.runtime.model.stand_ins import Blank, Ending, Keep, Pass, Stopped
from meshwright.runtime.model.tracing import autocast_state

__all__ = ["cut", "fits"]

_Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]

_MORE_SAMPLES = 4
"""Samples watched besides the one given."""


def fits(paths: Sequence[str]) -> bool:
    """Whether all layers between first and last are members of one list."""
    return len(paths) > 2 and all(paths[1:-1]) and len({path.rpartition(".")[0] for path in paths[1:-1]}) == 1


def cut(model: nn.Module, paths: Sequence[str], sample: Sample) -> list[nn.Module]:
    """Return one module per layer: what runs before the list, its layers, what runs after it.

    `paths`: paths of the plan's layers; `fits` them.
    `sample`: one sample of every input: those after the first are handed on from layer to layer, and layers may be handed
    what the model makes of them alone (masks).
    Raises `InputError` when layers get other tensors than these and the one that the layer before returns, or do not run once
    each, in order.
    """
    layers = paths[1:-1]
    others = _samples(model, sample)  # a forward that goes by values shows it on some sample, and is refused
    watched = [_watch(model, layers, other) for other in others]
    _watch(model, layers, repeated(sample), evaluated=False)  # for what it does if self.training, and around layers
    seen = _watch(model, layers, sample)
    first = _part(model, {**_unused(model, seen.before), **dict.fromkeys(layers, Ending)})
    blanks = {path: Blank(model.get_submodule(path), shape) for path, shape in seen.made.items()}
    handed = None
    if any(_holds_tensors(one.handed) for one in (seen, *watched)):
        shell = _part(model, {**_unused(model, seen.before), **blanks, **dict.fromkeys(layers, Keep)})
        handed = _Handed(copy.deepcopy(shell), layers, sample[0], seen.tuples)
        _check_handed(model, handed, [(seen, sample), *zip(watched, others, strict=True)])
    blanks = {path: Blank(model.get_submodule(path), shape) for path, shape in seen.made.items()}
    last = _part(model, {**_unused(model, seen.after), **blanks, **dict.fromkeys(paths[1:-1], Pass)})
    last.get_submodule(paths[-2]).__dict__["gives"] = True
    parts = [_Layer(model.get_submodule(path), path, seen.handed[path], handed) for path in layers]
    units = [_First(first), *parts, _Last(last, sample[0], {path: seen.tuples[path] for path in layers})]
    _check_runs(model, units, sample)
    return units


def _check_runs(model: nn.Module, units: Sequence[nn.Module], sample: Sample) -> None:
    """Refuse a model whose parts do not run.

    Raises `InputError`.
    """
    carried: tuple[Any, ...] = sample
    with torch.no_grad(), evaluating(model, *units), _refused(model):
        for unit in units:
            carried = unit(*carried)


@contextmanager
def _refused(model: nn.Module) -> Iterator[None]:
    """Tell what stops a part of a model: it needs more of its layers than the tensor that each hands to the next."""
    try:
        yield
    except InputError:
        raise
    except (AttributeError, LookupError, TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"{type(model).__name__}: needs more of its layers than the tensor that each returns ({type(error).__name__}: "
            f"{error}); it cannot be cut between its layers"
        ) from error


def _samples(model: nn.Module, sample: Sample) -> list[Sample]:
    """Return a few more samples of the same shapes; of inputs after the first, those of whole numbers are ones and zeros, as
    masks are.
    """
    generator = torch.Generator().manual_seed(0)

    def drawn(value: torch.Tensor) -> torch.Tensor:
        if value.is_floating_point():
            return value
        found = torch.randint(2, value.shape, generator=generator).to(value)
        found.reshape(len(found), -1)[:, 0] = 1  # who sees nothing is no number
        return found

    return [(other, *map(drawn, sample[1:])) for other in _others(model, sample[0])]


def _holds_tensors(value: Any) -> bool:
    return any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(value))


def _check_handed(model: nn.Module, handed: _Handed, watched: Sequence[tuple[_Seen, Sample]]) -> None:
    """Refuse layers that are handed tensors which the model makes of more than its inputs after the first.

    Raises `InputError`.
    """
    for seen, sample in watched:
        with _refused(model):
            again = handed.of(sample[1:], seen.entering[0])
        for path, found in seen.handed.items():
            pairs = zip(tree_leaves(found), tree_leaves(again[path]), strict=False)
            if len(tree_leaves(found)) != len(tree_leaves(again[path])) or not all(_same(a, b) for a, b in pairs):
                raise InputError(
                    f"{type(model).__name__}: hands '{path}' more tensors than the one of the layer before, which it does not "
                    "make of its further inputs alone; it cannot be cut between its layers"
                )


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return (one.shape, one.device) == (other.shape, other.device) and bool((one == other).all())
    return type(one) is type(other) and not isinstance(one, torch.Tensor)


def _others(model: nn.Module, row: torch.Tensor) -> list[torch.Tensor]:
    """Return a few more samples of the same shape."""
    generator = torch.Generator().manual_seed(0)
    if row.is_floating_point():
        return [torch.randn(row.shape, generator=generator).to(row) for _ in range(_MORE_SAMPLES)]
    words = next((module.num_embeddings for module in model.modules() if isinstance(module, nn.Embedding)), 2)
    return [torch.randint(words, row.shape, generator=generator).to(row) for _ in range(_MORE_SAMPLES)]


class _Seen:
    """What was seen while a sample of so many inputs passed: modules run before and after the layers, and what these got."""

    def __init__(self, n_inputs: int) -> None:
        self.n_inputs = n_inputs
        self.before: set[str] = set()
        self.after: set[str] = set()
        self.made: dict[str, tuple[int, ...]] = {}
        self.handed: dict[str, _Arguments] = {}
        self.tuples: dict[str, int] = {}
        self.carried: list[Any] = []
        self.entering: list[torch.Tensor] = []
        self.around: tuple[Any, ...] = ()


def _watch(model: nn.Module, layers: Sequence[str], sample: Sample, *, evaluated: bool = True) -> _Seen:
    """Send a sample through the model and return what happens around its layers."""
    seen, order = _Seen(len(sample)), list(layers)

    handles = []
    for path, module in model.named_modules():
        if path:
            handles.append(module.register_forward_pre_hook(_entering(model, path, order, seen), with_kwargs=True))
            handles.append(module.register_forward_hook(_leaving(path, order, seen)))
    try:
        with torch.set_grad_enabled(not evaluated), evaluating(model) if evaluated else untouched(model):
            seen.around = (torch.is_grad_enabled(), autocast_state())
            model(*sample)
    finally:
        for handle in handles:
            handle.remove()
    if list(seen.handed) != order:
        raise InputError(
            f"{type(model).__name__}: does not run its layers {order[0]} to {order[-1]} once each, so it cannot be cut between "
            "its layers"
        )
    holders = {".".join(order[0].split(".")[:i]) for i in range(1, order[0].count(".") + 1)}
    seen.before.update(holders)
    seen.after.update(holders)
    return seen


def _entering(model: nn.Module, path: str, order: Sequence[str], seen: _Seen) -> Any:
    """Return a hook for the beginning of a module."""
    inside = any(path.startswith(f"{layer}.") for layer in order)

    def hook(_: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        expected = order[len(seen.handed)] if len(seen.handed) < len(order) else ""
        if path in order:
            _check(model, path, expected, arguments, named, seen)
            seen.entering.append(arguments[0].detach())
            seen.handed[path] = (arguments[1:], named)
        elif not inside:
            (seen.before if expected else seen.after).add(path)

    return hook


def _leaving(path: str, order: Sequence[str], seen: _Seen) -> Any:
    """Return a hook for the end of a module."""

    def hook(_: nn.Module, __: Any, output: Any) -> None:
        if path in order:
            seen.tuples[path] = len(output) if isinstance(output, tuple) else 0
            seen.carried[:] = [output[0] if isinstance(output, tuple) else output]
        elif not seen.handed and isinstance(output, torch.Tensor):
            for inner in [other for other in seen.made if other.startswith(f"{path}.")]:
                del seen.made[inner]
            seen.made[path] = tuple(output.shape[1:])

    return hook


def _check(model: nn.Module, path: str, expected: str, arguments: tuple[Any, ...], named: dict[str, Any], seen: _Seen) -> None:
    """Refuse layers that are not run as one list."""
    if path != expected or not arguments or not isinstance(arguments[0], torch.Tensor):
        raise InputError(
            f"{type(model).__name__}: runs '{path}' where '{expected}' was expected, or without a tensor; it cannot be cut "
            "between its layers"
        )
    if seen.carried and seen.carried[0] is not arguments[0]:
        raise InputError(
            f"{type(model).__name__}: computes something before '{path}' that belongs to no layer; it cannot be cut between "
            "its layers"
        )
    if (torch.is_grad_enabled(), autocast_state()) != seen.around:
        raise InputError(
            f"{type(model).__name__}: runs '{path}' without gradients, or under autocast; do that inside its layers, or plan "
            "with a single stage of one layer"
        )
    if seen.n_inputs == 1 and _holds_tensors((arguments[1:], named)):
        raise InputError(
            f"{type(model).__name__}: hands '{path}' more tensors than the one of the layer before; it cannot be cut between "
            "its layers"
        )


def _unused(model: nn.Module, used: set[str]) -> dict[str, Any]:
    """Return stand-ins for modules with weights that a part does not run."""
    found: dict[str, Any] = {}
    for path, module in model.named_modules():
        inside = any(path.startswith(f"{other}.") for other in found)
        needed = path in used or any(other.startswith(f"{path}.") for other in used)
        if (
            path
            and not inside
            and not needed
            and any(True for _ in module.parameters())
            and not isinstance(module, nn.ModuleList)
        ):
            found[path] = Pass
    return found


def _part(model: nn.Module, replaced: dict[str, Any]) -> nn.Module:
    """Return a copy of the model that shares its weights, with some modules replaced."""
    part = _twin(model)
    for path, stand_in in replaced.items():
        holder, _, name = path.rpartition(".")
        module = part.get_submodule(holder) if holder else part
        module._modules[name] = stand_in(model.get_submodule(path)) if isinstance(stand_in, type) else stand_in
    return part


def _twin(module: nn.Module) -> nn.Module:
    twin = copy.copy(module)
    twin.__dict__["_parameters"], twin.__dict__["_buffers"] = dict(module._parameters), dict(module._buffers)
    twin.__dict__["_modules"] = {name: child if child is None else _twin(child) for name, child in module._modules.items()}
    return twin


class _First(nn.Module):
    """From the sample to the input of the first layer."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return what reaches the first layer, and the further inputs."""
        try:
            self.model(*inputs)
        except Stopped as stopped:
            return (stopped.hidden, *inputs[1:])
        raise InputError("the model runs none of its layers")


class _Handed:
    """What a model hands its layers besides the tensor, made of its inputs after the first; of the last ones it is known.

    `shell`: the model without what has weights; its own. `layers`: paths. `row`: one sample of the first input.
    `tuples`: by path, of how many values a layer returns a tuple.
    """

    def __init__(self, shell: nn.Module, layers: Sequence[str], row: torch.Tensor, tuples: dict[str, int]) -> None:
        self.shell, self.kept = shell, {path: shell.get_submodule(path) for path in layers}
        for path, layer in self.kept.items():
            layer.__dict__["n_values"], layer.__dict__["ends"] = tuples[path], path == layers[-1]
        self.blanks = [module for module in shell.modules() if isinstance(module, Blank)]
        self.sizes, self.kind = tuple(row.shape[1:]), row.dtype
        self.key: tuple[Any, ...] = ()
        self.inputs: tuple[torch.Tensor, ...] = ()
        self.known: dict[str, _Arguments] = {}

    def of(self, inputs: tuple[torch.Tensor, ...], hidden: torch.Tensor) -> dict[str, _Arguments]:
        """Return what every layer is handed, by its path; `hidden`: tells the number of samples, and where they are."""
        key = (len(hidden), hidden.dtype, hidden.device, *map(id, inputs))
        if key != self.key:
            with torch.no_grad(), _disable_current_modes(), suppress(Stopped):  # modes: see `causal_lm._Context`
                like = hidden.new_zeros(len(hidden))
                for blank in self.blanks:
                    blank.__dict__["like"] = like
                first = torch.zeros(len(hidden), *self.sizes, dtype=self.kind, device=hidden.device)
                self.shell.to(hidden.device)(first, *inputs)
            self.known = {path: layer.__dict__["kept"] for path, layer in self.kept.items()}
            self.key, self.inputs = key, inputs  # kept, so that no other tensor has their ids
        return self.known


class _Layer(nn.Module):
    """One layer, with what it is handed besides the tensor: always the same, or made of further inputs."""

    def __init__(self, layer: nn.Module, path: str, rest: _Arguments, handed: _Handed | None) -> None:
        super().__init__()
        self.layer, self.path, self.rest = layer, path, rest
        self.handed = (handed,)  # in a tuple, so that its modules are not the layer's

    def forward(self, hidden: torch.Tensor, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the tensor after the layer, and the further inputs."""
        made = self.handed[0]
        rest, named = self.rest if made is None else made.of(inputs, hidden)[self.path]
        output = self.layer(hidden, *rest, **named)
        return (output[0] if isinstance(output, tuple) else output, *inputs)


class _Last(nn.Module):
    """From the output of the last layer to what the model returns."""

    def __init__(self, model: nn.Module, row: torch.Tensor, tuples: dict[str, int]) -> None:
        super().__init__()
        self.model, self.sizes, self.kind = model, tuple(row.shape[1:]), row.dtype
        stand_ins = {path: model.get_submodule(path) for path in tuples}
        for path, stand_in in stand_ins.items():
            stand_in.__dict__["n_values"] = tuples[path]
        self.given = (list(stand_ins.values())[-1],)
        self.blanks = tuple(module for module in model.modules() if isinstance(module, Blank))

    def forward(self, hidden: torch.Tensor, *inputs: torch.Tensor) -> tuple[Any]:
        """Return the model's first tensor."""
        for blank in self.blanks:
            blank.__dict__["like"] = hidden
        self.given[0].__dict__["value"] = hidden
        try:
            first = torch.zeros(len(hidden), *self.sizes, dtype=self.kind, device=hidden.device)
            return (first_tensor(self.model(first, *inputs)),)
        finally:
            for stand_in, name in ((self.given[0], "value"), *((blank, "like") for blank in self.blanks)):
                stand_in.__dict__[name] = None
