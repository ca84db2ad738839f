"""Where memory is tight: what runs needs more the more it recomputes, and ranks wait for what others recompute."""

from __future__ import annotations

import dataclasses
import itertools
import json
import pathlib

import numpy as np
import pytest

from meshwright import api, sim
from meshwright.core.problem import Batch
from meshwright.planners.best import inequalities, plans
from meshwright.planners.best.check.prices import PricedLayer
from meshwright.planners.best.check.rank_memory import least_repeated
from meshwright.planners.best.costs import Costs
from meshwright.planners.best.layer_sums import chain_of
from meshwright.planners.best.memory import RankLayers
from meshwright.planners.best.space import Config, MeshDegrees, pools
from meshwright.solvers.pipeline import layer_split

TINY = pathlib.Path(__file__).resolve().parents[3] / "data" / "tiny_llama.json"
N_LAYERS, N_RANKS, BATCH = 8, 3, 7


def _asked(folder: pathlib.Path, schedule: str, share: float) -> tuple[Costs, Config]:
    """Eight layers on three ranks, whose memory has room for a share of the activations of an even split."""
    model = folder / "eight_layers.json"
    model.write_text(json.dumps(json.loads(TINY.read_text()) | {"num_hidden_layers": N_LAYERS, "vocab_size": 256}))
    cluster = f"two-level:{N_RANKS},per_node=1,device=a100-sxm-80gb,bandwidth=25 GB/s"
    problem = api.make_problem(str(model), cluster, batch=Batch(BATCH), memory_risk=0.5)
    config = Config(MeshDegrees(N_RANKS, 1, 1, 1, 1, 1), 0, 0, schedule, 1, "pipeline")
    roomy = Costs(problem, pools(problem.required_cluster)[0], chain_of(problem.graph))
    bare = plans.bare(roomy, config, BATCH, (3, 3, 2))
    assert bare is not None
    loads = roomy.stage_costs(config, bare)
    held = roomy.peaks(config, BATCH).held[:, 0, 0]
    memory = max(
        load.static_bytes + load.reserved_bytes + load.working_bytes + share * n * load.activation_bytes
        for load, n in zip(loads, held, strict=True)
    )
    kinds = tuple(dataclasses.replace(kind, memory_bytes=memory) for kind in problem.required_cluster.kinds)
    problem = dataclasses.replace(problem, cluster=dataclasses.replace(problem.required_cluster, kinds=kinds))
    return Costs(problem, pools(problem.required_cluster)[0], chain_of(problem.graph)), config


@pytest.mark.parametrize("schedule", ["1f1b", "zb_h1", "early_backward_b", "gpipe"])
@pytest.mark.parametrize("share", [0.8, 0.5, 0.3])
def test_no_split_that_fits_is_quicker_than_the_inequalities_say(schedule: str, share: float, tmp_path: pathlib.Path) -> None:
    costs, config = _asked(tmp_path, schedule, share)
    steps: dict[tuple[int, ...], float] = {}
    for cuts in itertools.combinations(range(N_LAYERS + 1), N_RANKS - 1):
        counts = tuple(np.diff((0, *cuts, N_LAYERS)).tolist())
        plan = plans.with_counts(costs, config, BATCH, counts)
        if plan is None:
            continue
        timeline = sim.simulate(costs.problem, plan, costs.model.stage_costs(costs.problem, plan))
        assert sim.excess_bytes(costs.problem, plan, timeline.peak_bytes) <= 0.0
        loads = costs.stage_costs(config, plan)
        hops = costs.transfer_seconds(config, plan, loads)
        chain = inequalities.chain_to_cut(costs, config, BATCH, hops)
        steps[counts] = sim.least_seconds(costs.problem, plan, loads)
        within = layer_split.cuts(chain, steps[counts] * (1.0 + 1e-9), 1000)
        assert within is not None and counts in {tuple(own) for own in within.tolist()}  # none of its inequalities is above it
    assert steps
    best, bound = min(steps.values()), layer_split.bottleneck(chain)[0]
    less = layer_split.bottleneck(dataclasses.replace(chain, memory=None))[0]
    assert less * (1.0 - 1e-9) <= bound <= best * (1.0 + 1e-6)
    assert bound > (0.8 if schedule == "gpipe" else 0.94) * best
    assert share > 0.5 or bound > 1.01 * less or bound > best * (1.0 - 1e-6)


def _rank(rng: np.random.Generator, n_layers: int, n_moments: int, n_chunks: int) -> RankLayers:
    shape = (3, n_layers)
    return RankLayers(
        words=("none", "selective", "full"),
        is_pinned=np.zeros(n_layers, dtype=np.bool_),
        stage=np.sort(rng.integers(0, n_chunks, n_layers)),
        static_bytes=rng.uniform(0.0, 1.0, n_layers),
        kept_bytes=np.sort(rng.uniform(0.0, 3.0, shape), axis=0)[::-1],
        working_bytes=np.sort(rng.uniform(0.0, 6.0, shape), axis=0),
        reserved_bytes=np.tile(rng.uniform(0.0, 1.0, n_layers), (3, 1)),
        extra_seconds=np.sort(rng.uniform(0.0, 1.0, shape), axis=0),
        held=rng.integers(0, 4, (n_moments, n_chunks)).astype(float),
        at=rng.integers(0, n_chunks, n_moments),
    )


@pytest.mark.parametrize("seed", range(30))
def test_a_rank_holds_no_less_than_is_said_whatever_its_layers_recompute(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n_chunks = 1 if seed % 2 else int(rng.integers(2, 4))
    rank = _rank(rng, int(rng.integers(1, 6)), 1 if n_chunks == 1 else 4, n_chunks)
    peaks = [rank.peak_bytes(np.array(own)) for own in itertools.product(range(3), repeat=len(rank.stage))]
    assert rank.least_bytes <= min(peaks) * (1 + 1e-12)
    if n_chunks == 1:
        assert rank.least_bytes == pytest.approx(min(peaks), rel=1e-12)
    else:
        assert rank.least_bytes >= 0.7 * min(peaks)


@pytest.mark.parametrize("seed", range(40))
def test_the_check_counts_the_best_choice_of_what_layers_recompute(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sorts = []
    for n in rng.integers(0, 3, int(rng.integers(1, 4))).tolist():
        kept, working, again = np.sort(rng.uniform(0.0, 3.0, (3, int(rng.integers(1, 4)))), axis=1)
        ways = zip(kept[::-1], working, again - again[0], strict=True)
        sorts.append((n, [PricedLayer(1.0, 2.0, 0.0, a, 0.0, k, w, 0.0, 0.0, 0.0, 0.0, True) for k, w, a in ways]))
    room, held, pinned = rng.uniform(1.0, 25.0), float(rng.integers(1, 4)), rng.uniform(0.0, 2.0)
    every = [ways for n, ways in sorts for _ in range(n)]
    fitting = [
        sum(way.again for way in choice)
        for choice in itertools.product(*every)
        if held * sum(way.kept_bytes for way in choice) + max([pinned, *(way.working_bytes for way in choice)]) <= room
    ]
    assert least_repeated(sorts, room, held, pinned) == pytest.approx(min(fitting, default=np.inf), abs=1e-6)
