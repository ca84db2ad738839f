"""Measuring the layers of a model on this machine: forward, both halves of backward, what is kept between."""

from __future__ import annotations

import copy
import itertools
import os
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from meshwright.base.errors import InputError
from meshwright.runtime.job.allocator import keep_freed_memory
from meshwright.runtime.job.memory import SavedBytes
from meshwright.runtime.model import causal_lm, source
from meshwright.runtime.model.as_given import evaluating
from meshwright.runtime.model.cut import cut
from meshwright.runtime.model.data import Sample, example_of
from meshwright.runtime.model.naming import layer_names
from meshwright.runtime.parallel import tensor_parallel
from meshwright.runtime.parallel.shard_equivalence import part_of, structure
from meshwright.runtime.step.split_backward import DeferredWeightGrad, delay_weight_gradients

__all__ = ["Probe", "profile_callable", "profile_layers", "settle", "suspects"]

Say = Callable[[str, float], None]
"""Told what is measured now, and which share of the work is done."""

_ROUNDS = 3
"""Times that everything is measured, one after the other:
what disturbs one round for a while seldom disturbs the same in the next.
"""

_MORE_ROUNDS = 4
"""Times that what does not fit its neighbours is measured again at most."""

_DROP_RATIO, _RISE_RATIO = 1.1, 1.3
"""More rows must not be faster than fewer by more than the first, nor dearer per row by more than the second."""

_TIMES = ("forward_seconds", "backward_input_seconds", "backward_weight_seconds")


class Probe:
    """One layer at one number of rows and tensor degree, and the least of the medians found so far.

    `layer`: the layer measured.
    `rows`, `tensor`: samples, and the degree of the tensor axis.
    `once`: measures a round: from a number of runs to medians.
    """

    def __init__(self, layer: str, rows: int, tensor: int, once: Callable[[int], dict[str, float]]) -> None:
        self.layer, self.rows, self.tensor, self.once = layer, rows, tensor, once
        self.figures: dict[str, float] = {}

    def measure(self, repeats: int) -> None:
        """Measure another round."""
        found = self.once(repeats)
        self.figures = {name: min(value, self.figures.get(name, value)) for name, value in found.items()}

    @property
    def total_seconds(self) -> float:
        """Forward and backward pass together."""
        return sum(self.figures[name] for name in _TIMES)


def suspects(probes: Sequence[Probe]) -> list[Probe]:
    """Return what does not fit its neighbours in rows: slower than more rows, or dearer per row than fewer."""
    found: list[Probe] = []
    families: dict[tuple[str, int], list[Probe]] = {}
    for probe in probes:
        families.setdefault((probe.layer, probe.tensor), []).append(probe)
    for family in families.values():
        ordered = sorted(family, key=lambda probe: probe.rows)
        for few, many in itertools.pairwise(ordered):
            if few.total_seconds > _DROP_RATIO * many.total_seconds:
                found.append(few)
            if many.total_seconds / many.rows > _RISE_RATIO * few.total_seconds / few.rows:
                found.append(many)
    return list(dict.fromkeys(found))


def settle(probes: Sequence[Probe], repeats: int, say: Say) -> list[Probe]:
    """Measure everything in several rounds, then again what does not fit its neighbours; return what never came to fit.

    `probes`: what to measure; their figures are filled in.
    `repeats`: runs of a layer over the first rounds together.

    Notes
    -----
    A layer's time is the least over rounds of the median of a round: the median throws single hiccups away, the minimum the
    rounds in which another program shared the core or its cache.
    """
    runs = max(1, -(-repeats // _ROUNDS))
    for number in range(_ROUNDS):
        for i, probe in enumerate(probes):
            degree = f", tensor degree {probe.tensor}" if probe.tensor > 1 else ""
            say(f"{probe.layer}: {probe.rows} rows{degree}", (number + i / len(probes)) / _ROUNDS)
            probe.measure(runs)
    for _ in range(_MORE_ROUNDS):
        strange = suspects(probes)
        if not strange:
            return []
        for probe in strange:
            say(f"{probe.layer}: {probe.rows} rows again, which did not fit its neighbours", 1.0)
            probe.measure(runs)
    return suspects(probes)


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

    `name`: ``package.module:callable``.
    `rows`, `tensor`, `repeats`, `say`: see `profile_layers`.
    `sequence_length`: tokens of a sample; 0 where samples are no tokens.
    `device`: ``cpu`` or ``cuda``.
    Raises `InputError` when the model cannot be made or measured there.
    """
    if device not in ("cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        raise InputError(f"--device {device}: must be cpu, or cuda where PyTorch sees a GPU")
    torch.set_num_threads(1)
    keep_freed_memory()
    model, examples = source.build(name, seed)
    sample = example_of(model, examples, sequence_length or 1)
    if not sample[0].is_floating_point() and not examples and not sequence_length:
        raise InputError(f"{name}: takes tokens; give --sequence-length")
    fields = {
        "model": name,
        "sequence_length": int(sample[0].shape[1]) if sample[0].dim() > 1 and (sequence_length or examples) else 1,
    }
    there = tuple(value.to(device) for value in sample)
    return fields | profile_layers(model.to(device), there, rows, tensor, repeats=repeats, say=say)


def profile_layers(
    model: nn.Module, sample: Sample, rows: Sequence[int], tensor: Sequence[int], *, repeats: int, say: Say
) -> dict[str, Any]:
    """Return what every layer of a model takes, as the fields of a profile.

    `sample`: one sample of every input.
    `tensor`: tensor degrees to measure: one rank's part of each layer that can be split, without the collectives.
    `repeats`: runs of every layer, dealt out over the rounds of `settle`; two more warm up each round.
    Raises `InputError` when the model cannot be cut into layers.
    """
    names = layer_names(model) if not causal_lm.recognises(model) else causal_lm.layer_names(model)
    units = cut(model, names, sample)
    tp_plan = tensor_parallel.wishes_of(model)
    layers: list[dict[str, Any]] = []
    probes: list[Probe] = []
    seen: dict[str, str] = {}
    carried: Any = sample
    for i, (unit, name) in enumerate(zip(units, names, strict=True)):
        entering = tuple(tensor_.detach() for tensor_ in carried)
        with torch.no_grad(), evaluating(unit):
            carried = unit(*entering)
        like = seen.setdefault(structure(unit, entering), name)
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
        if like == name:
            ends = (i == 0, i == len(units) - 1)
            probes += _probes(name, unit, entering, (rows, tensor), tp_plan, ends)
    for probe in settle(probes, repeats, say):
        say(f"{probe.layer}: {probe.rows} rows still do not fit their neighbours; is this machine busy? Measure again", 1.0)
    weights = list(model.parameters())
    return {
        "device": torch.cuda.get_device_name() if sample[0].is_cuda else "CPU",
        "n_cores": os.cpu_count() or 1,
        "memory_bytes": float(_memory_bytes(sample[0].device)),
        "optimizer_seconds_per_byte": min(_optimizer_seconds_per_byte(weights, repeats) for _ in range(_ROUNDS)),
        "layers": layers,
        "shared": _shared(units, names),
        "measures": [{"layer": p.layer, "rows": p.rows, "tensor": p.tensor, **p.figures} for p in probes],
    }


def _shared(units: Sequence[nn.Module], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the weights that several layers read, by the layers that do, as a profile has them."""
    places: dict[int, list[str]] = {}
    weights: dict[int, nn.Parameter] = {}
    for unit, name in zip(units, names, strict=True):
        for parameter in unit.parameters():
            places.setdefault(id(parameter), []).append(name)
            weights[id(parameter)] = parameter
    groups: dict[tuple[str, ...], list[nn.Parameter]] = {}
    for key, layers in places.items():
        if len(layers) > 1:
            groups.setdefault(tuple(layers), []).append(weights[key])
    return [
        {
            "layers": list(layers),
            "n_parameters": sum(p.numel() for p in own),
            "weight_bytes": float(sum(p.numel() * p.element_size() for p in own)),
        }
        for layers, own in groups.items()
    ]


def _probes(
    name: str,
    unit: nn.Module,
    entering: Sequence[torch.Tensor],
    axes: tuple[Sequence[int], Sequence[int]],
    tp_plan: dict[str, str],
    ends: tuple[bool, bool],
) -> list[Probe]:
    """Return what to measure of one layer: every number of rows, at every tensor degree that splits it.

    `name`, `unit`, `entering`: the layer, and one sample of what it takes.
    `axes`: numbers of rows, and tensor degrees.
    `tp_plan`: see `meshwright.runtime.parallel.tensor_parallel.styles`.
    `ends`: whether it is the model's first, and its last.
    """
    found = []
    for degree in axes[1]:
        if degree > 1 and not tensor_parallel.styles(unit, tp_plan):
            continue
        tensor_parallel.check(unit, name, degree, tp_plan)
        part = unit if degree == 1 else part_of(unit, 0, degree, tp_plan)
        for n_rows in axes[0]:
            values = [_widen(value, n_rows) for value in entering]
            found.append(Probe(name, n_rows, degree, partial(_measure, part, values, first=ends[0], last=ends[1])))
    return found


def _memory_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _widen(value: torch.Tensor, n_rows: int) -> torch.Tensor:
    if value.is_floating_point():
        return torch.randn(n_rows, *value.shape[1:], dtype=value.dtype, device=value.device)
    return value.expand(n_rows, *value.shape[1:]).contiguous()


def _clock(device: torch.device) -> float:
    """Return seconds: of the GPU's work by the wall, of a CPU's by this thread alone, so that other programs do not count."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.thread_time()


def _measure(unit: nn.Module, values: list[torch.Tensor], repeats: int, *, first: bool, last: bool) -> dict[str, float]:
    """Return medians of one layer."""
    later = DeferredWeightGrad()
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
        for gradient, _ in later.collecting:
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
    from meshwright.runtime.job.trainer import adamw

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
