"""Clusters of other programs: counts and speeds by hand; broken files are refused in one sentence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from meshwright.base.errors import InputError
from meshwright.clusters import cluster

ASTRA = "topology: [ Switch, Ring ]\nnpus_count: [ 8, 4 ]\nbandwidth: [ 400.0, 50.0 ]\nlatency: [ 936.25, 500.0 ]\n"
MATRIX = """\t\x1b[4mGPU0\tGPU1\tGPU2\tmlx5_0\tCPU Affinity\x1b[0m
GPU0\t X \tNV2\tSYS\tPIX\t0-7
GPU1\tNV2\t X \tPHB\tPIX\t0-7
GPU2\tSYS\tPHB\t X \tSYS\t8-15

Legend:
  X    = Self
"""
NCCL = """<system version="1">
<cpu numaid="0"><pci busid="a" link_speed="16.0 GT/s PCIe" link_width="16"><gpu dev="0" sm="90" rank="0">
<nvlink target="sw" count="18"/></gpu></pci>
<pci busid="b" link_speed="8.0 GT/s PCIe" link_width="8">
<gpu dev="1" sm="90" rank="1"><nvlink target="sw" count="18"/></gpu></pci></cpu>
</system>"""


def write(folder: Path, text: str, name: str = "it") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def test_an_astra_network_has_its_dimensions_speeds_and_delays(tmp_path: Path) -> None:
    found = cluster(write(tmp_path, ASTRA, "net.yml"))
    assert (found.n_devices, found.n_switches, len(found.links)) == (32, 4, 2 * (32 + 32))
    assert sorted(set(found.links.bytes_per_second)) == [50e9, 400e9]
    assert found.links.latency_seconds.max() == pytest.approx(936.25e-9)
    assert found.groups[0].tolist() == [i // 8 for i in range(32)]


def test_a_matrix_of_one_server_has_its_nvlinks(tmp_path: Path) -> None:
    found = cluster(write(tmp_path, MATRIX))
    assert (found.n_devices, len(found.links)) == (3, 6)
    speed = {
        (a, b): rate for a, b, rate in zip(found.links.source, found.links.target, found.links.bytes_per_second, strict=True)
    }
    assert speed[0, 1] == 50e9
    assert speed[0, 2] < speed[1, 2] < speed[0, 1]


def test_an_nccl_dump_has_a_switch_for_nvlinks_and_a_cpu(tmp_path: Path) -> None:
    found = cluster(write(tmp_path, NCCL, "topo.xml"))
    assert (found.n_devices, found.n_switches) == (2, 2)
    assert found.device(0).name.startswith("H100")
    assert sorted({round(rate / 1e9, 2) for rate in found.links.bytes_per_second}) == [7.88, 31.5, 450.0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (ASTRA.replace("Ring", "Mobius"), "Mobius is not known"),
        (ASTRA.replace("[ 8, 4 ]", "[ 8 ]"), "one entry for each dimension"),
        (ASTRA.replace("latency", "delay"), "needs the lists"),
        (ASTRA.replace("50.0", "-1"), "bandwidth"),
        (ASTRA.replace("50.0", "fast"), "needs the lists"),
        (MATRIX.replace("SYS\tPHB\t X \tSYS\t8-15", "SYS"), "cut off"),
        (MATRIX.replace("NV2\t X", "NV4\t X"), "GPU0 - GPU1 is NV2"),
        (MATRIX.replace("NV2", "QPI"), "'QPI' is not known"),
        (NCCL[:200], "not valid XML"),
        (NCCL.replace("system", "machine"), "<machine>"),
        ("<system></system>", "holds no <gpu>"),
    ],
)
def test_a_broken_file_is_refused_in_one_sentence(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        cluster(write(tmp_path, text))
    assert "\n" not in str(caught.value)


def matrix(words: list[list[str]]) -> str:
    n = len(words)
    rows = ["\t" + "\t".join(f"GPU{i}" for i in range(n))]
    return "\n".join([*rows, *(f"GPU{i}\t" + "\t".join(row) for i, row in enumerate(words))]) + "\n"


def test_where_every_pair_has_all_nvlinks_they_lead_into_a_switch_and_two_devices_need_none(tmp_path: Path) -> None:
    """Three devices with twelve links each: 12 x 25 GB/s into one switch, not between every pair; two devices have them
    directly.
    """
    three = cluster(write(tmp_path, matrix([["X", "NV12", "NV12"], ["NV12", "X", "NV12"], ["NV12", "NV12", "X"]])))
    ends = sorted((a, b) for a, b in zip(three.links.source.tolist(), three.links.target.tolist(), strict=True) if a < b)
    assert (three.n_switches, ends, set(three.links.bytes_per_second)) == (1, [(0, 3), (1, 3), (2, 3)], {300e9})
    two = cluster(write(tmp_path, matrix([["X", "NV4"], ["NV4", "X"]])))
    assert (two.n_switches, len(two.links), set(two.links.bytes_per_second)) == (0, 2, {100e9})
    mixed = cluster(write(tmp_path, matrix([["X", "NV4", "NV4"], ["NV4", "X", "NV2"], ["NV4", "NV2", "X"]])))
    assert (mixed.n_switches, len(mixed.links), set(mixed.links.bytes_per_second)) == (0, 6, {100e9, 50e9})
    host = cluster(write(tmp_path, matrix([["X", "SYS"], ["SYS", "X"]])))
    assert (host.n_switches, len(host.links)) == (0, 2)


def test_rings_and_full_meshes_of_an_astra_network_have_their_wires(tmp_path: Path) -> None:
    """A ring of three, two of them fully joined: 2 x 3 wires along rings at 20, 3 x 1 across at 10 gigabytes a second."""
    text = "topology: [ Ring, FullyConnected ]\nnpus_count: [ 3, 2 ]\nbandwidth: [ 20.0, 10.0 ]\nlatency: [ 1.0, 2.0 ]\n"
    links = cluster(write(tmp_path, text, "net.yml")).links
    rows = zip(links.source.tolist(), links.target.tolist(), links.bytes_per_second.tolist(), strict=True)
    assert sorted((a, b, rate) for a, b, rate in rows if a < b) == [
        (0, 1, 20e9), (0, 2, 20e9), (0, 3, 10e9), (1, 2, 20e9), (1, 4, 10e9), (2, 5, 10e9), (3, 4, 20e9), (3, 5, 20e9), (4, 5,
        20e9),
    ]  # fmt: skip
    wide = "topology: [ FullyConnected ]\nnpus_count: [ 4 ]\nbandwidth: [ 30.0 ]\nlatency: [ 1.0 ]\n"
    links = cluster(write(tmp_path, wide, "net.yml")).links
    assert (len(links), set(links.bytes_per_second)) == (12, {10e9})  # a device's 30 over three wires
    pair = "topology: [ Ring ]\nnpus_count: [ 2 ]\nbandwidth: [ 30.0 ]\nlatency: [ 1.0 ]\n"
    assert len(cluster(write(tmp_path, pair, "net.yml")).links) == 2  # two devices in a ring have one wire
    ring = pair.replace("2", "5")
    links = cluster(write(tmp_path, ring, "net.yml")).links
    neighbours = {(a, b) for a in range(5) for b in range(5) if (a - b) % 5 in (1, 4)}
    assert set(zip(links.source.tolist(), links.target.tolist(), strict=True)) == neighbours and len(links) == 10


@pytest.mark.parametrize("kind", ["Ring", "FullyConnected"])
def test_a_dimension_of_one_device_has_no_wires(tmp_path: Path, kind: str) -> None:
    text = f"topology: [ {kind}, Switch ]\nnpus_count: [ 1, 3 ]\nbandwidth: [ 20.0, 10.0 ]\nlatency: [ 1.0, 2.0 ]\n"
    links = cluster(write(tmp_path, text, "net.yml")).links
    assert len(links) == 6 and not np.any(links.source == links.target) and set(links.bytes_per_second) == {10e9}


PAIR = (
    '<system version="1"><cpu numaid="0"><pci busid="a"><gpu dev="0" sm="{0}"><nvlink target="b" count="{1}"/></gpu></pci>'
    '<pci busid="b"><gpu dev="1" sm="{2}"/></pci></cpu></system>'
)


@pytest.mark.parametrize(("sm", "each"), [("70", 25e9), ("90", 25e9), ("100", 50e9)])
def test_a_link_has_the_speed_of_its_generation(tmp_path: Path, sm: str, each: float) -> None:
    path = tmp_path / "topology.xml"
    path.write_text(PAIR.format(sm, 18, sm))
    assert cluster(str(path)).links.bytes_per_second.max() == 18 * each


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (PAIR.format("86", 4, "86"), 'sm="86": no one kind of device'),
        (PAIR.format("80", 4, "90"), "several compute capabilities"),
        (PAIR.format("90", "x", "90"), 'nvlink count="x" of GPU 0'),
        (PAIR.format("90", "0", "90"), 'nvlink count="0" of GPU 0'),
        ("\nGPU0\tX\tNV4\nGPU1\tNV4\tX\n", "topology"),
    ],
)
def test_what_is_not_said_is_not_guessed_and_what_cannot_be_read_is_one_line(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "topology.xml"
    path.write_text(text)
    with pytest.raises(InputError, match=told) as caught:
        cluster(str(path))
    assert "\n" not in str(caught.value)
