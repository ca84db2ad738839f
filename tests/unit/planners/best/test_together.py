"""What virtual stages take by what all ranks recompute together: ways through tasks, choices of ranks, weights of ways."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from meshwright import schedules, sim
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Problem, Stop
from meshwright.core.stage_cost import StageCost
from meshwright.planners.best import fitted_orders, plans, splits, virtual
from meshwright.planners.best.branch_and_bound import BestFirstSearch
from meshwright.planners.best.check import ways as checked
from meshwright.planners.best.check.fitted_orders import least_step, longest_way
from meshwright.planners.best.check.rank_ways import RankWays
from meshwright.planners.best.costs import Costs
from meshwright.planners.best.layer_sums import chain_of
from meshwright.planners.best.limits import Limits
from meshwright.planners.best.memory import ROUNDING_RATIO, RankLayers
from meshwright.planners.best.space import Config, MeshDegrees, pools
from meshwright.planners.best.together.rank_choices import MOST_CHOICES, choices_of
from meshwright.planners.best.together.step import least_together
from meshwright.sim import transfers
from meshwright.solvers.pipeline.weighed_ways import least_longest
from small_questions import question

WORDS = ("interleaved_1f1b", "looped_bfs", "zb_v", "v_half", "v_min", "dualpipe_v")


def posed(seed: int, word: str) -> tuple[Problem, Plan, tuple[StageCost, ...], np.random.Generator]:
    """Return a random pipeline of unlike virtual stages, some transfers of which take long; no two ways take equally long."""
    dice = np.random.default_rng(seed)
    n_ranks, n_chunks = int(dice.integers(2, 5)), 3 if word == "interleaved_1f1b" else 2
    n, m = n_ranks * n_chunks, n_ranks * int(dice.integers(2, 4))
    problem = question("like", "nodes", sequence=2048, gigabytes=60.0)
    rank = schedules.load(word).placement(n_ranks, n_chunks)
    plan = Plan(tuple(Stage((i,), (int(rank[i]),)) for i in range(n)), m, 1, word, m)
    long = dice.uniform(0.1, 1.0, (5, n)) * dice.choice((0.05, 1.0), (5, n), p=(0.2, 0.8))
    loads = tuple(
        StageCost(
            long[0, i], long[1, i], long[2, i], reduce_seconds=2.0 * long[3, i], optimizer_seconds=0.1 * long[4, i],
            output_bytes=float(dice.choice((0.0, 1e9, 25e9))),
        )
        for i in range(n)
    )  # fmt: skip
    return problem, plan, loads, dice


@pytest.mark.parametrize("word", WORDS)
def test_the_longest_way_is_told_with_how_often_each_stage_lies_on_it_and_the_check_finds_the_same(word: str) -> None:
    for seed in range(25):
        problem, plan, loads, dice = posed(seed, word)
        n_ranks, n = len(plan.ranks()), len(loads)
        order = fitted_orders.order_of(word, n_ranks, n // n_ranks, plan.n_microbatches)
        stages, end = fitted_orders.seconds_of(loads), fitted_orders.end_seconds(order, loads)
        sends = transfers.transfers(problem, plan, loads).seconds

        def told(again: np.ndarray) -> tuple[float, np.ndarray]:
            return fitted_orders.longest_way(order, stages._replace(backward=stages.backward + again), sends, end)  # noqa: B023

        at, other = dice.uniform(0.0, 0.7, (2, n))
        seconds, n_times = told(at)
        none = np.zeros(n_ranks)
        least = fitted_orders.least_of_order(order, stages._replace(backward=stages.backward + at), sends, none, end)
        assert seconds == pytest.approx(least, rel=1e-12)
        assert seconds == pytest.approx(least_step(plan, loads, sends, at.tolist(), [0.0] * n_ranks), rel=1e-12)
        # the slope at each stage is how often it lies on the way
        slopes = [(told(at + 1e-7 * one)[0] - seconds) / 1e-7 for one in np.eye(n)]
        assert n_times == pytest.approx(slopes, abs=1e-4) and n_times.sum() > 0
        # by any other seconds the same way is no longer than the longest
        assert seconds + n_times @ (other - at) <= told(other)[0] * (1 + 1e-12)
        own = longest_way(plan, loads, sends, at.tolist(), [0.0] * n_ranks)
        assert own.seconds == pytest.approx(seconds, rel=1e-12) and own.times.tolist() == n_times.tolist()


def rank_of(seed: int, n_layers: int, n_ways: int, *, alike: bool) -> RankLayers:
    """Return a rank of a few layers, the first pinned, held differently often at different moments."""
    dice = np.random.default_rng(seed)
    shape = (n_ways, n_layers)
    kept = np.sort(dice.uniform(0.0, 3.0, shape), axis=0)[::-1]
    working, reserved = np.sort(dice.uniform(0.0, 2.0, shape), axis=0), dice.uniform(0.0, 1.0, shape)
    extra = np.sort(dice.uniform(0.0, 1.0, shape), axis=0) - dice.uniform(0.0, 0.1)
    extra -= extra[0]
    for column in (kept, working, reserved, extra):
        column[:, 0] = column[0, 0] if column is not extra else 0.0
        if alike:
            column[:, 2:] = column[:, [1]]
    moments = dice.integers(0, 4, (3, 2)).astype(float)
    return RankLayers(
        ("none", "selective", "full")[:n_ways], np.arange(n_layers) == 0, np.sort(np.arange(n_layers) % 2),
        dice.uniform(0.0, 1.0, n_layers), kept, working, reserved, extra, moments, dice.integers(0, 2, 3),
    )  # fmt: skip


def by_hand(layers: RankLayers, memory_bytes: float) -> list[tuple[float, ...]]:
    """Return what the stages recompute by every choice of every layer that fits and that no other one is below."""
    found = set()
    for choice in itertools.product(*(range(1 if pinned else len(layers.words)) for pinned in layers.is_pinned)):
        if layers.peak_bytes(np.array(choice)) <= memory_bytes:
            seconds = np.maximum(layers.extra_seconds[np.array(choice), np.arange(len(choice))], 0.0)
            found.add(tuple(np.bincount(layers.stage, seconds, layers.held.shape[1]).round(12).tolist()))
    below = [own for own in found if not any(other != own and np.all(np.array(other) <= own) for other in found)]
    return sorted(below)


def of_check(layers: RankLayers) -> RankWays:
    """Return the same layers as the check has them."""
    own = RankWays.__new__(RankWays)
    own.words, own.moments, own.beside = layers.words, (layers.held, layers.at), None
    own.n_stages, own.at = layers.held.shape[1], layers.stage.tolist()
    own.pinned = ["none" if pinned else "" for pinned in layers.is_pinned]
    own.kept, own.working, own.reserved = layers.kept_bytes.T, layers.working_bytes.T, layers.reserved_bytes.T
    own.work, own.static = 5.0 + layers.extra_seconds.T, float(layers.static_bytes.sum())
    return own


@pytest.mark.parametrize("n_ways", [2, 3])
@pytest.mark.parametrize("alike", [False, True])
def test_choices_of_a_rank_are_those_of_every_layer_by_itself(alike: bool, n_ways: int) -> None:
    n_told = 0
    for seed in range(40):
        layers = rank_of(seed, 5, n_ways, alike=alike)
        most, least = layers.peak_bytes(np.zeros(5, dtype=int)), layers.peak_bytes(np.full(5, n_ways - 1))
        for share in (-0.3, 0.1, 0.4, 0.7, 1.1):
            memory = least + share * (most - least)
            found, expected = choices_of(layers, memory), by_hand(layers, memory)
            assert found is not None
            assert sorted(map(tuple, found.again_seconds.round(12).tolist())) == expected
            for again, choice in zip(found.again_seconds, found.ways, strict=True):
                assert layers.peak_bytes(choice) <= memory * (1 + 1e-11) and choice[0] == 0
                seconds = np.maximum(layers.extra_seconds[choice, np.arange(5)], 0.0)
                assert np.bincount(layers.stage, seconds, 2) == pytest.approx(again, abs=1e-12)
            other = checked.rank_choices(of_check(layers), memory)
            assert other is not None
            assert len(other) == len(expected)
            assert np.array(sorted(other.tolist())) == pytest.approx(np.array(expected), abs=1e-11)
            n_told += len(expected)
    assert n_told > 200


def test_too_many_choices_are_not_gone_through() -> None:
    layers = rank_of(1, 12, 3, alike=False)
    assert MOST_CHOICES < 3**11 and choices_of(layers, 1e9) is None
    assert checked.rank_choices(of_check(layers), 1e9) is None


def random_ways(seed: int) -> tuple[list[np.ndarray], list[np.ndarray], np.ndarray, np.ndarray]:
    """Return choices of three ranks with two stages each, where these stand, and ways: what each takes, and stages on it."""
    dice = np.random.default_rng(seed)
    choices = [dice.uniform(0.0, 2.0, (int(dice.integers(1, 5)), 2)) for _ in range(3)]
    places = np.split(dice.permutation(6), 3)
    return choices, places, dice.uniform(1.0, 4.0, 8), dice.integers(0, 5, (8, 6)).astype(float)


def test_ways_weighed_are_below_every_choice_of_all_and_as_high_as_mixtures_allow() -> None:
    from scipy.optimize import linprog

    ratios = []
    for seed in range(60):
        choices, places, fixed, times = random_ways(seed)

        def longest(again: np.ndarray) -> tuple[float, np.ndarray]:
            every = fixed + times @ again  # noqa: B023
            return float(every.max()), times[int(every.argmax())]  # noqa: B023

        points = []
        for chosen in itertools.product(*choices):
            at = np.zeros(6)
            for own, place in zip(chosen, places, strict=True):
                at[place] = own
            points.append(at)
        exact = min(longest(at)[0] for at in points)
        mixed = linprog(
            np.append(np.zeros(len(points)), 1.0),
            A_ub=np.hstack([times @ np.array(points).T, -np.ones((8, 1))]), b_ub=-fixed,
            A_eq=[[1.0] * len(points) + [0.0]], b_eq=[1.0],
        ).fun  # fmt: skip
        found = least_longest(choices, places, longest, 1e9)
        assert found.seconds <= exact * (1 + 1e-12)
        assert found.seconds == pytest.approx(mixed, rel=1e-5)
        at = np.zeros(6)
        for own, i, place in zip(choices, found.chosen, places, strict=True):
            at[place] = own[i]
        assert found.chosen_seconds == pytest.approx(longest(at)[0])
        ratios.append(found.chosen_seconds / exact)
        # the check proves as much, and nothing that is false
        as_ways = [place.tolist() for place in places]

        def way(again: np.ndarray) -> checked.Way:
            return checked.Way(*longest(again))

        assert checked.all_take(choices, as_ways, way, found.seconds * (1 - 1e-5))
        assert not any(checked.all_take(choices, as_ways, way, share * exact) for share in (1 + 1e-9, 1.5, 4.0))
        # a limit ends the search for ways, and what is proven then stays true
        early = least_longest(choices, places, longest, 0.9 * mixed)
        assert early.seconds <= exact * (1 + 1e-12)
    assert np.median(ratios) < 1.01


def test_a_rank_that_nothing_makes_fit_closes_all() -> None:
    choices, places, fixed, times = random_ways(0)

    def way(again: np.ndarray) -> checked.Way:
        return checked.Way(float((fixed + times @ again).max()), times[0])

    choices[1] = np.zeros((0, 2))
    assert checked.all_take(choices, [place.tolist() for place in places], way, math.inf)


@pytest.mark.parametrize("word", ["interleaved_1f1b", "zb_v", "dualpipe_v"])
@pytest.mark.parametrize("layers", ["like", "mixed"])
def test_the_bound_is_below_all_mixtures_and_its_plan_is_one_of_them(layers: str, word: str) -> None:
    """Devices with less and less memory: what the two ranks need at most, at least, and between."""
    n_recomputing = 0
    roomy = question(layers, "nodes", sequence=2048, gigabytes=60.0)
    chain, m = chain_of(roomy.graph), roomy.batch.global_batch
    config = Config(MeshDegrees(2, 1, 1, 1, 1, 1), 0, 0, word, 2, "pipeline")
    costs = Costs(roomy, pools(roomy.required_cluster)[0], chain)
    counts = virtual.counts(costs, config)
    bare = plans.bare(costs, config, m, counts)
    assert bare is not None
    ranks = plans.ranks_of(costs, config, chain.stages(counts)[1], costs.peaks(config, m))
    most = max(own.peak_bytes(np.zeros(len(own.stage), dtype=int)) for own in ranks)
    least = max(own.least_bytes for own in ranks)
    for share in (-0.1, 0.2, 0.4, 0.6, 0.8, 1.01):
        memory = np.full(2, least + share * (most - least))
        found = least_together(costs, config, bare, ranks, memory * (1.0 + ROUNDING_RATIO), 1e9)
        assert found is not None
        every = [by_hand(own, room) for own, room in zip(ranks, memory.tolist(), strict=True)]
        if not all(every):
            assert found.seconds == math.inf and found.plan is None
            continue
        assert found.plan is not None
        n_recomputing += found.plan.recomputes
        for own, choice in zip(ranks, chosen_of(found.plan, ranks), strict=True):
            assert own.peak_bytes(choice) <= memory[0] * (1 + 1e-11)
        loads = costs.stage_costs(config, found.plan)
        if config.split_backward:
            assert found.plan_seconds >= fitted_orders.least_seconds(roomy, found.plan, loads) * (1 - 1e-9)
        steps = [played(costs, config, bare, ranks, choice) for choice in itertools.product(*every)]
        assert 0.5 * min(steps) < found.seconds <= min(steps) * (1 + 1e-9)
        assert found.seconds <= found.plan_seconds * (1 + 1e-9)
        assert found.plan_seconds <= played(costs, config, bare, ranks, None, found.plan) * (1 + 1e-9)
    assert n_recomputing >= 2


def test_where_layers_do_not_choose_by_themselves_no_plan_of_a_mixture_is_taken() -> None:
    roomy = question("like", "nodes", sequence=2048, gigabytes=60.0)
    chain, m = chain_of(roomy.graph), roomy.batch.global_batch
    config = Config(MeshDegrees(2, 1, 1, 1, 1, 1), 0, 0, "interleaved_1f1b", 2, "pipeline")
    whole = Costs(roomy, pools(roomy.required_cluster)[0], chain)
    bare = plans.bare(whole, config, m, virtual.counts(whole, config))
    assert bare is not None
    for costs, n_expected in ((whole, 1), (whole.recomputing(("none", "full"), blocks=True), 0)):
        search = BestFirstSearch(roomy, Limits(), Stop())
        search.costs = [costs]
        ranks = plans.ranks_of(costs, config, chain.stages(virtual.counts(costs, config))[1], costs.peaks(config, m))
        seconds = splits._together(search, 0, config, bare, ranks, np.full(2, 60e9), 1e9)
        assert 0.0 < seconds < math.inf and len(search.found) == n_expected


def chosen_of(plan: Plan, ranks: list[RankLayers]) -> list[np.ndarray]:
    """Return what the layers of every rank recompute in a plan, as places among the words."""
    words: list[list[int]] = [[] for _ in ranks]
    for stage, rank in zip(plan.stages, plan.rank_of_stage(), strict=True):
        words[rank] += [ranks[rank].words.index(word) for word in stage.recompute]
    return [np.array(own) for own in words]


def played(
    costs: Costs, config: Config, bare: Plan, ranks: list[RankLayers], choice: tuple[tuple[float, ...], ...] | None,
    plan: Plan | None = None,
) -> float:  # fmt: skip
    """Return the step of a plan, or of one whose stages recompute so long: as many seconds as `choice` says, of either rank."""
    loads = costs.model.stage_costs(costs.problem, plan or bare)
    if choice is not None:
        seen = [iter(own) for own in choice]
        loads = tuple(
            replace(load, recompute_seconds=load.recompute_seconds + next(seen[rank]))
            for load, rank in zip(loads, bare.rank_of_stage(), strict=True)
        )
    return sim.simulate(costs.problem, plan or bare, loads).step_seconds
