"""Clusters of unlike machines, and the runs of Sailor and MLPerf whose plans are completed."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright import clusters
from meshwright.clusters import nodes, wires
from meshwright.network import Network
from meshwright.validation import Point, Skipped, collectives, mlperf, sailor
from meshwright.validation._domains import rack, racks
from meshwright.validation._machines import Machine, machines

SAILOR = {
    "file": "lab.json", "gpu_types": "RTX-3090+Titan-RTX", "nodes": "2", "pp": "2", "layers_per_stage": "13|13", "dp": "1|1",
    "tp": "2",
    "mbs": "1", "gbs": "8", "real_iter_s": "10", "grad_reduce_s": "1", "max_mem_bytes": "1e10",
}  # fmt: skip

MLPERF = {
    "round": "4.1", "org": "A", "system": "s", "bench": "gpt3", "platform": "64xDGX H100", "gbs": "2048", "grad_accum": "64",
    "seq": "2048",
    "nodes": "64", "tp": "4", "pp": "8", "vpp": "6", "cp": "", "mbs": "2", "median_step_s": "", mlperf.DERIVED: "9.5",
}  # fmt: skip


def test_machines_are_as_quick_inside_and_between_as_is_said() -> None:
    fast, slow = (wires.device(name) for name in ("rtx-3090-24gb", "rtx-2080-ti-11gb"))
    cluster = machines("lab", (Machine(fast, 2, 4e9), Machine(slow, 3, 1e9)), 0.1e9)
    assert cluster.n_devices == 5 and [cluster.device(i).name for i in (0, 1, 2, 4)] == [
        fast.name,
        fast.name,
        slow.name,
        slow.name,
    ]
    for pairs, rate in (([(0, 1)], 4e9), ([(2, 3)], 1e9), ([(0, 2)], 0.1e9), ([(0, 2), (1, 3)], 0.05e9)):
        assert Network.of(cluster).transfer(pairs)[1] == pytest.approx(1 / rate)


def test_a_stage_on_the_slower_machine_sets_the_pace() -> None:
    both, quick = sailor.points([SAILOR, SAILOR | {"gpu_types": "RTX-3090"}])
    assert isinstance(both, Point) and isinstance(quick, Point)
    assert both.predicted_seconds > quick.predicted_seconds
    assert "which machine runs which stage" in both.note and set(both.device.split("+")) == {"RTX-3090-24GB", "Titan-RTX-24GB"}
    (unknown,) = sailor.points([SAILOR | {"gpu_types": "RTX-3090+GTX-9"}])
    assert isinstance(unknown, Skipped) and "RTX-2080" in unknown.reason


def test_a_plan_is_taken_over_from_a_run_whose_micro_batches_agree() -> None:
    untold = MLPERF | {"platform": "192xOTHER", "system": "1536xH100", "nodes": "", "tp": "", "pp": "", "vpp": "", "mbs": ""}
    told, completed, disagreeing = mlperf.points(
        [MLPERF, untold | {"gbs": "3072", "grad_accum": "32"}, untold | {"gbs": "3072", "grad_accum": "48"}]
    )
    assert isinstance(told, Point) and not told.note
    assert isinstance(completed, Point) and completed.note == mlperf.SAID
    assert isinstance(disagreeing, Skipped) and "does not tell the plan" in disagreeing.reason
    explicit = MLPERF | {"platform": "192xDGX H100", "nodes": "192", "gbs": "3072", "grad_accum": "32"}
    (same,) = mlperf.points([explicit])
    assert isinstance(same, Point) and same.predicted_seconds == completed.predicted_seconds


def test_lists_of_tensors_are_copied_once_through_memory() -> None:
    row = {
        "gpu": "v100-32g",
        "collective": "all_gather",
        "group": "8",
        "nodes": "1",
        "bytes": str(1 << 27),
        "time_us": "1",
        "busbw_GBs": "",
    }
    copied, plain = collectives.points([row, row | {"gpu": "v100"}])
    assert isinstance(copied, Point) and isinstance(plain, Point)
    device = wires.device("v100-sxm2-32gb")
    copy = 2 * 8 * 2**27 / (device.memory_bytes_per_second * device.memory_ratio)
    assert np.isclose(copied.predicted_seconds - plain.predicted_seconds, copy)
    (wrong,) = collectives.points([row | {"group": "9"}])
    assert isinstance(wrong, Skipped) and "has 8 devices" in wrong.reason


def test_pairs_of_acesos_node_are_joined_by_two_links() -> None:
    """Its pairs all-reduce at 42 GB/s, which takes two links of 25 GB/s; eight devices, each once."""
    order = collectives.ACESO_ORDER
    n_links = {(a, b): n for a, b, n in nodes.CUBE_MESH}
    assert sorted(order) == list(range(8)) and n_links[min(order[:2]), max(order[:2])] == 2
    row = {"gpu": "v100-32g", "collective": "all_reduce", "group": "2", "nodes": "1", "bytes": str(1 << 30), "time_us": "1"}
    aceso, vtrain = (point.predicted_seconds for point in collectives.points([row, row | {"gpu": "v100"}]))
    assert vtrain == pytest.approx(2 * aceso, rel=0.01), "as the nodes number their devices, the first two have one link"


@pytest.mark.parametrize(("gpus", "devices"), [(8, 8), (72, 72), (73, 144), (128, 144), (129, 216), (512, 576)])
def test_a_run_on_several_racks_takes_sixty_four_devices_of_each(gpus: int, devices: int) -> None:
    assert racks(gpus) == devices
    assert rack(clusters.cluster(f"gb200-nvl72:{devices}")) == ((64, 72) if gpus > 72 else (1, 1))
    assert rack(clusters.cluster("dgx-h100:144")) == (1, 1)
