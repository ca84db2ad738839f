"""Runs a module forward and backward on tensors without memory and records every operator that PyTorch dispatches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from meshwright.runtime.capture import formulas
from meshwright.runtime.capture.fused.attention import FusedAttention
from meshwright.runtime.capture.trace import COPIES, Trace, TracedOperator, TracedTensor

__all__ = ["EndlessStepError", "Recorder", "record"]

_MOST_OPERATORS = 60_000
"""Of a forward pass, repeated layers counted twice at most where they are a chain; models of 100 layers have 20,000."""

_VIEWS = ("detach", "alias", "_unsafe_view", "_reshape_alias", "lift_fresh", "t", "view")
_LEAVES = (torch.nn.RNNBase, torch.nn.RNNCellBase)


class EndlessStepError(Exception):
    """A forward pass that runs operators token by token."""


class Recorder(TorchDispatchMode):
    """Sees every operator on its way to the kernels.

    The backward pass runs operators whose autograd node carries the number that the forward operator was given, so each of them
    is booked at the forward operator that it belongs to; the same number tells which operator keeps a tensor.
    """

    def __init__(self, module: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.stack: list[tuple[str, torch.nn.Module]] = [("", module)]
        self.phase = "forward"
        self.failed_at: tuple[str, str] | None = None
        self.notes: dict[str, None] = {}
        self._rows: list[dict[str, Any]] = []
        self._producer: dict[int, int] = {}
        self._weight: dict[int, str] = {}
        self._trained: set[int] = set()
        self._differentiated: set[int] = set()
        self._fed = {id(tensor) for tensor in inputs}
        self._alive: list[Any] = []
        self._of_number: dict[int, int] = {}
        self._storages: set[int] = set()
        self._leaf: Any = ""
        self._leaf_inputs: list[torch.Tensor] = []
        self._leaf_number = 0
        self._kept: list[tuple[int, bool, int]] = []
        for name, parameter in module.named_parameters():
            self._weight[id(parameter)] = name
            self._trained.add(id(parameter))
            if parameter.requires_grad:
                self._differentiated.add(id(parameter))
        self._constant = {tensor.untyped_storage()._cdata for tensor in (*module.parameters(), *module.buffers())}
        self.dtype = next(iter(module.parameters())).dtype

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator and record it."""
        kwargs = kwargs or {}
        try:
            out = _run(func, args, kwargs)
        except Exception:
            self.failed_at = self.failed_at or (self.stack[-1][0], str(func).removesuffix(".default"))
            raise
        if func.namespace == "prim" or self.phase == "loss":
            return out
        if self.phase == "forward":
            self._forward(func, args, kwargs, out)
        else:
            self._backward(func, args, kwargs, out)
        return out

    def _forward(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Record an operator of the forward pass."""
        if self._leaf:
            return
        if len(self._rows) >= _MOST_OPERATORS:
            raise EndlessStepError(
                f"runs more than {_MOST_OPERATORS} operators in a forward pass, most likely step by step along the sequence, "
                "as a recurrence without its kernel does; capture it with a shorter --sequence-length, or a module that "
                "calls the kernel"
            )
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        outputs = [leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        name = func._schema.name.partition("::")[2]
        row = self._row(name, inputs, outputs)
        row["numbers"] = tuple(leaf for leaf in tree_leaves(args) if type(leaf) is int)
        row["view"] = bool(func.is_view) or name in _VIEWS
        row["causal"] = formulas.is_causal(name, args, kwargs)
        if row["trained"]:
            row["forward_flops"] = formulas.flops(func, args, kwargs, out) * (0.5 if row["causal"] else 1.0)
        if (row["view"] or name in COPIES) and len(inputs) > 0 and id(inputs[0]) in self._weight:
            for tensor in outputs:
                self._weight[id(tensor)] = self._weight[id(inputs[0])]
        self._of_number.setdefault(torch._C._autograd._get_sequence_nr() - 1, len(self._rows) - 1)

    def _row(self, name: str, inputs: list[Any], outputs: list[Any]) -> dict[str, Any]:
        """Add a record and make it the producer of its outputs."""
        trained = any(id(tensor) in self._trained for tensor in inputs)
        fed = any(id(tensor) in self._fed for tensor in inputs)
        row: dict[str, Any] = {
            "name": name,
            "module": self.stack[-1][0],
            "inputs": tuple(map(_tensor, inputs)),
            "outputs": tuple(map(_tensor, outputs)),
            "sources": tuple(self._producer.get(id(tensor), -1) for tensor in inputs),
            "weights": tuple(self._weight.get(id(tensor), "") for tensor in inputs),
            "numbers": (), "trained": trained, "fed": fed, "view": False, "causal": False, "forward_flops": 0.0,
            "backward_flops": 0.0, "differentiated": tuple(self._carries(tensor) for tensor in inputs),
            "n_backward": 0, "saved_bytes": 0, "saved_other_bytes": 0,
        }  # fmt: skip
        for tensor in outputs:
            self._producer[id(tensor)] = len(self._rows)
            self._alive.append(tensor)
            if trained:
                self._trained.add(id(tensor))
            if fed:
                self._fed.add(id(tensor))
            if any(row["differentiated"]) and (tensor.is_floating_point() or tensor.is_complex()):
                self._differentiated.add(id(tensor))
        self._rows.append(row)
        return row

    def _carries(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor's gradient is computed: autograd says so, but not inside functions of its own."""
        return id(tensor) in self._differentiated and (tensor.requires_grad or not torch.is_grad_enabled())

    def _backward(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Book an operator of the backward pass at the forward operator it belongs to."""
        node = torch._C._current_autograd_node()
        row = None if node is None else self._of_number.get(node._sequence_nr())
        if row is None or bool(func.is_view):
            return
        entry = self._rows[row]
        entry["n_backward"] += 1
        if not entry["name"].startswith("leaf:"):
            entry["backward_flops"] += formulas.flops(func, args, kwargs, out) * (0.5 if entry["causal"] else 1.0)

    def keep(self, tensor: Any) -> Any:
        """Book a tensor that autograd keeps."""
        storage = tensor.untyped_storage()
        if isinstance(self._leaf, torch.nn.Module) and not any(tensor is given for given in self._leaf_inputs):
            return tensor  # what a recurrent module keeps is known from its sizes
        if self.phase == "forward" and storage._cdata not in self._constant and storage._cdata not in self._storages:
            self._storages.add(storage._cdata)
            self._alive.append(tensor)
            # the node that keeps it has its number already; its first operator may not have been dispatched yet
            self._kept.append((torch._C._autograd._get_sequence_nr() - 1, tensor.dtype == self.dtype, storage.nbytes()))
        return tensor

    def settle(self) -> None:
        """Book what was kept at the operators that the numbers belong to."""
        numbers = sorted(self._of_number)
        for number, own, n_bytes in self._kept:
            row = self._of_number.get(number)
            if row is None:
                earlier = [known for known in numbers if known <= number]
                row = self._of_number[earlier[-1]] if earlier else 0
            # inside a function of its own the first operator may be a view: what computes keeps
            computing = (k for k in range(row, len(self._rows)) if self._rows[k]["trained"] and not self._rows[k]["view"])
            if self._rows:
                self._rows[next(computing, row)]["saved_bytes" if own else "saved_other_bytes"] += n_bytes

    def enter(self, path: str, module: torch.nn.Module, args: Any) -> None:
        """Note that a module starts."""
        self.stack.append((path, module))
        if isinstance(module, _LEAVES) and not self._leaf:
            self._leaf = module
            self._leaf_number = torch._C._autograd._get_sequence_nr()
            self._leaf_inputs = [leaf for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)]

    def leave(self, out: Any) -> None:
        """Note that a module ends; a recurrent one is recorded as one operator, or as two (see `_recurrent`)."""
        path, module = self.stack.pop()
        if self._leaf is not module:
            return
        self.stack.append((path, module))
        self._recurrent(module, [leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)])
        self.stack.pop()
        self._leaf = ""
        self._book(self._leaf_number)

    def _recurrent(self, module: torch.nn.Module, outputs: list[torch.Tensor]) -> None:
        """Record a recurrent module. Where what it reads carries no gradient, its products with that are an operator of their
        own: the states, which every other weight meets, carry one as soon as a weight is trained.
        """  # fmt: skip
        name, inputs, weights = f"leaf:{type(module).__name__}", self._leaf_inputs, list(module.parameters())
        flops = formulas.recurrent_flops(module, inputs)
        if inputs and not self._carries(inputs[0]) and any(weight.requires_grad for weight in weights):
            reading = formulas.reading_weights(module)
            shape = (*inputs[0].shape[:-1], sum(weight.shape[0] for weight in reading))
            gates = inputs[0].new_empty(shape)
            of_reading = formulas.recurrent_flops(module, inputs, reading)
            self._leaf_row(f"{name}_input", inputs[:1], reading, [gates], of_reading)
            if isinstance(module, torch.nn.RNNBase):
                self._differentiated.add(id(gates.requires_grad_()))
            taken = {id(weight) for weight in reading}
            inputs, weights = [gates, *inputs[1:]], [weight for weight in weights if id(weight) not in taken]
            flops -= of_reading
        row = self._leaf_row(name, inputs, weights, outputs, flops)
        row["saved_bytes"] = formulas.recurrent_kept(module, self._leaf_inputs) * self.dtype.itemsize

    def _leaf_row(self, name: str, inputs: list[Any], weights: list[Any], outputs: list[Any], flops: float) -> dict[str, Any]:
        """Record products of `weights` with `inputs` as one operator."""
        row = self._row(name, [*inputs, *weights], outputs)
        carried = row["differentiated"]
        row["forward_flops"] = flops
        row["backward_flops"] = (any(carried[: len(inputs)]) + any(carried[len(inputs) :])) * flops * torch.is_grad_enabled()
        return row

    def one_operator(
        self,
        name: str,
        call: Callable[[], torch.Tensor],
        inputs: list[torch.Tensor],
        *,
        causal: bool,
        flops: tuple[float, float] = (0.0, 0.0),
    ) -> torch.Tensor:
        """Run a call and record it as one operator: attention on `inputs` (query, key, value, perhaps a mask), or one that does
        `flops` floating point operations forward and backward.
        """  # fmt: skip
        if self._leaf:
            return call()
        number = torch._C._autograd._get_sequence_nr()
        self._leaf = name
        try:
            out = call()
        finally:
            self._leaf = ""
        row = self._row(name, inputs, [out])
        row["causal"] = causal
        row["forward_flops"], backward = flops if any(flops) else formulas.attention_flops(*inputs[:3], causal=causal)
        row["backward_flops"] = backward * any(row["differentiated"])
        self._book(number)
        return out

    def _book(self, number: int) -> None:
        """Let the latest record own the nodes of the backward pass from `number` on."""
        for later in range(number, torch._C._autograd._get_sequence_nr()):
            self._of_number.setdefault(later, len(self._rows) - 1)

    def operators(self) -> tuple[TracedOperator, ...]:
        """Return the records."""
        return tuple(TracedOperator(**row) for row in self._rows)


def _run(func: Any, args: Any, kwargs: Any) -> Any:
    """Run one operator; the grouped product of experts, which the processor only knows in bf16, in any type."""
    if func is not torch.ops.aten._grouped_mm.default or args[0].dtype == torch.bfloat16:
        return func(*args, **kwargs)
    left, right = (tensor.to(torch.bfloat16) for tensor in args[:2])
    return func(left, right, *args[2:], **kwargs).to(args[0].dtype)


def _tensor(tensor: torch.Tensor) -> TracedTensor:
    """Return the record of a tensor."""
    return TracedTensor(
        tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), tensor.dtype.is_floating_point or tensor.is_complex()
    )


def record(module: torch.nn.Module, call: Callable[[], Any], recorder: Recorder, batch: int) -> Trace:
    """Run one step and return what happened."""
    handles = []
    for path, part in module.named_modules():
        handles.append(part.register_forward_pre_hook(lambda part, args, path=path: recorder.enter(path, part, args)))
        handles.append(part.register_forward_hook(lambda part, args, out: recorder.leave(out), always_call=True))
    try:
        with FusedAttention(recorder), recorder, torch.autograd.graph.saved_tensors_hooks(recorder.keep, lambda kept: kept):
            loss = _loss(call(), recorder)
            recorder.settle()
            recorder.phase = "backward"
            if loss is not None:
                loss.backward()
    finally:
        for handle in handles:
            handle.remove()
    shapes = {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
    classes = {path: type(part).__name__ for path, part in module.named_modules()}
    lists = frozenset(
        path for path, part in module.named_modules() if isinstance(part, (torch.nn.ModuleList, torch.nn.Sequential))
    )
    return Trace(
        recorder.operators(),
        MappingProxyType(classes),
        MappingProxyType(shapes),
        recorder.dtype.itemsize,
        batch,
        lists,
        tuple(recorder.notes),
        frozenset(name for name, parameter in module.named_parameters() if not parameter.requires_grad),
    )


def _loss(out: Any, recorder: Recorder) -> torch.Tensor | None:
    """Return the model's own loss, or the sum of everything that can be trained (which is not recorded)."""
    loss = out.get("loss") if hasattr(out, "get") else getattr(out, "loss", None)
    if isinstance(loss, torch.Tensor) and loss.requires_grad and loss.ndim == 0:
        return loss
    recorder.phase = "loss"
    found = [leaf for leaf in _tensors(out) if leaf.is_floating_point() and leaf.requires_grad]
    return sum((leaf.sum() for leaf in found[1:]), found[0].sum()) if found else None


def _tensors(out: Any) -> list[torch.Tensor]:
    """Return the tensors of an output, whatever holds them."""
    values = list(out.values()) if hasattr(out, "values") and not isinstance(out, torch.Tensor) else out
    if is_dataclass(values):
        values = [getattr(values, field.name) for field in fields(values)]
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]
