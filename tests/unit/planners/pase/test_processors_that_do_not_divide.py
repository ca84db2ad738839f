"""Baselines of PaSE's graphs on processors that do not divide the batch: no split that no device could run is priced."""

from __future__ import annotations

import pytest

from meshwright import api
from meshwright.base.errors import InputError
from meshwright.planners.pase.answer import expert_splits
from meshwright.planners.pase.operators import PaseGraph
from meshwright.planners.pase.readers.pase_graph import build


@pytest.mark.parametrize("n_processors", [6, 12, 256])
@pytest.mark.parametrize("search", ["data_parallel", "one_weird_trick"])
def test_a_baseline_that_would_cut_a_sample_is_refused(search: str, n_processors: int) -> None:
    with pytest.raises(InputError, match=f"{n_processors} processors do not divide axis b of .*, which has 128"):
        api.plan("pase:alexnet", search=search, settings={"n_processors": str(n_processors), "batch": "128"})


@pytest.mark.parametrize("n_processors", [6, 12, 256])
def test_the_optimum_is_compared_with_no_such_baseline(n_processors: int) -> None:
    answer = api.plan("pase:alexnet", search="pase", settings={"n_processors": str(n_processors), "batch": "128"}).answer
    assert answer.extra["baselines"] == {}
    assert any("no baseline 'data parallel'" in note and f"{n_processors} processors" in note for note in answer.notes)
    assert any("no baseline 'one weird trick'" in note for note in answer.notes)


@pytest.mark.parametrize("n_processors", [1, 2, 4, 8, 16, 32])
def test_a_baseline_among_the_configurations_is_never_below_the_optimum(n_processors: int) -> None:
    answer = api.plan("pase:alexnet", search="pase", settings={"n_processors": str(n_processors), "batch": "128"}).answer
    assert answer.objective is not None and set(answer.extra["baselines"]) == {"data_parallel", "one_weird_trick"}
    assert min(answer.extra["baselines"].values()) >= answer.objective.value * (1 - 1e-12)
    assert not any("baseline" in note for note in answer.notes)


def test_a_baseline_of_fewer_samples_than_configurations_have_is_told_to_lie_outside() -> None:
    """64 processors take 2 of 128 samples each; configurations leave 4 or more. The published figures count it."""
    answer = api.plan("pase:alexnet", search="pase", settings={"n_processors": "64", "batch": "128"}).answer
    assert "data_parallel" in answer.extra["baselines"]
    assert any("the baseline 'data parallel' splits conv0 finer than PaSE's configurations" in note for note in answer.notes)


def test_on_a_cluster_that_does_not_divide_the_batch_nothing_is_said_of_data_parallelism() -> None:
    answer = api.plan("pase:alexnet", "pcie-a100:6", search="pase", settings={"batch": "128"}).answer
    assert answer.extra["on_cluster"]["data_parallel_step_seconds"] is None
    assert answer.extra["on_cluster"]["step_seconds"] > 0.0
    assert not any("data parallelism" in note for note in answer.notes)


@pytest.mark.parametrize("network", [build("rnnlm", 64), build("alexnet", 128)], ids=lambda network: network.name)
def test_experts_too_cut_no_sample(network: PaseGraph) -> None:
    with pytest.raises(InputError, match=r"has no splits of experts: . processors do not divide axis b"):
        expert_splits(network, 6)
