"""Where links are slow, transfers bound the step: round trips that follow each other, and the slowest channel."""

from __future__ import annotations

import dataclasses
import itertools
import json
import pathlib
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from meshwright import api, sim
from meshwright.core.problem import Batch
from meshwright.planners.best import inequalities, plans, virtual
from meshwright.planners.best.costs import Costs
from meshwright.planners.best.layer_sums import chain_of
from meshwright.planners.best.space import ANY_SPREAD, Config, MeshDegrees, pools
from meshwright.solvers.pipeline import layer_split

TINY = pathlib.Path(__file__).resolve().parents[3] / "data" / "tiny_llama.json"


def _asked(folder: pathlib.Path, bandwidth: str, batch: int) -> tuple[Costs, MeshDegrees]:
    """Seven layers in a pipeline of four ranks, two on each side of a slow link."""
    model = folder / "seven_layers.json"
    model.write_text(json.dumps(json.loads(TINY.read_text()) | {"num_hidden_layers": 7}))
    cluster = f"two-level:4,per_node=2,device=a100-sxm-80gb,bandwidth={bandwidth}"
    problem = api.make_problem(str(model), cluster, batch=Batch(batch))
    return Costs(problem, pools(problem.required_cluster)[0], chain_of(problem.graph)), MeshDegrees(4, 1, 1, 1, 1, 1)


def _played_splits(costs: Costs, config: Config, batch: int) -> Iterator[tuple[tuple[int, ...], float, NDArray[np.float64]]]:
    """Yield every split of the layers, what its step takes as it is played, and its transfers."""
    n_layers = len(costs.chain.layers)
    for cuts in itertools.combinations(range(1, n_layers), config.mesh.pipeline - 1):
        counts = tuple(np.diff((0, *cuts, n_layers)).tolist())
        plan = plans.bare(costs, config, batch, counts)
        assert plan is not None
        loads = costs.stage_costs(config, plan)
        yield counts, sim.least_seconds(costs.problem, plan, loads), costs.transfer_seconds(config, plan, loads)


@pytest.mark.parametrize("schedule", ["1f1b", "zb_h1", "early_backward_b", "zb_h2"])
@pytest.mark.parametrize("batch", [3, 8, 17])
@pytest.mark.parametrize("bandwidth", ["0.02 GB/s", "0.3 GB/s"])
def test_no_split_is_quicker_than_the_inequalities_with_transfers_say(
    schedule: str, batch: int, bandwidth: str, tmp_path: pathlib.Path
) -> None:
    costs, mesh = _asked(tmp_path, bandwidth, batch)
    config = Config(mesh, 0, 0, schedule, 1, "pipeline")
    steps = []
    for counts, step, hops in _played_splits(costs, config, batch):
        steps.append(step)
        chain = inequalities.chain_to_cut(costs, config, batch, hops)
        within = layer_split.cuts(chain, step * (1.0 + 1e-9), 1000)
        assert within is not None and counts in {tuple(own) for own in within.tolist()}  # none of its inequalities is above it
    with_transfers = layer_split.bottleneck(chain)[0]
    without = layer_split.bottleneck(inequalities.chain_to_cut(costs, config, batch))[0]
    assert with_transfers <= min(steps) * (1.0 + 1e-9)
    if bandwidth == "0.02 GB/s":  # nearly all of the step is transfers, one after the other
        closeness = 0.6 if schedule in ("early_backward_b", "zb_h2") else 0.8
        assert without < 0.5 * min(steps) and with_transfers > closeness * min(steps)


def test_ranks_of_unlike_leads_are_asked(tmp_path: pathlib.Path) -> None:
    costs, mesh = _asked(tmp_path, "0.3 GB/s", 17)
    found = inequalities.chain_to_cut(
        costs, Config(mesh, 0, 0, "1f1b", 1, "pipeline"), 17, np.array([0.0, 1.0, 0.0])
    ).inequalities
    trips = [own for own in found if own.ends_first and (own.fixed_seconds < 0.0).any()]
    asked = [int(np.flatnonzero(own.fixed_seconds >= 0.0)[0]) for own in trips]
    assert {0, 1} < set(asked) and [own.n_times for own in trips] == [np.ceil(17 / (4 - rank)) for rank in asked]
    assert [-own.lead[rank] for own, rank in zip(trips, asked, strict=True)] == [16 % (4 - rank) for rank in asked]


@pytest.mark.parametrize(("schedule", "batch"), [("1f1b", 19), ("zb_h1", 12), ("early_backward_b", 24), ("zb_h2", 13)])
def test_a_stretch_across_a_slow_link_is_below_every_split_and_raises_the_bound(
    schedule: str, batch: int, tmp_path: pathlib.Path
) -> None:
    """Two ranks on both sides of a slow link make a round trip for every second (or third) micro-batch, whatever the split."""
    costs, mesh = _asked(tmp_path, "0.05 GB/s", batch)
    config = Config(mesh, 0, 0, schedule, 1, "pipeline")
    every, steps, (*_, hops) = zip(*_played_splits(costs, config, batch), strict=True)
    chain = inequalities.chain_to_cut(costs, config, batch, hops)
    turns = chain.turns
    assert turns is not None and [1, 2] in turns.ranks.tolist()
    passing = np.concatenate(([0.0], np.cumsum(turns.passing_seconds)))
    for counts, step in zip(every, steps, strict=True):
        ends = np.cumsum((0, *counts))
        inside = passing[ends[turns.ranks[:, 1] + 1]] - passing[ends[turns.ranks[:, 0]]]
        assert (inside >= turns.least_seconds * (1.0 - 1e-9)).all()
        assert (turns.fixed_seconds + turns.n_times * inside <= step * (1.0 + 1e-9)).all()
    with_turns = layer_split.bottleneck(chain)[0]
    without = layer_split.bottleneck(dataclasses.replace(chain, turns=None))[0]
    assert without <= with_turns <= min(steps) * (1.0 + 1e-9)
    assert (
        schedule in ("early_backward_b", "zb_h2") or with_turns > 1.001 * without
    )  # deep ones wait for the channel alone here


@pytest.mark.parametrize("schedule", ["interleaved_1f1b", "looped_bfs", "zb_v", "v_half", "dualpipe_v"])
def test_played_virtual_stages_are_below_their_plan_and_near_it(schedule: str, tmp_path: pathlib.Path) -> None:
    costs, mesh = _asked(tmp_path, "0.05 GB/s", 16)
    config = Config(dataclasses.replace(mesh, pipeline=2), 0, 0, schedule, 2, "pipeline")
    for fewer in virtual.spreads(costs, dataclasses.replace(config, fewer=ANY_SPREAD)):
        own = dataclasses.replace(config, fewer=fewer)
        plan = plans.even(costs, own, 16)
        assert plan is not None
        step = sim.least_seconds(costs.problem, plan, costs.stage_costs(own, plan))
        found = virtual.played(costs, own, 16)
        assert 0.9 * step < found <= step * (1.0 + 1e-9)
        assert virtual.played(costs, own, 16, np.array([0.01, 0.0])) > found
