"""State and update of every optimizer: bytes by hand, their sharding, arithmetic and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright import api
from meshwright.base.errors import InputError
from meshwright.core.graph import Graph, Op, Operator
from meshwright.core.optimizers import OPTIMIZERS
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Batch, ModelSpec, Problem
from meshwright.core.stage_cost import StageCost
from meshwright.core.strategy import Strategy
from meshwright.costs import analytic
from meshwright.costs.analytic.update import newton_schulz_seconds
from meshwright.models.weight_tensors import WeightTensor

HIDDEN, OUT, EXPERTS = 512, 1280, 4


def _problem(optimizer: str, n_devices: int = 8, *, experts: bool = False, **held: object) -> Problem:
    """One product, or as many as there are experts, and a norm."""
    dims = (("sequence", 64), ("in", HIDDEN), ("out", OUT))
    visits = (("sequence", 64), ("top_k", 1), ("experts", EXPERTS), ("in", HIDDEN), ("out", OUT))
    product = (
        Operator("p", "grouped_matmul", visits, "out", EXPERTS * HIDDEN * OUT, expert=True)
        if experts
        else Operator("p", "matmul", dims, "out", HIDDEN * OUT)
    )
    body = (Operator("n", "norm", (("sequence", 64), ("hidden", HIDDEN)), "sequence", HIDDEN), product)
    graph = Graph("one", (Op("layer", "layer", body, 0),), (), 64)
    problem = api.make_problem(ModelSpec("one", "test", "one", graph), f"dgx-h100:{n_devices}", batch=Batch(8))
    return replace(problem, training=problem.training.updated_by(optimizer, **held))  # type: ignore[arg-type]


def _load(problem: Problem, strategy: Strategy) -> StageCost:
    plan = Plan((Stage((0,), tuple(range(strategy.n_devices)), strategy),), 1, 8 // strategy.data, global_batch=8)
    return analytic.stage_costs(problem, plan)[0]


N = HIDDEN * OUT
STATE = {
    "adamw": 8 * (N + HIDDEN), "adam": 8 * (N + HIDDEN), "sgd": 0, "sgd-momentum": 4 * (N + HIDDEN), "lion": 4 * (N + HIDDEN),
    "adam-8bit": 2 * (N + 4 * N // 256) + 8 * HIDDEN,  # the norm is smaller than what is quantised
    "adafactor": 4 * (HIDDEN + OUT) + 4 * HIDDEN,
    "muon": 4 * N + 8 * HIDDEN,
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_state_is_what_the_definition_keeps_beside_the_copy(name: str) -> None:
    whole = _load(_problem(name), Strategy())
    assert whole.optimizer_bytes == 4 * (N + HIDDEN) + STATE[name]
    assert whole.gradient_bytes == 4 * (N + HIDDEN)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("shard", [1, 2, 3])
def test_ranks_share_state_but_the_sums_of_factored_moments(name: str, shard: int) -> None:
    load = _load(_problem(name), Strategy(data=4, shard=shard))
    whole = 4 * (HIDDEN + OUT) if name == "adafactor" else 0
    copy = 4 * (N + HIDDEN) / 4
    held = load.weight_bytes + load.optimizer_bytes
    weights = 0.0 if shard == 3 else 2 * (N + HIDDEN)  # under level 3 the copy is the weight
    assert held == pytest.approx(weights + copy + (STATE[name] - whole) / 4 + whole)


def test_pieces_of_a_tensor_axis_have_state_of_their_own() -> None:
    """Half of the columns: Adafactor keeps a sum of every row on both, and of the columns that each has."""
    load = _load(_problem("adafactor"), Strategy(tensor=2))
    assert load.optimizer_bytes == 4 * (N / 2 + HIDDEN) + 4 * (HIDDEN + OUT // 2) + 4 * HIDDEN
    assert _load(_problem("muon"), Strategy(tensor=2)).optimizer_bytes == 4 * (N / 2 + HIDDEN) + 4 * N / 2 + 8 * HIDDEN


def test_every_expert_is_a_matrix_of_its_own() -> None:
    whole, half = (
        _load(_problem("adafactor", experts=True), strategy) for strategy in (Strategy(), Strategy(data=2, expert=2))
    )
    assert whole.optimizer_bytes == 4 * (EXPERTS * N + HIDDEN) + 4 * EXPERTS * (HIDDEN + OUT) + 4 * HIDDEN
    assert half.optimizer_bytes == 4 * (EXPERTS // 2 * N + HIDDEN) + 4 * EXPERTS // 2 * (HIDDEN + OUT) + 4 * HIDDEN


def test_moments_of_two_bytes_are_half_as_large_and_quick() -> None:
    wide, narrow = _load(_problem("adamw"), Strategy()), _load(_problem("adamw", state_bytes=2), Strategy())
    assert wide.optimizer_bytes - narrow.optimizer_bytes == 4 * (N + HIDDEN)
    rate = 2 * 4 * (N + HIDDEN) / (wide.optimizer_seconds - narrow.optimizer_seconds)
    device = _problem("adamw").required_cluster.device(0)
    assert rate == pytest.approx(device.memory_bytes_per_second * device.memory_ratio)


def test_muon_orthogonalises_matrices_only_and_ranks_share_that() -> None:
    """5 steps of 4 m m n + 2 m m m; the rest is what SGD with momentum moves, and Adam of the norm."""
    device = _problem("muon").required_cluster.device(0)
    seconds = newton_schulz_seconds(WeightTensor(HIDDEN, OUT, 1, True), device)
    flops = 5 * (4 * HIDDEN * HIDDEN * OUT + 2 * HIDDEN**3)
    assert seconds >= flops / device.peak("bf16")
    assert newton_schulz_seconds(WeightTensor(OUT, HIDDEN, 1, True), device) == seconds
    large = newton_schulz_seconds(WeightTensor(8192, 8192, 1, True), device)
    assert large == pytest.approx(5 * 6 * 8192**3 / (device.peak("bf16") * device.matmul_ratio), rel=0.1)
    rate = device.memory_bytes_per_second * device.memory_ratio
    muon, momentum = (_load(_problem(name), Strategy()) for name in ("muon", "sgd-momentum"))
    assert muon.optimizer_seconds == pytest.approx(momentum.optimizer_seconds + seconds + 2 * 4 * HIDDEN / rate)
    assert muon.gather_seconds == 0.0
    shared = _load(_problem("muon"), Strategy(data=4, shard=1))
    plain = _load(_problem("sgd-momentum"), Strategy(data=4, shard=1))
    assert shared.optimizer_seconds - plain.optimizer_seconds == pytest.approx((seconds + 2 * 4 * HIDDEN / rate) / 4)
    assert shared.gather_seconds > plain.gather_seconds  # matrices are put together, and their updates sent back


def test_what_is_exchanged_is_on_links_too() -> None:
    for shard in (1, 2, 3):
        load = _load(_problem("muon"), Strategy(data=4, shard=shard))
        on_links = sum(one.seconds for one in load.collectives if one.part == "gather")
        assert on_links == pytest.approx(load.gather_seconds) and load.gather_seconds > 0.0
        (there_and_back,) = (one for one in load.collectives if one.kind == "all_to_all")
        assert (there_and_back.n_bytes, there_and_back.n_times) == (2 * N / 4, 2.0)


def test_adafactor_reads_gradients_and_weights_again() -> None:
    device = _problem("sgd").required_cluster.device(0)
    rate = device.memory_bytes_per_second * device.memory_ratio
    factored, plain = (_load(_problem(name), Strategy()) for name in ("adafactor", "sgd"))
    more = 2 * STATE["adafactor"] + N * (2 * 4 + 4)
    assert factored.optimizer_seconds - plain.optimizer_seconds == pytest.approx(more / rate)


def test_shapes_that_are_not_known_are_refused_by_those_that_need_them() -> None:
    body = (Operator("conv", "convolution", (("sequence", 64), ("in", 3), ("out", 8)), n_parameters=216),)
    spec = ModelSpec("net", "test", "net", Graph("net", (Op("stem", "layer", body, 0),), (), 64))
    problem = api.make_problem(spec, "dgx-h100:8", batch=Batch(8))
    for name, one in OPTIMIZERS.items():
        training = problem.training.updated_by(name)
        if one.shaped:
            with pytest.raises(
                InputError, match=rf"optimizer {name}: .* those of stem.conv \(convolution\) in net are not known"
            ):
                api.make_problem(spec, "dgx-h100:8", batch=Batch(8), training=training)
        else:
            assert api.make_problem(spec, "dgx-h100:8", batch=Batch(8), training=training).training.optimizer == name
    frozen = replace(body[0], n_frozen_parameters=216)
    graph = Graph("net", (Op("stem", "layer", (frozen, _problem("muon").graph.ops[0].body[1]), 0),), (), 64)
    assert analytic.unknown_state(replace(problem, model_spec=replace(spec, graph=graph))) == ""
