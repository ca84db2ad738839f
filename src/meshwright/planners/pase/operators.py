"""Operators of the PaSE instances: iteration spaces, the tensors they read and write, and what their layer cost is made of."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

__all__ = ["Gemm", "NetworkBuilder", "PaseGraph", "PaseOperator", "Tensor", "Use"]

Shape = tuple[int, ...]
Axes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Gemm:
    """A (batched) matrix product ``m x k`` times ``k x n``: sizes, and the iteration axes that split each of them.

    `sizes`: batch sizes in any number, then m, n and k.
    `axes`: for each size the axes of the operator whose splits multiply to its split.
    `pointwise`: element-wise operations fused behind the product.
    """

    sizes: Shape
    axes: Axes
    pointwise: int = 0


@dataclass(frozen=True, slots=True)
class Use:
    """One tensor an operator reads: who wrote it, its shape, and the operator's axes that split each of its dimensions."""

    producer: int
    shape: Shape
    axes: Axes


@dataclass(frozen=True, slots=True)
class PaseOperator:
    """One vertex of a PaSE graph.

    `name`, `kind`: ``"conv1"``, ``"Conv"``.
    `axis_names`: a word for each axis of the iteration space.
    `sizes`: the iteration space.
    `splittable`: the same with 1 where an axis must not be split: what configurations are enumerated over.
    `cutoff`: smallest size of an axis after splitting.
    `uses`: tensors read that another operator wrote; graph inputs and weights are not listed.
    `output_axes`: axes that split each dimension of the output.
    `batch_axis`: the axis that data parallelism splits.
    `gemm`: the matrix product the layer cost consists of.
    `axis`: of norms and softmax: the axis reduced over.
    `window`: of pooling: input height, input width, window height, window width.
    `reduced`: of means: the axes reduced over.
    `pointwise`: of element-wise operators: operations fused behind it.
    `weight_elements`: trained parameters.
    `weight_axes`: axes whose splits divide the parameters.
    `output_elements`: elements of the output.
    """

    name: str
    kind: str
    axis_names: tuple[str, ...]
    sizes: Shape
    splittable: Shape
    cutoff: int
    uses: tuple[Use, ...]
    output_axes: Axes
    batch_axis: int = 0
    gemm: Gemm | None = None
    axis: int = -1
    window: Shape = ()
    reduced: tuple[int, ...] = ()
    pointwise: int = 0
    weight_elements: int = 0
    weight_axes: tuple[int, ...] = ()
    output_elements: int = 0


@dataclass(frozen=True, slots=True)
class PaseGraph:
    """One PaSE graph: operators in the order they were made; an operator reads only earlier ones."""

    name: str
    operators: tuple[PaseOperator, ...]

    def edges(self) -> tuple[tuple[int, int, Use], ...]:
        """Return (producer, consumer, use) in ascending order; of several tensors between two operators the last counts."""
        last: dict[tuple[int, int], Use] = {}
        for consumer, operator in enumerate(self.operators):
            for use in operator.uses:
                last[use.producer, consumer] = use
        return tuple((*ends, use) for ends, use in last.items())


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor while a graph is being built; producer -1 is a graph input."""

    producer: int
    shape: Shape


class NetworkBuilder:
    """Collects operators; each method adds one and returns its output.

    `cutoff`: smallest size of an axis after splitting.
    """

    def __init__(self, cutoff: int = 4) -> None:
        self.cutoff = cutoff
        self.operators: list[PaseOperator] = []  # what was added so far

    def _add(self, kind: str, names: str, sizes: Shape, inputs: tuple[tuple[Tensor, Axes], ...], **more: Any) -> int:
        """Add an operator and return its id; `more` are fields of `PaseOperator`."""
        identity = len(self.operators)
        uses = tuple(Use(tensor.producer, tensor.shape, axes) for tensor, axes in inputs if tensor.producer >= 0)
        fields: dict[str, Any] = {
            "splittable": sizes,
            "output_axes": _each(len(sizes)),
            "output_elements": math.prod(sizes),
        } | more
        self.operators.append(
            PaseOperator(
                f"{kind.lower()}{identity}", kind, tuple(names.split()), sizes, cutoff=self.cutoff, uses=uses, **fields
            )
        )
        return identity

    def convolution(
        self, x: Tensor, n_filters: int, window: Shape, stride: int = 1, padding: Shape = (0, 0), pointwise: int = 0
    ) -> Tensor:
        """Add a 2-D convolution of x (b, c, h, w); height and width are never split."""
        b, c, h, w = x.shape
        (r, s), (pad_h, pad_w) = window, padding
        ho, wo = int((h - r + 2 * pad_h) / stride) + 1, int((w - s + 2 * pad_w) / stride) + 1
        i = self._add(
            "Conv", "b c h w r s n", (b, c, ho, wo, r, s, n_filters), ((x, ((0,), (1,), (2,), (3,))),),
            splittable=(b, c, 1, 1, r, s, n_filters), output_axes=((0,), (6,), (2,), (3,)),
            gemm=Gemm((b * ho * wo, n_filters, c * r * s), ((0, 2, 3), (6,), (1, 4, 5)), pointwise),
            weight_elements=c * r * s * n_filters, weight_axes=(1, 4, 5, 6), output_elements=b * n_filters * ho * wo,
        )  # fmt: skip
        return Tensor(i, (b, n_filters, ho, wo))

    def pooling(self, x: Tensor, window: int, stride: int, padding: int = 0) -> Tensor:
        """Add a 2-D pooling; splitting height or width exchanges halos."""
        b, c, h, w = x.shape
        ho, wo = (int((size - window + 2 * padding) / stride) + 1 for size in (h, w))
        shape = (b, c, ho, wo)
        i = self._add("Pooling", "b c h w", shape, ((x, _each(4)),), window=(h, w, window, window))
        return Tensor(i, shape)

    def norm(self, x: Tensor, axis: int) -> Tensor:
        """Add a normalisation over `axis`."""
        names = _names(len(x.shape))
        parameters = 2 * x.shape[1 if axis == 0 else axis]
        kept = (1,) if axis == 0 else (axis,)
        i = self._add("Norm", names, x.shape, ((x, _each(len(x.shape))),), axis=axis,
                      weight_elements=parameters, weight_axes=kept)  # fmt: skip
        return Tensor(i, x.shape)

    def elementwise(self, x: Tensor, y: Tensor, pointwise: int = 0) -> Tensor:
        """Add an element-wise operator of two tensors of one shape."""
        names = _names(len(x.shape))
        each = _each(len(x.shape))
        return Tensor(self._add("Elementwise", names, x.shape, ((x, each), (y, each)), pointwise=pointwise), x.shape)

    def concatenation(self, tensors: tuple[Tensor, ...]) -> Tensor:
        """Add a concatenation along the channels, which are not split."""
        b, _, h, w = tensors[0].shape
        shape = (b, sum(tensor.shape[1] for tensor in tensors), h, w)
        i = self._add(
            "Concat", "b c h w", shape, tuple((tensor, _each(4)) for tensor in tensors), splittable=(b, 1, h, w)
        )  # fmt: skip
        return Tensor(i, shape)

    def mean(self, x: Tensor, axes: tuple[int, ...]) -> Tensor:
        """Add a mean over `axes`."""
        kept = tuple(axis for axis in range(len(x.shape)) if axis not in axes)
        shape = tuple(x.shape[axis] for axis in kept)
        i = self._add(
            "ReduceMean", _names(len(x.shape)), x.shape, ((x, _each(len(x.shape))),), reduced=axes,
            output_axes=tuple((axis,) for axis in kept), output_elements=math.prod(shape),
        )  # fmt: skip
        return Tensor(i, shape)

    def fully_connected(self, x: Tensor, n_out: int, pointwise: int = 0) -> Tensor:
        """Add a fully connected layer over the last axis of x."""
        lead, k, d = x.shape[:-1], x.shape[-1], len(x.shape)
        names = " ".join(("b", "l")[: d - 1]) + " n k"
        i = self._add(
            "FC", names, (*lead, n_out, k), ((x, (*_each(d - 1), (d,))),), output_axes=_each(d),
            gemm=Gemm((math.prod(lead), n_out, k), (tuple(range(d - 1)), (d - 1,), (d,)), pointwise),
            weight_elements=n_out * k, weight_axes=(d - 1, d), output_elements=math.prod(lead) * n_out,
        )  # fmt: skip
        return Tensor(i, (*lead, n_out))

    def reshape(self, x: Tensor, shape: Shape) -> Tensor:
        """Add the two vertices of a reshape: to one dimension and back to `shape`."""
        total, d = math.prod(x.shape), len(x.shape)
        flat = Tensor(
            self._add("Ravel", _names(d), x.shape, ((x, _each(d)),), output_axes=(tuple(range(d)),)), (total,)
        )  # fmt: skip
        i = self._add("Unravel", _names(len(shape)), shape, ((flat, (tuple(range(len(shape))),)),))
        return Tensor(i, shape)

    def einsum(self, equation: str, x: Tensor, y: Tensor, *, pointwise: int = 0, kind: str = "Einsum") -> Tensor:
        """Add a tensor product such as ``"ble,ef->blf"``; a weight is a tensor without a producer."""
        left, out = equation.split("->")
        in_x, in_y = left.split(",")
        sizes = dict(zip(in_x, x.shape, strict=True)) | dict(zip(in_y, y.shape, strict=True))
        labels = out + "".join(label for label in dict.fromkeys(in_x + in_y) if label not in out)
        position = {label: i for i, label in enumerate(labels)}
        common = [label for label in in_x if label in in_y]
        batch = [label for label in common if label in out]
        groups: list[list[str]] = [[label] for label in batch]
        groups.append([label for label in in_x if label not in common])
        groups.append([label for label in in_y if label not in common])
        groups.append([label for label in common if label not in out])
        gemm = Gemm(
            tuple(math.prod(sizes[label] for label in group) for group in groups),
            tuple(tuple(position[label] for label in group) for group in groups),
            pointwise,
        )
        weight = y if y.producer < 0 else None
        i = self._add(
            kind, " ".join(labels), tuple(sizes[label] for label in labels),
            ((x, tuple((position[label],) for label in in_x)), (y, tuple((position[label],) for label in in_y))),
            output_axes=_each(len(out)), batch_axis=position["b"], gemm=gemm,
            weight_elements=math.prod(weight.shape) if weight else 0,
            weight_axes=tuple(position[label] for label in in_y) if weight else (),
            output_elements=math.prod(sizes[label] for label in out),
        )  # fmt: skip
        return Tensor(i, tuple(sizes[label] for label in out))

    def embedding(self, batch: int, length: int, vocabulary: int, width: int) -> Tensor:
        """Add an embedding, costed as the product of one-hot tokens and the table."""
        tokens, table = Tensor(-1, (batch, length, vocabulary)), Tensor(-1, (vocabulary, width))
        return self.einsum("blv,ve->ble", tokens, table, kind="Embedding")

    def stack(self, tensors: tuple[Tensor, ...]) -> Tensor:
        """Add a stack of tensors of one shape along a new first axis, which is not split."""
        shape = tensors[0].shape
        inner = tuple((axis + 1,) for axis in range(len(shape)))
        i = self._add(
            "Stack", f"s {_names(len(shape))}", (len(tensors), *shape), tuple((tensor, inner) for tensor in tensors),
            splittable=(1, *shape), batch_axis=1,
        )  # fmt: skip
        return Tensor(i, (len(tensors), *shape))

    def unstack(self, x: Tensor) -> tuple[Tensor, ...]:
        """Add the inverse of a stack; returns one tensor per slice."""
        i = self._add(
            "Unstack", "s b h l k" if len(x.shape) == 5 else f"s {_names(len(x.shape) - 1)}", x.shape,
            ((x, _each(len(x.shape))),), splittable=(1, *x.shape[1:]),
            output_axes=tuple((axis,) for axis in range(1, len(x.shape))), batch_axis=1,
        )  # fmt: skip
        return tuple(Tensor(i, x.shape[1:]) for _ in range(x.shape[0]))

    def softmax(self, x: Tensor, axis: int) -> Tensor:
        """Add a softmax over `axis`."""
        names = "b h l m" if len(x.shape) == 4 else _names(len(x.shape))
        return Tensor(self._add("Softmax", names, x.shape, ((x, _each(len(x.shape))),), axis=axis), x.shape)

    def cross_entropy(self, x: Tensor) -> Tensor:
        """Add a softmax with cross-entropy loss over the last axis."""
        d = len(x.shape)
        names = "b l n" if d == 3 else _names(d)
        return Tensor(self._add("SoftmaxCrossEntropy", names, x.shape, ((x, _each(d)),), axis=d - 1), x.shape)

    def lstm(self, x: Tensor, n_units: int, n_layers: int) -> Tensor:
        """Add stacked LSTM layers as one operator; the sequence is not split, layers may be (a pipeline)."""
        b, s, _ = x.shape
        i = self._add(
            "LSTM", "layer s b n k", (n_layers, s, b, n_units, n_units), ((x, ((2,), (1,), (4,))),),
            splittable=(n_layers, 1, b, n_units, n_units), output_axes=((2,), (1,), (3,)), batch_axis=2,
            gemm=Gemm((n_layers, s * b, 4 * n_units, 2 * n_units), ((0,), (1, 2), (3,), (4,)), 3),
            weight_elements=n_layers * 8 * n_units * n_units, weight_axes=(0, 3, 4), output_elements=b * s * n_units,
        )  # fmt: skip
        return Tensor(i, (b, s, n_units))


def _names(n: int) -> str:
    """Return a word for each of the axes of a tensor, the batch first."""
    known = {1: "b", 2: "b n", 3: "b l e", 4: "b c h w"}
    return known.get(n) or " ".join(["b", *(f"d{axis}" for axis in range(1, n))])


def _each(n: int) -> Axes:
    """Every axis splits the dimension of the same position."""
    return tuple((axis,) for axis in range(n))
