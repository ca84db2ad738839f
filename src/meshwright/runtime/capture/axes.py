"""Which axis of every operator a tensor degree splits: Megatron's rule, found by following split tensors through a layer."""

from __future__ import annotations

import math
from collections.abc import Sequence

from meshwright.runtime.capture.trace import TracedOperator

__all__ = ["tensor_axes"]

_LARGE_TABLE = 8192  # rows from which on a look-up table is split over the vocabulary
_PRODUCTS = ("mm", "addmm", "_grouped_mm")


def tensor_axes(operators: Sequence[TracedOperator], first: int, read_later: frozenset[int]) -> dict[int, str]:
    """Return, for every operator of a layer, the axis that a tensor degree splits; empty where every rank computes it whole.

    Parameters
    ----------
    operators : sequence of TracedOperator
        The layer's operators in order, views among them.
    first : int
        Id of the first.
    read_later : frozenset of int
        Ids whose results leave the layer; these must be whole.

    Returns
    -------
    dict of int to str
        ``out``, ``in``, ``heads``, ``hidden``, ``vocabulary``, ``sequence`` (whole, but divisible along the sequence) or empty.

    References
    ----------
    .. [1] Shoeybi et al., "Megatron-LM", arXiv 1909.08053, section 3: split the first product by columns, the next by rows.

    Notes
    -----
    All products with weights start out split by columns. Where the split part meets an operator that needs it whole (a norm over
    it, a sum with something whole, the end of the layer), the products it came from are computed whole, and the layer is followed
    once more.
    """
    whole: set[int] = set()
    while True:
        walk = _Walk(first, whole)
        for i, operator in enumerate(operators, first):
            walk.step(i, operator)
            if i in read_later and walk.split.get(i) is not None:
                walk.refuse(i)
        if not walk.refused:
            return walk.axes
        whole |= walk.refused


class _Walk:
    """One pass over a layer: where each result is split, counted from the last axis, and the products that it stems from."""

    def __init__(self, first: int, whole: set[int]) -> None:
        self.first, self.whole = first, whole
        self.split: dict[int, int] = {}
        self.origin: dict[int, frozenset[int]] = {}
        self.axes: dict[int, str] = {}
        self.refused: set[int] = set()

    def refuse(self, *ids: int) -> None:
        """Have the products computed whole from which these results stem."""
        for i in ids:
            self.refused |= self.origin.get(i, frozenset())
            self.split.pop(i, None)

    def step(self, i: int, operator: TracedOperator) -> None:
        """Decide one operator."""
        sources = [source for source in operator.sources if source in self.split]
        self.origin[i] = frozenset().union(*(self.origin[source] for source in sources)) if sources else frozenset()
        name = operator.name
        if not operator.trained:
            return
        if name in _PRODUCTS and any(operator.weights):
            self._product(i, operator)
        elif name == "embedding":
            table = operator.inputs[0].shape
            self.axes[i] = "vocabulary" if table[0] >= _LARGE_TABLE else ""
        elif not sources:
            self.axes[i] = "" if operator.forward_flops else "sequence"
        elif operator.view or name in ("clone", "split", "split_with_sizes", "chunk"):
            self._set(i, _through_view(operator, self._first_split(operator)), sources, "hidden")
        elif name.startswith("_scaled_dot_product"):
            query = [self.split.get(source) for source in operator.sources[:3]]
            self._set(i, -3 if query == [-3, -3, -3] else None, sources, "heads")
        elif name == "_log_softmax":
            self.axes[i] = "vocabulary"  # the largest and the sum are all that ranks exchange
        else:
            self._other(i, operator, sources)

    def _first_split(self, operator: TracedOperator) -> int:
        """Return the split axis of the first input that has one."""
        return next(self.split[source] for source in operator.sources if source in self.split)

    def _set(self, i: int, axis: int | None, sources: list[int], word: str) -> None:
        """Note the split of a result, or refuse where there is none."""
        if axis is None:
            self.refuse(*sources)
            self.axes[i] = "sequence"
        else:
            self.split[i] = axis
            self.axes[i] = word

    def _product(self, i: int, operator: TracedOperator) -> None:
        """A product with weights: by rows where its input is split, else by columns unless that was refused."""
        reads = [source for (_, source) in operator.activations if source in self.split]
        if reads:
            inner = all(self.split[source] == -1 for source in reads)
            if not inner:
                self.refuse(*reads)
            self.axes[i] = "in" if inner else "sequence"
            return
        if i in self.whole:
            self.axes[i] = "sequence"
            return
        self.axes[i] = "out"
        self.split[i] = -1
        self.origin[i] = frozenset((i,))

    def _other(self, i: int, operator: TracedOperator, sources: list[int]) -> None:
        """Anything else keeps the split where it works element by element along that axis."""
        axis = self._first_split(operator)
        out = operator.outputs[0].shape if operator.outputs else ()
        kept = -axis <= len(out)
        for tensor, source, weight in zip(operator.inputs, operator.sources, operator.weights, strict=True):
            if not kept or not tensor.floating or weight or len(tensor.shape) < -axis or tensor.shape[axis] == 1:
                continue
            if source in self.split:
                kept = self.split[source] == axis and tensor.shape[axis] == out[axis]
            elif source >= self.first:
                kept = not operator.trained or len(tensor.shape) == 0
        if operator.name in ("_softmax", "native_layer_norm", "_fused_rms_norm", "topk", "sort", "cumsum") and axis == -1:
            kept = False
        if operator.name in ("bmm", "baddbmm"):
            kept = kept and axis == -3
        if operator.forward_flops and operator.name != "bmm":
            kept = False
        self._set(i, axis if kept else None, sources, "heads" if operator.name == "bmm" else "hidden")


def _through_view(operator: TracedOperator, axis: int) -> int | None:
    """Return where the split axis of an input ends up in a result that shows the same elements otherwise."""
    before, after = operator.inputs[0].shape, operator.outputs[0].shape
    position = len(before) + axis
    if operator.name in ("t", "transpose", "permute"):
        order = list(range(len(before)))
        if operator.name == "permute":
            order = [number % len(before) for number in operator.numbers]
        else:
            one, other = (0, 1) if operator.name == "t" else operator.numbers[:2]
            order[one], order[other] = order[other], order[one]
        return order.index(position) - len(after)
    if len(before) == len(after):
        return axis
    if operator.name == "select" and len(operator.numbers) > 1:
        gone = operator.numbers[0] % len(before)
        return None if gone == position else axis if gone < position else axis + 1
    outside = math.prod(before[:position])
    for place in range(len(after)):
        if after[place] > 1 and math.prod(after[:place]) == outside:
            return place - len(after)
    return None
