"""Networks to compare with and how they are told to others: parts counted by hand, ASTRA-sim's words, pictures, traces."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright import api
from meshwright.base import chakra_nodes
from meshwright.base.errors import ExportError, InputError
from meshwright.planners.topoopt import networks
from meshwright.planners.topoopt.design import Design
from meshwright.planners.topoopt.fabric import Fabric
from meshwright.planners.topoopt.step import data_parallel
from meshwright.planners.topoopt.writers import astra_network, chakra, topology_dot


@pytest.mark.parametrize(
    ("name", "n", "degree", "n_links", "n_ports", "interfaces", "rate"),
    [
        ("switch", 6, 3, 0, 6, 1, 3e9), ("rail-optimised", 6, 3, 0, 18, 3, 1e9), ("full-mesh", 6, 3, 15, 0, 5, 1e9),
        ("random", 8, 3, 12, 0, 3, 1e9), ("torus", 12, 4, 24, 0, 4, 1e9), ("torus", 12, 6, 24, 0, 6, 1e9),
        ("fat-tree", 16, 2, 0, 80, 1, 2e9), ("oversubscribed", 16, 2, 0, 48, 1, 2e9), ("expander", 9, 2, 9, 0, 2, 1e9),
        ("expander", 9, 3, 9, 0, 3, 1e9),
    ],
)  # fmt: skip
def test_parts_are_counted_as_they_are_bought(
    name: str, n: int, degree: int, n_links: int, n_ports: int, interfaces: int, rate: float
) -> None:
    """A fat tree of 16 servers has 20 switches of 4 ports; with half as wide links above its edge, 16 + (64 - 16) / 2 + 8."""
    built = networks.build(name, n, degree, 1e9, 1e-6, 0)
    assert (built.n_links, built.n_switch_ports) == (n_links, n_ports)
    assert (built.degree, built.port_bytes_per_second, built.fabric.bytes_per_second) == (interfaces, rate, rate)
    out = [float(built.fabric.count[built.fabric.source == i].sum()) for i in range(n)]
    assert max(out) <= interfaces and built.fabric.n_servers == n


@pytest.mark.parametrize(
    ("n", "degree", "sizes"), [(12, 4, (3, 4)), (36, 4, (6, 6)), (24, 6, (2, 3, 4)), (27, 6, (3, 3, 3)), (10, 6, (2, 5))]
)
def test_a_torus_has_the_sizes_most_alike_in_as_many_dimensions_as_interfaces_allow(
    n: int, degree: int, sizes: tuple[int, ...]
) -> None:
    fabric = networks.build("torus", n, degree, 1e9, 1e-6, 0).fabric
    assert len(fabric.wires()) == sum(n if size > 2 else n // 2 for size in sizes)
    told = astra_network.content("torus", fabric)
    found = re.search(r"npus_count: \[ (.*) \]", told)
    assert found is not None and sorted(int(word) for word in found[1].split(", ")) == sorted(sizes)


def test_no_torus_is_made_of_a_prime_number_or_of_too_few_interfaces() -> None:
    for n, degree in ((13, 4), (12, 3)):
        with pytest.raises(InputError, match="form no torus"):
            networks.build("torus", n, degree, 1e9, 1e-6, 0)


def ring(n: int, width: float) -> Fabric:
    """Return a ring with so many links side by side."""
    return Fabric("ring", n, {(i, (i + step) % n): width for i in range(n) for step in (1, n - 1)}, 1e9, 2e-6)


def test_astra_sim_is_told_kinds_sizes_and_what_a_device_sends_per_dimension() -> None:
    def told(name: str, n: int, degree: int) -> list[str]:
        return astra_network.content(name, networks.build(name, n, degree, 1e9, 2e-6, 0).fabric).splitlines()

    delay = "latency: [ 2000 ]"
    assert told("switch", 6, 3) == ["topology: [ Switch ]", "npus_count: [ 6 ]", "bandwidth: [ 3 ]", delay]
    assert told("full-mesh", 6, 3) == ["topology: [ FullyConnected ]", "npus_count: [ 6 ]", "bandwidth: [ 5 ]", delay]
    assert told("torus", 12, 4) == [
        "topology: [ Ring, Ring ]", "npus_count: [ 4, 3 ]", "bandwidth: [ 1, 1 ]", "latency: [ 2000, 2000 ]",
    ]  # fmt: skip
    assert astra_network.content("r", ring(8, 2.0)).splitlines() == [
        "topology: [ Ring ]", "npus_count: [ 8 ]", "bandwidth: [ 2 ]", delay,
    ]  # fmt: skip
    for name in ("fat-tree", "random", "rail-optimised"):
        with pytest.raises(ExportError, match="switches, full meshes, rings and tori only"):
            told(name, 16, 4)
    uneven = {**dict.fromkeys(((0, 1), (1, 0), (1, 2), (2, 1), (2, 0)), 1.0), (0, 2): 2.0}
    with pytest.raises(ExportError):
        astra_network.content("uneven", Fabric("uneven", 3, uneven, 1e9, 2e-6))


def test_a_picture_and_a_graph_show_every_node_and_every_wire_once() -> None:
    fabric = networks.build("rail-optimised", 4, 2, 1e9, 1e-6, 0).fabric
    lines = topology_dot.dot(fabric).splitlines()
    assert [line for line in lines if "--" in line] == [f"  n{a} -- n{b};" for a, b in fabric.wires()]
    assert '  n0 [label="server 0"];' in lines and '  n5 [label="switch 1", shape=box];' in lines
    page = topology_dot.svg(fabric)
    circles = {(float(x), float(y)) for x, y in re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', page)}
    assert circles == {(300, 40), (560, 300), (300, 560), (40, 300), (300, 170), (300, 430)}  # two switches half as far out
    ends = re.findall(r'<line x1="([\d.]+)" y1="([\d.]+)" x2="([\d.]+)" y2="([\d.]+)"', page)
    assert len(ends) == len(fabric.wires()) == 8
    assert all({(float(x), float(y)), (float(u), float(v))} <= circles for x, y, u, v in ends)
    assert re.findall(r">(s?\d)</text>", page) == ["0", "1", "2", "3", "s0", "s1"]


def answer() -> Design:
    """Return an answer whose samples are split over all servers and whose tables are dealt out: it sends and all-reduces."""
    model = "topoopt:dlrm,tables=3,rows=1000,width=64,bottom=64-64,top=64-64-1,batch=6400"
    small = {"shard_weights": "no"}
    found = api.codesign(
        model, servers=4, degree=2, link_bandwidth="1 Gbit/s", budget=1, topologies=("topoopt",), settings=small
    )
    fabric = networks.build("torus", 4, 4, 1e9, 1e-6, 0).fabric
    spread = SimpleNamespace(placement=data_parallel(found.step.space), fabric=fabric)
    return SimpleNamespace(entry=SimpleNamespace(found=spread), step=found.step, workload=found.workload)  # type: ignore[return-value]


def number(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of a protocol buffer and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return value, at


def parts(message: bytes) -> dict[int, list[Any]]:
    """Return the fields of a message by number."""
    found: dict[int, list[Any]] = defaultdict(list)
    at = 0
    while at < len(message):
        key, at = number(message, at)
        value: Any
        value, at = number(message, at)
        if key & 7 == 2:
            value, at = message[at : at + value], at + value
        found[key >> 3].append(value)
    return found


def nodes(trace: bytes) -> list[dict[str, Any]]:
    """Return the nodes of a trace: fields of Chakra's ``et_def.proto``."""
    found, at, messages = [], 0, []
    while at < len(trace):
        size, at = number(trace, at)
        messages.append(trace[at : at + size])
        at += size
    assert parts(messages[0])[1] == [b"0.0.4"]
    for message in messages[1:]:
        fields, before, place = parts(message), [], 0
        packed = fields[5][0] if fields[5] else b""
        while place < len(packed):
            one, place = number(packed, place)
            before.append(one)
        own = {}
        for attribute in map(parts, fields[10]):
            (value,) = (entry[0] for slot, entry in attribute.items() if slot != 1)
            own[attribute[1][0].decode()] = value
        found.append({"id": fields[1][0], "name": fields[2][0].decode(), "kind": fields[3][0], "before": before,
                      "micros": fields[7][0] if fields[7] else 0, **own})  # fmt: skip
    return found


def test_traces_are_whole_every_send_is_received_and_every_task_waits_for_tasks_of_its_own_server() -> None:
    design = answer()
    found, step = design.entry.found, design.step
    groups = chakra_nodes.Groups()
    traces = [nodes(trace) for trace in chakra.traces(design, groups)]
    members = {number: set(some) for number, some in json.loads(groups.text()).items()}
    assert len(traces) == 4
    sends, receives, reduces = {}, {}, defaultdict(list)
    for server, trace in enumerate(traces):
        of = {one["id"]: one for one in trace}
        assert len(of) == len(trace)
        for one in trace:
            assert set(one["before"]) <= set(of), "a task waits for one of another server"
            kinds = {of[other]["kind"] for other in one["before"]}
            if one["kind"] == chakra_nodes.COMPUTE:
                assert kinds <= {chakra_nodes.COMPUTE, chakra_nodes.RECEIVE} and one["num_ops"] == 0
            elif one["kind"] == chakra_nodes.RECEIVE:
                assert one["comm_dst"] == server and not one["before"]
                receives[one["comm_tag"]] = one
            elif one["kind"] == chakra_nodes.SEND:
                assert one["comm_src"] == server and kinds == {chakra_nodes.COMPUTE} and one["comm_size"] > 0
                sends[one["comm_tag"]] = one
            else:
                assert one["comm_type"] == chakra_nodes.COLLECTIVES.index("all_reduce") and all(
                    ".backward." in of[o]["name"] for o in one["before"]
                )
                assert one["before"] and server in members[one["pg_name"].decode()]
                reduces[one["name"]].append((one["id"], one["pg_name"], one["comm_size"]))
    assert sends and set(sends) == set(receives)
    assert all((one["comm_size"], one["comm_src"], one["comm_dst"]) == (receives[tag]["comm_size"], receives[tag]["comm_src"],
               receives[tag]["comm_dst"]) for tag, one in sends.items())  # fmt: skip
    everything = [one["id"] for trace in traces for one in trace if one["kind"] != chakra_nodes.COLLECTIVE]
    assert len(set(everything)) == len(everything)
    assert reduces and all(len(set(own)) == 1 and len(own) == len(members[own[0][1].decode()]) for own in reduces.values())
    assert not set(everything) & {own[0][0] for own in reduces.values()}
    waited = [other for trace in traces for one in trace if one["kind"] == chakra_nodes.COMPUTE for other in one["before"]]
    assert {one["id"] for one in receives.values()} <= set(waited), "what is received is waited for"
    chosen = step.chosen(found.placement)
    for op, (choice, servers) in enumerate(zip(chosen, found.placement.servers, strict=True)):
        for word, seconds in (("forward", choice.forward_seconds), ("backward", choice.backward_seconds)):
            name = f"{design.workload.operations[op].name}.{word}."
            for server in set(servers):
                mine = [one for one in traces[server] if one["name"].startswith(name)]
                assert mine and round(seconds * 1e6) in {one["micros"] for one in mine}
