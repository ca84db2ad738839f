"""What a Piper file says, in its own terms (`PiperInstance`), and how a model of repeated layers is made deeper (`grow`)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from meshwright.base.errors import InputError

__all__ = ["TRANSFORMER", "Counting", "PiperChoice", "PiperEdge", "PiperInstance", "PiperNode", "grow", "names"]

TRANSFORMER = "ParallelTransformerLayer"
"""The one node name with a meaning: the layers that equal splits count and that `grow` repeats."""


@dataclass(frozen=True, slots=True)
class PiperChoice:
    """One way to run a layer on ``t`` devices (the format's TMPC).

    `id`: ``"vanilla"``, ``"activation recomp"``, or any other word.
    `seconds`: forward and backward of one micro-batch on ``t`` devices, in the file's time unit.
    `weight_bytes`: weights per device.
    `activation_bytes`: memory per micro-batch in flight and device (``memoryUsageA``).
    `static_bytes`: memory per device whatever is in flight (``memoryUsageB``).
    `sync_forward`, `sync_backward` (tuple of (int, float)): further bytes per incoming edge (by position of the tail in
    `PiperInstance.nodes`) and per outgoing edge (by position of the head).
    """

    id: str
    seconds: float
    weight_bytes: float
    activation_bytes: float
    static_bytes: float
    sync_forward: tuple[tuple[int, float], ...] = ()
    sync_backward: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class PiperNode:
    """One layer: its id and name in the file, and its choices by tensor degree (a degree without choices is not supported)."""

    id: int
    name: str
    choices: tuple[tuple[int, tuple[PiperChoice, ...]], ...]

    def at(self, degree: int) -> tuple[PiperChoice, ...]:
        """Return the choices at a tensor degree; empty where it is not supported."""
        for known, choices in self.choices:
            if known == degree:
                return choices
        return ()


@dataclass(frozen=True, slots=True)
class PiperEdge:
    """A tensor between two layers (by position): bytes of one micro-batch, one direction."""

    source: int
    target: int
    bytes: float


@dataclass(frozen=True, slots=True)
class Counting:
    """What the cost model counts otherwise than published; all off is the published model.

    `any_replicas`: the number of replicas need not divide the batch: the busiest runs one micro-batch more.
    `tensor_once`: a tensor crosses the border of a stage once, however many consumers it has beyond.
    `shard_optimizer`: replicas share out one copy of the weights' bytes.
    `layer_buffers`: the room for recomputed activations is that of the largest recomputed layer of a stage, not the sum.
    `fill_drain`: the pipeline is filled and drained every batch: the first micro-batch's way through the other stages counts
    too.
    `node_size`: devices of one node; 0 for no nodes.
    `node_bytes_per_second`: bytes per time unit within a node: for tensors between stages that lie in one node, and the
    gradient reduction of a stage whose devices do. Stages stand on the devices one after the other; one that fits into a node
    begins a new one rather than lie across two, as long as there are devices to spare.
    """

    any_replicas: bool = False
    tensor_once: bool = False
    shard_optimizer: bool = False
    layer_buffers: bool = False
    fill_drain: bool = False
    node_size: int = 0
    node_bytes_per_second: float = 0.0


@dataclass(frozen=True, slots=True)
class PiperInstance:
    """The content of a Piper file.

    `nodes`: layers in the file's order.
    `edges`: in the file's order.
    `n_devices`: number of identical devices.
    `n_microbatches`: micro-batches in a batch.
    `bandwidth`: bytes per time unit between any two devices.
    `memory_bytes`: memory of a device.
    `counting`: what the cost model counts otherwise than published.
    """

    nodes: tuple[PiperNode, ...]
    edges: tuple[PiperEdge, ...]
    n_devices: int
    n_microbatches: int
    bandwidth: float
    memory_bytes: float
    counting: Counting = Counting()

    @property
    def degrees(self) -> tuple[int, ...]:
        """Tensor degrees that some layer supports, ascending."""
        return tuple(sorted({degree for node in self.nodes for degree, choices in node.choices if choices}))


def names(instance: PiperInstance) -> tuple[str, ...]:
    """Return a unique name per node: its own where no other node has it, else with its id."""
    counts: dict[str, int] = {}
    for node in instance.nodes:
        counts[node.name] = counts.get(node.name, 0) + 1
    unique = [
        node.name if node.name and counts[node.name] == 1 else f"{node.name or 'node'}.{node.id}" for node in instance.nodes
    ]
    if len(set(unique)) < len(unique):
        unique = [f"{node.id}:{node.name}" for node in instance.nodes]
    return tuple(unique)


def grow(instance: PiperInstance, n_transformers: int) -> PiperInstance:
    """Return the instance with more transformer layers: copies of one that stands between two others.

    `instance`: the model; layers named ``ParallelTransformerLayer`` count.
    `n_transformers`: how many it should have.
    Returns: the deeper model; new nodes stand at the end, with the next free ids.
    Raises `InputError` when it has that many already, or no layer between two others.

    Notes
    -----
    As the original: the edge v -> s becomes v -> u -> s; u copies v's choices; other edges into v (an attention mask) are not
    copied, so a grown model has fewer of them than a model built so deep.

    References
    ----------
    Tarnawski et al., "Piper: Multidimensional Planner for DNN Parallelization" (NeurIPS 2021), section 5 (BERT-48, 64 and 96).
    """
    have = sum(node.name == TRANSFORMER for node in instance.nodes)
    if n_transformers < have:
        raise InputError(
            f"layers={n_transformers}: the model has {have} layers called {TRANSFORMER}; growing cannot remove any"
        )
    while have < n_transformers:
        instance = _grow_by_one(instance)
        have += 1
    return instance


def _grow_by_one(instance: PiperInstance) -> PiperInstance:
    """Insert a copy after the last transformer that stands between two others."""
    nodes, edges = list(instance.nodes), list(instance.edges)
    transformer = [node.name == TRANSFORMER for node in nodes]
    before = {e.target: e.source for e in edges if transformer[e.source] and transformer[e.target]}
    after = {e.source: i for i, e in enumerate(edges) if transformer[e.source] and transformer[e.target]}
    middle = [v for v in before if v in after]
    if not middle:
        raise InputError(f"layers: the model has no {TRANSFORMER} between two others, so none can be repeated")
    v = max(middle)
    cut = edges[after[v]]
    p, s, u = before[v], cut.target, len(nodes)
    copied = []
    for degree, choices in nodes[v].choices:
        entries = []
        for choice in choices:
            forward = dict(choice.sync_forward)[p]
            backward = dict(choice.sync_backward)[s]
            entries.append(replace(choice, sync_forward=((v, forward),), sync_backward=((s, backward),)))
        copied.append((degree, tuple(entries)))
    nodes.append(PiperNode(max(node.id for node in nodes) + 1, nodes[v].name, tuple(copied)))
    nodes[v] = _rename(nodes[v], s, u)
    nodes[s] = _rename(nodes[s], v, u)
    edges[after[v]] = PiperEdge(v, u, cut.bytes)
    edges.append(PiperEdge(u, s, cut.bytes))
    return replace(instance, nodes=tuple(nodes), edges=tuple(edges))


def _rename(node: PiperNode, old: int, new: int) -> PiperNode:
    """Return the node with a neighbour's position changed in its sync terms."""
    choices = tuple(
        (
            degree,
            tuple(
                replace(
                    choice,
                    sync_forward=tuple((new if u == old else u, x) for u, x in choice.sync_forward),
                    sync_backward=tuple((new if u == old else u, x) for u, x in choice.sync_backward),
                )
                for choice in entries
            ),
        )
        for degree, entries in node.choices
    )
    return replace(node, choices=choices)
