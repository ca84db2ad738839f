"""From a model to one module per layer of a plan: `Segment`, which hands on a tuple of tensors."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import fx, nn

from meshwright.base.errors import InputError
from meshwright.runtime.model import causal_lm, seq2seq, stacked
from meshwright.runtime.model.data import Sample
from meshwright.runtime.model.meta import filled_in_turn
from meshwright.runtime.model.naming import first_tensor, resolve
from meshwright.runtime.model.tracing import alike, traced

__all__ = ["Segment", "cut"]


class Segment(nn.Module):
    """The part of a model's forward that one layer of the plan stands for.

    `nodes`: what it runs, in order.
    `inputs`, `outputs`: values that come in and go out, tensors all of them.
    `root`: the model that the nodes refer to.
    """

    def __init__(
        self, nodes: Sequence[fx.Node], inputs: Sequence[fx.Node], outputs: Sequence[fx.Node], root: nn.Module
    ) -> None:
        super().__init__()
        self.plan_nodes, self.plan_inputs, self.plan_outputs = tuple(nodes), tuple(inputs), tuple(outputs)
        self.__dict__["in_evaluation"] = None  # of the same weights, which would be named twice
        self.parts = nn.Module()
        for node in nodes:
            if node.op in ("call_module", "get_attr"):
                _register(self.parts, root, str(node.target))

    @property
    def calm(self) -> Segment | None:
        """What is run in evaluation instead; None for the same."""
        found: Segment | None = self.__dict__["in_evaluation"]
        return found

    @property
    def token_table(self) -> str:
        """Path of the first table that is looked up by what comes in; empty where there is none."""
        tables = (node for node in self.plan_nodes if self._is_call(node, nn.Embedding))
        found = next((f"parts.{node.target}" for node in tables if set(node.all_input_nodes) <= set(self.plan_inputs)), "")
        return found if self.calm is None or self.calm.token_table == found else ""

    @property
    def class_product(self) -> str:
        """Path of the linear layer whose result is the first that goes out; empty where that is another's."""
        node = self.plan_outputs[0] if self.plan_outputs else None
        found = f"parts.{node.target}" if node is not None and self._is_call(node, nn.Linear) else ""
        return found if self.calm is None or self.calm.class_product == found else ""

    def _is_call(self, node: fx.Node, kind: type[nn.Module]) -> bool:
        return node.op == "call_module" and isinstance(self.parts.get_submodule(str(node.target)), kind)

    def forward(self, *carried: torch.Tensor) -> tuple[Any, ...]:
        """Return the values that later segments need, from those that earlier ones left."""
        if self.calm is not None and not self.training:
            found: tuple[Any, ...] = self.calm(*carried)
            return found
        values: dict[fx.Node, Any] = dict(zip(self.plan_inputs, carried, strict=True))
        for node in self.plan_nodes:
            arguments = fx.node.map_arg(node.args, lambda used: values[used])
            named = fx.node.map_arg(node.kwargs, lambda used: values[used])
            with nullcontext() if node.meta.get("grad", True) else torch.no_grad():
                values[node] = _run(node, arguments, named, self.parts)
        return tuple(first_tensor(values[node]) if node.meta.get("result") else values[node] for node in self.plan_outputs)


def _run(node: fx.Node, arguments: Any, named: Any, parts: nn.Module) -> Any:
    """Run one node."""
    if node.op == "call_module":
        return parts.get_submodule(str(node.target))(*arguments, **named)
    if node.op == "get_attr":
        return operator.attrgetter(str(node.target))(parts)
    if node.op == "call_method":
        return getattr(arguments[0], str(node.target))(*arguments[1:], **named)
    return node.target(*arguments, **named)  # type: ignore[operator]


def _register(parts: nn.Module, root: nn.Module, path: str) -> None:
    """Put a submodule, parameter or buffer of the model at the same path of `parts`."""
    folder, _, name = path.rpartition(".")
    holder = parts
    for step in folder.split(".") if folder else ():
        if not hasattr(holder, step):
            holder.add_module(step, nn.Module())
        holder = getattr(holder, step)
    value = operator.attrgetter(path)(root)
    if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
        holder.register_buffer(name, value, persistent=False)
    else:
        setattr(holder, name, value)


@dataclass(frozen=True, slots=True)
class _Assignment:
    """Nodes by layer, and the layer of each node."""

    nodes: tuple[tuple[fx.Node, ...], ...]
    layer_of: Mapping[fx.Node, int]


def cut(model: nn.Module, names: Sequence[str], sample: Sample = ()) -> list[nn.Module]:
    """Return one module per layer of a plan; run one after the other they are the model.

    `model`: a Hugging Face causal language model or T5, or any module whose forward runs the named layers in this order,
    whatever it computes between them.
    `names`: names of the plan's layers in order: paths of submodules, or the words of our own readers (``embed``,
    ``layers.0``, ..., ``head``), which the first, the repeated and the last parts of the model answer to.
    `sample`: one sample of every input; needed for models of several inputs, and for those that cannot be traced but run a
    list of layers one after the other.
    Returns: one per name. Each takes the tensors that the one before returns, as a tuple; the last returns one tensor.
    Raises `InputError` when the model has no such layers, or cannot be cut between them.

    Notes
    -----
    The forward is traced down to the named layers with ``torch.fx``; what runs between two layers belongs to the earlier one.
    """
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    hooked = any(getattr(model, kind) for kind in kinds)  # before the model is filled, which hooks do
    with filled_in_turn(model):
        return _cut(model, names, sample, hooked=hooked)


def _cut(model: nn.Module, names: Sequence[str], sample: Sample, *, hooked: bool) -> list[nn.Module]:
    """Do what `cut` does; `hooked`: whether the model as a whole has hooks."""
    if seq2seq.recognises(model):
        return seq2seq.cut(model, names, max(1, len(sample)))
    if causal_lm.recognises(model):
        further = causal_lm.further_inputs(model, len(sample)) if len(sample) > 1 else ()
        if further or len(sample) <= 1:
            return causal_lm.cut(model, names, further)
    paths = resolve(model, names)
    if len(names) == 1:
        return [_Whole(model)]
    if hooked:
        raise InputError(
            f"{type(model).__name__} cannot be cut between its layers: the model as a whole has hooks, which would not be "
            "called; hook its layers, or plan with a single stage of one layer"
        )
    n_inputs = max(1, len(sample))
    try:
        graph, calm = traced(model, [path for path in paths if path], n_inputs)
    except InputError:
        if sample and stacked.fits(paths):
            return stacked.cut(model, paths, sample)
        raise
    segments = _segments(graph, _assign(graph, paths, names, model), model, n_inputs)
    if not alike(graph, calm, model):
        _with_evaluation(segments, _segments(calm, _assign(calm, paths, names, model, skips=True), model, n_inputs), model)
    return list(segments)


def _with_evaluation(segments: Sequence[Segment], calm: Sequence[Segment], model: nn.Module) -> None:
    """Give segments what they run in evaluation instead.

    Raises `InputError` when that has weights of other layers, or hands on other values.
    """
    for segment, other in zip(segments, calm, strict=True):
        held = set(segment.parameters())
        if len(segment.plan_outputs) != len(other.plan_outputs) or any(weight not in held for weight in other.parameters()):
            raise InputError(
                f"{type(model).__name__} cannot be cut between its layers: if self.training, its forward runs other layers, or "
                "hands on more or fewer values, than in evaluation; move that into the layers, or plan with a single stage of "
                "one layer"
            )
        for node in other.plan_nodes:
            if node.op in ("call_module", "get_attr"):
                _register(segment.parts, model, str(node.target))
        other.parts = segment.parts  # what is split, sharded or moved later is so in both
        segment.__dict__["in_evaluation"] = other


class _Whole(nn.Module):
    """A model that is not cut."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: torch.Tensor) -> tuple[Any, ...]:
        """Return the model's first tensor."""
        return (first_tensor(self.model(*inputs)),)


def _assign(
    graph: fx.Graph, paths: Sequence[str], names: Sequence[str], model: nn.Module, *, skips: bool = False
) -> _Assignment:
    """Return the layer of every node.

    `skips`: whether layers may be left out.
    Raises `InputError` when the model runs layers in another order than the plan, one twice, or not at all.
    """
    module_of = dict(model.named_modules(remove_duplicate=False))
    places: dict[nn.Module, list[int]] = {}
    for i, path in enumerate(paths):
        if path:
            places.setdefault(module_of[path], []).append(i)
    layer_of: dict[fx.Node, int] = {}
    nodes: list[list[fx.Node]] = [[] for _ in names]
    current, called = 0, [False] * len(names)
    for node in graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        if node.op == "get_attr":  # runs where it is used: parameters are not handed on
            continue
        if node.op == "call_module":
            known = places.get(module_of[str(node.target)], [])  # a module that stands at several places runs in their order
            wanted = next((i for i in known if not called[i]), known[-1] if known else None)
            if wanted is None:
                last = len(names) - 1
                moves_on = current == last - 1 and called[current]
                wanted = last if moves_on and not called[last] else current
            if wanted < current:
                raise InputError(
                    f"{type(model).__name__}: runs '{node.target}' after '{names[current]}', so that no stage boundary can lie "
                    "between them; keep them in one stage, or is this the plan of another model?"
                )
            current = wanted
            called[current] = True
        layer_of[node] = current
        nodes[current].append(node)
    for i, done in enumerate(called):
        if not done and not nodes[i] and paths[i] and not skips:
            raise InputError(f"{type(model).__name__}: its forward never runs the plan's layer '{names[i]}'")
    return _Assignment(tuple(tuple(part) for part in nodes), MappingProxyType(layer_of))


def _segments(graph: fx.Graph, assigned: _Assignment, model: nn.Module, n_inputs: int) -> list[Segment]:
    """Return the segments, each with the values that cross its ends."""
    n_layers = len(assigned.nodes)
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    result = next(node for node in graph.nodes if node.op == "output")
    last_use: dict[fx.Node, int] = {}
    for node in graph.nodes:
        for used in node.all_input_nodes:
            place = n_layers if node is result else assigned.layer_of.get(node, 0)
            last_use[used] = max(last_use.get(used, 0), place)
    returned = _returned(result)
    segments: list[Segment] = []
    carried: tuple[fx.Node, ...] = tuple(placeholders[:n_inputs])
    order = {node: i for i, node in enumerate(graph.nodes)}
    for i, nodes in enumerate(assigned.nodes):
        attributes = sorted(
            {used for node in nodes for used in node.all_input_nodes if used.op == "get_attr"}, key=order.__getitem__
        )
        own = (*attributes, *nodes)
        if i == n_layers - 1:
            returned.meta["result"] = True
            outputs: tuple[fx.Node, ...] = (returned,)
        else:
            known = [*carried, *nodes]
            outputs = tuple(node for node in known if last_use.get(node, -1) > i and node.op != "get_attr")
        segments.append(Segment(own, carried, outputs, model))
        carried = outputs
    return segments


def _returned(result: fx.Node) -> fx.Node:
    """Return the first value that the model gives back; of a mapping its ``logits`` where it has some.

    Raises `InputError` when it gives back no value of its forward.
    """
    told = result.args[0]
    logits = told.get("logits") if isinstance(told, Mapping) else None
    found = [logits] if isinstance(logits, fx.Node) else result.all_input_nodes
    if not found:
        raise InputError("the model's forward returns nothing that it computes")
    return found[0]
