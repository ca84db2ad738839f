"""Built-in kinds: bandwidths and places that can be worked out from the data sheets."""

from __future__ import annotations

import pathlib
import tomllib

import numpy as np
import pytest

from meshwright import clusters
from meshwright.base.errors import InputError
from meshwright.clusters import built_in, wires
from meshwright.network import Network, packing, routes


def _rate(spec: str, pairs: list[tuple[int, int]]) -> float:
    return 1e-9 / Network.of(clusters.cluster(spec)).transfer(pairs)[1]


def test_every_name_in_the_data_files_is_known() -> None:
    named = {}
    for path in (wires.DATA / "clusters").glob("*.toml"):
        for name in (path.stem.replace("_", "-"), *tomllib.loads(path.read_text()).get("aliases", ())):
            named[name] = path.stem
    assert built_in.stems() == named and "hgx-h100" in named


def test_a_pair_in_a_dgx_h100_has_nvlink_and_across_nodes_one_adapter() -> None:
    assert _rate("dgx-h100:16", [(0, 5)]) == pytest.approx(450 * 0.82)
    assert _rate("dgx-h100:16", [(0, 8)]) == pytest.approx(50 * 0.9)
    assert _rate("dgx-h100:16", [(i, i + 8) for i in range(8)]) == pytest.approx(50 * 0.9)


def test_four_adapters_are_shared_by_pairs_of_devices() -> None:
    assert _rate("hgx-a100-hdr4:16", [(0, 8)]) == pytest.approx(25 * 0.9)
    assert _rate("hgx-a100-hdr4:16", [(i, i + 8) for i in range(8)]) == pytest.approx(25 * 0.9 / 2)


def test_one_adapter_is_shared_by_a_whole_node() -> None:
    assert _rate("g4dn-t4:8", [(i, i + 4) for i in range(4)]) == pytest.approx(6.25 * 0.85 / 4)


@pytest.mark.parametrize(
    ("members", "n_rings"),
    [((0, 1), 1), ((0, 3), 2), ((0, 1, 2), 2), (range(4), 4), (range(6), 2), (range(7), 4), (range(8), 6)],
)
def test_a_dgx_1_has_as_many_rings_as_measured(members: tuple[int, ...], n_rings: int) -> None:
    # bus bandwidth over that of one link, published all-reduce measurements: 22.5, 45, 85, 46, 87 and 134 of 22.4 GB/s
    table, *_ = packing.direct_links(clusters.cluster("dgx-v100:8"), np.array(members))
    assert packing.ring_bandwidth(table) == pytest.approx(n_rings * 25e9 * 0.9)


def test_five_devices_of_a_dgx_1_have_no_ring_of_nvlinks() -> None:
    table, *_ = packing.direct_links(clusters.cluster("dgx-v100:8"), np.arange(5))
    assert packing.ring_bandwidth(table) == 0.0


def test_every_v100_of_a_dgx_1_has_six_nvlinks() -> None:
    cluster = clusters.cluster("dgx-v100:8")
    inside = (cluster.links.source < 8) & (cluster.links.target < 8)
    total = np.bincount(cluster.links.source[inside], cluster.links.bytes_per_second[inside])
    np.testing.assert_allclose(total, 6 * 25e9 * 0.9)


def test_a_large_pod_has_full_bisection_over_the_spine() -> None:
    cluster = clusters.cluster("dgx-h100:1024")
    ids = np.arange(1024)
    load, _ = routes.load(cluster, ids, (ids + 512) % 1024)
    assert (load / cluster.links.bytes_per_second).max() == pytest.approx(1 / (50e9 * 0.9))


def test_devices_are_as_the_data_sheets_say() -> None:
    h100 = clusters.cluster("dgx-h100:8").device(0)
    assert h100.peak("bf16") == pytest.approx(989.4e12)
    assert h100.peak("fp8") == pytest.approx(1978.9e12)
    assert h100.memory_bytes_per_second == pytest.approx(3.35e12)
    assert clusters.cluster("dgx-a100:8").device(0).peak("bf16") == pytest.approx(312e12)
    assert clusters.cluster("tpu-v4:8").device(0).peak("bf16") == pytest.approx(275e12)


def test_a_tpu_slice_is_closed_only_where_a_dimension_is_a_multiple_of_four() -> None:
    assert len(clusters.cluster("tpu-v4:64").links) == 6 * 64
    assert len(clusters.cluster("tpu-v4:8").links) == 2 * 12


def test_a_wrong_field_of_a_device_file_is_named(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "devices").mkdir()
    right = (wires.DATA / "devices" / "h100_sxm_80gb.toml").read_text()
    monkeypatch.setattr(wires, "DATA", tmp_path)
    for before, after, said in (
        ("[kernel]\nlaunch", "[kernel]\nlunch", "lunch"),
        ("value = 0.65", "value = 1.65", "1.65"),
        ('size = { value = "79.1 GiB"', 'size = { value = "79.1 GB/s"', "size"),
    ):
        assert before in right
        (tmp_path / "devices" / "mine.toml").write_text(right.replace(before, after))
        with pytest.raises(InputError, match=said):
            wires.device("mine")
