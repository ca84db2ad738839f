"""``meshwright check`` of answers of ``codesign``: confirmed as they are, refused with the field where one was changed."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from meshwright import api
from meshwright.planners.topoopt.writers import codesign_json

SMALL = "topoopt:dlrm,tables=3,rows=1000,width=8,bottom=16-16,top=16-16-1,batch=64"


@pytest.fixture(scope="module")
def answer() -> dict[str, Any]:
    found = api.codesign(
        SMALL, servers=4, degree=2, link_bandwidth="10 Gbit/s", topologies=("topoopt", "switch"), budget=20,
        settings={"shard_weights": "no"},
    )  # fmt: skip
    entry: dict[str, Any] = json.loads(json.dumps(codesign_json.as_json(found)))
    return entry


def checked(entry: dict[str, Any], meshwright: Any) -> tuple[int, str]:
    Path("answer.json").write_text(json.dumps(entry))
    done = meshwright("check", "answer.json")
    return done.code, done.out + done.err


@pytest.mark.parametrize("topologies", [("topoopt",), ("optical",), ("fat-tree", "full-mesh"), ("random", "expander")])
def test_an_answer_holds_on_every_kind_of_network(topologies: tuple[str, ...], meshwright: Any) -> None:
    found = api.codesign(SMALL, servers=4, degree=2, link_bandwidth="10 Gbit/s",
                         topologies=topologies, budget=5)  # fmt: skip
    status, said = checked(codesign_json.as_json(found), meshwright)
    assert status == 0, said
    assert f"the step takes {found.entry.found.seconds!r} seconds" in said


def _set(path: str, value: object) -> Callable[[dict[str, Any]], None]:
    def change(entry: dict[str, Any]) -> None:
        *way, last = path.split(".")
        for key in way:
            entry = entry[int(key)] if key.isdigit() else entry[key]
        entry[last] = value(entry[last]) if callable(value) else value

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_set("iteration_seconds", lambda one: one * 0.99), "iteration_seconds is"),
        (_set("bound", lambda one: one | {"value": one["value"] * 1.01}), "bound.value is"),
        (_set("plan.peak_bytes", lambda one: [0.0, *one[1:]]), "plan.peak_bytes[0] is"),
        (_set("plan.routes", lambda one: one[1:]), "there is no route"),
        (_set("plan.links", lambda one: [[*one[0][:2], 3.0], *one[1:]]), "has"),
        (_set("plan.rings", lambda one: [row | {"flows": row["flows"][1:]} for row in one]), "shares sum up to"),
        (_set("plan.operators", lambda one: [one[0] | {"servers": [0] * len(one[0]["servers"])}, *one[1:]]), "refused"),
        (_set("question", None), "does not hold its question"),
        (_set("question", lambda one: one | {"settings": {"shard": "no"}}), "no option of codesign called 'shard'"),
        (_set("servers", "four"), "a field is missing or of the wrong kind"),
    ],
)
def test_what_was_changed_is_refused(
    answer: dict[str, Any], change: Callable[[dict[str, Any]], None], reason: str, meshwright: Any
) -> None:
    entry = copy.deepcopy(answer)
    change(entry)
    status, said = checked(entry, meshwright)
    assert status == 2
    assert reason in said


def test_that_nothing_fits_is_proven_anew(meshwright: Any) -> None:
    entry = codesign_json.as_json(api.codesign("gpt3-175b", servers=2, degree=1, link_bandwidth="10 Gbit/s", budget=5))
    assert entry["feasible"] is False
    status, said = checked(entry, meshwright)
    assert status == 0
    assert "nothing fits" in said
    status, said = checked(entry | {"missing_bytes": 1.0}, meshwright)
    assert status == 2
    assert "missing_bytes is 1.0" in said
