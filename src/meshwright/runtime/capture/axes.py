"""Which axis of every operator a tensor degree splits: Megatron's rule, found by following split tensors through a layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from meshwright.runtime.capture.operators import LOOK_UPS
from meshwright.runtime.capture.splits import Part, Split, agreed, columns, through_view
from meshwright.runtime.capture.trace import TracedOperator

__all__ = ["Axes", "tensor_axes"]

_LARGE_TABLE = 8192  # rows from which on a look-up table is split over the vocabulary
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "_grouped_mm")
_COPIES = ("clone", "split", "split_with_sizes", "chunk", "unsafe_split")
_CHOICES = ("index", "index_select", "embedding")
_NORMS = ("native_layer_norm", "_fused_rms_norm")
_SOFT_MAXIMA = ("_softmax", "_safe_softmax")
_ALONG_ROWS = ("topk", "sort", "cumsum", "cumprod")


@dataclass(frozen=True, slots=True)
class Axes:
    """What a tensor degree does to the operators of a layer.

    `words`: the axis that is split: ``out``, ``in``, ``heads``, ``hidden``, ``vocabulary``, ``sequence`` (whole, but divisible
    along the sequence); empty where every rank computes it whole.
    `splits`: where the split columns lie in a result.
    """

    words: Mapping[int, str]
    splits: Mapping[int, Split]


def tensor_axes(operators: Sequence[TracedOperator], first: int, last: int, read_later: frozenset[int]) -> Axes:
    """Return, for every operator of a layer, the axis that a tensor degree splits.

    `operators`: of the module, in order, views among them.
    `first`, `last`: ids of the layer's first and last.
    `read_later`: ids whose results leave the layer; these must be whole.

    References
    ----------
    .. [1] Shoeybi et al., "Megatron-LM", arXiv 1909.08053, section 3: split the first product by columns, the next by rows.

    Notes
    -----
    All products with weights start out split by columns. Where the split part meets an operator that needs it whole (a norm
    over it, a sum with something whole, the end of the layer), the products it came from are computed whole, and the layer is
    followed once more.
    """
    whole: set[int] = set()
    read = read_later.union(*(operator.sources for operator in operators[first : last + 1]))
    while True:
        walk = _Walk(operators, first, whole, read)
        for i, operator in enumerate(operators[first : last + 1], first):
            walk.step(i, operator)
            if i in read_later and i in walk.split:
                walk.refuse(i)
            if walk.refused:
                break  # what follows would be judged by what is wrong
        if not walk.refused:
            return Axes(MappingProxyType(walk.axes), MappingProxyType(walk.split))
        whole |= walk.refused


class _Walk:
    """One pass over a layer: where each result is split, and the products that it stems from."""

    def __init__(self, operators: Sequence[TracedOperator], first: int, whole: set[int], read: frozenset[int]) -> None:
        self.operators, self.first, self.whole, self.read = operators, first, whole, read
        self.split: dict[int, Split] = {}
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
        if name in _PRODUCTS and any(operator.weights) and _is_flat(operator):
            self._product(i, operator)
        elif name in LOOK_UPS:
            table = operator.inputs[0].shape
            self.axes[i] = "vocabulary" if table[0] >= _LARGE_TABLE else ""
        elif not sources:
            self.axes[i] = "" if operator.forward_flops else "sequence"
        elif operator.view or name in _COPIES:
            found = through_view(operator, self.split[sources[0]]) if operator.sources[0] == sources[0] else None
            self._set(i, found, sources, "hidden")
        elif name.startswith("_scaled_dot_product"):
            self._set(i, self._attention(operator), self._without_heads(operator, ()), "heads")
        elif name in ("bmm", "baddbmm"):
            self._set(i, self._batched(operator), self._without_heads(operator, operator.sources[-2:-1]), "heads")
        elif name == "_log_softmax":
            self.axes[i] = "vocabulary"  # the largest and the sum are all that ranks exchange
        else:
            axes = {self.split[source][0].axis for source in sources}
            by_column = [source for source in sources if self.split[source][0].axis == -1]
            # where heads meet plain columns, the columns give way
            self._set(i, self._element_wise(operator), by_column if len(axes) > 1 and by_column else sources, "hidden")

    def _set(self, i: int, split: Split | None, sources: list[int], word: str) -> None:
        """Note the split of a result, or refuse where there is none and somebody reads it."""
        if split is not None:
            self.split[i] = split
            self.axes[i] = word
            return
        self.axes[i] = "sequence"
        if i in self.read:
            self.refuse(*sources)

    def _product(self, i: int, operator: TracedOperator) -> None:
        """A product with weights: by rows where its input is split, else by columns unless that was refused."""
        reads = [source for (_, source) in operator.activations if source in self.split]
        on_left = operator.name != "_grouped_mm" and not operator.weights[-1]
        side = -2 if on_left else -1  # with weights on the left, rows are what they make
        if reads:
            inner = all(self.split[source][0].axis == side for source in reads)
            if not inner:
                self.refuse(*reads)
            self.axes[i] = "in" if inner else "sequence"
            return
        if i in self.whole:
            self.axes[i] = "sequence"
            return
        self.axes[i] = "out"
        self.split[i] = columns(side, operator.outputs[0].shape[side])
        self.origin[i] = frozenset((i,))

    def _attention(self, operator: TracedOperator) -> Split | None:
        """Fused attention: split where query, key and value are split by the same heads; a shared key head may be whole."""
        found = self.split.get(operator.sources[0])
        if found is None or found[0].axis != -3:
            return None
        for place in range(1, len(operator.sources)):
            split = self.split.get(operator.sources[place])
            if not (agreed([found, split]) if split else self._fits(operator, place, found[0])):
                return None
        return found

    def _batched(self, operator: TracedOperator) -> Split | None:
        """A product of many small matrices, one per sample and head: split by heads,
        or by rows that share a head of the keys.
        """
        left, right = (self.split.get(source, ()) for source in operator.sources[-2:])
        both = agreed([left, right]) if left and right else left or right
        if not both or (left and right and both[0].axis != -3) or (both[0].axis == -2 and not left) or both[0].axis == -1:
            return None
        if both[0].axis == -3 and not all(
            split or self._fits(operator, place, both[0]) for place, split in ((-2, left), (-1, right))
        ):
            return None
        shared = tuple(part for part in both if part.axis == -3)
        return shared + tuple(part for part in left if part.axis == -2)

    def _without_heads(self, operator: TracedOperator, left: tuple[int, ...]) -> list[int]:
        """Return the split inputs of attention that are split by something else than heads, or else all;
        `left` may be by rows.
        """
        axes = {source: self.split[source][0].axis for source in operator.sources if source in self.split}
        wrong = [source for source, axis in axes.items() if axis != -3 and not (axis == -2 and source in left)]
        return wrong or list(axes)

    def _element_wise(self, operator: TracedOperator) -> Split | None:
        """Anything else keeps the split where it works element by element along that axis."""
        splits = [self.split[source] for source in operator.sources if source in self.split]
        found = agreed(splits)
        out = operator.outputs[0].shape if operator.outputs else ()
        if found is None or operator.forward_flops or -found[0].axis > len(out) or _needs_rows(operator, found[0].axis):
            return None
        axis, kept = found[0].axis, set(found)
        for place, (tensor, source) in enumerate(zip(operator.inputs, operator.sources, strict=True)):
            if source not in self.split:
                if not self._fits(operator, place, found[0]):
                    return None
            elif tensor.shape[axis] != out[axis] or len(tensor.shape) > len(out):
                return None
            else:
                kept = {part for part in kept if -part.axis <= len(tensor.shape) and tensor.shape[part.axis] == out[part.axis]}
        return tuple(part for part in found if part in kept)

    def _fits(self, operator: TracedOperator, place: int, part: Part) -> bool:
        """Whether an input that is whole can stand beside a split one: each rank takes its part of it,
        or all ranks need it all.
        """
        tensor, source = operator.inputs[place], operator.sources[place]
        if not tensor.floating or operator.weights[place] or tensor.shape[part.axis : part.axis + 1 or None] in ((), (1,)):
            return True
        if source < self.first or not self.operators[source].trained or not self.operators[source].fed:
            return True  # of weights alone: a bias of positions
        if self.operators[source].name in _CHOICES and self.operators[source].weights[0]:
            return part.axis == -1  # rows of a table of weights: each rank has its columns
        while source >= self.first:  # one head that was repeated for all
            step = self.operators[source]
            if step.name == "expand" and step.outputs[0].n_elements > step.inputs[0].n_elements:
                return step.outputs[0].n_elements // step.inputs[0].n_elements % part.n == 0
            if not (step.view or step.name == "clone"):
                return False
            source = step.sources[0]
        return False


def _is_flat(operator: TracedOperator) -> bool:
    """Whether a product multiplies by one matrix of weights (or one per expert), not by one per sample and head."""
    return operator.name not in ("bmm", "baddbmm") or (bool(operator.weights[-1]) and operator.inputs[-1].shape[0] == 1)


def _needs_rows(operator: TracedOperator, axis: int) -> bool:
    """Whether an operator needs whole rows along an axis."""
    if operator.name in _NORMS:
        return -axis <= len(operator.numbers)
    if operator.name in _SOFT_MAXIMA:
        return operator.numbers[0] % len(operator.inputs[0].shape) == len(operator.inputs[0].shape) + axis
    return operator.name in _ALONG_ROWS and axis == -1
