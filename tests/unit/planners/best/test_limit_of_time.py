"""Once time is up nothing is looked at any more, and what a search says without a plan is said quickly."""

from __future__ import annotations

import collections
import math
import pathlib
from collections.abc import Callable

import pytest

from meshwright.api import make_problem
from meshwright.core.problem import Batch, Stop
from meshwright.planners.best import answer as joint
from meshwright.planners.best import certificate, limits, plans, splits
from meshwright.planners.best.branch_and_bound import BestFirstSearch
from meshwright.planners.best.limits import Limits
from meshwright.planners.best.question import Exchanges
from meshwright.planners.best.space import Config, MeshDegrees, meshes, pools, schedules_of, spreads_of
from small_questions import question

TINY = pathlib.Path(__file__).resolve().parents[3] / "data" / "tiny_llama.json"
PARAMS = Limits(tensor=(1, 2), context=(1, 2), micro_batch=(1, 2))


def without_a_plan(stop: Stop | None = None) -> BestFirstSearch:
    """Return a search that has run and found nothing that fits."""
    state = joint._searched(question("like", "nodes", gigabytes=0.1), PARAMS, stop or Stop(), [])
    assert not state.found and state.too_large
    return state


def whole(state: BestFirstSearch, place: int, config: Config, *, light: bool = True) -> float:
    return plans.missing_bytes(state.costs[place], config, state.n_microbatches(config.mesh), light=light)


def test_the_nearest_that_fits_is_the_least_of_all_although_few_are_looked_at_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    state = without_a_plan()
    every: list[tuple[float, bool, Config]] = []
    for place, config, light in state.too_large:
        costs = state.costs[place]
        of_mesh = costs.exchanges.of(config.mesh)
        own = limits.runnable(config, state.problem, costs.pool, state.params.shard, of_mesh) if config.is_any else [config]
        every += [(whole(state, place, one, light=light or config.is_any), one.exchange != "ring", one) for one in own]
    looked: collections.Counter[bool] = collections.Counter()
    missing_bytes = plans.missing_bytes

    def counted(*args: object, n_first: int | None = None, **options: object) -> float:
        looked[n_first is None] += 1
        return missing_bytes(*args, n_first=n_first, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(plans, "missing_bytes", counted)
    found = plans.closest(state.problem, state.costs, state.too_large, state.params.shard)
    least = min(one for one in every if one[0] > 0.0)
    assert found == (least[0], least[2])
    assert 0 < looked[True] < looked[False] / 2


def test_what_the_first_rank_misses_is_no_more_than_what_all_miss() -> None:
    state = without_a_plan()
    n_less = 0
    for place, config, light in state.too_large:
        costs, n = state.costs[place], state.n_microbatches(config.mesh)
        first = plans.missing_bytes(costs, config, n, light=light, n_first=1)
        assert first <= whole(state, place, config, light=light)
        n_less += first < whole(state, place, config, light=light)
    assert n_less > 0


@pytest.mark.parametrize("n_looked", [1, 5, 40])
def test_without_time_the_nearest_is_one_that_was_looked_at(n_looked: int) -> None:
    state, left = without_a_plan(), iter(range(n_looked))
    found = plans.closest(state.problem, state.costs, state.too_large, state.params.shard, lambda: next(left, None) is None)
    best = plans.closest(state.problem, state.costs, state.too_large, state.params.shard)
    assert found is not None and best is not None and not found[1].is_any
    assert found[0] == min(
        missing for place in range(len(state.costs)) if (missing := whole(state, place, found[1])) >= found[0]
    )
    assert found[0] >= best[0]


def later(over: Callable[[str], bool]) -> Stop:
    """Stop as soon as the function that asks, or one that called it, is one of those that `over` names."""
    import sys

    def asked() -> bool:
        frame = sys._getframe(1)
        while frame is not None:
            if over(frame.f_code.co_name):
                return True
            frame = frame.f_back  # type: ignore[assignment]
        return False

    return Stop(asked=asked)


def test_a_proof_that_nothing_fits_stays_one_when_the_time_ends_after_it() -> None:
    problem = question("like", "nodes", gigabytes=0.1)
    calm = joint.answer(problem, PARAMS, Stop())
    assert calm.infeasible_proven and calm.nearest.startswith("closest with these devices") and not calm.extra["stopped_early"]
    hasty = joint.answer(problem, PARAMS, later(lambda name: name == "closest"))
    assert hasty.infeasible_proven and hasty.plan is None and hasty.missing_bytes >= calm.missing_bytes > 0.0
    assert hasty.nearest.startswith("closest of what there was time for") and hasty.extra["stopped_early"] is True
    assert hasty.notes[-1] == joint._STOPPED_NEAREST and joint._STOPPED_NEAREST not in calm.notes
    assert hasty.certificate == calm.certificate


def test_no_larger_cluster_is_built_once_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def built(name: str) -> None:
        raise AssertionError(name)

    monkeypatch.setattr(joint.clusters, "cluster", built)
    assert joint._enough_devices(question("like", "nodes", gigabytes=0.1), PARAMS, Stop(asked=lambda: True)) == ""


def test_a_stopped_search_looks_for_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(joint, "_simplify", lambda state: asked.append("simpler"))
    monkeypatch.setattr(joint, "_find_others", lambda state: asked.append("others"))
    problem = question("like", "nodes", gigabytes=60.0)
    found = joint.answer(problem, PARAMS, Stop(seconds=1e-9))
    assert found.plan is not None and found.extra["stopped_early"] is True and not asked
    assert joint.answer(problem, PARAMS, Stop()).plan is not None and asked == ["simpler", "others"]


def test_the_first_good_plan_is_near_the_best_where_only_larger_micro_batches_are_quick() -> None:
    """Of short samples a device waits for its host: all that is tried first, of one sample at a time, is ten times as slow."""
    problem = make_problem(str(TINY), "dgx-a100:4", batch=Batch(64, 0, 128))
    state = BestFirstSearch(problem, Limits(), Stop())
    for pool in pools(problem.required_cluster):
        state.add(pool)
    joint._dive(state)
    assert max(found.step_seconds for found in state.found) > 10.0 * state.best_seconds
    early = state.best_seconds
    joint._prove(state)
    assert early <= 1.05 * state.best_seconds


def test_splits_for_which_there_was_no_time_stay_open(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = question("like", "nodes", gigabytes=60.0)
    state = joint._searched(problem, PARAMS, Stop(), [])
    one = (1e-9, 0, Config(MeshDegrees(2, 2, 1, 1, 1, 1), 0, 0, "1f1b", 1, "pipeline"))
    assert state.found and one[0] < state.limit(one[2])
    settled: list[tuple[int, ...]] = []
    monkeypatch.setattr(splits, "_splits", lambda *_: [(2, 3), (3, 2), (1, 4)])
    monkeypatch.setattr(splits, "_settle", lambda search, pool, config, counts: settled.append(counts) or math.inf)
    for n_settled, left_open in ((1, [one]), (3, [(state.limit(one[2]), *one[1:])])):
        settled.clear()
        state.open, state.was_stopped = [one], False
        state.stop = Stop(asked=lambda most=n_settled: most == 1 and len(settled) == most)
        splits.close(state)
        assert len(settled) == n_settled and state.open == left_open


def test_configurations_are_counted_once_for_meshes_that_share_them(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = question("like", "nodes", batch=16)
    params, n_layers, pinned = Limits(shard=(0, 3)), 5, (True, False)
    pool, exchanges, calls = pools(problem.required_cluster)[0], Exchanges(problem), []
    counts = certificate.Counts(problem, params, n_layers, pinned)
    own = limits.runnable
    monkeypatch.setattr(certificate, "runnable", lambda *args: calls.append(args) or own(*args))
    degrees = limits.allowed_degrees(problem, params, pool.n_devices)
    every: list[MeshDegrees] = list(meshes(pool, n_layers=n_layers, global_batch=16, degrees=degrees))
    for mesh in every:
        if exchanges.refusal(mesh):
            continue
        n_microbatches = 16 // (mesh.data * mesh.micro_batch)
        forms = [
            (schedule, chunks, fewer)
            for schedule, chunks in schedules_of(mesh, n_microbatches, n_layers, params.schedules)
            for fewer in spreads_of(n_layers, mesh.pipeline, chunks, pinned)
        ]
        variants = own(Config(mesh, 0, 0, "1f1b", 1, ""), problem, pool, params.shard, exchanges.of(mesh), params.offload)
        assert counts.of(pool, mesh, exchanges.of(mesh)) == len(forms) * len(variants)
    assert 0 < len(calls) < len(every) / 2
