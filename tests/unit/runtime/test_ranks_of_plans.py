"""Plans as ranks, in many shapes: who holds which rows, sends what to whom in which order, and which groups each rank is in."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
from typing import Any

import pytest
from runtime_processes import plan_of

from meshwright.base.errors import InputError
from meshwright.core.plan import Plan, Stage
from meshwright.core.strategy import Strategy
from meshwright.runtime.ranks import message_order
from meshwright.runtime.ranks.layout import Channel, Layout, layout
from meshwright.runtime.ranks.plan_file import read_plan
from recorded import Recorded


def plan(
    *stages: tuple[tuple[int, ...], dict[str, Any]], schedule: str = "1f1b", n_microbatches: int = 4, batch: int = 21
) -> Plan:
    """Return a plan of one layer a stage, from devices and degrees; the data degree is what the others leave."""
    made = []
    for i, (devices, degrees) in enumerate(stages):
        data = len(devices) // (degrees.get("tensor", 1) * degrees.get("context", 1))
        made.append(Stage((i,), devices, Strategy(data=data, **degrees)))
    return Plan(tuple(made), n_microbatches, schedule=schedule, global_batch=batch)


PLANS = {
    "one": plan(((4,), {})),
    "three, two, one": plan(((5, 1, 3), {}), ((2, 0), {}), ((9,), {})),
    "tensor of two and three": plan(((0, 1), {"tensor": 2}), ((2, 3, 4), {"tensor": 3}), ((5,), {})),
    "replicas of two by two": plan(((3, 2, 1, 0), {"tensor": 2}), ((4, 5, 6, 7), {"context": 2}), schedule="gpipe"),
    "context and tensor": plan((tuple(range(8)), {"context": 2, "tensor": 2}), ((8, 9), {}), batch=9),
    "sharded in groups": plan((tuple(range(8)), {"tensor": 2, "shard": 3, "shard_degree": 2}), ((8, 9), {"shard": 2}),
                              schedule="zb_h1"),
    "two stages a rank": plan(((0, 1), {}), ((2, 3), {}), ((0, 1), {}), ((2, 3), {}), schedule="interleaved_1f1b"),
    "a V": plan(((0,), {}), ((1,), {}), ((1,), {}), ((0,), {}), schedule="zb_v", n_microbatches=5),
    "unlike on the same devices": plan(((0, 1), {"tensor": 2}), ((2, 3), {}), ((0, 1), {}), ((2, 3), {"tensor": 2}),
                                       schedule="interleaved_1f1b"),
    "experts": plan((tuple(range(8)), {"tensor": 2, "expert": 2, "shard": 1})),
    "experts along sequences": plan((tuple(range(8)), {"tensor": 2, "expert": 2, "sequence_parallel": True, "shard": 1})),
    "experts folded": plan((tuple(range(6)), {"tensor": 2, "expert": 2, "sequence_parallel": True})),
    "experts of half the ranks": plan(((0, 1, 2, 3), {"expert": 2, "shard": 3}), ((4, 5, 6, 7), {"expert": 4})),
    "shards that do nothing": plan(((0, 1, 2, 3), {"shard": 0, "shard_degree": 2}),
                                   ((4, 5, 6, 7), {"shard": 1, "shard_degree": 4})),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANS)
def test_everybody_holds_and_sends_what_the_plan_says(name: str, recorded: Recorded) -> None:
    places = layout(PLANS[name])
    sizes = sorted({stop - start for start, stop in map(places.microbatch_rows, range(places.plan.n_microbatches))})
    ends = [(a, b) for a in range(places.n_stages) for b in (a - 1, a + 1) if 0 <= b < places.n_stages]
    messages = {
        f"{a} to {b}, {n} rows": [dataclasses.astuple(m) for m in places.messages(a, b, n)] for a, b in ends for n in sizes
    }
    seats = [
        [(*dataclasses.astuple(seat := places.seat(rank, stage)), places.rank_at(stage, seat.data, seat.inner) == rank)
         for stage in places.stages_of(rank)]
        for rank in range(places.n_ranks)
    ]  # fmt: skip
    recorded([
        places.device_of_rank, places.ranks_of_stage, seats, [places.pipeline_rank_of(rank) for rank in range(places.n_ranks)],
        [[places.rows(stage, data, sizes[-1]) for data in range(places.plan.stages[stage].strategy.data)]
         for stage in range(places.n_stages)],
        messages, [(one.direction, one.pairs, one.ranks) for one in places.channels()], places.notes(),
    ])  # fmt: skip


@pytest.mark.parametrize("name", PLANS)
def test_receives_are_posted_in_one_order_and_the_step_ends(name: str, recorded: Recorded) -> None:
    places = layout(PLANS[name])
    step = message_order._Step(places)
    orders = {}
    for rank in step._played():
        order = message_order.ReceiveOrder(places, rank)
        posted: list[Any] = [order.begin()]
        for queue in order.queues:
            posted += [[arrival, order.before(arrival), order.after(arrival)] for arrival in queue]
        orders[rank] = [len(order.queues), posted] if rank < 4 else len(posted)
    assert step.play() is None
    recorded([step._played(), orders, len(step.done), sorted(step.channel.values())])
    assert all(not lane for posted in step.posted.values() for lane in posted.values()), "everything posted has arrived"
    message_order.check(places, "plan.json")


def test_a_step_that_hangs_names_who_waits_for_what(monkeypatch: pytest.MonkeyPatch, recorded: Recorded) -> None:
    told = []
    for name in ("three, two, one", "two stages a rank", "replicas of two by two", "tensor of two and three"):
        places = layout(PLANS[name])
        merged = tuple(
            Channel(way, tuple(pair for c in places.channels() if c.direction == way for pair in c.pairs)) for way in (0, 1)
        )
        with monkeypatch.context() as patch:
            patch.setattr(Layout, "channels", lambda _, merged=merged: merged)
            try:
                message_order.check(places, "plan.json")
            except InputError as error:
                told.append(str(error))
            else:
                told.append("")
    assert any(told)
    recorded(told)


class Mesh:
    """Stands for a device mesh: the ranks of every axis through this rank."""

    def __init__(self, kind: str, grid: Any, *, mesh_dim_names: tuple[str, ...], rank: int) -> None:
        self.kind, self.grid, self.mesh_dim_names, self.rank = kind, grid, mesh_dim_names, rank

    def __getitem__(self, names: str | tuple[str, ...]) -> list[Any]:
        names = (names,) if isinstance(names, str) else names
        keep = [self.mesh_dim_names.index(name) for name in names]
        where = (self.grid == self.rank).nonzero().tolist()
        assert len(where) == 1
        index = tuple(slice(None) if axis in keep else place for axis, place in enumerate(where[0]))
        return Axis(self.grid[index].tolist(), [where[0][axis] for axis in keep])


class Axis(list):
    """Its ranks; knows this rank's place."""

    def __init__(self, ranks: list[Any], places: list[int]) -> None:
        super().__init__(ranks)
        self.places = places

    def get_group(self) -> tuple[int, ...]:
        return tuple(self)

    def get_local_rank(self) -> int:
        return self.places[0]


@pytest.mark.parametrize("name", PLANS)
def test_every_rank_is_in_the_groups_of_its_axes(name: str, monkeypatch: pytest.MonkeyPatch, recorded: Recorded) -> None:
    pytest.importorskip("torch", reason="process groups need PyTorch: pip install 'meshwright[torch]'")
    from meshwright.runtime.ranks import meshes

    places = layout(PLANS[name])
    meshes.check(places)
    found, made = [], []
    monkeypatch.setattr(meshes.dist, "get_world_size", len)
    for rank in range(places.n_ranks):
        order: list[Any] = []

        def mesh(kind: str, grid: Any, *, mesh_dim_names: Any, rank: int = rank, order: list = order) -> Mesh:
            order.append([kind, grid.tolist(), mesh_dim_names])
            return Mesh(kind, grid, mesh_dim_names=mesh_dim_names, rank=rank)

        monkeypatch.setattr(meshes, "DeviceMesh", mesh)
        monkeypatch.setattr(meshes.dist, "new_group", lambda ranks, order=order: order.append(ranks) or tuple(ranks))
        groups = meshes.stage_groups(places, rank, "cpu")
        assert sorted(groups) == list(places.stages_of(rank))
        fields = [[*_fields(group.data), *_fields(group.copies), *_fields(group)[2:]] for group in groups.values()]
        found.append(fields)
        made.append(order)
    assert all(order == made[0] for order in made), "every rank makes all groups in the same order"
    recorded([found, made[0]])


def _fields(value: Any) -> list[Any]:
    return [getattr(value, field.name) for field in dataclasses.fields(value)]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (plan(((0,), {}), n_microbatches=5, batch=4),
         "the plan has 5 micro-batches but only 4 samples a step; plan again with a larger --global-batch"),
        (plan(((0, 1, 2), {"expert": 2})),
         "stage 0: expert degree 2 divides neither its 3 data and context ranks nor, with sequence_parallel, all its 3 ranks; "
         "plan again with --set expert=1"),
        (plan(((0,), {}), ((1, 2, 3), {"tensor": 3, "expert": 3})), "stage 1: expert degree 3 divides neither its 1 data and"),
        (plan(((0, 1), {}), n_microbatches=4, batch=7),
         "stage 0: 2 replicas, but a micro-batch holds 1 samples (7 in 4 micro-batches); each replica needs at least one"),
        (plan(((0, 1, 2, 3), {"shard": 3, "shard_degree": 3})), "stage 0: shard_degree 3 does not divide its data degree 4"),
        (plan(((0, 1), {"shard": 3, "shard_degree": 4})), "stage 0: shard_degree 4 does not divide its data degree 2"),
        (plan(((0, 1), {}), ((1, 2), {})),
         "stage 1: device 1 also works for a stage on other devices; stages share all devices or none"),
        (plan(((0,), {}), ((1,), {}), ((0,), {}), schedule="interleaved_1f1b"),
         "schedule interleaved_1f1b: cannot run 3 stages on pipeline ranks [0, 1, 0]; it needs the same number of stages on "
         "every rank, in its own order"),
        (plan(((0,), {}), ((1,), {}), ((1,), {}), ((0,), {}), schedule="interleaved_1f1b"),
         "schedule interleaved_1f1b: cannot run 4 stages on pipeline ranks [0, 1, 1, 0]"),
    ],
)  # fmt: skip
def test_plans_that_cannot_be_run_are_refused_in_these_words(wrong: Plan, told: str) -> None:
    with pytest.raises(InputError, match=re.escape(told)):
        layout(wrong)


def test_a_given_order_of_work_takes_the_place_of_the_schedules_own() -> None:
    two = plan(((0,), {}), ((1,), {}), n_microbatches=2, batch=2)
    order: list[Any] = [[(0, 1, 0), (0, 0, 0), (0, 1, 1), (0, 0, 1)], [(1, 1, 0), (1, 1, 1), (1, 0, 0), (1, 0, 1)]]
    assert layout(two, order).slots.microbatch.tolist() == [1, 0, 1, 0, 1, 1, 0, 0]
    assert layout(two).slots.microbatch.tolist() == [0, 1, 0, 1, 0, 0, 1, 1]


def written(folder: pathlib.Path, **changes: Any) -> str:
    """Write a plan of two stages, changed; a change of ``stage`` is one of the second stage."""
    entry = plan_of([(3, [0], {}), (3, [1, 2], {"shard": 1})], global_batch=24)
    entry["stages"][1] |= changes.pop("stage", {})
    entry["schedule"] |= changes.pop("schedule", {})
    path = folder / "plan.json"
    path.write_text(json.dumps({**entry, **changes}))
    return str(path)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"stage": {"ops": ["layers.1", "layers.3", "head"], "recompute": []}}, ": the layer 'layers.1' is in two stages"),
        ({"stage": {"ops": [], "recompute": []}}, ": stage 1 holds no layers"),
        ({"stage": {"recompute": ["none", "mlp", "none"]}},
         ": stage 1 recomputes 'mlp', a setting of another framework; our runtime has none, selective, full: plan"),
        ({"stage": {"recompute": ["none", "mlp", "none"]}, "framework": "megatron"}, "'mlp', a setting of megatron; our"),
        ({"stage": {"recompute": ["none", "full"]}}, ": stage 1: recompute has 2 entries for 3 layers"),
        ({"schedule": {"n_microbatches": 0}}, "n_microbatches"), ({"schedule": {"global_batch": 0}}, "global_batch"),
        ({"schedule": {"micro_batch": 0}}, "micro_batch"),
    ],
)  # fmt: skip
def test_plan_files_that_cannot_be_run_are_refused(changes: dict[str, Any], told: str, tmp_path: pathlib.Path) -> None:
    path = written(tmp_path, **changes)
    with pytest.raises(InputError, match=re.escape(told)):
        read_plan(path)


def test_a_plan_file_says_its_layers_and_the_length_of_a_sample(tmp_path: pathlib.Path) -> None:
    read = read_plan(written(tmp_path))
    assert read.names == ("embed", "layers.0", "layers.1", "layers.2", "layers.3", "head")
    assert [stage.ops for stage in read.plan.stages] == [(0, 1, 2), (3, 4, 5)] and read.sequence_length == 16
    assert read_plan(written(tmp_path, batch={})).sequence_length == 1
    for batch in ({"sequence_length": 0}, {"sequence_length": "long"}, [3], None):
        with pytest.raises(InputError, match=r"plan\.json: batch"):
            read_plan(written(tmp_path, batch=batch))
    both = read_plan(written(tmp_path, shardings=[1], splits=[1])).notes()
    assert len(both) == 2 and both[0].endswith("stage 0: data 1, tensor 1, shard 0; stage 1: data 2, tensor 1, shard 1")
