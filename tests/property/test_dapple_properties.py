"""Invariants of the DAPPLE search on random small profiles."""

from __future__ import annotations

import pathlib
import tempfile

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshwright import api

LAYER = st.tuples(st.integers(1, 40), st.integers(1, 80), st.integers(1, 50), st.integers(0, 60))


@st.composite
def profiles(draw: st.DrawFn) -> str:
    layers = draw(st.lists(LAYER, min_size=2, max_size=7))
    lines = [
        f"n{i} -- L{i % 3} -- forward_compute_time={f}, backward_compute_time={b}, activation_size={a * 1e6}, "
        f"parameter_size={p * 1e7}"
        for i, (f, b, a, p) in enumerate(layers)
    ]
    edges = [(i - 1, i) for i in range(1, len(layers))]
    edges += [(i - 2, i) for i in range(2, len(layers)) if draw(st.booleans())]
    return "\n".join(lines + [f"\tn{a} -- n{b}" for a, b in edges]) + "\n"


@given(
    text=profiles(),
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    batch=st.integers(1, 24),
    mode=st.sampled_from(["corrected", "published"]),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_plan_is_whole_and_what_it_claims(text: str, sizes: list[int], batch: int, mode: str) -> None:
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    chosen = {"profile_batch": "1", "global_batch": str(batch), "machines": ",".join(map(str, ends)), "mode": mode}
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "p.txt"
        path.write_text(text)
        result = api.plan(str(path), settings=chosen)
        again = api.plan(str(path), settings=chosen)
    assert again.answer.plan == result.answer.plan
    graph, plan = result.problem.graph, result.plan
    assert sorted(op for stage in plan.stages for op in stage.ops) == list(range(len(graph.ops)))
    stage_of = {op: i for i, stage in enumerate(plan.stages) for op in stage.ops}
    assert all(stage_of[edge.source] <= stage_of[edge.target] for edge in graph.edges)
    used = [device for stage in plan.stages for device in stage.devices]
    assert len(used) == len(set(used)) and set(used) <= set(range(ends[-1]))
    if mode == "corrected":
        objective, bound, timeline = result.answer.objective, result.answer.bound, result.timeline
        assert objective is not None and bound is not None and timeline is not None
        assert abs(timeline.step_seconds - objective.value) <= 1e-9 * objective.value
        assert bound.value <= objective.value * (1 + 1e-12)
        baselines = result.answer.extra["baselines"]
        assert isinstance(baselines, dict) and objective.value <= baselines["data_parallel"] * (1 + 1e-12)
        assert plan.n_microbatches * (batch // plan.n_microbatches) == batch


@given(text=profiles(), batch=st.sampled_from([4, 8, 12]))
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_more_devices_in_the_machine_are_never_slower(text: str, batch: int) -> None:
    steps = []
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "p.txt"
        path.write_text(text)
        for n_devices in (1, 2, 4):
            chosen = {"profile_batch": "1", "global_batch": str(batch), "machines": str(n_devices), "proof_steps": "100000"}
            objective = api.plan(str(path), settings=chosen).answer.objective
            assert objective is not None
            steps.append(objective.value)
    assert steps[0] >= steps[1] * (1 - 1e-12) >= steps[2] * (1 - 1e-11)
