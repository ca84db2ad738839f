"""Graphs of one's own: the five published ones written to files come back the same; wrong files are one message."""

from __future__ import annotations

import inspect
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshwright import api
from meshwright.base.errors import InputError, UnknownNameError
from meshwright.planners.pase import networks, own_graph
from meshwright.planners.pase.check import check_certificate
from meshwright.planners.pase.operators import NetworkBuilder, Tensor

BATCH = 128


class Writing(NetworkBuilder):
    """A builder that also writes down what it is asked for, in the words of a file."""

    def __init__(self, cutoff: int) -> None:
        super().__init__(cutoff)
        self.inputs: dict[str, list[int | str]] = {}
        self.entries: list[dict[str, Any]] = []
        self.names: dict[int, str] = {}  # by identity of the tensor
        self.kept: list[Tensor] = []

    def word(self, tensor: Tensor) -> str:
        if id(tensor) not in self.names:
            name = f"input{len(self.inputs)}"
            self.inputs[name] = ["b" if i == 0 and size == BATCH else size for i, size in enumerate(tensor.shape)]
            self.named(tensor, name)
        return self.names[id(tensor)]

    def named(self, tensor: Tensor, name: str) -> None:
        self.names[id(tensor)] = name
        self.kept.append(tensor)  # so that no other has its identity

    def __getattribute__(self, kind: str) -> Any:
        method = super().__getattribute__(kind)
        if kind not in own_graph.KINDS:
            return method

        def called(*values: Any, **more: Any) -> Any:
            told = inspect.signature(method).bind(*values, **more).arguments
            entry: dict[str, Any] = {"name": f"op{len(self.entries)}", "kind": kind}
            self.entries.append(entry)
            entry["of"] = []
            for word, value in told.items():
                tensors = [value] if isinstance(value, Tensor) else value if isinstance(value, tuple) else []
                if tensors and all(isinstance(one, Tensor) for one in tensors):
                    if kind == "einsum" and word == "y" and value.producer < 0:
                        entry["weight"] = list(value.shape)
                    else:
                        entry["of"] += [self.word(one) for one in tensors]
                elif word not in ("batch", "length", "kind"):
                    entry[word] = value
            if kind == "embedding":
                entry["of"] = self.word(Tensor(-1, (told["batch"], told["length"])))
            if kind == "reshape":
                entry["shape"] = ["b", *entry["shape"][1:]]
            made = method(*values, **more)
            for i, one in enumerate(made if kind == "unstack" else [made]):
                self.named(one, f"{entry['name']}[{i}]" if kind == "unstack" else entry["name"])
            return made

        if kind == "embedding":  # it is made by an einsum, which is then not of the file
            return lambda *values: _quiet(self, called, *values)
        return called


def _quiet(net: Writing, called: Any, *values: Any) -> Any:
    """Run a method and keep only the first entry that it wrote."""
    n = len(net.entries)
    made = called(*values)
    del net.entries[n + 1 :]
    net.named(made, net.entries[n]["name"])
    return made


def written(name: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return one of the five graphs as a file."""
    made: list[Writing] = []

    def builder(cutoff: int) -> Writing:
        made.append(Writing(cutoff))
        return made[0]

    monkeypatch.setattr(networks, "NetworkBuilder", builder)
    networks.build(name, BATCH)
    monkeypatch.undo()
    net = made[0]
    return {"format": own_graph.FORMAT, "name": name, "cutoff": net.cutoff, "inputs": net.inputs, "operators": net.entries}


@pytest.mark.parametrize("name", networks.NAMES)
def test_a_published_graph_written_to_a_file_comes_back_operator_by_operator(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = json.dumps(written(name, monkeypatch))
    for batch in (BATCH, 64):
        ours, theirs = own_graph.build(content, name, batch), networks.build(name, batch)
        assert [replace(one, name="") for one in ours.operators] == [replace(one, name="") for one in theirs.operators]


def test_its_optimum_and_certificate_are_those_of_the_published_graph(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(written("alexnet", monkeypatch)))
    settings = {"n_processors": "8", "certificate": str(tmp_path / "c.json")}
    mine, published = (
        api.plan(str(path), settings=settings).answer,
        api.plan("pase:alexnet", settings=settings | {"certificate": ""}),
    )
    assert mine.objective == published.answer.objective and mine.bound == published.answer.bound
    certificate = json.loads((tmp_path / "c.json").read_text())
    path.unlink()  # the certificate holds the graph
    assert check_certificate(certificate, "c.json").valid
    certificate["question"]["written"] = certificate["question"]["written"].replace("4096", "2048")
    assert not check_certificate(certificate, "c.json").valid


SMALL = {
    "format": own_graph.FORMAT,
    "name": "small",
    "cutoff": 1,
    "inputs": {"x": ["b", 64], "tokens": ["b", 16]},
    "operators": [
        {"name": "wide", "kind": "fully_connected", "of": "x", "n_out": 256, "pointwise": 1},
        {"name": "norm", "kind": "norm", "of": "wide", "axis": 1},
        {"name": "loss", "kind": "cross_entropy", "of": ["norm"]},
    ],
}


def changed(at: int, **fields: Any) -> dict[str, Any]:
    operators = [dict(entry) for entry in SMALL["operators"]]  # type: ignore[attr-defined]
    operators[at] |= fields
    return SMALL | {"operators": operators}


def test_a_small_graph_of_two_dimensions_is_planned_by_every_search_of_pase(tmp_path: Path) -> None:
    path = tmp_path / "small.json"
    path.write_text(json.dumps(SMALL))
    values = {}
    for search in ("pase", "pase_naive", "one_weird_trick", "data_parallel"):
        answer = api.plan(str(path), search=search, settings={"n_processors": "4"}).answer
        assert answer.objective is not None and answer.extra["axes"]["wide"] == ["b", "n", "k"]
        values[search] = answer.objective.value
    assert values["pase"] == values["pase_naive"] <= min(values["one_weird_trick"], values["data_parallel"])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (SMALL | {"operators": []}, "at least one entry"),
        (SMALL | {"depth": 3}, "depth"),
        (SMALL | {"cutoff": 0}, "cutoff"),
        (SMALL | {"inputs": {"x": ["b", "c"]}}, "x"),
        (changed(0, kind="dense"), "kind of operator"),
        (changed(0, n_out=0), "n_out"),
        (changed(0, n_filters=3), "n_filters"),
        (changed(0, of="y"), "no input and no operator before"),
        (changed(0, of="wide"), "no input and no operator before"),
        (changed(0, of=["x", "x"]), "reads 1 tensors, not 2"),
        (changed(1, name="wide"), "a name of its own"),
        (changed(1, axis=2), "axes are 0 to 1"),
        (changed(1, of="wide[1]"), "gives 1 tensors"),
        (changed(1, kind="convolution", axis=1), "axis"),
        (changed(2, kind="lstm", n_units=4, n_layers=1), "tensors of 3 dimensions"),
        (changed(2, kind="reshape", shape=["b", 3]), "elements"),
        (changed(2, kind="mean", axes=[0, 1]), "leaves no tensor"),
        (changed(2, kind="elementwise", of=["norm", "x"]), "must be alike"),
        (changed(2, kind="einsum", equation="be,ef->f", weight=[256, 4]), "must be like"),
        (changed(2, kind="einsum", equation="be,be->b", of=["norm", "norm"]), "must be like"),
        (changed(2, kind="einsum", equation="be,ef->bf", weight=[255, 4]), "must be like"),
        (changed(2, kind="embedding", of="norm", vocabulary=10), "width"),
        (SMALL | {"operators": changed(1, of="x")["operators"][:2]}, "nothing to choose together"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_one_message(content: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = tmp_path / "small.json"
    path.write_text(json.dumps(content))
    with pytest.raises((InputError, UnknownNameError)) as caught:
        api.plan(str(path), search="pase")
    assert said in str(caught.value)


def test_widths_of_a_file_are_not_scaled(tmp_path: Path) -> None:
    path = tmp_path / "small.json"
    path.write_text(json.dumps(SMALL))
    with pytest.raises(InputError, match="scales PaSE's own graphs only"):
        api.plan(str(path), search="pase", settings={"model": "64"})
