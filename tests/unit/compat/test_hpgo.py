"""The calls that users of the published planner know."""

from __future__ import annotations

import pathlib
import threading

import pytest

from meshwright.base.errors import InputError
from meshwright.compat import hpgo

PROFILE = "\n".join(
    [
        f"n{i} -- L{i} -- forward_compute_time={10 + i}, backward_compute_time=20, activation_size=1e6, parameter_size=2e8"
        for i in range(6)
    ]
    + [f"\tn{i} -- n{i + 1}" for i in range(5)]
)


@pytest.fixture
def path(tmp_path: pathlib.Path) -> str:
    file = tmp_path / "p.txt"
    file.write_text(PROFILE + "\n")
    return str(file)


def test_the_conductor_answers_speedup_and_stages(path: str) -> None:
    speedup, stages = hpgo.conductor_from_torch_graph_and_seps(path, 2, 32, [2, 4]).py_orchestrate()
    assert 1.0 < speedup <= 4.0
    assert stages[0][0] == 0 and stages[-1][1] == 5
    used = [device for *_, devices in stages for device in devices]
    assert len(used) == len(set(used)) and set(used) <= {0, 1, 2, 3}


def test_settings_of_the_model_count(path: str) -> None:
    conductor = hpgo.conductor_from_torch_graph_and_seps(path, 2, 32, [2, 4])
    before = conductor.py_orchestrate()[0]
    conductor.m.min_micro_batch_size = 16
    assert conductor.py_orchestrate()[0] < before


def test_the_models_layers_are_scaled_to_the_global_batch(path: str) -> None:
    layers = hpgo.model_from_torch_graph(path, 2, 32).layers
    assert [layer.desc for layer in layers] == [f"L{i}" for i in range(6)]
    assert layers[0].compute_time == pytest.approx(0.030 * 16)
    assert layers[0].parameter_size == 2e8


def test_threads_plan_side_by_side_and_agree(path: str) -> None:
    alone = hpgo.conductor_from_torch_graph_and_seps(path, 2, 32, [2, 4]).py_orchestrate()
    found: list = []

    def work() -> None:
        found.append(hpgo.conductor_from_torch_graph_and_seps(path, 2, 32, [2, 4]).py_orchestrate())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [alone] * 4


def test_the_search_runs_without_the_interpreters_lock() -> None:
    from meshwright._kernels.compiling import Kernel
    from meshwright._kernels.dapple import published as kernel

    kernels = (kernel.straight, kernel.bipartition)
    if not all(isinstance(one, Kernel) for one in kernels):
        pytest.skip("kernels are not compiled here")
    assert all(one.dispatcher().targetoptions["nogil"] for one in kernels)


@pytest.mark.parametrize("seps", [[], [8, 8], [4, 2], [0, 4], ["8"]])
def test_wrong_machines_are_refused(seps: list) -> None:
    with pytest.raises(InputError, match="seps"):
        hpgo.devices_from_seps(seps)


def test_wrong_batches_are_refused(path: str) -> None:
    for batches in ((0, 32), (2, -1), (2.5, 32)):
        with pytest.raises(InputError, match="must be a whole number"):
            hpgo.model_from_torch_graph(path, *batches)
