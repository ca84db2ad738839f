"""A model's forward as a graph of the layers that a plan names and of what runs between them, traced with ``torch.fx``."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx, nn

from meshwright.base.errors import InputError
from meshwright.runtime.model.as_given import RandomState

__all__ = ["alike", "autocast_state", "traced"]

_PLAIN = (bool, int, float, str)


class _Tracer(fx.Tracer):
    """Looks into the modules that hold a named layer, and into no other."""

    def __init__(self, paths: Sequence[str]) -> None:
        super().__init__()
        self.proxy_buffer_attributes = True  # slices of buffers, as of weights, may depend on sizes of the input
        self.opened = {path[:i] for path in paths for i, letter in enumerate(path) if letter == "."}
        self.outside = (torch.is_grad_enabled(), autocast_state())

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Return whether a module is run as a whole."""
        return module_qualified_name not in self.opened

    def create_node(self, *told: Any, **named: Any) -> fx.Node:
        """Return a node that knows whether it runs without gradients."""
        node = super().create_node(*told, **named)
        node.meta["grad"] = torch.is_grad_enabled() or not self.outside[0]
        node.meta["autocast"] = node.op not in ("placeholder", "output") and autocast_state() != self.outside[1]
        return node


def autocast_state() -> tuple[Any, ...]:
    """Return whether and to which type products are cast, on processors and on GPUs."""
    return tuple((torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda"))


def traced(model: nn.Module, paths: Sequence[str], n_inputs: int) -> tuple[fx.Graph, fx.Graph]:
    """Return a model's graph as it trains and as it is evaluated.

    `paths`: of the layers that stay whole. `n_inputs`: of its arguments are inputs, the rest keep their default values.
    Raises `InputError` when its forward decides by values, or does between layers what one trace does not repeat: draws
    random numbers, counts its passes, switches autocast.
    """
    tracer = _Tracer(paths)
    opened = [part for path, part in model.named_modules() if path in tracer.opened or not path]
    told = f"{type(model).__name__} cannot be cut between its layers: "
    help_ = "; move that into the layers, or plan with a single stage of one layer"
    numbers, before = RandomState(), _plain(opened)
    try:
        graph = _graph(tracer, model, n_inputs)
        drew, once = numbers.restore()[0], _plain(opened)
        _graph(_Tracer(paths), model, n_inputs)
        numbers.restore()
        counted = next((name for name, value in _plain(opened).items() if once.get(name, value) != value), None)
        with _modes(opened):
            calm = _graph(_Tracer(paths), model, n_inputs)
    except Exception as error:
        inside = ", ".join(sorted(tracer.opened)) or "the model itself"
        line = (str(error).splitlines() or [""])[0]
        raise InputError(
            f"{told}its forward (of {inside}) depends on values that are only known while it runs "
            f"({type(error).__name__}: {line}){help_}"
        ) from None
    finally:
        numbers.restore()
        for part, name in _plain(opened).keys() - before.keys():
            delattr(part, name)
        for (part, name), value in before.items():
            setattr(part, name, value)
    if drew:
        raise InputError(f"{told}its forward draws random numbers between them, not by the sizes of its input{help_}")
    if counted is not None:
        raise InputError(f"{told}its forward changes the attribute '{counted[1]}' in every pass{help_}")
    if any(node.meta["autocast"] for node in graph.nodes):
        raise InputError(f"{told}its forward switches autocast between them{help_}")
    return graph, calm


def _graph(tracer: _Tracer, model: nn.Module, n_inputs: int) -> fx.Graph:
    graph = tracer.trace(model, concrete_args=_defaults(model, n_inputs))
    _forget_defaults(graph, n_inputs)
    return graph


def _plain(parts: Sequence[nn.Module]) -> dict[tuple[nn.Module, str], Any]:
    """Return attributes that are numbers or words."""
    found = ((part, name, value) for part in parts for name, value in vars(part).items())
    return {(part, name): value for part, name, value in found if isinstance(value, _PLAIN) and name != "training"}


@contextmanager
def _modes(parts: Sequence[nn.Module]) -> Iterator[None]:
    """Let modules, and not those in them, be in evaluation mode for a while."""
    modes = [part.training for part in parts]
    for part in parts:
        part.training = False
    try:
        yield
    finally:
        for part, mode in zip(parts, modes, strict=True):
            part.training = mode


def _defaults(model: nn.Module, n_inputs: int) -> dict[str, Any]:
    """Return the arguments after the inputs, which keep their default values."""
    parameters = list(inspect.signature(model.forward).parameters.values())[n_inputs:]
    return {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}


def _forget_defaults(graph: fx.Graph, n_inputs: int) -> None:
    """Take the arguments after the inputs out of a graph,
    and what looks whether they still have the values it was traced with.
    """
    fixed = {node for node in graph.nodes if node.op == "placeholder"} - set(list(graph.nodes)[:n_inputs])
    for node in graph.nodes:
        if not fixed.isdisjoint(node.all_input_nodes):
            fixed.add(node)
    for node in reversed(list(graph.nodes)):
        if node in fixed:
            graph.erase_node(node)


def alike(one: fx.Graph, other: fx.Graph, model: nn.Module) -> bool:
    """Whether two graphs run the same; tensors that were made while the model was traced are compared by their values."""

    def said(node: fx.Node) -> tuple[Any, ...]:
        target: Any = node.target
        if node.op == "get_attr" and str(target).startswith("_tensor_constant"):
            value = getattr(model, str(target))
            target = (tuple(value.shape), value.dtype, value.tolist())
        return node.op, target, node.meta.get("grad", True), str(node.args), str(node.kwargs)

    return [said(node) for node in one.nodes] == [said(node) for node in other.nodes]
