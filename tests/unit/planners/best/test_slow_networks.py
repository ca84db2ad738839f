"""Where links are slow, transfers bound the step: round trips that follow each other, and the slowest channel."""

from __future__ import annotations

import itertools
import json
import pathlib

import numpy as np
import pytest

from meshwright import api, sim
from meshwright.core.problem import Batch
from meshwright.planners.best import inequalities, plans
from meshwright.planners.best.costs import Costs
from meshwright.planners.best.layer_sums import chain_of
from meshwright.planners.best.space import Config, MeshDegrees, pools
from meshwright.solvers.pipeline import layer_split

TINY = pathlib.Path(__file__).resolve().parents[3] / "data" / "tiny_llama.json"


def _asked(folder: pathlib.Path, bandwidth: str, batch: int) -> tuple[Costs, MeshDegrees]:
    """Seven layers in a pipeline of four ranks, two on each side of a slow link."""
    model = folder / "seven_layers.json"
    model.write_text(json.dumps(json.loads(TINY.read_text()) | {"num_hidden_layers": 7}))
    cluster = f"two-level:4,per_node=2,device=a100-sxm-80gb,bandwidth={bandwidth}"
    problem = api.make_problem(str(model), cluster, batch=Batch(batch))
    return Costs(problem, pools(problem.required_cluster)[0], chain_of(problem.graph)), MeshDegrees(4, 1, 1, 1, 1, 1)


def _splits(n_layers: int, n_ranks: int) -> list[tuple[int, ...]]:
    inner = itertools.combinations(range(1, n_layers), n_ranks - 1)
    return [tuple(np.diff((0, *cuts, n_layers)).tolist()) for cuts in inner]


@pytest.mark.parametrize("schedule", ["1f1b", "zb_h1", "early_backward_b", "zb_h2"])
@pytest.mark.parametrize("batch", [3, 8, 17])
@pytest.mark.parametrize("bandwidth", ["0.02 GB/s", "0.3 GB/s"])
def test_no_split_is_quicker_than_the_inequalities_with_transfers_say(
    schedule: str, batch: int, bandwidth: str, tmp_path: pathlib.Path
) -> None:
    costs, mesh = _asked(tmp_path, bandwidth, batch)
    config = Config(mesh, 0, 0, schedule, 1, "pipeline")
    steps = []
    for counts in _splits(len(costs.chain.layers), mesh.pipeline):
        plan = plans.bare(costs, config, batch, counts)
        assert plan is not None
        loads = costs.stage_costs(config, plan)
        hops = costs.transfer_seconds(config, plan, loads)
        steps.append(sim.least_seconds(costs.problem, plan, loads))
        chain = inequalities.chain_to_cut(costs, config, batch, hops)
        within = layer_split.cuts(chain, steps[-1] * (1.0 + 1e-9), 1000)
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
