"""Measuring runs of operators on this machine: every kind, every split, and the shapes that PyTorch sees."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright import api
from meshwright.base.errors import InputError
from meshwright.clusters.wires import device
from meshwright.planners.topoopt.choices import Servers, space
from meshwright.planners.topoopt.workloads import families
from meshwright.planners.topoopt.workloads.workload import DATA, Operation, Workload

torch_measures = pytest.importorskip("meshwright.planners.topoopt.given.torch_measures")

SPECS = (
    "dlrm,tables=2,rows=100,width=8,bottom=16-16,top=16-16-1,batch=8",
    "candle,batch=8,tower=32x2,top=32x2-1",
    "bert,batch=4,layers=1,length=8,hidden=16,heads=4",
)


def quiet(text: str, done_ratio: float) -> None:
    assert text and 0.0 <= done_ratio <= 1.0


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few runs: figures are not looked at."""
    monkeypatch.setattr(torch_measures, "N_WARM", 0)
    monkeypatch.setattr(torch_measures, "N_TIMED", 1)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("spec", SPECS)
def test_every_operator_and_split_is_measured_and_none_is_estimated(spec: str) -> None:
    workload = families.build(spec, spec)
    servers = Servers(4, 2, device("a100-sxm-40gb"), 25e9)
    found = torch_measures.measure(workload, servers, "cpu", quiet)
    made = space(workload, servers, found, shard=False)
    assert all(choice.measured for options in made.choices for choice in options) and made.notes == ()
    assert found.batch_size == workload.global_batch and found.n_devices == 4
    expected = space(workload, servers, None, shard=False)
    assert [[c.samples for c in options] for options in made.choices] == [
        [c.samples for c in options] for options in expected.choices
    ]


@pytest.mark.usefixtures("short")
def test_image_layers_read_and_write_the_shapes_of_the_workload() -> None:
    operations = (
        Operation("a", "conv2d", "Conv2D_3_3_4", (DATA,), (4, 10, 9), (3 * 4 * 9, 4)),
        Operation("b", "conv2d", "Conv2D_5_3_6", (0,), (6, 5, 9), (4 * 6 * 15,)),
        Operation("c", "pool2d", "Pool2D_3_3", (1,), (6, 3, 5)),
        Operation("d", "relu", "ElementUnary_13", (2,), (6, 3, 5)),
        Operation("e", "add", "ElementBinary_31", (2, 3), (6, 3, 5)),
        Operation("f", "flat", "Flat", (4,), (90,)),
        Operation("g", "softmax", "Softmax", (5,), (90,)),
    )
    workload = Workload("images", 4, operations)
    seen = []

    def layer(operation: Operation, sizes: list, share: int, *more: object) -> tuple:
        forward, tensors = original(operation, sizes, share, *more)
        seen.append((operation.name, tuple(forward().shape), share))
        return forward, tensors

    original = torch_measures._layer
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_measures, "_layer", layer)
        found = torch_measures.measure(workload, Servers(2, 1, device("a100-sxm-40gb"), 25e9), "cpu", quiet)
    assert {name for name, _, _ in seen} == set("abcdefg")
    for name, shape, share in seen:
        assert shape == (share, *operations["abcdefg".index(name)].shape), name
    held = {(row.key, row.split[-1]): row.memory_bytes for row in found.rows}
    # input, output and their gradients of 4 samples, weights and their gradients: 4 bytes each
    assert held["Conv2D_3_3_4", 1] == 4 * 2 * (4 * 3 * 12 * 11 + 4 * 4 * 10 * 9 + 3 * 4 * 9 + 4)


@pytest.mark.usefixtures("short")
def test_a_table_has_all_its_rows_and_adds_up_a_bag() -> None:
    operation = Operation("t", "embedding", "Embed_50x8", (DATA,), (8,), (400,), bag=3)
    found = torch_measures.measure(
        Workload("table", 6, (operation,)), Servers(2, 4, device("a100-sxm-40gb"), 25e9), "cpu", quiet
    )
    assert [(row.key, row.split) for row in found.rows] == [("Embed_50x8", (1, 1))]
    assert found.rows[0].memory_bytes == 4 * 2 * (400 + 6 * 8)


def test_more_work_takes_longer() -> None:
    wide = tuple(
        Operation(f"l{n}", "linear", f"Dense_{n}_{n}", (DATA,), (n,), (n * n, n)) for n in (32, 1024)
    )  # fmt: skip
    workload, servers = Workload("wide", 64, wide), Servers(1, 1, device("a100-sxm-40gb"), 25e9)
    for _ in range(5):  # another process may hold up the short one
        small, large = (row.milliseconds for row in torch_measures.measure(workload, servers, "cpu", quiet).rows)
        if large[0] > 2.0 * small[0] and large[1] > 2.0 * small[1]:
            break
    assert large[0] > 2.0 * small[0] > 0.0 and large[1] > 2.0 * small[1] > 0.0


@pytest.mark.parametrize(
    ("operation", "said"),
    [
        (Operation("x", "group_by", "GroupBy", (DATA,), (8,)), "a group_by cannot be measured"),
        (Operation("x", "conv2d", "Conv2D", (DATA,), (4, 8, 8), (108,)), "does not name a window"),
        (Operation("x", "embedding", "Embed", (DATA,), (8,), (8 * 10**15,)), "could not be measured on cpu"),
    ],
)
def test_what_cannot_be_measured_is_one_message(operation: Operation, said: str) -> None:
    with pytest.raises(InputError) as caught:
        torch_measures.measure(Workload("w", 2, (operation,)), Servers(1, 1, device("a100-sxm-40gb"), 25e9), "cpu", quiet)
    assert said in str(caught.value)


@pytest.mark.usefixtures("short")
def test_codesign_measures_first_says_so_and_writes_what_it_measured(tmp_path: Path) -> None:
    asked = {"servers": 2, "degree": 1, "link_bandwidth": "10 Gbit/s", "budget": 5}
    design = api.codesign(f"topoopt:{SPECS[0]}", measure="cpu", **asked)  # type: ignore[arg-type]
    assert any("measured on this machine (cpu)" in note for note in design.notes)
    assert not any("estimated" in note for note in design.notes)
    path = tmp_path / "m.json"
    path.write_text("{}")
    with pytest.raises(InputError, match="give one of them"):
        api.codesign(f"topoopt:{SPECS[0]}", measure="cpu", measures=str(path), **asked)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="must be cpu, or cuda"):
        api.codesign(f"topoopt:{SPECS[0]}", measure="tpu", **asked)  # type: ignore[arg-type]
