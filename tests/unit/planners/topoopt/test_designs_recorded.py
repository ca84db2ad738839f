"""Answers of the co-design, what is written of them, workloads and refusals, as they were when this was written.

The machine and the prices are made up here, and shares of rings are even: the linear programme's corner is its solver's choice.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from meshwright import clusters
from meshwright.base import chakra_nodes
from meshwright.base.errors import ExportError, InputError
from meshwright.core.cluster import Device
from meshwright.core.source import Source
from meshwright.models import read
from meshwright.planners.topoopt import bounds, components, networks, text, windows
from meshwright.planners.topoopt import design as design_module
from meshwright.planners.topoopt import fabric as fabric_module
from meshwright.planners.topoopt.alternate import NetworkParts
from meshwright.planners.topoopt.choices import OperatorSplit, Servers, SplitSpace, measurements, space
from meshwright.planners.topoopt.design import Design, design, parse
from meshwright.planners.topoopt.fabric import Fabric
from meshwright.planners.topoopt.readers import flexflow_measures, taskgraph_fbuf, topoopt_workload
from meshwright.planners.topoopt.step import TRAFFIC, Step, data_parallel
from meshwright.planners.topoopt.task_graphs import flatbuffer
from meshwright.planners.topoopt.task_graphs.graph import FlexNetTask, TaskGraph
from meshwright.planners.topoopt.task_graphs.played import play
from meshwright.planners.topoopt.workloads import families
from meshwright.planners.topoopt.workloads.workload import DATA, Operation, Workload, flops, graph_of
from meshwright.planners.topoopt.writers import (
    astra_network,
    chakra,
    codesign_html,
    codesign_json,
    codesign_trace,
    topology_dot,
    wiring_csv,
)
from meshwright.planners.topoopt.writers import (
    flexflow_measures as measures_file,
)
from meshwright.planners.topoopt.writers import (
    taskgraph_fbuf as graph_file,
)
from recorded import Recorded

DEVICE = Device(
    "made up",
    (("fp32", 1e12), ("bf16", 2e12)),
    4e9,
    1e11,
    launch_seconds=1e-6,
    reserved_bytes=0.0,
    matmul_ratio=0.5,
    attention_ratio=0.5,
    memory_ratio=0.5,
)
DLRM = "topoopt:dlrm,tables=3,rows=1000,width=8,bottom=16-16,top=16-16-1,batch=48"
CANDLE = "topoopt:candle,batch=24,tower=64,top=64"
PRICES = "".join(
    f'[{part}]\nper_port = {10 * (i + 1)}\nper_gbit = {i + 1}\nsource = "made up"\n' for i, part in enumerate(components.PARTS)
)


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Take the device from here, and share groups evenly among their rings."""

    def even(busy: np.ndarray, item: np.ndarray, base: np.ndarray | None = None) -> np.ndarray:
        del busy, base
        return 1.0 / np.bincount(item)[item]

    monkeypatch.setattr(fabric_module, "even_out", even)
    monkeypatch.setattr(design_module, "_wires", SimpleNamespace(device=lambda name: replace(DEVICE, name=name)))
    return


def answer(
    tmp_path: Path, spec: str = DLRM, n: int = 4, degree: int = 3, names: tuple[str, ...] = ("topoopt",), **settings: str
) -> Design:
    """Return an answer for a small question under prices made up."""
    (tmp_path / "prices.toml").write_text(PRICES)
    wires = NetworkParts(n, degree, 1e8, 1e-6)
    params = parse({"components": str(tmp_path / "prices.toml"), **settings})
    return design(read(spec), wires, params, names=names, budget=8, seed=2)


def crc(content: str | bytes) -> int:
    """Return a sum over a text."""
    return zlib.crc32(content.encode() if isinstance(content, str) else content)


QUESTIONS: dict[str, dict[str, object]] = {
    "several": {"names": ("switch", "topoopt", "full-mesh", "fat-tree"), "equal_cost": "true"},
    "published": {"names": ("topoopt", "expander"), "search": "published", "propagation": "false", "alpha": "5"},
    "optical": {"spec": CANDLE, "n": 6, "degree": 2, "names": ("optical",), "reconfiguration": "1e-9s"},
    "fair": {"names": ("topoopt",), "traffic": "fair", "placement": "contiguous", "control_edges": "false"},
    "closed": {"names": ("topoopt", "rail-optimised"), "traffic": "closed", "shard_weights": "no", "global_batch": "24"},
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_answers_and_what_is_written_of_them(name: str, tmp_path: Path, recorded: Recorded) -> None:
    made = answer(tmp_path, **QUESTIONS[name])  # type: ignore[arg-type]
    told = codesign_json.as_json(made)
    told.pop("planning_seconds")
    for one in told["topologies"].values():
        one["links"] = f"{len(one['links'])} {crc(json.dumps(one['links']))}"
        for window in (one["changing"] or {"windows": []})["windows"]:
            window["links"] = crc(json.dumps(window["links"]))
    plan = told.pop("plan")
    if told["bound"]:
        told["bound"] |= {key: f"{told['bound'][key]:.5g}" for key in ("value", "gap_ratio")}
    recorded(told, "json")
    recorded(
        [f"{op}" for op in plan["operators"][:2]] + [crc(json.dumps(plan["routes"])), crc(json.dumps(plan["rings"]))], "plan"
    )
    recorded([plan["peak_bytes"], [op["backward_last"] for op in plan["operators"]]], "memory")
    found = made.entry.found
    folder = str(tmp_path)
    lines = text.explain(made).replace(folder, "").splitlines()
    recorded([line for line in lines if not line.startswith("  server")] + [crc("\n".join(lines))], "text")
    trace = codesign_trace.as_json(made)
    recorded([trace["otherData"], len(trace["traceEvents"]), trace["traceEvents"][-1], crc(json.dumps(trace))], "trace")
    recorded([crc(codesign_html.page(made)), len(codesign_html.page(made))], "html")
    csv = wiring_csv.as_csv(found.fabric, made.wires.degree)
    recorded([*csv.splitlines()[:3], crc(csv)], "csv")
    recorded(
        [crc(topology_dot.dot(found.fabric)), topology_dot.dot(found.fabric)[:120], crc(topology_dot.svg(found.fabric))], "dot"
    )
    groups = chakra_nodes.Groups()
    recorded([[len(one), crc(one)] for one in chakra.traces(made, groups)] + [groups.text()], "chakra")
    kept = measures_file.content(measurements(made.step.space))
    recorded([kept[:300], crc(kept)], "measures")
    for writer, suffix in (
        (codesign_json, "json"),
        (codesign_html, "html"),
        (codesign_trace, "trace"),
        (wiring_csv, "csv"),
        (topology_dot, "dot"),
        (topology_dot, "svg"),
        (chakra, "et"),
    ):
        writer.write(made, str(tmp_path / f"out.{suffix}"))
    written = {path.name: path.read_text(errors="replace") for path in tmp_path.glob("out*")}
    assert json.loads(written["out.json"])["plan"] == plan and written["out.csv"] == csv
    assert (
        written["out.svg"].startswith("<svg")
        and written["out.dot"].startswith("graph")
        and json.loads(written["out.trace"]) == trace
    )
    assert written["out.et.groups.json"] == groups.text() and sum(".et." in one for one in written) == made.wires.n_servers + 1


def test_an_answer_written_as_a_task_graph_is_read_and_played(tmp_path: Path, recorded: Recorded) -> None:
    pytest.importorskip("flatbuffers")
    alone = {"names": ("topoopt",), "search": "published", "spec": CANDLE, "degree": 2}
    for name, asked in (*((name, QUESTIONS[name]) for name in ("several", "published", "closed")), ("alone", alone)):
        made = answer(tmp_path, **asked)  # type: ignore[arg-type]
        content = graph_file.content(made)
        graph = taskgraph_fbuf.parse(content, "here")
        head = (graph.n_gpus, graph.n_servers, graph.n_switches, graph.bytes_per_millisecond, graph.rings, graph.operators[:2])
        parts = (graph.connections, graph.tasks, graph.devices, graph.routes)
        recorded(
            [head, [len(part) for part in parts], [str(part[-1:]) for part in parts], [crc(repr(part)) for part in parts]], name
        )
        graph_file.write(made, str(tmp_path / "out.fbuf"))
        spec = taskgraph_fbuf.read(Source(str(tmp_path / "out.fbuf")))
        assert taskgraph_fbuf.recognises(Source(str(tmp_path / "out.fbuf")))
        assert spec.cluster is not None
        figures = (spec.notes, spec.cluster.n_devices, spec.cluster.n_switches, spec.cluster.links.bytes_per_second[:4])
        names = [op.name for op in spec.graph.ops]
        recorded([figures, names, spec.format, taskgraph_fbuf.play(spec, seed=1)], f"{name} played")


def test_what_does_not_fit_is_no_answer(tmp_path: Path, recorded: Recorded) -> None:
    spec = "topoopt:dlrm,tables=4,rows=400000,width=256,bottom=16-16,top=16-1,batch=64"
    for n_gpus, shard in (("1", "no"), ("1", "auto")):
        made = answer(tmp_path, spec.replace("rows=400000", "rows=9000000"), gpus_per_server=n_gpus, shard_weights=shard)
        told = codesign_json.as_json(made)
        told.pop("planning_seconds")
        recorded([told, text.explain(made), made.gap_ratio if made.entries else None], f"{n_gpus} {shard}")
    step = answer(tmp_path, n=2, degree=1).step
    servers = step.space.servers
    tight = replace(step.space, servers=replace(servers, gpu=replace(DEVICE, memory_bytes=20e3)))
    recorded([design_module.missing_bytes(step.space), design_module.missing_bytes(tight)], "missing")


@pytest.mark.parametrize(
    ("wires", "names", "says"),
    [
        ((1025, 2), ("switch",), "--servers 1025: must be between 2 and 1024"),
        ((1, 1), ("switch",), "--servers 1: must be between 2 and 1024"),
        ((4, 4), ("switch",), "--degree 4: must be between 1 and 3 for 4 servers: more interfaces have no server to lead to"),
        ((4, 0), ("switch",), "--degree 0: must be between 1 and 3 for 4 servers"),
        ((4, 2), ("star",), "no topology called 'star'"),
        ((4, 2), ("switch", "torus", "switch"), "--topology: switch is given twice"),
        (
            (3, 1),
            ("topoopt",),
            "--degree 1: 3 servers with one interface each form no connected network without a switch; take --degree 2",
        ),
        ((3, 1), ("optical",), "form no connected network"),
        ((3, 1), ("expander",), "form no connected network"),
    ],
)
def test_questions_that_are_refused(wires: tuple[int, int], names: tuple[str, ...], says: str) -> None:
    with pytest.raises(InputError, match=re.escape(says)):
        design_module._check(NetworkParts(*wires, 1e9, 0.0), names)
    for n, degree in ((2, 1), (1024, 1023), (3, 2)):
        design_module._check(NetworkParts(n, degree, 1e9, 0.0), ("topoopt",))
    design_module._check(NetworkParts(3, 1, 1e9, 0.0), ("switch", "fat-tree"))


def test_options_are_parsed_or_refused(recorded: Recorded) -> None:
    words = {
        "inter_gpu_bandwidth": "2 GB/s",
        "alpha": "3",
        "reconfiguration": "1ms",
        "placement": "strided",
        "equal_cost": "true",
        "node_degree": "2",
    }
    recorded(parse(words), "given")
    for settings, says in (
        ({"alfa": "1"}, "no option of codesign called 'alfa'"),
        ({"alpha": "0"}, "alpha"),
        ({"search": "fast"}, "improved"),
        ({"server": "dgx-a100:8", "gpu": "x"}, "--set gpu=x: is given by --set server=dgx-a100:8; leave one out"),
        ({"gpus_per_server": "0"}, "gpus_per_server"),
        ({"traffic": "packets"}, "segments"),
    ):
        with pytest.raises(InputError, match=re.escape(says)):
            parse(settings)
    assert parse({"server": "", "gpu": "x"}).gpu == "x"


def test_bounds_of_small_questions(recorded: Recorded) -> None:
    found = {}
    for spec in (DLRM, CANDLE, "topoopt:bert,layers=1,length=8,hidden=32,heads=2,batch=24"):
        for n in (2, 4):
            made = space(read(spec).instance, Servers(n, 2, DEVICE, 1e9, 1e-6), None, shard=True)
            for kind in TRAFFIC:
                for injection in (1e6, 1e9):
                    found[f"{spec[8:12]} {n} {kind} {injection:g}"] = f"{bounds.step_seconds(made, injection, kind):.6g}"
            step = Step(made)
            sent = step.traffic(data_parallel(made))
            nets = [networks.build(name, n, 1, 1e8, 1e-6, 0).fabric for name in ("switch", "full-mesh")]
            nets.append(Fabric("one way", n, {(i, (i + 1) % n): 1.0 + i for i in range(n)}, 1e8, 0.0))
            found[f"{spec[8:12]} {n} cuts"] = [
                bounds.cut_seconds(sent, 1e8),
                *(bounds.collective_seconds(made, sent, net) for net in nets),
            ]
    large = networks.build("switch", 65, 1, 1e8, 0.0, 0).fabric
    assert bounds.collective_seconds(made, sent, large) == 0.0
    recorded(found)


def test_what_takes_no_time_is_bounded_by_none() -> None:
    workload = Workload("idle", 4, (Operation("a", "add", "a", (DATA,), (3,)), Operation("b", "add", "b", (0,), (3,))))
    idle = ((OperatorSplit(1, 1, 1, 0.0, 0.0, 0.0), OperatorSplit(2, 1, 1, 0.0, 0.0, 0.0)),) * 2
    for kind in TRAFFIC:
        assert bounds.step_seconds(SplitSpace(workload, Servers(2, 2, DEVICE, 1e9), idle), 1e9, kind) == 0.0


def test_splits_of_every_operator(tmp_path: Path, recorded: Recorded) -> None:
    for spec, n in ((DLRM, 4), (CANDLE, 6), ("topoopt:bert,layers=1,length=8,hidden=32,heads=2,batch=24", 3)):
        workload, servers = read(spec).instance, Servers(n, 3, DEVICE, 1e9)
        made = space(workload, servers, None, shard=True)
        rows = [
            [(c.samples, c.columns, c.rows, c.forward_seconds, c.backward_seconds, c.memory_bytes) for c in own]
            for own in made.choices
        ]
        distinct = {workload.operations[i].key: row for i, row in enumerate(rows)}
        recorded([made.notes, distinct], f"{spec[8:12]} estimated")
        few = measurements(made)
        again = space(workload, servers, few, shard=True, place="m.json")
        assert all(c.measured for own in again.choices for c in own if c.columns == c.rows == 1)
        part = replace(few, rows=tuple(row for row in few.rows if row.split[-1] > 1 and not row.key.startswith("Concat")))
        told = space(workload, servers, part, shard=False, place="m.json")
        recorded(
            [again.notes, told.notes, [[(c.samples, c.measured) for c in own] for own in told.choices]],
            f"{spec[8:12]} measured",
        )
        for wrong, says in (
            (
                replace(few, batch_size=7),
                f"--measures m.json: measured with a batch of 7, but {workload.name} trains {workload.global_batch} samples",
            ),
            (replace(few, n_devices=9), f"--measures m.json: measured for 9 servers, but --servers is {n}"),
            (
                replace(few, rows=tuple(replace(row, key="x") for row in few.rows)),
                f"--measures m.json: has none of the operators of {workload.name}",
            ),
            (
                replace(few, rows=tuple(replace(row, split=(*row.split[:-1], 5)) for row in few.rows)),
                f"measured for [5] parts; on {n} servers {workload.global_batch} samples lie in ",
            ),
        ):
            with pytest.raises(InputError, match=re.escape(says)):
                space(workload, servers, wrong, shard=False, place="m.json")


@pytest.mark.parametrize(
    "spec",
    [
        "dlrm",
        "candle",
        "bert",
        "ncf",
        "moe",
        "vgg16",
        "resnet50",
        "alexnet",
        "inception3",
        "bert,layers=2,hidden=8,heads=4,length=3,batch=5",
        "ncf,tables=2,rows=7,product_width=3,tower_width=4,bag=2,tower=16-5x2-3",
        "moe,chosen=3",
    ],
)
def test_workloads_of_the_studies(spec: str, recorded: Recorded) -> None:
    made = families.build(spec, f"topoopt:{spec}")
    lines = [f"{op} {flops(op)}" for op in made.operations]
    whole = [
        made.name,
        made.global_batch,
        made.n_parameters,
        sum(flops(op) for op in made.operations),
        made.element_bytes,
        made.state_bytes,
    ]
    graph = graph_of(made)
    recorded(
        [
            whole,
            len(lines),
            lines[0],
            lines[-1],
            crc("\n".join(lines)),
            crc(repr(made.consumers())),
            crc(repr(graph.ops)),
            crc(repr(graph.edges)),
        ]
    )


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("nope", "no workload called 'nope'"),
        ("moe,batch", "topoopt:it: 'batch' is not KEY=VALUE"),
        ("moe,batch=1,batch=2", "topoopt:it: batch is given twice"),
        ("moe,batch=0", "batch"),
        ("bert,heads=3", "heads 3: must divide hidden 512"),
        ("moe,chosen=6", "chosen 6: is more than the 5 experts"),
        ("dlrm,bottom=", "bottom: '' is no list of widths; write for example 2048x16-1"),
        ("dlrm,bottom=4x", "bottom: '4x' is no list"),
        ("dlrm,bottom=0", "bottom: '0' is no list"),
        ("dlrm,top=4x10001", "top: '4x10001' is no list"),
        ("candle,tower=4x0", "tower: '4x0' is no list"),
        ("dlrm,tables=20000", "topoopt:it: 20012 operators; at most 20000 can be searched"),
        ("ncf,tower=4", "first width is 4, but the tables have 8192"),
    ],
)
def test_workloads_that_are_refused(spec: str, says: str) -> None:
    with pytest.raises(InputError, match=re.escape(says)):
        families.build(spec, "topoopt:it")
    assert families.widths("3x10000", "top") == [3] * 10000 and families.widths("1", "top") == [1]


def operator(**change: object) -> dict[str, object]:
    whole = {"id": 0, "type": "linear", "key": "k", "inputs": [None], "out_shape_per_sample": [3], "weight_elems": [6]}
    return {key: value for key, value in {**whole, **change}.items() if value != "drop"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"id": 1}, "ops[0]: id is 1; ids must count up from 0"),
        ({"type": "tanh"}, "ops[0]: type"),
        ({"inputs": [0]}, "ops[0]: inputs: 0 is not before operator 0"),
        ({"inputs": []}, "inputs"),
        ({"inputs": [-1]}, "inputs"),
        ({"out_shape_per_sample": []}, "out_shape_per_sample"),
        ({"out_shape_per_sample": [0]}, "out_shape_per_sample[0]"),
        ({"weight_elems": []}, "ops[0]: a linear needs at least one entry in weight_elems"),
        ({"bag": -1}, "bag"),
        ({"key": ""}, "key"),
        ({"more": 1}, "more"),
        ({"key": "drop"}, "key"),
    ],
)
def test_files_of_workloads_are_read_or_refused(change: dict[str, object], says: str, tmp_path: Path) -> None:
    path = tmp_path / "w.json"

    def written(**entry: object) -> Source:
        path.write_text(json.dumps({"one": {"global_batch": 4, "ops": [operator()], **entry}}))
        return Source(str(path))

    with pytest.raises(InputError, match=re.escape(says)):
        topoopt_workload.read(written(ops=[operator(**change)]))
    made = topoopt_workload.read(
        written(ops=[operator(), operator(id=1, type="add", inputs=[0, None], weight_elems=[])], params=6, note="x")
    ).instance
    assert made == Workload(
        "one", 4, (Operation("linear.0", "linear", "k", (DATA,), (3,), (6,)), Operation("add.1", "add", "k", (0, DATA), (3,)))
    )
    with pytest.raises(InputError, match="one: params is 7, but the weights of its operators are 6"):
        topoopt_workload.read(written(params=7))
    with pytest.raises(InputError, match="global_batch"):
        topoopt_workload.read(written(global_batch=0))
    assert topoopt_workload.recognises(written()) and topoopt_workload.recognises(Source("topoopt:moe"))
    for text_ in ("[]", "{}", '{"a": 1}', '{"a": {"ops": []}}', '{"a": {"global_batch": 1}}', "no json"):
        path.write_text(text_)
        assert not topoopt_workload.recognises(Source(str(path)))
    path.write_text(json.dumps({"a": {"global_batch": 4, "ops": [operator()]}, "b": {"global_batch": 5, "ops": [operator()]}}))
    with pytest.raises(InputError, match=r"holds 2 workloads; pick one: .*#a"):
        topoopt_workload.read(Source(str(path)))
    with pytest.raises(InputError, match=r"no workload in .* called 'c'"):
        topoopt_workload.read(Source(f"{path}#c"))
    assert topoopt_workload.read(Source(f"{path}#b")).instance.global_batch == 5


def test_workloads_that_no_file_may_hold() -> None:
    one = Operation("a", "linear", "a", (DATA,), (3,), (6,))
    for operations, says in (
        ((one, one), "two operators have the same name"),
        ((replace(one, inputs=(0,)),), "operator 0: input 0: must be"),
        ((replace(one, inputs=(-2,)),), "input -2"),
    ):
        with pytest.raises(InputError, match=says):
            Workload("w", 1, operations)


def test_files_of_measurements_are_read_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    row = {"name": "Dense_3_4", "pc_str": "2-1-4", "fw_time": 0.5, "bw_time": 1.5, "mem_req": 7}

    def written(**change: object) -> str:
        path.write_text(json.dumps({"batch_size": 8, "ngpus": 4, "measurements": [{**row, **change}, {**row, "mem_req": 9}]}))
        return str(path)

    made = flexflow_measures.load(written())
    assert (made.batch_size, made.n_devices, len(made.rows)) == (8, 4, 2)
    assert (
        made.table() == {("Dense_3_4", (1, 4)): made.rows[0]}
        and made.rows[0].milliseconds == (0.5, 1.5)
        and made.rows[0].memory_bytes == 7
    )
    spec = flexflow_measures.read(Source(written(name="Pool_2")))
    assert [(op.name, op.kind) for op in spec.graph.ops] == [("Pool_2", "pool"), ("Dense_3_4", "dense")] and len(
        spec.notes
    ) == 1
    assert flexflow_measures.recognises(Source(str(path)))
    for change in ({"pc_str": "2-1"}, {"pc_str": "2-1-0"}, {"pc_str": "1-a"}, {"pc_str": "0"}, {"pc_str": 1.5}):
        with pytest.raises(
            InputError,
            match=re.escape(f"measurements[0]: pc_str is {change['pc_str']!r}; it must be the number of axes"),
        ):
            flexflow_measures.load(written(**change))
    for change in ({"fw_time": -1}, {"bw_time": "x"}, {"mem_req": -1}, {"name": ""}, {"more": 1}):
        with pytest.raises(
            InputError, match=re.escape(f"measurements[0]: {next(iter(change))}") if "more" not in change else "more"
        ):
            flexflow_measures.load(written(**change))
    for text_ in ('{"measurements": []}', '{"batch_size": 1}', "[]", "no json"):
        path.write_text(text_)
        assert not flexflow_measures.recognises(Source(str(path)))
    for text_ in ('{"batch_size": 0, "ngpus": 1, "measurements": []}', '{"batch_size": 1, "ngpus": 1, "measurements": []}'):
        path.write_text(text_)
        with pytest.raises(InputError, match=r"m\.json: "):
            flexflow_measures.load(str(path))


def test_prices_of_parts(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(PRICES)
    assert components.prices(str(path)) == components.Prices((10, 20, 30, 40, 50), (1, 2, 3, 4, 5), "made up")
    path.write_text(PRICES.replace("per_port = 30", "per_port = -1"))
    with pytest.raises(InputError, match=r"switch_port: per_port"):
        components.prices(str(path))
    path.write_text(PRICES.replace("[nic]", "[card]"))
    with pytest.raises(InputError, match="nic"):
        components.prices(str(path))
    ours = components.prices()
    assert len(ours.per_port) == 5 and ours.source


@pytest.mark.parametrize(("shape", "n"), [("ring", 5), ("2x3", 6), ("3x4", 12), ("2x3x4", 24), ("3x3x3", 27)])
def test_tori_are_told_to_astra(shape: str, n: int, recorded: Recorded) -> None:
    if shape == "ring":
        fabric = Fabric("ring", n, {(i, (i + way) % n): 2.0 for i in range(n) for way in (1, n - 1)}, 1e9, 1e-6)
    else:
        made = clusters.cluster(f"torus:{shape}")
        ends = zip(made.links.source.tolist(), made.links.target.tolist(), strict=True)
        fabric = Fabric("torus", n, {(a, b): 1.0 for a, b in ends if max(a, b) < n}, 1e9, 1e-6)
    recorded([fabric.n_nodes, astra_network.content(shape, fabric)])
    uneven = Fabric("ring", 5, {(i, (i + way) % 5): 1.0 + (i == 0) for i in range(5) for way in (1, 4)}, 1e9, 1e-6)
    with pytest.raises(
        ExportError, match=r"topology it: ASTRA-sim's analytical network knows switches, full meshes, rings and tori only; take"
    ):
        astra_network.content("it", uneven)
    for name in ("switch", "full-mesh"):
        recorded(astra_network.content(name, networks.build(name, n, 3, 1e9, 1e-6, 0).fabric), name)
    for name in ("rail-optimised", "fat-tree"):
        with pytest.raises(ExportError, match="knows switches"):
            astra_network.content(name, networks.build(name, 6, 3, 1e9, 1e-6, 0).fabric)


def graph_of_tasks(
    *tasks: FlexNetTask, n: int = 4, rings: tuple[tuple[int, tuple[tuple[int, ...], ...]], ...] = ()
) -> TaskGraph:
    devices = [(0, i, i, 0) for i in range(n)] + [(14, 100 + 10 * a + b, a, a * n + b) for a in range(n) for b in range(n)]
    return TaskGraph(1, n, 0, (1.0, 1.0, 1e5), (), (), tasks, tuple(devices), (), rings)


def test_task_graphs_are_played(recorded: Recorded) -> None:
    """A graph of every kind of task on a ring of four with a chord, with and without the rings of its file."""
    cluster = replace(clusters.cluster("flat:4,bandwidth=1e9,latency=1e-6"))
    tasks = (
        FlexNetTask("forward", 1, 0, (1.0,), 0, (2, 3)),
        FlexNetTask("nominal_comm", 2, 101, (0.0,), 100_000, (4,)),
        FlexNetTask("nominal_comm", 3, 102, (0.0,), 70_000, (5,)),
        FlexNetTask("backward", 4, 1, (0.5,), 0, (6,)),
        FlexNetTask("forward", 5, 2, (0.25,), 0, (6, 7)),
        FlexNetTask("all_reduce", 6, 0, (0.1,), 400_000, (0, 1, 2, 3)),
        FlexNetTask("all_reduce", 7, 0, (0.0,), 900, (0, 2)),
        FlexNetTask("nominal_comm", 8, 123, (0.0,), 0, (13,)),
        FlexNetTask("forward", 13, 3, (5.0,), 0, (14,)),
        FlexNetTask("nominal_comm", 14, 100, (0.0,), 5_000, (15,)),
        FlexNetTask("backward", 15, 3, (0.125,), 0, ()),
        FlexNetTask("all_reduce", 9, 0, (0.3,), 500, (3,)),
        FlexNetTask("forward", 10, 0, (0.7,), 0, ()),
        FlexNetTask("all_reduce", 11, 0, (0.0,), 36_000, (0, 1, 2, 3)),
        FlexNetTask("all_reduce", 12, 0, (0.0,), 35_999, (0, 1, 2, 3)),
    )
    rings = ((4, ((1,), (3,))), (2, ((2,),)))
    for has_rings in (True, False):
        recorded(
            [play(graph_of_tasks(*tasks, rings=rings), cluster, seed, has_rings=has_rings) for seed in (0, 1)],
            f"rings {has_rings}",
        )
    for wrong, says in (
        (FlexNetTask("update", 1, 0, (1.0,), 0, ()), "task 1 is of kind update, which is not played"),
        (FlexNetTask("forward", 1, 0, (-1.0,), 0, ()), "task 1 takes -1.0 ms; must be 0 or more"),
        (FlexNetTask("forward", 1, 0, (float("inf"),), 0, ()), "task 1 takes inf ms"),
        (FlexNetTask("nominal_comm", 1, 7, (0.0,), 5, ()), "transfer 1 does not say which two servers it joins"),
        (FlexNetTask("forward", 1, 0, (1.0,), 0, (1,)), "1 tasks of the task graph wait for each other"),
    ):
        with pytest.raises(InputError, match=re.escape(says)):
            play(graph_of_tasks(wrong), cluster, 0, has_rings=False)
    with pytest.raises(InputError, match="has 4 devices, the task graph 5 servers"):
        play(graph_of_tasks(n=5), cluster, 0, has_rings=False)


def test_broken_buffers_are_refused() -> None:
    with pytest.raises(InputError, match="it: 7 bytes are no task graph"):
        flatbuffer.root(b"1234567", "it")
    for content in (bytes(8), b"\xff" * 16, b"\x08\0\0\0" + bytes(4), b"\x04\0\0\0\xfc\xff\xff\xff" + b"\x03\0\0\0"):
        with pytest.raises(InputError, match=r"it: broken at byte \d+ of \d+: is the file cut off, or no task graph\?"):
            flatbuffer.root(content, "it")
    assert windows.MOST_SERVERS == text.MOST_SERVERS == bounds.MOST_SERVERS
    assert isinstance(
        SplitSpace(Workload("w", 1, ()), Servers(2, 1, DEVICE, 1.0), ((OperatorSplit(1, 1, 1, 0, 0, 0),),)).notes, tuple
    )
