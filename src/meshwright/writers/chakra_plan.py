"""Chakra execution traces of a plan's step, one file per device, and the file of its groups: what ASTRA-sim plays.

Notes
-----
Every device runs its tasks in the plan's order. A task is a node of its compute and, after it, one of each kind of collective
that blocks it, with all their bytes together: how they alternate inside a task is left out. What runs beside compute starts
with it, and the next task waits for both. Durations are whole microseconds. Devices are numbered in the order of their ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from meshwright import sim
from meshwright.base import chakra_nodes, files
from meshwright.base.errors import ExportError
from meshwright.core.plan import Plan
from meshwright.core.result import Result
from meshwright.core.stage_cost import Collective, StageCost
from meshwright.schedules import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD

__all__ = ["SEVERAL", "traces", "write"]

SEVERAL = True

_PART: Mapping[int, str] = MappingProxyType({FORWARD: "forward", BACKWARD: "backward", BACKWARD_INPUT: "backward"})


def write(result: Result, path: str) -> tuple[str, ...]:
    """Write ``PATH.0.et``, ``PATH.1.et``, ... and ``PATH.groups.json``; returns how they are named.

    Raises
    ------
    ExportError
        When there is no timeline, collectives are not known one by one, or stages have different numbers of devices.
    """
    groups = chakra_nodes.Groups()
    n = 0
    for n, trace in enumerate(traces(result, groups), 1):
        files.write(f"{path}.{n - 1}.et", trace)
    files.write(f"{path}.groups.json", groups.text())
    return (
        f"{n} traces, {path}.0.et to {path}.{n - 1}.et, and {path}.groups.json for --comm-group-configuration of ASTRA-sim",
    )


def traces(result: Result, groups: chakra_nodes.Groups) -> Iterator[bytes]:
    """Return the trace of every device, by id; `groups` gets the groups of collectives.

    Raises
    ------
    ExportError
        As `write`.
    """
    plan, costs = result.plan, result.stage_costs
    if result.timeline is None or len(costs) != len(plan.stages):
        raise ExportError("chakra_plan: the cost model cannot tell how long the stages take")
    if len({len(stage.devices) for stage in plan.stages}) > 1:
        raise ExportError("chakra_plan: stages have different numbers of devices, so that a message has no one sender")
    blocked = [cost for cost in costs if cost.forward_communication or cost.backward_communication or cost.reduce_seconds]
    if any(not cost.collectives for cost in blocked):
        raise ExportError(f"chakra_plan: costs {result.problem.costs} do not say of which collectives communication consists")
    return _traces(result, groups)


def _traces(result: Result, groups: chakra_nodes.Groups) -> Iterator[bytes]:
    """Yield the trace of every device."""
    plan, costs = result.plan, result.stage_costs
    used = sorted({device for stage in plan.stages for device in stage.devices})
    place = {device: k for k, device in enumerate(used)}
    actions = sim.order(result.problem, plan, costs)
    rank_of = {device: r for r, devices in enumerate(plan.ranks()) for device in devices}
    for device in used:
        rank = rank_of[device]
        some = slice(int(actions.first[rank]), int(actions.first[rank + 1]))
        columns = (actions.stage[some], actions.microbatch[some], actions.phase[some])
        trace = _Trace(plan, costs, groups, place, plan.ranks()[rank].index(device))
        for stage, microbatch, phase in zip(*(column.tolist() for column in columns), strict=True):
            trace.task(stage, microbatch, phase)
        trace.end([i for i, stage in enumerate(plan.stages) if stage.devices == plan.ranks()[rank]])
        yield trace.content()


class _Trace:
    """The nodes of one device, and what the next one waits for."""

    def __init__(
        self, plan: Plan, costs: tuple[StageCost, ...], groups: chakra_nodes.Groups, place: dict[int, int], index: int
    ) -> None:
        self.plan, self.costs, self.groups, self.place, self.index = plan, costs, groups, place, index
        self.before: list[int] = []
        self.nodes: list[bytes] = []

    def content(self) -> bytes:
        """Return the file."""
        return chakra_nodes.beginning() + b"".join(self.nodes)

    def task(self, stage: int, microbatch: int, phase: int) -> None:
        """Add a task: what it receives, its compute, what blocks it, what it sends."""
        cost, name = self.costs[stage], f"{('forward', 'backward', 'weights', 'backward')[_kind(phase)]}.{stage}.{microbatch}"
        waits = list(self.before)
        neighbour = stage - 1 if phase == FORWARD else stage + 1
        if phase != BACKWARD_WEIGHT and 0 <= neighbour < len(self.plan.stages):
            waits += self._message(neighbour, stage, microbatch, [], sent=False)
        first = self._add(lambda i: chakra_nodes.compute(i, name, waits, round(_seconds(cost, phase) * 1e6)))
        self.before = [first]
        if phase in _PART:
            beside = self._collectives(stage, f"{_PART[phase]}_beside", name, waits)
            for k, one in enumerate(_of(cost, _PART[phase])):
                self.before = self._one(stage, one, f"{name}.{one.kind}.{k}", self.before)
            self.before += beside
            after = stage + 1 if phase == FORWARD else stage - 1
            if 0 <= after < len(self.plan.stages):
                self._message(stage, after, microbatch, self.before, sent=True)

    def end(self, stages: list[int]) -> None:
        """Add what comes once a step: reductions, the update of weights, gathering."""
        reduced = [i for stage in stages for i in self._collectives(stage, "reduce", f"reduce.{stage}", self.before)]
        waits = [*self.before, *reduced]
        micros = round(sum(self.costs[stage].optimizer_seconds for stage in stages) * 1e6)
        update = self._add(lambda i: chakra_nodes.compute(i, "optimizer", waits, micros))
        for stage in stages:
            self._collectives(stage, "gather", f"gather.{stage}", [update])

    def _collectives(self, stage: int, part: str, name: str, before: list[int]) -> list[int]:
        """Add the collectives of a part, all at once; return them."""
        some = enumerate(_of(self.costs[stage], part))
        return [i for k, one in some for i in self._one(stage, one, f"{name}.{part}.{one.kind}.{k}", before)]

    def _one(self, stage: int, one: Collective, name: str, before: list[int]) -> list[int]:
        """Add all of one kind of collective as one node; return it."""
        devices = self.plan.stages[stage].devices
        span = one.size * one.stride
        first = self.index // span * span + self.index % one.stride
        members = [self.place[devices[first + k * one.stride]] for k in range(one.size)]
        n_bytes = one.n_bytes * one.n_times / (one.size if one.kind == "all_gather" else 1)
        number = self.groups.number(members)
        return [self._add(lambda i: chakra_nodes.collective(i, name, before, one.kind, round(n_bytes), number))]

    def _message(self, source: int, target: int, microbatch: int, before: list[int], *, sent: bool) -> list[int]:
        """Add what goes from stage to stage, unless both are of one rank; return it."""
        stages, n = self.plan.stages, len(self.plan.stages)
        if stages[source].devices == stages[target].devices:
            return []
        ends = self.place[stages[source].devices[self.index]], self.place[stages[target].devices[self.index]]
        lower = min(source, target)
        n_bytes = round(self.costs[lower].output_bytes) if source < target or self.costs[lower].output_gradient else 0
        tag = (microbatch * n + lower) * 2 + (source > target)
        name = f"{'send' if sent else 'receive'}.{source}.{target}.{microbatch}"
        return [self._add(lambda i: chakra_nodes.message(i, name, before, ends, n_bytes, tag, sent=sent))]

    def _add(self, node: Callable[[int], bytes]) -> int:
        """Add a node; return its number."""
        self.nodes.append(node(len(self.nodes)))
        return len(self.nodes) - 1


def _of(cost: StageCost, part: str) -> list[Collective]:
    return [one for one in cost.collectives if one.part == part and one.size > 1 and one.n_bytes * one.n_times >= 1.0]


def _kind(phase: int) -> int:
    return (FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, BACKWARD).index(phase)


def _seconds(cost: StageCost, phase: int) -> float:
    """Return the compute of a task."""
    if phase == FORWARD:
        return cost.forward_seconds
    if phase == BACKWARD_WEIGHT:
        return cost.backward_weight_seconds
    return cost.backward_input_seconds + cost.recompute_seconds + (cost.backward_weight_seconds if phase == BACKWARD else 0.0)
