"""What each rank of a tensor or context axis computes of a layer, and whether they together compute what the whole layer does.

The ranks are threads of this process, which add up as collectives would: wrong splits show before any process starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from meshwright.base.errors import InputError
from meshwright.runtime.model.in_place import changeable
from meshwright.runtime.model.meta import copied, fill
from meshwright.runtime.model.sequence import in_order, part_of_sequence
from meshwright.runtime.parallel import apart, tensor_parallel
from meshwright.runtime.parallel.context_parallel import InContext
from meshwright.runtime.parallel.experts import experts_of, spread
from meshwright.runtime.parallel.products import axis_of, in_rank_order, size_of
from meshwright.runtime.parallel.threaded_autograd import Gather, Scatter, SumBackward, SumForward
from meshwright.runtime.parallel.threaded_collectives import ThreadedCollectives, cause, together

__all__ = ["check_context", "check_experts", "check_sequence", "check_sum", "part_of", "structure"]

_Trial = tuple[nn.Module, list[torch.Tensor], list[torch.Tensor]]
"""A layer that has gradients, values of what it takes, and what it gives for them."""

_TOLERANCE_RATIO = 1e-4
"""Of the largest value: far above the rounding of fp32, far below what a wrong split does."""


def structure(unit: nn.Module, entering: Sequence[torch.Tensor]) -> str:
    """Return a text that is the same for layers built alike."""
    shapes = [(tuple(p.shape), str(p.dtype)) for p in unit.parameters()]
    kinds = [type(module).__name__ for module in unit.modules()]
    return f"{kinds} {shapes} {[(tuple(value.shape[1:]), str(value.dtype)) for value in entering]}"


def part_of(layer: nn.Module, rank: int, degree: int, tp_plan: Mapping[str, str]) -> nn.Module:
    """Return a copy of a layer that holds what one rank of a tensor axis does, without the collectives.

    `layer`: the layer; unchanged.
    `tp_plan`: see `meshwright.runtime.parallel.tensor_parallel.styles`.
    """
    part = copied(layer)
    columns = tensor_parallel.column_parts(layer, tp_plan)
    tensor_parallel.share_sizes(part, degree, tp_plan)
    tensor_parallel.own_heads(part, rank, degree, tp_plan)
    for path, style in tensor_parallel.styles(layer, tp_plan).items():
        product: Any = part.get_submodule(path)
        in_rank_order(product, columns.get(path, (0,)), degree)
        product.weight = nn.Parameter(product.weight.detach().chunk(degree, axis_of(product, style))[rank].clone())
        if product.bias is not None and style == "column":
            product.bias = nn.Parameter(product.bias.detach().chunk(degree)[rank].clone())
        names = ("out_features", "in_features") if isinstance(product, nn.Linear) else ("nf", "nx")
        for name, kind in zip(names, ("column", "row"), strict=True):
            setattr(product, name, size_of(product, kind))
    return part


_LEAST_RATIO = 1e-2
"""Of a layer's largest gradient: what is smaller may be rounding only, as the gradient of a key's bias is."""


def _connect(part: nn.Module, tp_plan: Mapping[str, str], meeting: ThreadedCollectives, rank: int, sequence: bool) -> None:
    """Let the products of one rank's part add up with those of the others, along whole sequences or parts of them."""
    into = Scatter if sequence else SumForward

    def enter(_: nn.Module, arguments: tuple[Any, ...]) -> Any:
        return changeable(SumBackward.apply(arguments[0], meeting, rank))  # type: ignore[no-untyped-call]

    def whole(value: torch.Tensor) -> Any:
        return Gather.apply(value, meeting, rank, 1)  # type: ignore[no-untyped-call]

    def leave(linear: nn.Module, _: Any, output: torch.Tensor) -> Any:
        bias: Any = linear.bias
        share = output if bias is None else output - bias * (1.0 - 1.0 / len(meeting.held))
        return changeable(into.apply(share, meeting, rank))  # type: ignore[no-untyped-call]

    once, each = tensor_parallel.gathers(part, tp_plan) if sequence else (set(), set())
    for path, style in tensor_parallel.styles(part, tp_plan).items():
        if style == "row":
            part.get_submodule(path).register_forward_hook(leave)
        elif not sequence:
            part.get_submodule(path).register_forward_pre_hook(enter)
    for path, n_shared in tensor_parallel.shared_columns(part, tp_plan).items():
        hook = tensor_parallel.sum_shared(n_shared, lambda value: SumBackward.apply(value, meeting, rank))  # type: ignore[no-untyped-call]
        part.get_submodule(path).register_forward_hook(hook)
    for path in (*once, *each):
        part.get_submodule(path).register_forward_pre_hook(tensor_parallel.gather_hook(whole), with_kwargs=True)


Part = Callable[[torch.Tensor], torch.Tensor]
"""From hidden states of whole sequences to a rank's part of them."""


def _weights_of(value: torch.Tensor, degree: int, part: Part) -> torch.Tensor:
    """Return what a tensor, or a rank's part of it along the sequence, counts in the backward pass."""
    if value.dim() < 3:
        return torch.linspace(-1.0, 1.0, value.numel()).view_as(value) / degree
    sizes = (value.shape[0], value.shape[1] * degree, *value.shape[2:])
    return part(torch.linspace(-1.0, 1.0, value.numel() * degree).view(sizes))


def _outputs(
    layer: nn.Module, entering: Sequence[torch.Tensor], degree: int = 1, part: Part | None = None
) -> list[torch.Tensor]:
    """Return the floating tensors that a layer gives, after a backward pass of those that hang on it.

    `entering`: whole; of each a rank's `part` is taken, one of as many as `degree` says, where it takes parts.
    """
    own = part or (lambda value: value)
    parts = (own(value) if value.dim() >= 3 and value.is_floating_point() else value for value in entering)
    given = [value for value in layer(*parts) if value.is_floating_point()]
    ends = [value for value in given if value.requires_grad]
    torch.autograd.backward(ends, [_weights_of(value, degree, own) for value in ends])
    return [value.detach() for value in given]


def check_sum(layer: nn.Module, entering: Sequence[torch.Tensor], degree: int, tp_plan: Mapping[str, str], place: str) -> None:
    """Refuse a layer whose parts do not add up to it, in outputs or in gradients.

    `tp_plan`: see `meshwright.runtime.parallel.tensor_parallel.styles`.
    Raises `InputError` when something that is split must not be, or a weight between split products is not known to be one.
    """
    whole, values, expected = _whole(layer, entering)
    chosen = tensor_parallel.styles(layer, tp_plan)
    parts = [part_of(whole, rank, degree, tp_plan) for rank in range(degree)]

    def run(rank: int, meeting: ThreadedCollectives) -> list[torch.Tensor]:
        _connect(parts[rank], tp_plan, meeting, rank, sequence=False)
        return _outputs(parts[rank], values)

    found = together(degree, run)
    kind = f"{place}: split over {degree} ranks ({', '.join(sorted(chosen))})"
    help_ = "say in the model how: tensor_parallel = {'attention.wq': 'column', 'attention.wo': 'row', 'router': 'whole', ...}"
    error = cause(found)
    if error is not None:
        raise InputError(f"{kind}, it cannot run: {type(error).__name__}: {error}; {help_}")
    if not all(_close(value, expected) for value in found):
        raise InputError(f"{kind}, it computes something else than whole; {help_}")
    _check_gradients(whole, parts, set(chosen), tensor_parallel.between(layer, tp_plan), kind)


def check_sequence(
    layer: nn.Module, entering: Sequence[torch.Tensor], degree: int, tp_plan: Mapping[str, str], place: str
) -> None:
    """Refuse a layer that cannot work on parts of a sequence between its split products.

    `layer`, `entering`, `degree`, `tp_plan`, `place`: see `check_sum`, which the layer has passed.
    Raises `InputError` when its ranks compute something else than the whole layer, in outputs or in gradients.
    """
    whole, values, expected = _whole(layer, entering)
    parts = [part_of(whole, rank, degree, tp_plan) for rank in range(degree)]

    def run(rank: int, meeting: ThreadedCollectives) -> list[torch.Tensor]:
        if hasattr(parts[rank], "n_parts"):
            parts[rank].n_parts = degree  # type: ignore[assignment]
        _connect(parts[rank], tp_plan, meeting, rank, sequence=True)
        return _outputs(parts[rank], values, degree, lambda value: value.chunk(degree, 1)[rank])

    split = {f"{path}.weight" for path in tensor_parallel.styles(layer, tp_plan)}
    split |= {f"{path}.bias" for path, style in tensor_parallel.styles(layer, tp_plan).items() if style == "column"}
    alike = [i for i, (name, _) in enumerate(whole.named_parameters()) if name not in split]
    kind = f"{place}: sequence parallelism of degree {degree}: on parts of a sequence"
    _compare(
        together(degree, run),
        parts,
        whole,
        (expected, alike),
        f"{kind}, #; say sequence_parallel false in the plan, or plan with --set tensor=1",
        lambda value: value,
    )


def check_context(layer: nn.Module, entering: Sequence[torch.Tensor], degree: int, place: str) -> None:
    """Refuse a layer that cannot work on parts of a sequence.

    `layer`, `entering`, `place`: see `check_sum`.
    Raises `InputError` when its ranks compute something else than the whole layer, in outputs or in gradients, for the sample
    or one without padding, or what it makes of a token hangs on others but by attention.
    """
    kind = f"{place}: context degree {degree}: on parts of a sequence"
    help_ = "layers must treat tokens alike, but for scaled_dot_product_attention; plan again with --set context=1"
    for trial in _trials(layer, entering):
        _check_context(trial, degree, f"{kind}, #; {help_}")
        if apart.meet_outside_attention(layer, trial[1]):
            raise InputError(f"{kind}, it computes something else than whole: tokens meet outside attention; {help_}")


def _check_context(trial: _Trial, degree: int, told: str) -> None:
    """Do what `check_context` does, for one sample."""
    whole, values, expected = trial
    parts = [copied(whole) for _ in range(degree)]

    def run(rank: int, meeting: ThreadedCollectives) -> list[torch.Tensor]:
        if hasattr(parts[rank], "n_parts"):
            parts[rank].n_parts = degree  # type: ignore[assignment]
        inside = InContext(parts[rank], lambda value: Gather.apply(value, meeting, rank, -2), rank, degree)  # type: ignore[no-untyped-call]
        return _outputs(inside, values, degree, lambda value: part_of_sequence(value, 1, rank, degree))

    everything = list(range(len(list(whole.parameters()))))
    _compare(together(degree, run), parts, whole, (expected, everything), told, lambda value: in_order(value, 1, degree))


def check_experts(layer: nn.Module, entering: Sequence[torch.Tensor], degree: int, place: str) -> None:
    """Refuse a layer whose experts cannot be divided.

    `layer`, `entering`, `place`: see `check_sum`.
    Raises `InputError` when the number of experts does not divide, or its ranks compute something else than the whole layer, in
    outputs or in gradients.
    """
    whole, values, _ = _whole(layer, entering)
    for experts in experts_of(whole).values():
        n_experts = len(next(experts.parameters()))
        if n_experts % degree:
            raise InputError(f"{place}: expert degree {degree} does not divide its {n_experts} experts")
        given = _given_to(whole, experts, values)
        if given is not None:
            _check_spread(experts, given, degree, f"{place}: expert degree {degree}: its experts")


def _given_to(layer: nn.Module, experts: nn.Module, values: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
    """Return the tokens, choices and weights that a layer hands its experts; None where it does not call them so."""
    found: list[Any] = []

    def keep(_: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        found.append([*arguments, *named.values()])

    handle = experts.register_forward_pre_hook(keep, with_kwargs=True)
    with torch.no_grad():
        layer(*values)
    handle.remove()
    return [value.detach() for value in found[-1]] if found else None


def _check_spread(experts: nn.Module, given: Sequence[torch.Tensor], degree: int, place: str) -> None:
    """Refuse experts that compute something else where each rank holds some of them and has some of the tokens."""
    hidden, indices, weights = (value.reshape(-1, value.shape[-1]) for value in given)
    holders = [nn.ModuleDict({"experts": copied(experts)}) for _ in range(degree)]
    whole = copied(experts)
    whole.zero_grad()
    split = [[value.clone() for value in values.tensor_split(degree)] for values in (hidden, indices, weights)]

    def run(module: Any, rows: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor) -> list[torch.Tensor]:
        rows.requires_grad_()
        shares.requires_grad_()
        result = module(rows, chosen, shares)
        result.square().sum().backward()
        return [value.detach() for value in (result, rows.grad, shares.grad) if value is not None]

    def one(rank: int, meeting: ThreadedCollectives) -> list[torch.Tensor]:
        spread(holders[rank], rank, degree, lambda rows, sent, _: meeting.swap(rank, rows, sent))
        return run(holders[rank]["experts"], *(values[rank] for values in split))

    found = together(degree, one)
    error = cause(found)
    if error is not None:
        raise InputError(f"{place} cannot run in parts: {type(error).__name__}: {error}; plan again with --set expert=1")
    expected = run(whole, hidden.clone(), indices, weights.clone())
    joined = [torch.cat(values) for values in zip(*found, strict=True)]
    held = [torch.cat(values) for values in zip(*(_gradients(holder) for holder in holders), strict=True)]
    if not _close([*joined, *held], [*expected, *_gradients(whole)], _LEAST_RATIO * _largest(_gradients(whole))):
        raise InputError(f"{place} compute something else in parts than whole; plan again with --set expert=1")


def _compare(
    found: Sequence[Any],
    parts: Sequence[nn.Module],
    whole: nn.Module,
    right: tuple[list[torch.Tensor], list[int]],
    told: str,
    order: Part,
) -> None:
    """Refuse parts of sequences that put together are not the whole, in outputs or in sums of the gradients of some weights.

    `found`, `parts`, `whole`: what each rank gave, or its exception; its layer; the whole layer.
    `right`: what the whole layer gave, and the numbers of the weights to compare.
    `told`: the message, with ``#`` for the reason.
    `order`: puts the parts of all ranks, one after the other, in order.
    Raises `InputError` when they are not.
    """
    error = cause(found)
    if error is not None:
        raise InputError(told.replace("#", f"it cannot run: {type(error).__name__}: {error}"))
    joined = [order(torch.cat(values, 1)) if values[0].dim() >= 3 else values[0] for values in zip(*found, strict=True)]
    held = [_gradients(part) for part in parts]
    expected = _gradients(whole)
    sums = [torch.stack([mine[i] for mine in held]).sum(0) for i in right[1]]
    if not _close(joined, right[0]) or not _close(sums, [expected[i] for i in right[1]], _LEAST_RATIO * _largest(expected)):
        raise InputError(told.replace("#", "it computes something else than whole"))


def _gradients(part: nn.Module) -> list[torch.Tensor]:
    return [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in part.parameters()]


def _trials(layer: nn.Module, entering: Sequence[torch.Tensor]) -> Iterator[_Trial]:
    """Yield trials of a layer with samples of one piece without padding, as far as it takes them, and with the one given."""
    samples = apart.unbroken(entering)
    for values in samples[:-1]:
        trial = None
        with suppress(Exception):  # numbers may be no masks, places or lengths but, say, entries of a table
            trial = _whole(layer, values)
        if trial is not None:
            yield trial
    yield _whole(layer, samples[-1])


def _whole(layer: nn.Module, entering: Sequence[torch.Tensor]) -> _Trial:
    """Return a copy of a layer that has gradients, values of what it takes, and what it gives for them.

    What has rows of the batch is random, since a sample of equal tokens would hide much, unless the layer cannot take it so.
    """
    whole = fill(copied(layer)).float().eval().requires_grad_(True)
    given = [value.detach().float() if value.is_floating_point() else value for value in entering]
    generator = torch.Generator().manual_seed(0)
    n_rows = next((len(value) for value in given if value.dim() > 1), 0)
    values = [
        torch.randn(value.shape, generator=generator)
        if value.is_floating_point() and value.dim() and len(value) == n_rows
        else value
        for value in given
    ]
    expected = _outputs(whole, values)
    if all(bool(value.isfinite().all()) for value in expected):
        return whole, values, expected
    whole.zero_grad()
    return whole, given, _outputs(whole, given)


def _close(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], least: float = 1e-6) -> bool:
    """Whether tensors are equal but for rounding; of values below `least`, rounding is all there may be."""
    return all(
        a.shape == b.shape and float((a - b).abs().max()) <= _TOLERANCE_RATIO * max(least, float(b.abs().max()))
        for a, b in zip(found, expected, strict=True)
    )


def _largest(values: Sequence[torch.Tensor]) -> float:
    return max((float(value.abs().max()) for value in values if value.numel()), default=0.0)


def _check_gradients(whole: nn.Module, parts: Sequence[nn.Module], split: set[str], between: set[str], kind: str) -> None:
    """Refuse weights whose gradients the ranks hold in parts although they are not known to lie between split products."""
    least = _LEAST_RATIO * _largest(_gradients(whole))
    for path, module in whole.named_modules():
        for name, weight in module.named_parameters(recurse=False):
            if path in split or path in between or weight.grad is None:
                continue
            held = [getattr(part.get_submodule(path), name).grad for part in parts]
            if any(gradient is None or not _close([gradient], [weight.grad], least) for gradient in held):
                full = f"{path}.{name}".removeprefix(".")
                raise InputError(
                    f"{kind}, each rank has a part only of the gradient of '{full}'; say in the model that its module works "
                    "between "
                    f"split products: tensor_parallel = {{..., '{path.removeprefix('layer.')}': 'between'}}"
                )
