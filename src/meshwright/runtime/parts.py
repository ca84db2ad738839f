"""What each rank of a tensor axis computes of a layer, and whether the ranks together compute what the whole layer does.

The ranks are threads of this process, which add up as collectives would: wrong splits show before any process starts.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from meshwright.errors import InputError
from meshwright.runtime import tensor_parallel

__all__ = ["check_sum", "part_of", "structure"]

_TOLERANCE_RATIO = 1e-4
"""Of the largest value: far above the rounding of fp32, far below what a wrong split does."""


def structure(unit: nn.Module, entering: Sequence[torch.Tensor]) -> str:
    """Return a text that is the same for layers built alike."""
    shapes = [(tuple(p.shape), str(p.dtype)) for p in unit.parameters()]
    kinds = [type(module).__name__ for module in unit.modules()]
    return f"{kinds} {shapes} {[(tuple(value.shape[1:]), str(value.dtype)) for value in entering]}"


def part_of(layer: nn.Module, rank: int, degree: int, wishes: Mapping[str, str]) -> nn.Module:
    """Return a copy of a layer that holds what one rank of a tensor axis does, without the collectives.

    Parameters
    ----------
    layer : torch.nn.Module
        The layer; unchanged.
    rank, degree : int
        Of the axis.
    wishes : mapping of str to str
        See `meshwright.runtime.tensor_parallel.styles`.
    """
    part = copy.deepcopy(layer)
    tensor_parallel.share_sizes(part, degree, wishes)
    for path, style in tensor_parallel.styles(layer, wishes).items():
        linear = part.get_submodule(path)
        assert isinstance(linear, nn.Linear)
        weight = linear.weight.detach().chunk(degree, 0 if style == "column" else 1)[rank].clone()
        linear.out_features, linear.in_features = weight.shape
        linear.weight = nn.Parameter(weight)
        if linear.bias is not None and style == "column":
            linear.bias = nn.Parameter(linear.bias.detach().chunk(degree)[rank].clone())
    return part


class _Meeting:
    """Where the threads of a tensor axis add up what each holds."""

    def __init__(self, degree: int) -> None:
        self.barrier = threading.Barrier(degree)
        self.held: list[Any] = [None] * degree

    def total(self, rank: int, value: torch.Tensor) -> torch.Tensor:
        """Return the sum over ranks."""
        self.held[rank] = value
        self.barrier.wait()
        total = torch.stack(self.held).sum(0)
        self.barrier.wait()
        return total


class _SumForward(torch.autograd.Function):
    """The sum over ranks of what a row product gives."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, meeting: _Meeting, rank: int) -> torch.Tensor:
        """Return the sum."""
        return meeting.total(rank, value)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        """Return the gradient, which all ranks have."""
        return gradient, None, None


class _SumBackward(torch.autograd.Function):
    """The sum over ranks of the gradients of what column products take."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, meeting: _Meeting, rank: int) -> torch.Tensor:
        """Return the value, which all ranks have."""
        ctx.meeting, ctx.rank = meeting, rank
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        """Return the sum."""
        return ctx.meeting.total(ctx.rank, gradient), None, None


def _connect(part: nn.Module, chosen: Mapping[str, str], meeting: _Meeting, rank: int) -> None:
    """Let the products of one rank's part add up with those of the others."""

    def enter(_: nn.Module, arguments: tuple[Any, ...]) -> Any:
        return _SumBackward.apply(arguments[0], meeting, rank)  # type: ignore[no-untyped-call]

    def leave(linear: nn.Module, _: Any, output: torch.Tensor) -> Any:
        bias: Any = linear.bias
        share = output if bias is None else output - bias * (1.0 - 1.0 / len(meeting.held))
        return _SumForward.apply(share, meeting, rank)  # type: ignore[no-untyped-call]

    for path, style in chosen.items():
        if style == "column":
            part.get_submodule(path).register_forward_pre_hook(enter)
        else:
            part.get_submodule(path).register_forward_hook(leave)


def _outputs(layer: nn.Module, entering: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the floating tensors that a layer gives, after a backward pass of all of them."""
    given = [value for value in layer(*entering) if value.is_floating_point()]
    torch.autograd.backward(given, [torch.linspace(-1.0, 1.0, value.numel()).view_as(value) for value in given])
    return [value.detach() for value in given]


def check_sum(layer: nn.Module, entering: Sequence[torch.Tensor], degree: int, wishes: Mapping[str, str], where: str) -> None:
    """Refuse a layer whose parts do not add up to it, in outputs or in gradients.

    Parameters
    ----------
    layer : torch.nn.Module
        The layer.
    entering : sequence of torch.Tensor
        What it takes.
    degree : int
        Of the tensor axis.
    wishes : mapping of str to str
        See `meshwright.runtime.tensor_parallel.styles`.
    where : str
        Names plan, stage and layer, for messages.

    Raises
    ------
    InputError
        When something that is split must not be, or a weight between split products is not known to be one.
    """
    whole = copy.deepcopy(layer).float().eval().requires_grad_(True)
    values = [torch.randn_like(value) if value.is_floating_point() else value for value in entering]
    values = [value.float() if value.is_floating_point() else value for value in values]
    expected = _outputs(whole, values)
    chosen = tensor_parallel.styles(layer, wishes)
    meeting = _Meeting(degree)
    parts = [part_of(whole, rank, degree, wishes) for rank in range(degree)]
    found: list[Any] = [None] * degree

    def run(rank: int) -> None:
        try:
            _connect(parts[rank], chosen, meeting, rank)
            found[rank] = _outputs(parts[rank], values)
        except Exception as error:
            found[rank] = error
            meeting.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(degree)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    what = f"{where}: split over {degree} ranks ({', '.join(sorted(chosen))})"
    help_ = "say in the model how: tensor_parallel = {'attention.wq': 'column', 'attention.wo': 'row', 'router': 'whole', ...}"
    for value in found:
        if isinstance(value, Exception) and not isinstance(value, threading.BrokenBarrierError):
            raise InputError(f"{what}, it cannot run: {type(value).__name__}: {value}; {help_}")
    if any(isinstance(value, Exception) or not _close(value, expected) for value in found):
        raise InputError(f"{what}, it computes something else than whole; {help_}")
    _check_gradients(whole, parts, set(chosen), tensor_parallel.between(layer, wishes), what)


def _close(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> bool:
    return all(
        a.shape == b.shape and float((a - b).abs().max()) <= _TOLERANCE_RATIO * max(1e-6, float(b.abs().max()))
        for a, b in zip(found, expected, strict=True)
    )


def _check_gradients(whole: nn.Module, parts: Sequence[nn.Module], split: set[str], between: set[str], what: str) -> None:
    """Refuse weights whose gradients the ranks hold in parts although they are not known to lie between split products."""
    for path, module in whole.named_modules():
        for name, weight in module.named_parameters(recurse=False):
            if path in split or path in between or weight.grad is None:
                continue
            held = [getattr(part.get_submodule(path), name).grad for part in parts]
            if any(gradient is None or not _close([gradient], [weight.grad]) for gradient in held):
                full = f"{path}.{name}".removeprefix(".")
                raise InputError(
                    f"{what}, each rank has a part only of the gradient of '{full}'; say in the model that its module works between "
                    f"split products: tensor_parallel = {{..., '{path.removeprefix('layer.')}': 'between'}}"
                )
