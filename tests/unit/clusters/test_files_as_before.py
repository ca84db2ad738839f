"""Cluster files, ours and those of other programs, with one thing changed at a time, read as before."""

from __future__ import annotations

import pathlib
import zlib

import numpy as np
import pytest

from edited import answers
from meshwright import clusters
from meshwright.core.cluster import Cluster
from recorded import Recorded

OURS = """format: meshwright/cluster/1
name: lab
source: measured by us
launch: 20 us
forwards: false
algorithms: [ring, tree]
devices_per_host: 2
kinds:
  old: {flops: {fp16: 125 TFLOP/s, fp32: 15 TFLOP/s}, memory: 32 GiB, memory_bandwidth: 900 GB/s, source: datasheet}
nodes:
  - {name: new, count: 2, devices: [old, old], switch: {bandwidth: 360 GB/s, latency: 2 us}}
  - {name: box, devices: [old, old]}
switches: [core, leaf]
links:
  - {from: "new-*/*", to: core, bandwidth: 45 GB/s, latency: 5 us}
  - {from: "box/*", to: leaf, bandwidth: 10 GB/s, latency: 5 us}
  - {from: leaf, to: core, bandwidth: 20 GB/s, latency: 1 us}
  - {from: "box/0", to: "box/1", bandwidth: 30 GB/s, latency: 1 us, one_way: true}
groups:
  - [[new-*], [box]]
"""
ASTRA = """topology: [ Switch, Ring, FullyConnected ]
npus_count: [ 4, 3, 2 ]
bandwidth: [ 400.0, 50.0, 25.0 ]
latency: [ 936.25, 500.0, 100.0 ]
"""
MATRIX = """\tGPU0\tGPU1\tGPU2\tmlx5_0\tCPU Affinity
GPU0\t X \tNV2\tSYS\tPIX\t0-7
GPU1\tNV2\t X \tPHB\tPIX\t0-7
GPU2\tSYS\tPHB\t X \tSYS\t8-15
"""
SWITCHED = """\tGPU0\tGPU1\tGPU2
GPU0\t X \tNV18\tNV18
GPU1\tNV18\t X \tNV18
GPU2\tNV18\tNV18\t X
"""
NCCL = """<system version="1">
<cpu numaid="0">
<pci busid="a" link_speed="16.0 GT/s PCIe" link_width="16"><gpu dev="0" sm="90">
<nvlink target="sw" count="18"/></gpu></pci>
<pci busid="b" link_speed="8.0 GT/s PCIe" link_width="8">
<pci busid="c" link_speed="32.0 GT/s PCIe" link_width="8"><gpu dev="1" sm="90"><nvlink target="a" count="4"/></gpu></pci>
</pci>
</cpu>
<cpu numaid="1"><pci busid="d"><gpu dev="2" sm="90"><nvlink target="a" count="2"/></gpu></pci></cpu>
</system>
"""
RINGS = ASTRA.replace("Switch", "Ring").replace("[ 4, 3, 2 ]", "[ 2, 3, 1 ]")
TEXTS = {
    "rings": (RINGS, "net.yml"),
    "ours": (OURS, "it.yaml"),
    "astra": (ASTRA, "net.yml"),
    "matrix": (MATRIX, "topo"),
    "switched": (SWITCHED, "topo"),
    "nccl": (NCCL, "topo.xml"),
}


def said(cluster: Cluster) -> str:
    """Return all that a cluster says of its wires, and sums of its devices."""
    links = cluster.links
    order = np.lexsort((links.latency_seconds, links.bytes_per_second, links.target, links.source))
    wires = [
        f"{links.source[i]}-{links.target[i]} {links.bytes_per_second[i] / 1e9:.5g} {links.latency_seconds[i] * 1e6:.5g}"
        for i in order
    ]
    kinds = (
        [
            (kind.name, kind.flops_per_second, kind.memory_bytes, f"{kind.memory_bytes_per_second:.6g}", kind.source)
            for kind in cluster.kinds
        ]
        if cluster.launch_seconds
        else [kind.name for kind in cluster.kinds]
    )
    more = (
        cluster.name.rpartition("/")[2],
        cluster.n_switches,
        cluster.groups.tolist(),
        cluster.forwards,
        cluster.algorithms,
        cluster.devices_per_host,
        f"{cluster.launch_seconds:.6g}",
        cluster.kind_of_device.tolist(),
        cluster.source,
    )
    return f"{cluster.n_devices} on {len(wires)} {zlib.crc32(' '.join(wires).encode()):08x} {kinds} {more}"


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_clusters_of_files_are_as_before(name: str, tmp_path: pathlib.Path, recorded: Recorded) -> None:
    text, file = TEXTS[name]
    path = tmp_path / file

    def read(changed: str) -> str:
        path.write_text(changed)
        return said(clusters.cluster(str(path)))

    recorded(answers(read, text, str(tmp_path)))
