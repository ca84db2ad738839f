"""Who holds which rows of a micro-batch, and who sends them to whom: the plan as ranks, without PyTorch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright import schedules
from meshwright.base.errors import InputError
from meshwright.core.plan import Plan
from meshwright.schedules import Actions

__all__ = ["Channel", "Layout", "MeshCoordinate", "Message", "layout", "rows_of"]


@dataclass(frozen=True, slots=True)
class MeshCoordinate:
    """Place of a rank in the mesh of a stage.

    `data`: coordinate on the data axis.
    `inner`: coordinate on the context and tensor axes together, whose ranks hold the same rows.
    """

    stage: int
    data: int
    inner: int


@dataclass(frozen=True, slots=True)
class Message:
    """Rows of one micro-batch that one rank sends another.

    `source`, `target`: ranks; equal where a stage and the next one share a device.
    `start`, `stop`: rows of the micro-batch.
    """

    source: int
    target: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Channel:
    """Pairs of ranks that have a process group of their own for messages of one kind; no rank both sends and receives in it.

    `direction`: 0 for activations, 1 for gradients.
    `pairs`: sender and receiver of each, in ascending order.
    """

    direction: int
    pairs: tuple[tuple[int, int], ...]

    @property
    def ranks(self) -> list[int]:
        """The ranks of its group, in ascending order."""
        return sorted({rank for pair in self.pairs for rank in pair})


@dataclass(frozen=True, slots=True)
class Layout:
    """A plan as ranks.

    `device_of_rank`: devices in ascending order: torchrun numbers processes node by node, as clusters number devices.
    `ranks_of_stage`: ranks of each stage in mesh order, tensor fastest.
    `slots`: the order of work of every pipeline rank.
    """

    plan: Plan
    device_of_rank: tuple[int, ...]
    ranks_of_stage: tuple[tuple[int, ...], ...]
    slots: Actions

    @property
    def n_ranks(self) -> int:
        """Number of processes."""
        return len(self.device_of_rank)

    @property
    def n_stages(self) -> int:
        """Number of stages, virtual ones counted apart."""
        return len(self.ranks_of_stage)

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Return the stages that a rank works for."""
        return tuple(stage for stage, ranks in enumerate(self.ranks_of_stage) if rank in ranks)

    def pipeline_rank_of(self, rank: int) -> int:
        """Return the pipeline rank that a process belongs to."""
        return int(self.slots.rank_of_stage[self.stages_of(rank)[0]])

    def seat(self, rank: int, stage: int) -> MeshCoordinate:
        """Return the place of a rank in the mesh of one of its stages."""
        data, inner = divmod(self.ranks_of_stage[stage].index(rank), self.n_alike(stage))
        return MeshCoordinate(stage, data, inner)

    def n_alike(self, stage: int) -> int:
        """Return how many ranks of a stage hold the same rows: those of its context and tensor axes."""
        strategy = self.plan.stages[stage].strategy
        return strategy.context * strategy.tensor

    def rank_at(self, stage: int, data: int, inner: int) -> int:
        """Return the rank at a place of a stage's mesh."""
        return self.ranks_of_stage[stage][data * self.n_alike(stage) + inner]

    def rows(self, stage: int, data: int, n_rows: int) -> tuple[int, int]:
        """Return which rows of a micro-batch of `n_rows` a replica of a stage works on."""
        return rows_of(n_rows, self.plan.stages[stage].strategy.data, data)

    def microbatch_rows(self, microbatch: int) -> tuple[int, int]:
        """Return which samples of the global batch a micro-batch holds."""
        return rows_of(self.plan.global_batch, self.plan.n_microbatches, microbatch)

    def notes(self) -> tuple[str, ...]:
        """Return sentences about what runs otherwise than the plan's schedule says."""
        schedule, told = self.plan.schedule, []
        whole = [i for i, stage in enumerate(self.plan.stages) if stage.strategy.shard == 3 and stage.strategy.data > 1]
        if whole and bool((self.slots.phase == schedules.BACKWARD_WEIGHT).any()):
            told.append(
                f"stage {', '.join(map(str, whole))}: weights are sharded (FSDP), which gathers them once per backward pass: "
                f"schedule {schedule} runs that pass whole, where it would put the weight gradients off"
            )
        if schedules.in_pairs(schedule):
            told.append(
                f"schedule {schedule} runs a forward and a backward task at the same time; what runs are both one after the "
                "other, so that neither hides the other's all-to-alls"
            )
        return tuple(told)

    def messages(self, source: int, target: int, n_rows: int) -> tuple[Message, ...]:
        """Return what the ranks of one stage send those of the stage before or after it, for one micro-batch.

        Replicas of the two stages hold different slices of the rows where their counts differ: every overlap is one message.
        Ranks of context and tensor axes hold the same rows, whole sequences; where their numbers differ, coordinate t receives
        from t modulo the sender's.
        """
        sender, receiver = self.plan.stages[source].strategy, self.plan.stages[target].strategy
        n_senders, n_receivers = self.n_alike(source), self.n_alike(target)
        found = []
        for i in range(receiver.data):
            low, high = self.rows(target, i, n_rows)
            for j in range(sender.data):
                first, last = self.rows(source, j, n_rows)
                start, stop = max(low, first), min(high, last)
                if start < stop:
                    for inner in range(n_receivers):
                        ends = self.rank_at(source, j, inner % n_senders), self.rank_at(target, i, inner)
                        found.append(Message(*ends, start, stop))
        return tuple(found)

    def channels(self) -> tuple[Channel, ...]:
        """Return the channels that messages between stages take, in an order that is the same in every process.

        A channel goes from the ranks of one pipeline rank to those of another, one way, for activations or for gradients; where
        neighbouring stages share their devices, from one rank to one other. So a rank either only sends or only receives in it.
        """
        sizes = {stop - start for start, stop in map(self.microbatch_rows, range(self.plan.n_microbatches))}
        pairs: dict[tuple[int, tuple[int, ...]], set[tuple[int, int]]] = {}
        for stage, direction in itertools.product(range(self.n_stages - 1), (0, 1)):
            source, target = (stage, stage + 1)[:: -1 if direction else 1]
            ends = tuple(tuple(sorted(self.ranks_of_stage[end])) for end in (source, target))
            found = {(m.source, m.target) for n_rows in sizes for m in self.messages(source, target, n_rows)}
            for pair in sorted(found):
                if pair[0] != pair[1]:
                    key = pair if ends[0] == ends[1] else ends[0] + ends[1]
                    pairs.setdefault((direction, key), set()).add(pair)
        return tuple(Channel(direction, tuple(sorted(found))) for (direction, _), found in sorted(pairs.items()))


def rows_of(n_rows: int, n_parts: int, part: int) -> tuple[int, int]:
    """Return first and last-but-one row of a part when rows are dealt out evenly, the first parts getting what is left over."""
    size, rest = divmod(n_rows, n_parts)
    start = part * size + min(part, rest)
    return start, start + size + (part < rest)


def layout(plan: Plan, order: Sequence[Sequence[tuple[int, int, int]]] = ()) -> Layout:
    """Return the plan as ranks.

    `order`: stage, micro-batch and phase of every task of each pipeline rank, where they are known; none for the order that
    the schedule gives tasks of equal length.
    Raises `InputError` when the plan has axes that cannot be run, fewer samples than replicas, or stages that its schedule
    cannot place.
    """
    _check(plan)
    devices = tuple(sorted({device for stage in plan.stages for device in stage.devices}))
    rank_of_device = {device: rank for rank, device in enumerate(devices)}
    ranks = plan.rank_of_stage()
    n_ranks = max(ranks) + 1
    n_chunks, rest = divmod(len(ranks), n_ranks)
    module = schedules.load(plan.schedule)
    if rest or tuple(module.placement(n_ranks, n_chunks)) != ranks:
        raise InputError(
            f"schedule {plan.schedule}: cannot run {len(ranks)} stages on pipeline ranks {list(ranks)}; "
            "it needs the same number of stages on every rank, in its own order"
        )
    if order:
        slots = schedules.slots([list(row) for row in order], np.array(ranks))
    else:
        slots = schedules.ordered(plan.schedule, n_ranks, n_chunks, plan.n_microbatches)
    return Layout(plan, devices, tuple(tuple(rank_of_device[d] for d in stage.devices) for stage in plan.stages), slots)


def _check(plan: Plan) -> None:
    """Refuse what cannot be run."""
    smallest = plan.global_batch // plan.n_microbatches
    if smallest < 1:
        raise InputError(
            f"the plan has {plan.n_microbatches} micro-batches but only {plan.global_batch} samples a step; "
            "plan again with a larger --global-batch"
        )
    owner: dict[int, tuple[int, ...]] = {}
    for i, stage in enumerate(plan.stages):
        strategy = stage.strategy
        if strategy.folded and (strategy.n_devices % strategy.expert or not strategy.sequence_parallel):
            raise InputError(
                f"stage {i}: expert degree {strategy.expert} divides neither its {strategy.data * strategy.context} data and "
                "context "
                f"ranks nor, with sequence_parallel, all its {strategy.n_devices} ranks; plan again with --set expert=1"
            )
        if strategy.data > smallest:
            raise InputError(
                f"stage {i}: {strategy.data} replicas, but a micro-batch holds {smallest} samples "
                f"({plan.global_batch} in {plan.n_microbatches} micro-batches); each replica needs at least one"
            )
        if strategy.shard_degree and (strategy.shard_degree > strategy.data or strategy.data % strategy.shard_degree):
            raise InputError(f"stage {i}: shard_degree {strategy.shard_degree} does not divide its data degree {strategy.data}")
        for device in stage.devices:
            if owner.setdefault(device, stage.devices) != stage.devices:
                raise InputError(
                    f"stage {i}: device {device} also works for a stage on other devices; stages share all devices or none"
                )
