"""The DAPPLE search: settings completed or refused, both modes on small cases, sensible answers on the real profiles."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

import reference
from meshwright import api
from meshwright.base.errors import InputError, UnknownNameError
from meshwright.core.result import Result
from meshwright.planners.dapple.profile import ProfiledTraining


def write(
    path: pathlib.Path, layers: list[tuple[float, float, float, float]], edges: list[tuple[int, int]] | None = None
) -> str:
    lines = [
        f"n{i} -- L{i} -- forward_compute_time={f}, backward_compute_time={b}, activation_size={a}, parameter_size={p}"
        for i, (f, b, a, p) in enumerate(layers)
    ]
    edges = [(i, i + 1) for i in range(len(layers) - 1)] if edges is None else edges
    path.write_text("\n".join(lines + [f"\tn{a} -- n{b}" for a, b in edges]) + "\n")
    return str(path)


EVEN = [(10.0, 20.0, 1e6, 1e6)] * 4


def plan(path: str, cluster: str | None = None, **settings: object) -> Result:
    defaults = {"profile_batch": "1", "global_batch": "8"} | ({} if cluster else {"machines": "2,4"})
    return api.plan(path, cluster, settings=defaults | {key: str(value) for key, value in settings.items()})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"machines": "8,8"}, "ends must ascend"),
        ({"machines": "8,4"}, "end 4 comes after 8"),
        ({"machines": "0,4"}, "machines"),
        ({"machines": "8,20000"}, "20000 devices: beyond 512 a stage takes them in multiples of 64, but global batch 8"),
        ({"global_batch": "0"}, "give the samples of one step"),
        ({"profile_batch": "0"}, "give --set profile_batch=N"),
        ({"global_batch": "4", "min_micro_batch": "8"}, "smaller than min_micro_batch=8"),
        ({"mode": "best"}, "choose one of corrected, published"),
        ({"mode": "published", "uneven": "true"}, "only mode=corrected knows it"),
        ({"mode": "published", "recompute": "always"}, "only mode=corrected knows it"),
    ],
)
def test_wrong_settings_are_answered_by_one_message(tmp_path: pathlib.Path, settings: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        plan(write(tmp_path / "p.txt", EVEN), **settings)


def test_contradictions_and_omissions_are_refused(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path / "p.txt", EVEN)
    with pytest.raises(InputError, match="both say where"):
        plan(path, "dgx-a100:4", machines="2,4")
    with pytest.raises(InputError, match="say where to train"):
        api.plan(path, settings={"profile_batch": "1", "global_batch": "8"})
    with pytest.raises(UnknownNameError, match="did you mean 'machines'"):
        plan(path, machine="2,4")


def test_a_search_on_profiles_refuses_other_models() -> None:
    with pytest.raises(InputError, match="works on measured profiles"):
        api.plan("gpt2", "dgx-a100:4", search="dapple", settings={"global_batch": "8"})


def test_the_profile_batch_comes_from_the_files_name_with_a_note(tmp_path: pathlib.Path) -> None:
    result = plan(write(tmp_path / "net-pbs-2.txt", EVEN), profile_batch="0")
    assert isinstance(result.problem.model_spec.instance, ProfiledTraining)
    assert result.problem.model_spec.instance.profile_batch == 2
    assert any("profile_batch=2" in note for note in result.answer.notes)


def test_heavy_weights_on_a_slow_network_make_a_pipeline_of_machines(tmp_path: pathlib.Path) -> None:
    """Four equal layers of 30 ms and 1 GB on 2 x 2 devices: all-reduce between machines costs 2 s, a cut 1 ms."""
    result = plan(write(tmp_path / "p.txt", [(10.0, 20.0, 1e6, 1e9)] * 4), global_batch="32")
    machine = {0: 0, 1: 0, 2: 1, 3: 1}
    for stage in result.plan.stages:
        assert len({machine[device] for device in stage.devices}) == 1
    assert len(result.plan.stages) >= 2


def test_light_weights_make_plain_data_parallelism(tmp_path: pathlib.Path) -> None:
    result = plan(write(tmp_path / "p.txt", [(10.0, 20.0, 1e8, 1.0)] * 4), global_batch="32")
    assert len(result.plan.stages) == 1 and len(result.plan.stages[0].devices) == 4
    assert result.answer.objective is not None
    # 32 samples x 4 layers x 30 ms on 4 devices, and an all-reduce of 16 bytes
    assert result.answer.objective.value == pytest.approx(0.96, rel=1e-6)
    assert result.answer.bound is not None and result.answer.bound.value == pytest.approx(0.96, rel=1e-6)


def test_every_replica_takes_whole_samples(tmp_path: pathlib.Path) -> None:
    random = np.random.default_rng(3)
    layers = [(float(random.uniform(1, 9)), float(random.uniform(1, 9)), 1e6, 1e8) for _ in range(6)]
    for batch in (7, 12, 30):
        found = plan(write(tmp_path / "p.txt", layers), machines="3,5", global_batch=batch).plan
        assert batch % found.n_microbatches == 0
        for stage in found.stages:
            assert (batch // found.n_microbatches) % len(stage.devices) == 0
            assert stage.strategy.data == len(stage.devices)


def test_uneven_shares_are_never_slower_than_even_ones(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path / "p.txt", [(5.0, 10.0, 1e6, 5e8), (5.0, 10.0, 1e6, 5e8), (1.0, 2.0, 1e6, 2e9)])
    even, uneven = (plan(path, machines="3,5", uneven=word).answer.objective for word in ("false", "true"))
    assert even is not None and uneven is not None and uneven.value <= even.value * (1 + 1e-12)


@pytest.mark.slow
def test_uneven_shares_of_a_measured_profile_are_never_slower_than_even_ones() -> None:
    """GNMT-16 on sixteen machines of one device, where the search among uneven shares alone misses the best even plan."""
    machines = ",".join(str(i) for i in range(1, 17))
    found = [
        plan(
            str(reference.path("dapple/gnmt-16-pbs-64.txt")), profile_batch=64, machines=machines, global_batch=1024,
            min_micro_batch=64, optimizer_memory_scaling=3, uneven=word,
        ).answer.objective
        for word in ("false", "true")
    ]  # fmt: skip
    assert found[0] is not None and found[1] is not None and found[1].value <= found[0].value * (1 + 1e-12)


def test_what_does_not_fit_says_what_is_missing_and_recomputation_may_help(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path / "p.txt", [(10.0, 20.0, 3.5e9, 1e8)] * 4)
    never = plan(path, machines="2", global_batch="4", recompute="never")
    chosen = plan(path, machines="2", global_batch="4", recompute="choose")
    assert chosen.feasible and chosen.timeline is not None and max(chosen.timeline.peak_bytes) <= 16e9
    assert "full" in {word for stage in chosen.plan.stages for word in stage.recompute} or never.feasible
    nothing = plan(write(tmp_path / "q.txt", [(10.0, 20.0, 1e6, 1e10)] * 4), machines="2")
    assert not nothing.feasible and nothing.answer.missing_bytes > 0


def test_fewer_states_than_devices_has_an_answer_in_both_modes(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path / "p.txt", EVEN[:2])
    corrected = plan(path, machines="4,8")
    published = plan(path, machines="4,8", mode="published")
    assert corrected.feasible and published.feasible
    assert any("crashes here" in note for note in published.answer.notes)


def test_one_layer_or_one_device_is_enough(tmp_path: pathlib.Path) -> None:
    for mode in ("corrected", "published"):
        assert plan(write(tmp_path / "p.txt", EVEN[:1]), mode=mode).feasible
        assert plan(write(tmp_path / "p.txt", EVEN), machines="1", mode=mode).feasible


def test_a_batch_that_fits_no_device_leaves_the_accumulated_baselines_open(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path / "p.txt", EVEN)
    baselines = plan(path, mode="published", peak_activation_per_sample="1e12").answer.extra["baselines"]
    assert isinstance(baselines, dict) and baselines["dp_ga_p3"] is None and baselines["dp_no_overlap"] > 0


def test_a_cluster_replaces_the_constants(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path / "p.txt", [(10.0, 20.0, 1e6, 1e9)] * 4)
    slow = plan(path, global_batch="8")
    quick = plan(path, "dgx-h100:4")
    assert slow.answer.objective is not None and quick.answer.objective is not None and quick.timeline is not None
    assert quick.answer.objective.value < slow.answer.objective.value
    assert quick.timeline.step_seconds == pytest.approx(quick.answer.objective.value, rel=1e-9)
    torus = plan(path, "torus:2x2")
    assert torus.feasible and torus.answer.bound is not None and torus.answer.objective is not None
    assert torus.answer.bound.value <= torus.answer.objective.value * (1 + 1e-12)


def test_branches_are_cut_only_where_nothing_runs_backwards(tmp_path: pathlib.Path) -> None:
    edges = [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (3, 5), (4, 6), (5, 6)]
    path = write(tmp_path / "p.txt", [(5.0, 10.0, 1e6, 5e8)] * 7, edges)
    for mode in ("corrected", "published"):
        result = plan(path, mode=mode)
        stage_of = {op: i for i, stage in enumerate(result.plan.stages) for op in stage.ops}
        assert sorted(stage_of) == list(range(7))
        for edge in result.problem.graph.edges:
            assert stage_of[edge.source] <= stage_of[edge.target]


@pytest.mark.parametrize("name", ["vgg-19-pbs-32", "bert-48-pbs-2", "xlnet-36-pbs-1", "amoeba-18-pbs-8", "gnmt-32-pbs-64"])
def test_on_the_real_profiles_the_answer_is_what_the_simulator_says_and_beats_data_parallelism(name: str) -> None:
    path = reference.path(f"dapple/{name}.txt")
    result = api.plan(str(path), settings={"global_batch": "256", "machines": "8,16"})
    objective, bound, timeline = result.answer.objective, result.answer.bound, result.timeline
    assert objective is not None and bound is not None and timeline is not None
    assert timeline.step_seconds == pytest.approx(objective.value, rel=1e-9)
    assert bound.value <= objective.value * (1 + 1e-12)
    assert max(timeline.peak_bytes) <= 16e9
    baselines = result.answer.extra["baselines"]
    assert isinstance(baselines, dict) and objective.value <= baselines["data_parallel"] * (1 + 1e-12)


def test_machines_of_unequal_size_and_cut_machines_are_planned(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path / "p.txt", [(5.0, 10.0, 1e6, 5e8)] * 8)
    result = plan(path, machines="1,4,6", global_batch="24")
    used = [device for stage in result.plan.stages for device in stage.devices]
    assert len(used) == len(set(used)) and max(used) < 6


def test_the_machines_constants_are_what_general_routing_finds() -> None:
    from meshwright.planners.dapple import device_orders, machines

    cluster = machines.machines_cluster((3, 2, 4))
    random = np.random.default_rng(0)
    for _ in range(40):
        order = tuple(int(device) for device in random.permutation(9))
        a, b = int(random.integers(1, 5)), int(random.integers(1, 5))
        ends = (order[:a], order[a : a + b])
        quick = device_orders.send_lines(cluster, *ends, published_links=True)
        general = device_orders.send_lines(cluster, *ends, published_links=False)
        assert np.allclose(quick, general, rtol=1e-12, atol=0.0)
