"""A measuring run of the operators of a co-design workload on this machine, as FlexNet's ``--measure``: every split, timed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.nn import functional

from meshwright.base.errors import InputError
from meshwright.planners.topoopt.choices import Servers, degrees_of
from meshwright.planners.topoopt.readers.flexflow_measures import Measurement, Measurements
from meshwright.planners.topoopt.workloads.workload import DATA, Operation, Workload

__all__ = ["N_TIMED", "N_WARM", "measure"]

N_WARM, N_TIMED = 5, 10
"""Runs before and while the clock is read, as FlexFlow takes them; what counts is their mean."""

Forward = Callable[[], torch.Tensor]


def measure(workload: Workload, servers: Servers, device: str, say: Callable[[str, float], None]) -> Measurements:
    """Return what every operator takes for every split along samples, on one device.

    Parameters
    ----------
    workload : Workload
        Operators and samples of a step.
    servers : Servers
        Their number, and the devices of each: a part's samples are dealt out over these.
    device : str
        ``cpu`` or ``cuda``.
    say : callable
        Told what is measured now, and which share of the work is done.

    Returns
    -------
    Measurements
        Milliseconds of forward and backward; bytes of inputs, outputs, weights and their gradients. Operators with the same key
        share the first, as in FlexFlow's files.

    Raises
    ------
    InputError
        When there is no such device, an operator is of a kind that has no layer in PyTorch, or does not fit the device.

    Notes
    -----
    A convolution's stride and padding follow from the shapes around it; where its input is training data, it reads an image
    just large enough. Tables are read at random and their gradients are sparse. Times are in fp32, as these workloads train.
    """
    if device not in ("cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        raise InputError(f"--measure {device}: must be cpu, or cuda where PyTorch sees a GPU")
    questions: dict[tuple[str, int], Operation] = {}
    for i, operation in enumerate(workload.operations):
        for samples in degrees_of(workload, i, servers.n_servers):
            questions.setdefault((operation.key, samples), operation)
    rows = []
    for done, ((key, samples), operation) in enumerate(questions.items()):
        devices = 1 if operation.kind == "embedding" else servers.n_gpus
        share = math.ceil(workload.global_batch / samples / devices)
        say(f"{key}: {share} samples", done / len(questions))
        sizes = [_shape(workload, producer, operation) for producer in operation.inputs]
        split = (*(1,) * len(operation.shape), samples)
        try:
            times, held = _timed(operation, sizes, share, torch.device(device))
        except (RuntimeError, MemoryError) as problem:  # out of memory is a RuntimeError of its own on each kind of device
            reason = str(problem).splitlines()[0]
            raise InputError(
                f"operator {operation.name} ({key}) of {share} samples could not be measured on {device}: {reason}; measure "
                "where it fits, or give --measures"
            ) from None
        rows.append(Measurement(key, split, times, held))
    say(f"{len(rows)} operators and splits measured", 1.0)
    return Measurements(workload.global_batch, servers.n_servers, tuple(rows))


def _shape(workload: Workload, producer: int, reader: Operation) -> tuple[int, ...]:
    """Return the shape of one sample of an input; of training data what the operator can read."""
    if producer != DATA:
        return workload.operations[producer].shape
    if reader.kind == "linear":
        return (*reader.shape[:-1], reader.weights[0] // reader.shape[-1])
    if reader.kind == "conv2d":
        high, wide = _window(reader)
        channels = reader.weights[0] // (reader.shape[0] * high * wide)
        return channels, reader.shape[1] + high - 1, reader.shape[2] + wide - 1
    return reader.shape


def _window(operation: Operation) -> tuple[int, int]:
    """Return height and width of a window, which stand in the key: ``Conv2D_3_3_64``, ``Pool2D_3_3``."""
    words = operation.key.split("_")
    if len(words) < 3 or not (words[1].isdecimal() and words[2].isdecimal()):
        raise InputError(f"operator {operation.name}: key {operation.key} does not name a window, as Conv2D_3_3_64 does")
    return int(words[1]), int(words[2])


def _step(size: int, out: int, window: int) -> tuple[int, int]:
    """Return stride and padding that lead from one size to another; the least padding."""
    for stride in range(1, max(size, 2)):
        for pad in range(window):
            if (size + 2 * pad - window) // stride + 1 == out and size + 2 * pad >= window:
                return stride, pad
    raise InputError(f"no stride leads from {size} to {out} with a window of {window}")


def _timed(
    operation: Operation, sizes: Sequence[tuple[int, ...]], share: int, device: torch.device
) -> tuple[tuple[float, float], int]:  # fmt: skip
    """Return milliseconds forward and backward, and the bytes of what they touch."""
    generator = torch.Generator().manual_seed(0)
    forward, tensors = _layer(operation, sizes, share, device, generator)
    out = forward()
    upstream = torch.ones_like(out)
    grown = [tensor for tensor in tensors if tensor.requires_grad]
    held = sum(tensor.numel() * tensor.element_size() for tensor in (*tensors, *grown, out, upstream))
    seconds = [0.0, 0.0]
    for run in range(N_WARM + N_TIMED):
        begin = _now(device)
        out = forward()
        between = _now(device)
        torch.autograd.grad(out, grown, upstream)
        if run >= N_WARM:
            seconds[0] += between - begin
            seconds[1] += _now(device) - between
    return (1e3 * seconds[0] / N_TIMED, 1e3 * seconds[1] / N_TIMED), held


def _now(device: torch.device) -> float:
    """Return the time at which a device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _layer(
    operation: Operation, sizes: Sequence[tuple[int, ...]], share: int, device: torch.device, generator: torch.Generator
) -> tuple[Forward, list[torch.Tensor]]:
    """Return what runs an operator forward, and the tensors that it reads."""
    inputs = [torch.randn((share, *size), generator=generator).to(device).requires_grad_() for size in sizes]
    kind, x = operation.kind, inputs[0]
    if kind == "embedding":
        return _table(operation, share, device, generator)
    if kind == "linear":
        layer: nn.Module = nn.Linear(x.shape[-1], operation.shape[-1], bias=len(operation.weights) > 1)
    elif kind in ("conv2d", "pool2d"):
        high, wide = _window(operation)
        (down, pad_high), (right, pad_wide) = (
            _step(x.shape[2], operation.shape[1], high),
            _step(x.shape[3], operation.shape[2], wide),
        )
        if kind == "conv2d":
            layer = nn.Conv2d(x.shape[1], operation.shape[0], (high, wide), (down, right), (pad_high, pad_wide))
        else:
            around = (pad_wide, pad_wide, pad_high, pad_high)
            return (lambda: functional.max_pool2d(functional.pad(x, around), (high, wide), (down, right))), inputs
    elif kind == "mha":
        return _attention(operation, inputs, device)
    elif kind in _PLAIN:
        return (lambda: _PLAIN[kind](inputs)), inputs
    else:
        raise InputError(f"operator {operation.name}: a {kind} cannot be measured; times are estimated without --measure")
    layer = layer.to(device)
    return (lambda: layer(x)), [*inputs, *layer.parameters()]


_PLAIN: dict[str, Callable[[Sequence[torch.Tensor]], torch.Tensor]] = {
    "concat": lambda inputs: torch.cat(tuple(inputs), dim=1),
    "add": lambda inputs: inputs[0] + inputs[-1],
    "mul": lambda inputs: inputs[0] * inputs[-1],
    "relu": lambda inputs: functional.relu(inputs[0]),
    "flat": lambda inputs: inputs[0].flatten(1) * 1.0,  # a copy, as FlexFlow's is
    "softmax": lambda inputs: functional.softmax(inputs[0], dim=-1),
}
"""Operators without weights."""


def _table(
    operation: Operation, share: int, device: torch.device, generator: torch.Generator
) -> tuple[Forward, list[torch.Tensor]]:  # fmt: skip
    """Return a table that adds up the rows of a bag."""
    width = operation.shape[-1]
    weight = torch.zeros((operation.weights[0] // width, width), device=device, requires_grad=True)
    bag = max(operation.bag, 1)
    rows = torch.randint(weight.shape[0], (share, bag), generator=generator).to(device)
    return (lambda: functional.embedding_bag(rows, weight, mode="sum", sparse=True)), [weight]


def _attention(
    operation: Operation, inputs: Sequence[torch.Tensor], device: torch.device
) -> tuple[Forward, list[torch.Tensor]]:  # fmt: skip
    """Return a multi-head attention over one to three inputs; the heads stand at the end of the key."""
    width = operation.shape[-1]
    tail = operation.key.removeprefix(f"MultiHeadAttention_{width}")
    heads = int(tail) if tail.isdecimal() and int(tail) and width % int(tail) == 0 else 1
    layer = nn.MultiheadAttention(width, heads, bias=len(operation.weights) > 1, batch_first=True).to(device)
    query, key, value = (inputs[min(i, len(inputs) - 1)] for i in range(3))
    return (lambda: layer(query, key, value, need_weights=False)[0]), [*inputs, *layer.parameters()]
