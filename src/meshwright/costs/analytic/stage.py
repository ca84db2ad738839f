"""From the work of a layer and the mesh of its stage to a `StageCost`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from meshwright.base.errors import InputError
from meshwright.core.cluster import Device
from meshwright.core.graph import PACKED_BYTES
from meshwright.core.problem import Framework, MixedPrecision
from meshwright.core.stage_cost import StageCost
from meshwright.core.strategy import OFFLOAD, Strategy
from meshwright.costs.analytic.device_mesh import Axis, Mesh, bucket_seconds
from meshwright.costs.analytic.layer import LayerWork, Repeat, Transfer
from meshwright.costs.analytic.offload import exposed_seconds, host_update
from meshwright.costs.analytic.scattering import gathers, held_width, replica_bytes, scatter_width, scatters
from meshwright.costs.analytic.update import EXCHANGED_BYTES, shaped_update

__all__ = [
    "exchanges",
    "exposed",
    "layer_load",
    "layer_loads",
    "repeated",
    "replica_bytes",
    "scatter_width",
    "scatters",
    "sharded_seconds",
]


def layer_load(
    work: LayerWork,
    recompute: str,
    mesh: Mesh,
    strategy: Strategy,
    device: Device,
    training: MixedPrecision,
    framework: Framework,
) -> StageCost:
    """Return the load of one layer.

    `recompute`: ``none``, ``selective``, ``full`` or a setting of the framework's own.

    Notes
    -----
    Sharded weights (ZeRO-3) are gathered before the forward and again before the backward pass of every micro-batch, each
    beside the compute of the neighbouring layer: only what exceeds one layer's compute is exposed; those of ZeRO-2 before the
    forward pass only, where the framework frees them in between (`Framework.gathers_each`). Gradients sharded over the
    micro-batches (ZeRO-2 and 3) are reduced at once, beside the same compute; with HSDP the replicas add up their shards once a
    step, or then too. Taking gathered weights apart and laying gradients out for the scattering are copies, which nothing
    hides. Gradients that stand whole till a step's last micro-batch (`Framework.whole_gradients`, and `reduces_once` of ZeRO-2)
    are laid out and scattered once.
    """
    return layer_loads(work, (recompute,), mesh, strategy, device, training, framework)[0]


def layer_loads(
    work: LayerWork,
    settings: Sequence[str],
    mesh: Mesh,
    strategy: Strategy,
    device: Device,
    training: MixedPrecision,
    framework: Framework,
) -> list[StageCost]:
    """Return the load of one layer under each of some settings of recomputation, as `layer_load`: most of it is alike."""
    weights, gradients, optimizer = _state_bytes(work, mesh, strategy, training, framework)
    gathered, communication = _unit_bytes(work, mesh, strategy, training, framework)
    communication += framework.buffer_bytes if strategy.shard else 0.0
    fragmentation = 0.0 if framework.expandable_segments else training.fragmentation_ratio
    with_waste = 1.0 + fragmentation
    splits = framework.splits_transfers and not strategy.sequence_parallel
    update_seconds, host_bytes = _update(work, mesh, strategy, device, training, framework, (weights, gradients, optimizer))
    output_bytes = work.output_bytes / (strategy.tensor if splits else 1)
    unpack, pack = _copy_seconds(work, strategy, device, training, framework) if framework.copies_gathered else (0.0, 0.0)
    reduce_seconds = _reduce_seconds(work, mesh, strategy, training, framework, pack)
    gather_seconds = _gather_seconds(work, mesh, strategy, training, framework)
    weight_bytes = weights - _packed_saving(work, mesh, strategy, training)
    forward = _communication(work.forward, mesh, strategy, framework)
    gather, reduce = sharded_seconds(work, mesh, strategy, training, framework)
    pack = pack if scatters(strategy, framework) else 0.0
    if gather or reduce:
        forward = _add(forward, "gather", max(0.0, gather - work.forward_seconds) + unpack)
    again_seconds, unpack = (gather, unpack) if strategy.shard == 3 else (0.0, 0.0)
    found = []
    for recompute in settings:
        again, again_transfers = repeated(work, recompute)
        backward = _communication((*work.backward, *again_transfers), mesh, strategy, framework)
        if (gather or reduce) and work.has_backward:
            beside, after = (reduce, 0.0) if framework.overlaps_scatter else (0.0, reduce)
            backward_seconds = work.backward_input_seconds + work.backward_weight_seconds + again
            backward = _add(backward, "gather", max(0.0, again_seconds + beside - backward_seconds) + after + unpack + pack)
        saved, working = _activation_bytes(work, recompute)
        there, away = forward, 0.0
        if recompute == OFFLOAD and work.has_backward:
            away = work.saved_bytes
            there = _add(forward, "offload", exposed_seconds(away, work.forward_seconds, device))
            beside = work.backward_input_seconds + work.backward_weight_seconds
            backward = _add(backward, "offload", exposed_seconds(away, beside, device))
        found.append(
            StageCost(
                forward_seconds=work.forward_seconds,
                backward_input_seconds=work.backward_input_seconds,
                backward_weight_seconds=work.backward_weight_seconds,
                recompute_seconds=again,
                forward_communication=there,
                backward_communication=backward,
                output_bytes=output_bytes,
                reduce_seconds=reduce_seconds,
                gather_seconds=gather_seconds,
                optimizer_seconds=update_seconds,
                weight_bytes=weight_bytes,
                gradient_bytes=gradients,
                optimizer_bytes=optimizer,
                activation_bytes=with_waste * saved,
                working_bytes=with_waste * (working + gathered),
                reserved_bytes=device.reserved_bytes + communication,
                model_flops=work.model_flops,
                communication_bytes=communication,
                fragmentation_ratio=fragmentation,
                output_gradient=work.has_backward,
                host_bytes=host_bytes + away,
            )
        )
    return found


def _update(
    work: LayerWork,
    mesh: Mesh,
    strategy: Strategy,
    device: Device,
    training: MixedPrecision,
    framework: Framework,
    state: tuple[float, float, float],
) -> tuple[float, float]:
    """Return the seconds of the optimizer and the bytes on the host; `state`: bytes of weights, gradients, optimizer state."""
    if strategy.offload == "optimizer":
        share = work.n_trained_dense / mesh.n_shards + work.n_trained_expert / mesh.n_expert_shards
        n_updated = share if strategy.shard else float(work.n_trained_dense + work.n_trained_expert)
        return host_update(n_updated, device, training)
    weights, gradients, optimizer = state
    if framework.whole_gradients and strategy.shard >= 2:
        share = work.n_trained_dense / mesh.n_shards + work.n_trained_expert / mesh.n_expert_shards
        gradients = training.gradient_bytes * share
    n_frozen = work.n_dense_parameters - work.n_trained_dense, work.n_expert_parameters - work.n_trained_expert
    updated = weights - _weight_bytes(*n_frozen, mesh, strategy, training)
    moved = 2.0 * gradients + 2.0 * optimizer + updated
    if strategy.shard < 3 and strategy.shard > 0:
        moved = (gradients if strategy.shard == 1 else 2.0 * gradients) + 2.0 * optimizer + updated
    shaped_bytes, shaped_seconds = shaped_update(
        work.updates, (mesh.n_shards, mesh.n_expert_shards) if strategy.shard else (1, 1)
    )
    return (moved + shaped_bytes) / (device.memory_bytes_per_second * device.memory_ratio) + shaped_seconds, 0.0


def repeated(work: LayerWork, recompute: str) -> tuple[float, tuple[Transfer, ...]]:
    """Return the compute and the collectives of the forward pass that are repeated before the backward pass."""
    if not work.has_backward:
        return 0.0, ()
    if recompute == "full":
        return work.rerun_seconds, work.rerun
    if recompute == "selective":
        return work.selective_seconds, work.selective
    if recompute in ("none", OFFLOAD):
        return 0.0, ()
    own = _own(work, recompute)
    return own.seconds, own.transfers


def _own(work: LayerWork, recompute: str) -> Repeat:
    """Return what a setting of the framework's own repeats and keeps."""
    for word, own in work.repeats:
        if word == recompute:
            return own
    raise InputError(f"recomputation '{recompute}' is none that this framework has")


def _communication(
    transfers: Iterable[Transfer], mesh: Mesh, strategy: Strategy, framework: Framework
) -> tuple[tuple[str, float], ...]:
    """Return the exposed seconds by cause."""
    seconds: dict[str, float] = {}
    for transfer in transfers:
        if mesh.axis(transfer.axis) is not None and transfer.n_bytes > 0.0:
            seconds[transfer.cause] = seconds.get(transfer.cause, 0.0) + exposed(transfer, mesh, strategy, framework)[2]
    return tuple(sorted(seconds.items()))


def exposed(transfer: Transfer, mesh: Mesh, strategy: Strategy, framework: Framework) -> tuple[float, float, float]:
    """Return what a collective inside a layer puts on the network: its bytes, its seconds, and those that no compute hides."""
    cause, name, kind, n_bytes, hidden_seconds, n_copies = transfer
    axis = mesh.axis(name)
    if axis is None or n_bytes <= 0.0:
        return 0.0, 0.0, 0.0
    if cause == "expert" and framework.dispatches_once:
        n_bytes *= distinct(mesh.n_expert_targets, n_copies) / n_copies
    seconds = axis.seconds(kind, n_bytes)
    if cause == "context" and not _overlaps(strategy, framework):
        hidden_seconds = 0.0
    waited = max(0.0, seconds - hidden_seconds)
    if cause == "tensor" and kind != "all_reduce" and strategy.sequence_parallel:
        waited *= 1.0 - framework.tensor_overlap_ratio
    return n_bytes, seconds, waited


def _overlaps(strategy: Strategy, framework: Framework) -> bool:
    """Return whether the exchange over the context axis runs beside attention."""
    return framework.overlaps_gather if strategy.context_exchange == "all_gather" else framework.overlaps_ring


def distinct(n_targets: int, n_copies: int) -> float:
    """Return how many of `n_targets` equally likely targets `n_copies` independent copies reach, on average."""
    return n_targets * (1.0 - (1.0 - 1.0 / n_targets) ** n_copies)


def _add(causes: tuple[tuple[str, float], ...], cause: str, seconds: float) -> tuple[tuple[str, float], ...]:
    """Return `causes` with `seconds` more of one cause."""
    together = dict(causes)
    together[cause] = together.get(cause, 0.0) + seconds
    return tuple(sorted(together.items()))


def _copy_seconds(
    work: LayerWork, strategy: Strategy, device: Device, training: MixedPrecision, framework: Framework
) -> tuple[float, float]:
    """Return the seconds of taking gathered weights apart, and of laying out gradients for their scattering."""
    rate = device.memory_bytes_per_second * device.memory_ratio
    gathered = work.gathered_bytes(training.weight_bytes) + training.weight_bytes * work.n_expert_parameters
    unpack = 2.0 * gathered / rate if gathers(strategy, framework) else 0.0
    n_trained = work.n_trained_dense + work.n_trained_expert
    return unpack, (training.weight_bytes + scatter_width(strategy, training, framework)) * n_trained / rate


def sharded_seconds(
    work: LayerWork, mesh: Mesh, strategy: Strategy, training: MixedPrecision, framework: Framework
) -> tuple[float, float]:
    """Return the seconds of gathering weights (ZeRO-3; ZeRO-2 where the framework does) and of scattering gradients (ZeRO-2
    and 3) of every micro-batch.
    """
    if strategy.shard < 2:
        return 0.0, 0.0
    width = scatter_width(strategy, training, framework) if scatters(strategy, framework) else 0
    if framework.shard_bytes_per_second:
        gathered = work.gathered_bytes(training.weight_bytes) + training.weight_bytes * work.n_expert_parameters
        gather = gathered / framework.shard_bytes_per_second if gathers(strategy, framework) else 0.0
        n_trained = work.n_trained_dense + work.n_trained_expert
        return gather, n_trained * width / framework.shard_bytes_per_second
    gather = 0.0
    if gathers(strategy, framework):
        gather = bucket_seconds(mesh.shard, "all_gather", work.gathered_bytes(training.weight_bytes))
        gather += bucket_seconds(mesh.expert_data, "all_gather", work.n_expert_parameters * training.weight_bytes)
    reduce = bucket_seconds(mesh.shard, "reduce_scatter", work.n_trained_dense * width)
    reduce += bucket_seconds(mesh.expert_data, "reduce_scatter", work.n_trained_expert * width)
    reduce += bucket_seconds(mesh.replicate, "all_reduce", replica_bytes(work, mesh, strategy, training, framework)[0])
    return gather, reduce


def _reduce_seconds(
    work: LayerWork, mesh: Mesh, strategy: Strategy, training: MixedPrecision, framework: Framework, pack_seconds: float
) -> float:
    """Return the seconds of reducing gradients once a step; `pack_seconds`: of laying whole ones out for it."""
    replicas = bucket_seconds(mesh.replicate, "all_reduce", replica_bytes(work, mesh, strategy, training, framework)[1])
    if scatters(strategy, framework):
        return replicas
    width = scatter_width(strategy, training, framework)
    kind = "reduce_scatter" if strategy.shard else "all_reduce"
    seconds = replicas + bucket_seconds(mesh.shard, kind, work.n_trained_dense * width)
    seconds += bucket_seconds(mesh.expert_data, kind, work.n_trained_expert * width)
    return seconds + (pack_seconds if seconds and strategy.shard >= 2 else 0.0)


def _gather_seconds(work: LayerWork, mesh: Mesh, strategy: Strategy, training: MixedPrecision, framework: Framework) -> float:
    """Return the seconds of gathering updated weights after the optimizer (ZeRO-1, and 2 unless micro-batches do)."""
    sent = 2.0 * sum(axis.seconds("all_to_all", n_bytes) for _, axis, n_bytes in exchanges(work, mesh, strategy))
    if strategy.shard not in (1, 2) or gathers(strategy, framework):
        return sent
    seconds = bucket_seconds(mesh.shard, "all_gather", work.n_trained_dense * training.weight_bytes)
    return seconds + bucket_seconds(mesh.expert_data, "all_gather", work.n_trained_expert * training.weight_bytes) + sent


def exchanges(work: LayerWork, mesh: Mesh, strategy: Strategy) -> tuple[tuple[str, Axis, float], ...]:
    """Return the all-to-alls that put matrices together where state is sharded and an update needs whole ones (Muon), and that
    bring each shard its part of the result: axis and bytes of a rank, each twice.

    Every rank orthogonalises some of the matrices (Ahn et al., "Dion", arXiv 2504.05295, and its Muon for sharded weights).
    """
    axes = (("shard", mesh.shard, mesh.n_shards), ("expert_data", mesh.expert_data, mesh.n_expert_shards))
    return tuple(
        (name, axis, EXCHANGED_BYTES * update.n_exchanged / size)
        for (name, axis, size), update in zip(axes, work.updates, strict=True)
        if strategy.shard and axis is not None and update.n_exchanged
    )


def _state_bytes(
    work: LayerWork, mesh: Mesh, strategy: Strategy, training: MixedPrecision, framework: Framework
) -> tuple[float, float, float]:
    """Return the bytes of weights, gradients and optimizer state after sharding.

    The dense gradient of a table look-up stands beside the main gradient, in the precision of the weights: frameworks fuse the
    accumulation into products only (every run of SimuMax's set holds it at its peak). Under ZeRO-3 the shard of the fp32 copy
    is the weight (FSDP2): where training keeps such a copy with the optimizer's moments, no other is held. Frozen weights
    are held in the precision of the products, without a copy. State that follows from shapes is shared out like any other but
    for the sums of rows and columns of factored moments, which every rank needs whole. Offloaded state, with the copy, is no
    part of this (`offload.host_update`): the device keeps the weights that products use, and gradients.
    """
    weights = _weight_bytes(work.n_dense_parameters, work.n_expert_parameters, mesh, strategy, training)
    whole = work.n_trained_dense + work.n_trained_expert
    share = work.n_trained_dense / mesh.n_shards + work.n_trained_expert / mesh.n_expert_shards
    lookup = training.weight_bytes * work.n_lookup_parameters if strategy.shard < 2 else 0.0
    width, both = held_width(strategy, training, framework), framework.reduces_once and strategy.shard in (1, 2)
    gradients = width * (share if strategy.shard >= 2 and not both else whole) + lookup
    gradients += width * share if both else 0.0
    if framework.whole_gradients and strategy.shard >= 2:  # in the last backward pass shards take their places
        gradients = max(gradients, training.weight_bytes * whole)
    if strategy.shard < 3 and training.weight_bytes < 4:
        gradients += framework.gradient_copy_bytes * (share if strategy.shard else whole)
    if strategy.offload == "optimizer":
        return weights, gradients, 0.0
    dense, expert = work.updates
    n_shards, n_expert_shards = (mesh.n_shards, mesh.n_expert_shards) if strategy.shard else (1, 1)
    shaped = dense.sharded_bytes / n_shards + expert.sharded_bytes / n_expert_shards + dense.whole_bytes + expert.whole_bytes
    if strategy.shard < 3:
        return weights, gradients, training.optimizer_bytes * (share if strategy.shard else whole) + shaped
    copied = 4 if training.has_copy else training.weight_bytes
    wider = copied - training.weight_bytes
    copy_bytes = 4 if wider else 0
    return weights + wider * share, gradients, (training.optimizer_bytes - copy_bytes) * share + shaped


def _weight_bytes(n_dense: int, n_expert: int, mesh: Mesh, strategy: Strategy, training: MixedPrecision) -> float:
    """Return the bytes of so many weights, as products use them, after sharding (ZeRO-3)."""
    if strategy.shard < 3:
        return float(training.weight_bytes * (n_dense + n_expert))
    return training.weight_bytes * (n_dense / mesh.n_shards + n_expert / mesh.n_expert_shards)


def _packed_saving(work: LayerWork, mesh: Mesh, strategy: Strategy, training: MixedPrecision) -> float:
    """Return by how much weights in four bits are less; their scales stand whole on every rank (``Params4bit.quant_state``)."""
    n_packed = work.n_packed_parameters / (mesh.n_shards if strategy.shard == 3 else 1)
    return (training.weight_bytes - PACKED_BYTES) * n_packed - work.scale_bytes


def _unit_bytes(
    work: LayerWork, mesh: Mesh, strategy: Strategy, training: MixedPrecision, framework: Framework
) -> tuple[float, float]:
    """Return what sharded weights (ZeRO-3) need beside the shards: as tensors while the layer runs, and as buffers all step.

    FSDP2 works layer by layer: it holds this layer's gathered weights, the next one's on their way, and this layer's gradients
    until they are reduced, all in the precision of the weights. Weights arrive in one buffer and gradients leave in another, in
    the precision of the reduction; both are allocated on streams of their own, whose blocks the caching allocator gives to no
    other. Where collectives write what products read (XLA), there are no such buffers, and gradients have the precision of
    the reduction. DeepSpeed works operator by operator: a gradient stands beside what is laid out for its scattering, its
    buckets are `Framework.buffer_bytes`, and weights stay gathered up to `Framework.n_gathered_weights`.
    """
    if strategy.shard < 3 and not (framework.keeps_gathered and strategy.shard > 0):
        return 0.0, 0.0
    dense = work.gathered_bytes(training.weight_bytes) * (mesh.n_shards > 1)
    unit = dense + training.weight_bytes * work.n_expert_parameters * (mesh.n_expert_shards > 1)
    trained = work.n_trained_dense * (mesh.n_shards > 1) + work.n_trained_expert * (mesh.n_expert_shards > 1)
    width = scatter_width(strategy, training, framework)
    if strategy.shard < 3:  # in place of the next layer's weights and of gradients: these stand whole
        return float(training.weight_bytes * trained), float(unit + width * trained)
    if not framework.copies_gathered:
        return 2.0 * unit + training.gradient_bytes * trained, 0.0
    if framework.n_gathered_weights:
        live = min(2.0 * unit, training.weight_bytes * (framework.n_gathered_weights + work.n_largest_parameters))
        gradient = float(training.weight_bytes * min(trained, work.n_largest_parameters))
        return live + gradient, gradient
    return 2.0 * unit + training.weight_bytes * trained, float(unit + width * trained)


def _activation_bytes(work: LayerWork, recompute: str) -> tuple[float, float]:
    """Return the bytes kept per micro-batch in flight, and those needed only while the layer runs.

    Of layers whose activations go to the host none is kept; those of the one that runs and of the one on its way are there.
    """
    if not work.has_backward:
        return 0.0, work.working_bytes
    if recompute == "full":
        return work.input_bytes, work.saved_bytes + work.working_bytes
    if recompute == "selective":
        return work.saved_bytes - work.selective_bytes, work.selective_bytes + work.working_bytes
    if recompute == "none":
        return work.saved_bytes, work.working_bytes
    if recompute == OFFLOAD:
        return 0.0, 2.0 * work.saved_bytes + work.working_bytes
    kept = _own(work, recompute).kept_bytes
    return kept, max(0.0, work.saved_bytes - kept) + work.working_bytes
