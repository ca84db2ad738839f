"""Clusters of other programs: counts and speeds by hand; broken files are refused in one sentence."""

from __future__ import annotations

from pathlib import Path

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
