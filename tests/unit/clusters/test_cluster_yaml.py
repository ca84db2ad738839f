"""Cluster files: read, written back equal, and refused with one sentence that names the place."""

from __future__ import annotations

import copy
import dataclasses
import pathlib

import numpy as np
import pytest
import yaml

from meshwright import clusters
from meshwright.base.errors import InputError
from meshwright.clusters import assemble
from meshwright.clusters.file_fields import FORMAT
from meshwright.core.cluster import Cluster, Host
from meshwright.network import Network

LAB = """
format: meshwright/cluster/1
name: lab
source: measured by us
launch: 20 us
kinds:
  old: {flops: {fp16: 125 TFLOP/s}, memory: 32 GiB, memory_bandwidth: 900 GB/s, source: datasheet}
nodes:
  - {name: new, count: 2, devices: [h100-sxm-80gb, h100-sxm-80gb], switch: {bandwidth: 360 GB/s, latency: 2 us}}
  - {name: box, devices: [old, old], switch: {bandwidth: 12 GB/s, latency: 4 us}}
switches: [core]
links:
  - {from: "new-*/*", to: core, bandwidth: 45 GB/s, latency: 5 us}
  - {from: box, to: core, bandwidth: 10 GB/s, latency: 5 us}
groups:
  - [[new-*], [box]]
"""


def _read(tmp_path: pathlib.Path, text: str) -> Cluster:
    path = tmp_path / "lab.yaml"
    path.write_text(text)
    return clusters.cluster(str(path))


def test_the_example_is_read_as_written(tmp_path: pathlib.Path) -> None:
    cluster = _read(tmp_path, LAB)
    assert (cluster.name, cluster.n_devices, cluster.n_switches) == ("lab", 6, 4)
    assert [cluster.device(i).name for i in (0, 4)] == ["H100-SXM-80GB", "old"]
    assert cluster.groups.tolist() == [[0, 0, 1, 1, 2, 2], [0, 0, 0, 0, 1, 1]]
    assert cluster.launch_seconds == pytest.approx(20e-6)
    latency, slope = Network.of(cluster).transfer([(0, 4)])
    assert latency == pytest.approx(20e-6 + 5e-6 + 5e-6 + 4e-6)
    assert slope == pytest.approx(1e-10)


@pytest.mark.parametrize(
    "spec", ["dgx-h100:20", "dgx-v100:9", "torus:2x3", "dragonfly:12", "rail-only:8,per_node=4", "gh200:70"]
)
def test_what_is_written_is_read_back_equal(tmp_path: pathlib.Path, spec: str) -> None:
    _check_round_trip(clusters.cluster(spec), tmp_path)


def test_a_heterogeneous_cluster_is_read_back_equal(tmp_path: pathlib.Path) -> None:
    _check_round_trip(_read(tmp_path, LAB), tmp_path)


def test_hosts_are_told_of_kinds_of_ones_own_and_of_built_in_ones(tmp_path: pathlib.Path) -> None:
    told = {"host_link": "16 GB/s", "host_memory": "64 GB", "host_memory_bandwidth": "50 GB/s"}
    content = yaml.safe_load(LAB)
    content["kinds"] = {"old": content["kinds"]["old"] | told, "new": {"builtin": "h100-sxm-80gb"} | told}
    content["nodes"][0]["devices"] = ["new", "new"]
    cluster = _read(tmp_path, yaml.safe_dump(content))
    assert all(kind.host == Host(16e9, 50e9, 64e9) for kind in cluster.kinds)
    _check_round_trip(cluster, tmp_path)
    assert all(kind.host is None for kind in _read(tmp_path, LAB).kinds)


def _check_round_trip(cluster: Cluster, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "again.yaml"
    path.write_text(yaml.safe_dump({"format": FORMAT, **assemble.disassemble(cluster)}, sort_keys=False))
    again = clusters.cluster(str(path))
    for field in dataclasses.fields(Cluster):
        if field.name in ("links", "periods"):  # periods only save time; a file cannot promise them
            continue
        np.testing.assert_array_equal(getattr(again, field.name), getattr(cluster, field.name))
    for name in ("source", "target", "bytes_per_second", "latency_seconds"):
        np.testing.assert_array_equal(getattr(again.links, name), getattr(cluster.links, name))


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("nodez",), [], ("nodez", "nodes")),
        (("links", 0, "bandwith"), "1 GB/s", ("links[0]", "bandwith", "bandwidth")),
        (("nodes", 0, "switch", "speed"), 1, ("nodes[0]: switch", "speed")),
        (("kinds", "old", "mem"), 1, ("kinds: old", "mem")),
        (("links", 0, "bandwidth"), None, ("links[0]: bandwidth",)),
        (("links", 0, "bandwidth"), "fast", ("links[0]: bandwidth", "fast")),
        (("links", 0, "bandwidth"), "0 GB/s", ("links[0]: bandwidth",)),
        (("links", 0, "bandwidth"), float("nan"), ("links[0]: bandwidth",)),
        (("links", 0, "latency"), "3 GB/s", ("links[0]: latency",)),
        (("links", 0, "to"), "cor", ("links[0]: to", "cor", "core")),
        (("links", 0, "from"), "core", ("links[0]", "itself")),
        (("nodes", 0, "devices"), [], ("nodes[0]: devices",)),
        (("nodes", 0, "devices"), ["h1000"], ("h1000", "new-0")),
        (("nodes", 0, "count"), 0, ("nodes[0]: count",)),
        (("nodes", 1, "name"), "new-0", ("new-0", "twice")),
        (("nodes", 1, "name"), "a/b", ("nodes[1]: name",)),
        (("groups",), [[["new-*"]]], ("box", "groups[0]")),
        (("groups",), [[["new-*"], ["new-0", "box"]]], ("new-0", "two groups")),
        (("groups",), [[["x"]]], ("x", "groups[0][0]")),
        (("links",), [], ("cannot reach", "new-0/0", "new-1/0")),
        (("format",), "other/1", ("format", "other/1")),
        (("launch",), "1 GB", ("launch",)),
        (("kinds", "old", "memory"), "-1 GiB", ("kinds: old: memory",)),
        (("kinds", "old", "flops"), {}, ("kinds: old: flops",)),
        (("kinds", "old", "builtin"), "t4-16gb", ("kinds: old", "builtin")),
        (("kinds", "old", "host_link"), "16 GB/s", ("kinds: old", "host_memory", "told together")),
    ],
)
def test_a_mistake_is_answered_by_one_sentence_with_its_place(
    tmp_path: pathlib.Path, path: tuple[str | int, ...], value: object, words: tuple[str, ...]
) -> None:
    content = copy.deepcopy(yaml.safe_load(LAB))
    place = content
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    with pytest.raises(InputError) as caught:
        _read(tmp_path, yaml.safe_dump(content))
    message = str(caught.value)
    assert "\n" not in message
    for word in (*words, "lab"):
        assert word in message, message


@pytest.mark.parametrize("text", ["", "a: [", "- 1", "\x00", "3", "name: a\nname: b\nnodes: []"])
def test_what_is_no_cluster_file_is_refused(tmp_path: pathlib.Path, text: str) -> None:
    with pytest.raises(InputError, match=r"lab\.yaml"):
        _read(tmp_path, text)


def test_a_missing_field_a_missing_file_and_a_folder_are_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match="'nodes' is missing"):
        _read(tmp_path, "name: a")
    with pytest.raises(InputError, match="no such file"):
        clusters.cluster(str(tmp_path / "none.yaml"))
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(InputError, match="folder"):
        clusters.cluster(str(tmp_path / "folder.yaml"))


def test_devices_that_do_not_forward_must_not_be_the_only_way(tmp_path: pathlib.Path) -> None:
    text = """
nodes:
  - {name: a, devices: [t4-16gb, t4-16gb, t4-16gb]}
links:
  - {from: a/0, to: a/1, bandwidth: 1 GB/s}
  - {from: a/1, to: a/2, bandwidth: 1 GB/s}
"""
    with pytest.raises(InputError, match="a/0 reaches a/2 only through other devices"):
        _read(tmp_path, text)
    assert _read(tmp_path, text + "forwards: true\n").n_devices == 3


@pytest.mark.parametrize(
    ("lacking", "text"),
    [
        ("flops", "flops: {fp16: 125 TFLOP/s}, "),
        ("memory", "memory: 32 GiB, "),
        ("memory_bandwidth", "memory_bandwidth: 900 GB/s, "),
    ],
)
def test_a_device_that_lacks_a_figure_is_refused_by_its_name(lacking: str, text: str, tmp_path: pathlib.Path) -> None:
    assert text in LAB
    with pytest.raises(InputError, match=f"the field '{lacking}' is missing"):
        _read(tmp_path, LAB.replace(text, ""))
