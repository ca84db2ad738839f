"""Task graphs: written, read by an independent reader and by ours; broken files are refused."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.api import codesign
from meshwright.base.errors import InputError
from meshwright.core.source import Source
from meshwright.models import read
from meshwright.planners.topoopt.readers import taskgraph_fbuf
from meshwright.planners.topoopt.writers import taskgraph_fbuf as writer

flatbuffers = pytest.importorskip("flatbuffers", reason="the extra 'flatbuffers' is not installed")


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    spec = "topoopt:dlrm,tables=3,rows=1000,width=8,bottom=16-16,top=16-16-1,batch=64"
    options = {"servers": 4, "degree": 2, "link_bandwidth": "1 Gbit/s", "budget": 20}
    return {
        search: codesign(spec, settings={"search": search, "shard_weights": "no", "traffic": "segments"}, **options)  # type: ignore[arg-type]
        for search in ("published", "improved")
    }


@pytest.mark.parametrize("search", ["published", "improved"])
def test_an_independent_reader_finds_every_task_with_the_bytes_of_the_plan(answers: dict[str, Any], search: str) -> None:
    from flatbuffers import encode, number_types, packer
    from flatbuffers.table import Table

    buffer = bytearray(writer.content(answers[search]))
    root = Table(buffer, encode.Get(packer.uoffset, buffer, 0))

    def tables(slot: int) -> list[Any]:
        offset = root.Offset(4 + 2 * slot)
        begin = root.Vector(offset)
        return [Table(buffer, root.Indirect(begin + 4 * i)) for i in range(root.VectorLen(offset))]

    def number(table: Any, slot: int, kind: Any) -> Any:
        offset = table.Offset(4 + 2 * slot)
        return table.Get(kind, offset + table.Pos) if offset else 0

    ours = taskgraph_fbuf.parse(bytes(buffer), "memory")
    tasks = tables(8)
    assert [number(task, 1, number_types.Uint64Flags) for task in tasks] == [task.identity for task in ours.tasks]
    assert [number(task, 4, number_types.Uint64Flags) for task in tasks] == [task.transfer_bytes for task in ours.tasks]
    assert number(root, 1, number_types.Uint32Flags) == 4
    step, found = answers[search].step, answers[search].entry.found
    traffic = step.traffic(found.placement)
    sent = sum(task.transfer_bytes for task in ours.tasks if task.kind == "nominal_comm" and task.following)
    assert sent == traffic.pair_bytes.sum()
    reduced = sum(task.transfer_bytes for task in ours.tasks if task.kind == "all_reduce")
    flows = sum(task.transfer_bytes for task in ours.tasks if task.kind == "nominal_comm" and not task.following)
    if search == "published":
        assert reduced == sum(n_bytes for _, n_bytes in traffic.group_bytes)
    else:
        whole = sum(2 * (len(members) - 1) / len(members) * n_bytes * len(members) for members, n_bytes in traffic.group_bytes)
        explicit = whole - sum(2 * (4 - 1) * task.transfer_bytes for task in ours.tasks if task.kind == "all_reduce")
        assert explicit <= flows <= explicit + len(ours.tasks)  # each flow is rounded up to a byte


@pytest.mark.parametrize("search", ["published", "improved"])
def test_a_simulator_that_knows_only_the_file_takes_as_long_as_we_say(answers: dict[str, Any], search: str) -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "oracle"))
    import taskgraph  # tests/oracle/taskgraph.py

    found = answers[search].entry.found
    assert found.fabric.pair_ways.max() == 1
    assert taskgraph.seconds(writer.content(answers[search]), 1e-6) == pytest.approx(found.seconds, rel=1e-5)


def test_every_link_of_the_answer_is_in_the_file_and_gives_a_cluster(answers: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "step.fbuf"
    writer.write(answers["published"], str(path))
    model_spec = read(str(path))
    assert model_spec.format == "taskgraph_fbuf"
    graph = model_spec.instance
    wires = answers["published"].entry.found.fabric.wires()
    assert sorted((b, a) for a, b, count in graph.connections for _ in range(count)) == wires
    assert model_spec.cluster is not None
    assert model_spec.cluster.n_devices == 4
    assert graph.rings
    compute = [task for task in graph.tasks if task.kind in ("forward", "backward")]
    plan = answers["published"].entry.found.placement
    assert len(compute) == 2 * sum(len(servers) for servers in plan.servers)


def test_a_file_cut_off_anywhere_is_refused_in_one_sentence(answers: dict[str, Any], tmp_path: Path) -> None:
    content = writer.content(answers["improved"])
    path = tmp_path / "cut.fbuf"
    for size in (0, 3, 7, 64, 200, len(content) // 3, len(content) // 2, len(content) - 8):
        path.write_bytes(content[:size])
        with pytest.raises(InputError) as caught:
            taskgraph_fbuf.read(Source(str(path)))
        assert "\n" not in str(caught.value)


def test_a_file_of_anything_else_is_not_recognised(tmp_path: Path) -> None:
    path = tmp_path / "noise"
    path.write_bytes(bytes(range(256)) * 4)
    assert not taskgraph_fbuf.recognises(Source(str(path)))


@pytest.mark.parametrize(
    ("flows", "jumps"),
    [
        ([((0,), 0.5), ((1,), 0.5)], ((1,),)), ([((0,), 0.7), ((1,), 0.3)], ()), ([((0,), 0.5)], ()),
        ([((0,), 0.5), ((1,), 0.5), ((0,), 0.5)], ()),
    ],
)  # fmt: skip
def test_a_ring_is_one_task_only_where_every_member_sends_as_much_over_the_same_jumps(
    flows: list[tuple[tuple[int, ...], float]], jumps: tuple[tuple[int, ...], ...]
) -> None:
    """Two servers with a link each way; the file has no place for unequal shares."""
    two = SimpleNamespace(fabric=SimpleNamespace(flows=lambda members: flows), ends=[(0, 1), (1, 0)], n=2)
    assert writer._Writer._jumps(two, (0, 1)) == jumps  # type: ignore[arg-type]
