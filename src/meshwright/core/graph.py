"""What is computed: layers (`Op`) with the operators inside them, and the tensors between (`Edge`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

from meshwright.base.errors import InputError

__all__ = ["PACKED_BYTES", "Edge", "Graph", "Op", "Operator", "SharedWeights"]

PACKED_BYTES = 0.5
"""Of a frozen weight in four bits, its scales left out."""


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator inside a layer: an iteration space per sample, and the axis tensor parallelism splits.

    Parameters
    ----------
    name : str
        ``"attention.query"``.
    kind : str
        ``matmul`` (axes sequence, in, out), ``grouped_matmul`` (sequence, top_k, experts, in, out: every token visits top_k of
        the experts), ``attention`` (sequence, key_sequence, heads, kv_heads, head, value; score and value products together),
        ``causal_attention`` (the same, half the products), ``norm`` (sequence, hidden), ``elementwise`` (sequence, hidden,
        inputs), ``embedding`` (sequence, vocabulary, hidden), ``cross_entropy`` (sequence, vocabulary), ``softmax``,
        ``convolution``, ``pooling``, ``dispatch`` and ``combine`` (sequence, top_k, hidden: tokens to experts and back),
        ``other`` (only `flops` and `moved_elements` are known).
    dims : tuple of (str, int)
        Axes and sizes per sample, in the order above.
    tensor_axis : str
        The axis that a tensor degree splits by default (Megatron's split): ``out``, ``in`` (leaves partial sums), ``heads``,
        ``vocabulary``, ``hidden``; ``sequence`` is split under sequence parallelism only; empty: computed by every rank.
    n_parameters : int
        Weights of the operator, biases included; of all experts together where it is per expert.
    expert : bool
        Whether the weights belong to routed experts (split by the expert degree).
    saved_elements : int
        Activation elements (in the compute precision) kept from forward to backward per sample; an input shared by several
        operators is counted at the first of them.
    saved_extra_bytes : int
        Bytes kept in another precision: dropout masks, fp32 statistics and logits; per sample.
    saved_axis : str
        How what is saved is split over the tensor axis: ``tensor`` always, ``sequence`` under sequence parallelism only, empty
        never.
    selective : bool
        Whether selective recomputation drops what this operator saves and recomputes it.
    flops : float
        Forward floating point operations per sample where `dims` do not tell (a captured operator); 0 to derive from `dims`.
    moved_elements : int
        Elements read and written per sample where `dims` do not tell; 0 to derive.
    n_frozen_parameters : int
        Those of `n_parameters` that are not trained: they have no gradient and no optimizer state.
    input_gradient : bool
        Whether the backward pass computes the gradient of what the operator reads; not where nothing before it is trained.
    frozen_weight_bytes : float
        Of each frozen weight where it is held in fewer than products use, and widened before each of them (QLoRA); 0 for as
        products use them.
    reference : bool
        Whether it belongs to the forward pass of a frozen reference model, which runs beside the layer's own, keeps nothing and
        is never repeated.
    n_borrowed_parameters : int
        Weights that it reads and that another operator of the layer has: a reference that is the model without its adapters.
    """

    name: str
    kind: str
    dims: tuple[tuple[str, int], ...]
    tensor_axis: str = ""
    n_parameters: int = 0
    expert: bool = False
    saved_elements: int = 0
    saved_extra_bytes: int = 0
    saved_axis: str = "tensor"
    selective: bool = False
    flops: float = 0.0
    moved_elements: int = 0
    n_frozen_parameters: int = 0
    input_gradient: bool = True
    frozen_weight_bytes: float = 0.0
    reference: bool = field(default=False, repr=False)
    n_borrowed_parameters: int = field(default=0, repr=False)

    @property
    def n_trained_parameters(self) -> int:
        """Weights that are trained."""
        return self.n_parameters - self.n_frozen_parameters

    @property
    def frozen(self) -> bool:
        """Whether it has weights, and none of them is trained."""
        return 0 < self.n_parameters == self.n_frozen_parameters

    @property
    def has_backward(self) -> bool:
        """Whether the backward pass computes anything for this operator."""
        return self.input_gradient or self.n_trained_parameters > 0

    def size(self, axis: str, default: int = 1) -> int:
        """Return the size of one axis, or `default` where the operator has no such axis."""
        for name, size in self.dims:
            if name == axis:
                return size
        return default


@dataclass(frozen=True, slots=True)
class Op:
    """One layer: the unit that stages are cut from.

    Parameters
    ----------
    name : str
        ``"embed"``, ``"layers.7"``, ``"head"``; unique in its graph.
    kind : str
        A word for the class of layer: ``embedding``, ``attention_mlp``, ``moe``, ``head``, or an operator's kind.
    body : tuple of Operator
        The operators inside, in order; shared between layers that repeat. Empty where only totals are known.
    like : int
        Id of the first layer with the same body: layers that repeat are costed once.
    """

    name: str
    kind: str
    body: tuple[Operator, ...] = ()
    like: int = -1

    @property
    def n_parameters(self) -> int:
        """Weights of the layer."""
        return sum(operator.n_parameters for operator in self.body)

    @property
    def n_trained_parameters(self) -> int:
        """Weights of the layer that are trained."""
        return sum(operator.n_trained_parameters for operator in self.body)

    @property
    def has_backward(self) -> bool:
        """Whether the backward pass reaches the layer: not where everything up to it is frozen."""
        return not self.body or any(operator.has_backward for operator in self.body)


@dataclass(frozen=True, slots=True)
class Edge:
    """A tensor from one layer to another: `n_elements` per sample in the compute precision."""

    source: int
    target: int
    n_elements: int = 0


@dataclass(frozen=True, slots=True)
class SharedWeights:
    """Weights that several layers read and that are one tensor: a table that embedding and head share.

    Parameters
    ----------
    places : tuple of (int, str)
        Layer and operator of each that has them among its `Operator.n_parameters`, the first in the order of the layers first.
    n_parameters : int
        How many weights.
    """

    places: tuple[tuple[int, str], ...]
    n_parameters: int


@dataclass(frozen=True, slots=True)
class Graph:
    """Layers in a topological order, and the tensors between them.

    Parameters
    ----------
    name : str
        The model's name.
    ops : tuple of Op
        Layers; ids are positions.
    edges : tuple of Edge
        Tensors; `source` and `target` are ids.
    sequence_length : int
        Tokens per sample the dims were built for (1 where samples are not sequences).
    n_shared_parameters : int
        Weights counted twice in `ops` because two layers share them (tied embeddings).
    n_active_parameters : int
        Weights a token meets (less than all of them with experts); 0 means all.
    tokens_name : str
        What a sample consists of: ``tokens``, or empty.
    n_shared_frozen_parameters : int
        Those of `n_shared_parameters` that are not trained.
    shared : tuple of SharedWeights
        Where the weights of `n_shared_parameters` lie, as far as it is known.
    n_sequences : int
        Sequences of `sequence_length` tokens that a sample is made of: two where it is a pair.

    Raises
    ------
    InputError
        When names repeat, layers that are said to be alike (`Op.like`) have different bodies, an edge has an unknown end, the
        edges form a cycle, or shared weights lie in an operator that is not there or has fewer.
    """

    name: str
    ops: tuple[Op, ...]
    edges: tuple[Edge, ...] = ()
    sequence_length: int = 1
    n_shared_parameters: int = 0
    n_active_parameters: int = 0
    tokens_name: str = "tokens"
    n_shared_frozen_parameters: int = 0
    shared: tuple[SharedWeights, ...] = ()
    n_sequences: int = 1

    def __post_init__(self) -> None:
        first: dict[str, int] = {}
        for i, op in enumerate(self.ops):
            if first.setdefault(op.name, i) != i:
                raise InputError(
                    f"model {self.name}: the name '{op.name}' is given to nodes {first[op.name]} and {i}; names must be unique"
                )
        self._check_alike()
        self._check_shared()
        for edge in self.edges:
            for end in (edge.source, edge.target):
                if not 0 <= end < len(self.ops):
                    raise InputError(
                        f"model {self.name}: edge {edge.source} -> {edge.target}: there is no node {end}; nodes are "
                        f"0..{len(self.ops) - 1}"
                    )
        self.topological_order()

    def _check_alike(self) -> None:
        """Refuse layers that are said to be alike and are not: they are costed once. Shared bodies are not compared."""
        bodies: dict[int, tuple[Operator, ...]] = {}
        for i, op in enumerate(self.ops):
            if op.like in (-1, i):
                continue
            body = bodies.setdefault(op.like, self.ops[op.like].body if 0 <= op.like < len(self.ops) else op.body)
            if body is not op.body and body != op.body:
                raise InputError(
                    f"model {self.name}: layer '{op.name}' has like={op.like}, but another body than that layer; layers that "
                    "are alike have equal bodies: give it the same body, or like=-1"
                )

    def _check_shared(self) -> None:
        """Refuse shared weights that lie where none are, and more of them than are counted twice."""
        for own in self.shared:
            for i, name in own.places:
                body = self.ops[i].body if 0 <= i < len(self.ops) else ()
                if not any(operator.name == name and operator.n_parameters >= own.n_parameters for operator in body):
                    raise InputError(
                        f"model {self.name}: {own.n_parameters} shared weights: layer {i} has no operator '{name}' with as many"
                    )
        if self.n_located_parameters > self.n_shared_parameters:
            raise InputError(
                f"model {self.name}: {self.n_located_parameters} shared weights are located, but n_shared_parameters is "
                f"{self.n_shared_parameters}"
            )

    @property
    def n_located_parameters(self) -> int:
        """Those of `n_shared_parameters` of which `shared` says where they lie."""
        return sum((len(own.places) - 1) * own.n_parameters for own in self.shared)

    @property
    def n_parameters(self) -> int:
        """Weights of the model, shared ones counted once."""
        return sum(op.n_parameters for op in self.ops) - self.n_shared_parameters

    @property
    def n_frozen_parameters(self) -> int:
        """Weights that are not trained, shared ones counted once."""
        return sum(op.n_parameters - op.n_trained_parameters for op in self.ops) - self.n_shared_frozen_parameters

    @property
    def n_trained_parameters(self) -> int:
        """Weights that are trained, shared ones counted once."""
        return self.n_parameters - self.n_frozen_parameters

    @property
    def tuned_in_part(self) -> bool:
        """Whether weights of the model itself are frozen, whatever a reference beside it has."""
        return any(part.n_frozen_parameters and not part.reference for body in self._bodies() for part in body)

    def _bodies(self) -> Iterable[tuple[Operator, ...]]:
        """Return the operators of layers, once for layers that share them: layers that repeat hold one tuple."""
        return {id(op.body): op.body for op in self.ops}.values()

    @property
    def has_copy(self) -> bool:
        """Whether the reference has weights of its own."""
        return any(part.n_parameters and part.reference for body in self._bodies() for part in body)

    @property
    def n_tokens(self) -> int:
        """Tokens of a sample, all of its sequences together."""
        return self.sequence_length * self.n_sequences

    @property
    def has_reference(self) -> bool:
        """Whether a frozen reference model's forward pass runs beside the model's own."""
        return any(operator.reference for body in self._bodies() for operator in body)

    def single(self, axis: str) -> str:
        """Return why nothing is priced for a degree above 1 of an axis, in words that follow it; empty where something is."""
        if axis == "pipeline" and self.has_reference:
            return " beside a reference model"
        return " for pairs of sequences" if axis == "context" and self.n_sequences > 1 else ""

    @property
    def quantised(self) -> bool:
        """Whether some frozen weights are held in fewer bytes than products use."""
        return any(operator.frozen_weight_bytes > 0.0 for body in self._bodies() for operator in body)

    @property
    def fully_trained(self) -> bool:
        """Whether no weight is frozen."""
        return all(not operator.n_frozen_parameters for body in self._bodies() for operator in body)

    def id_of(self, name: str) -> int:
        """Return the id of the layer called `name` (KeyError when there is none)."""
        return self.ids()[name]

    def ids(self) -> dict[str, int]:
        """Return the id of every layer by its name, made anew: for many names ask once."""
        return {op.name: i for i, op in enumerate(self.ops)}

    def topological_order(self) -> tuple[int, ...]:
        """Return ids so that every edge points forward; the order of `ops` wherever edges leave a choice.

        Raises
        ------
        InputError
            When the edges form a cycle; the message names it.
        """
        if all(edge.source < edge.target for edge in self.edges):
            return tuple(range(len(self.ops)))
        sorter: TopologicalSorter[int] = TopologicalSorter(dict.fromkeys(range(len(self.ops)), ()))
        for edge in self.edges:
            sorter.add(edge.target, edge.source)
        try:
            sorter.prepare()
        except CycleError as error:
            cycle = " -> ".join(self.ops[i].name for i in reversed(error.args[1]))
            raise InputError(f"model {self.name}: the edges form a cycle: {cycle}") from None
        order: list[int] = []
        ready: list[int] = []
        while sorter.is_active():
            ready = sorted([*ready, *sorter.get_ready()])
            order.append(ready.pop(0))
            sorter.done(order[-1])
        return tuple(order)
