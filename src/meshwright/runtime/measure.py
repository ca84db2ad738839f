"""Measuring the layers of a model on this machine: forward, both halves of backward, what is kept between."""

from __future__ import annotations

import copy
import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from meshwright.errors import InputError
from meshwright.runtime import causal_lm, source, tensor_parallel
from meshwright.runtime.cut import cut
from meshwright.runtime.data import example_row
from meshwright.runtime.memory import SavedBytes
from meshwright.runtime.naming import layer_names
from meshwright.runtime.split_backward import Later, delay_weight_gradients

__all__ = ["profile_callable", "profile_layers"]

Say = Callable[[str], None]


def profile_callable(
    name: str,
    rows: Sequence[int],
    tensor: Sequence[int],
    *,
    sequence_length: int,
    repeats: int,
    device: str,
    seed: int,
    say: Say,
) -> dict[str, Any]:
    """Return the fields of a profile of the model that a callable makes.

    Parameters
    ----------
    name : str
        ``package.module:callable``.
    rows, tensor, repeats, say
        See `profile_layers`.
    sequence_length : int
        Tokens of a sample; 0 where samples are no tokens.
    device : str
        ``cpu`` or ``cuda``.
    seed : int
        Of the weights.

    Raises
    ------
    InputError
        When the model cannot be made or measured there.
    """
    if device not in ("cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        raise InputError(f"--device {device}: must be cpu, or cuda where PyTorch sees a GPU")
    torch.set_num_threads(1)
    model, examples = source.build(name, seed)
    row = example_row(model, examples, sequence_length or 1)
    if not row.is_floating_point() and not examples and not sequence_length:
        raise InputError(f"{name}: takes tokens; give --sequence-length")
    fields = {"model": name, "sequence_length": int(row.shape[1]) if row.dim() > 1 and (sequence_length or examples) else 1}
    return fields | profile_layers(model.to(device), row.to(device), rows, tensor, repeats=repeats, say=say)


def profile_layers(
    model: nn.Module, row: torch.Tensor, rows: Sequence[int], tensor: Sequence[int], *, repeats: int, say: Say
) -> dict[str, Any]:
    """Return what every layer of a model takes, as the fields of a profile.

    Parameters
    ----------
    model : torch.nn.Module
        The model, on the device to measure.
    row : torch.Tensor
        One sample.
    rows : sequence of int
        Numbers of samples to measure.
    tensor : sequence of int
        Tensor degrees to measure: one rank's part of each layer that can be split, without the collectives.
    repeats : int
        Runs of which the median counts; two more warm up.
    say : callable
        Told how far it is.

    Raises
    ------
    InputError
        When the model cannot be cut into layers.
    """
    names = layer_names(model) if not causal_lm.recognises(model) else causal_lm.layer_names(model)
    units = cut(model, names)
    wishes = tensor_parallel.wishes_of(model)
    layers, measures = [], []
    seen: dict[str, str] = {}
    carried: Any = (row,)
    for i, (unit, name) in enumerate(zip(units, names, strict=True)):
        entering = tuple(tensor_.detach() for tensor_ in carried)
        with torch.no_grad():
            carried = unit.eval()(*entering)
        unit.train()
        key = _structure(unit, entering)
        like = seen.setdefault(key, name)
        parameters = list(unit.parameters())
        layers.append(
            {
                "name": name,
                "like": like,
                "n_parameters": sum(p.numel() for p in parameters),
                "weight_bytes": float(sum(p.numel() * p.element_size() for p in parameters)),
                "output_bytes": float(sum(value.numel() * value.element_size() for value in carried)),
            }
        )
        if like != name:
            continue
        last = i == len(units) - 1
        for degree in tensor:
            part = unit if degree == 1 else _part(unit, degree, wishes)
            if part is None:
                continue
            for n_rows in rows:
                say(f"{name}: {n_rows} rows" + (f", tensor degree {degree}" if degree > 1 else ""))
                figures = _measure(part, [_widen(value, n_rows) for value in entering], repeats, first=i == 0, last=last)
                measures.append({"layer": name, "rows": n_rows, "tensor": degree, **figures})
    weights = list(model.parameters())
    return {
        "device": torch.cuda.get_device_name() if row.is_cuda else "CPU",
        "n_cores": os.cpu_count() or 1,
        "memory_bytes": float(_memory_bytes(row)),
        "optimizer_seconds_per_byte": _optimizer_seconds_per_byte(weights, repeats),
        "layers": layers,
        "measures": measures,
    }


def _memory_bytes(row: torch.Tensor) -> int:
    if row.is_cuda:
        return int(torch.cuda.get_device_properties(row.device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _structure(unit: nn.Module, entering: Sequence[torch.Tensor]) -> str:
    """Return a text that is the same for layers built alike."""
    shapes = [(tuple(p.shape), str(p.dtype)) for p in unit.parameters()]
    kinds = [type(module).__name__ for module in unit.modules()]
    return f"{kinds} {shapes} {[(tuple(value.shape[1:]), str(value.dtype)) for value in entering]}"


def _widen(value: torch.Tensor, n_rows: int) -> torch.Tensor:
    if value.is_floating_point():
        return torch.randn(n_rows, *value.shape[1:], dtype=value.dtype, device=value.device)
    return value.expand(n_rows, *value.shape[1:]).contiguous()


def _part(unit: nn.Module, degree: int, wishes: dict[str, str]) -> nn.Module | None:
    """Return what one rank of a tensor axis computes of a layer; None where nothing is split.

    Raises
    ------
    InputError
        When a size does not divide.
    """
    chosen = tensor_parallel.styles(unit, wishes)
    if not chosen:
        return None
    tensor_parallel.check(unit, type(unit).__name__, degree, wishes)
    part = copy.deepcopy(unit)
    for path, style in chosen.items():
        whole = part.get_submodule(path)
        inner, outer = int(whole.in_features), int(whole.out_features)  # type: ignore[arg-type]
        inner, outer = (inner, outer // degree) if style == "column" else (inner // degree, outer)
        folder, _, name = path.rpartition(".")
        holder = part.get_submodule(folder) if folder else part
        weight = next(whole.parameters())
        setattr(holder, name, nn.Linear(inner, outer, bias=whole.bias is not None, device=weight.device, dtype=weight.dtype))
    return part


def _clock(device: torch.device) -> float:
    """Return seconds: of the GPU's work by the wall, of a CPU's by this thread alone, so that other programs do not count."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.thread_time()


def _measure(unit: nn.Module, values: list[torch.Tensor], repeats: int, *, first: bool, last: bool) -> dict[str, float]:
    """Return medians of one layer."""
    later = Later()
    unit = copy.deepcopy(unit)
    delay_weight_gradients(unit, later)
    device = values[0].device
    times: list[tuple[float, float, float]] = []
    count = SavedBytes({p.untyped_storage().data_ptr() for p in unit.parameters()})
    for i in range(repeats + 2):
        entering = [value.detach().requires_grad_(value.is_floating_point() and not first) for value in values]
        begin = _clock(device)
        if i == 0:
            with torch.autograd.graph.saved_tensors_hooks(count.pack, count.unpack):
                result = unit(*entering)
        else:
            result = unit(*entering)
        outputs = [value for value in result if value.requires_grad]
        if last:
            output = outputs[0]
            classes = torch.zeros(output.shape[:-1], dtype=torch.long, device=device).flatten()
            outputs = [nn.functional.cross_entropy(output.flatten(0, -2), classes)]
        forward = _clock(device)
        later.collecting = []
        torch.autograd.backward(outputs, [torch.ones_like(value) for value in outputs])
        half = _clock(device)
        for gradient in later.collecting:
            gradient()
        later.collecting = None
        end = _clock(device)
        times.append((forward - begin, half - forward, end - half))
        for parameter in unit.parameters():  # gradients are added up over micro-batches, as in a run
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
    medians = [statistics.median(column) for column in zip(*times[2:], strict=True)]
    return {
        "forward_seconds": medians[0],
        "backward_input_seconds": medians[1],
        "backward_weight_seconds": medians[2],
        "saved_bytes": float(count.peak_bytes),
    }


def _optimizer_seconds_per_byte(weights: list[nn.Parameter], repeats: int) -> float:
    """Return how long AdamW takes per byte of weights."""
    from meshwright.runtime.trainer import adamw

    twins = [nn.Parameter(weight.detach().clone()) for weight in weights]
    for twin in twins:
        twin.grad = torch.ones_like(twin)
    optimizer = adamw(twins)
    times = []
    for _ in range(repeats + 2):
        begin = _clock(twins[0].device)
        optimizer.step()
        times.append(_clock(twins[0].device) - begin)
    return statistics.median(times[2:]) / sum(twin.numel() * twin.element_size() for twin in twins)
