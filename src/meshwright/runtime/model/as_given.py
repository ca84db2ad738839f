"""A model as it was given: its modes are kept, and passes that only look at it leave no trace in it."""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import nn

__all__ = ["RandomState", "Traces", "compiled_parts", "evaluating", "modes_note", "modules_of", "to_train", "untouched"]

_OWN = frozenset(vars(nn.Module()))
"""What every module has: its tables of weights, buffers, modules and hooks, and its mode."""

_CONTAINERS = (list, dict, set, deque)


class Traces:
    """What a pass changed, by paths in its modules; filled once it has ended.

    `buffers`, `attributes`, `weights`: those that it changed.
    `drew`, `drew_others`: whether it drew random numbers, and some that are not PyTorch's.
    """

    def __init__(self) -> None:
        self.buffers: set[str] = set()
        self.attributes: set[str] = set()
        self.weights: set[str] = set()
        self.drew = self.drew_others = False


def modules_of(*roots: nn.Module) -> dict[nn.Module, str]:
    """Return all modules, each once, with a path."""
    found: dict[nn.Module, str] = {}
    for root in roots:
        for path, part in root.named_modules():
            found.setdefault(part, path)
    return found


def to_train(model: nn.Module) -> nn.Module:
    """Return a model that trains: one whose modules are all in evaluation mode, as ``from_pretrained`` gives it, is set to
    training mode; in others the modules keep the modes that they were given.
    """
    return model if any(part.training for part in model.modules()) else model.train()


def compiled_parts(layer: nn.Module) -> list[nn.Module]:
    """Return the modules of a layer that its model compiles: by ``block.compile()``, or as ``torch.compile(block)``."""
    return [part for part in layer.modules() if part._compiled_call_impl is not None or hasattr(part, "_orig_mod")]


def modes_note(model: nn.Module) -> list[str]:
    """Return a sentence about modules that stay in evaluation mode while the model trains, by their outermost paths."""
    found: list[str] = []
    for path, part in model.named_modules():
        if path and not part.training and not any(path.startswith(f"{outer}.") for outer in found):
            found.append(path)
    named = ", ".join(found[:4]) + (f" and {len(found) - 4} more" if len(found) > 4 else "")
    return [f"in evaluation mode, as the model was given, and trained so: {named}"] if found else []


def _scales_rows(part: nn.Module) -> bool:
    """Whether a module is a table that scales its rows down in place as they are looked up."""
    return isinstance(part, (nn.Embedding, nn.EmbeddingBag)) and part.max_norm is not None


@contextmanager
def evaluating(*roots: nn.Module) -> Iterator[Traces]:
    """Run modules in evaluation mode for a while, without a trace (see `untouched`); then each has its own mode again."""
    with untouched(*roots) as traces:
        for root in roots:
            root.eval()
        yield traces


@contextmanager
def untouched(*roots: nn.Module, weights: bool = False) -> Iterator[Traces]:
    """Put back what a pass changes: modes, buffers, attributes of modules, rows that tables scale down, and random numbers.

    `weights`: whether to look if weights change, which is all that happens to them.
    Yields: what was changed, known at the end.
    """
    parts, traces = modules_of(*roots), Traces()
    # blocks that the model compiles are looked at as they are written: compiling takes long, and does not follow hooks
    as_written = torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
    saved = [_Saved(part, weights=weights) for part in parts]
    numbers = RandomState()
    try:
        with as_written:
            yield traces
    finally:
        traces.drew, traces.drew_others = numbers.restore()
        for path, one in zip(parts.values(), saved, strict=True):
            one.restore(path, traces)


class RandomState:
    """The random numbers of Python, NumPy and PyTorch as they stand."""

    def __init__(self) -> None:
        self.python, self.numpy, self.torch = random.getstate(), np.random.get_state(), torch.get_rng_state()
        self.gpu = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None

    def restore(self) -> tuple[bool, bool]:
        """Put them back; return whether some were drawn, of PyTorch's on the CPU, and some of Python's and NumPy's."""
        ours: Any = self.numpy
        now: Any = np.random.get_state()
        others = random.getstate() != self.python or now[2] != ours[2] or not np.array_equal(now[1], ours[1])
        drew = others or not torch.equal(torch.get_rng_state(), self.torch)
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(self.torch)
        if self.gpu is not None:
            torch.cuda.set_rng_state(self.gpu)
        return drew, others


class _Saved:
    """One module as it stands."""

    def __init__(self, part: nn.Module, *, weights: bool) -> None:
        self.part, self.training = part, part.training
        self.buffers = dict(part._buffers)
        self.values = {name: _copy(buffer) for name, buffer in self.buffers.items()}
        self.attributes = {name: value for name, value in vars(part).items() if name not in _OWN}
        self.inside = {name: _copy(value) for name, value in self.attributes.items()}
        held = {name: weight for name, weight in part._parameters.items() if weight is not None}
        self.rows = {name: (weight, _copy(weight)) for name, weight in held.items()} if _scales_rows(part) else {}
        self.weights = {name: (held[name], _mark(held[name])) for name in held.keys() - self.rows.keys()} if weights else {}

    def restore(self, path: str, traces: Traces) -> None:
        """Put it back, and say what had changed."""
        part, prefix = self.part, f"{path}." if path else ""
        part.training = self.training
        traces.buffers |= {prefix + name for name in _changed(self.buffers, self.values, part._buffers)}
        own = {name: value for name, value in vars(part).items() if name not in _OWN}
        traces.attributes |= {prefix + name for name in _changed(self.attributes, self.inside, own)}
        traces.weights |= {
            prefix + name
            for name, (weight, mark) in self.weights.items()
            if part._parameters.get(name) is not weight or _mark(weight) != mark
        }
        part._buffers.clear()
        part._buffers.update(self.buffers)
        for name in own.keys() - self.attributes.keys():
            del part.__dict__[name]
        part.__dict__.update(self.attributes)
        for name, value in self.values.items():
            _put_back(self.buffers[name], value)
        for name, value in self.inside.items():
            _put_back(self.attributes[name], value)
        for weight, value in self.rows.values():
            _put_back(weight, value)


def _copy(value: Any) -> Any:
    """Return a copy of a tensor's values or of a container; None of what cannot change in place, or is not looked into."""
    if isinstance(value, torch.Tensor):
        return None if value.is_meta or value.grad_fn is not None else value.detach().clone()
    return value.copy() if isinstance(value, _CONTAINERS) else None


def _mark(weight: torch.Tensor) -> str:
    """Return by what a change in place shows, also one through ``.data`` where there are values."""
    plain = type(weight) is nn.Parameter and weight.device.type == "cpu"
    return f"{weight._version} {float(weight.detach().abs().sum()) if plain else 0.0}"


def _same(value: Any, copy: Any) -> bool:
    """Whether a tensor, or a container, is as its copy; of a container by what it holds, not by the values of that."""
    if copy is None:
        return True
    if isinstance(value, torch.Tensor):
        return value.shape == copy.shape and torch.equal(value.detach(), copy)
    if isinstance(value, dict):
        return value.keys() == copy.keys() and all(value[key] is copy[key] for key in copy)
    return len(value) == len(copy) and all(a is b for a, b in zip(value, copy, strict=True))


def _changed(before: dict[str, Any], copies: dict[str, Any], now: dict[str, Any]) -> set[str]:
    """Return names of what was added, taken away, changed in place, or replaced by what is not alike."""
    found = set(before.keys() ^ now.keys())
    for name in before.keys() & now.keys():
        old, new = before[name], now[name]
        if not (_same(new, copies[name]) if old is new else _alike(old, new, copies[name])):
            found.add(name)
    return found


def _alike(old: Any, new: Any, copy: Any) -> bool:
    """Whether a value took the place of one like it: equal where it is plain or a tensor, of the same kind else."""
    if type(old) is not type(new):
        return False
    if isinstance(old, torch.Tensor):
        return copy is None or (new.device == old.device and new.dtype == old.dtype and _same(new, copy))
    if isinstance(old, (tuple, *_CONTAINERS)):
        pairs = zip(old, new, strict=False) if not isinstance(old, dict) else ((old[key], new.get(key)) for key in old)
        return len(old) == len(new) and all(_alike(one, other, None) for one, other in pairs)
    return not isinstance(old, (bool, int, float, str)) or bool(old == new)


@torch.no_grad()
def _put_back(value: Any, copy: Any) -> None:
    """Give a tensor or a container what its copy has, in place, where that is another."""
    if _same(value, copy):
        return
    if isinstance(value, torch.Tensor):
        value.set_(copy) if value.shape != copy.shape else value.detach().copy_(copy)  # type: ignore[call-overload]
    elif isinstance(value, (dict, set)):
        value.clear()
        value.update(copy)
    else:
        value.clear()
        value.extend(copy)
