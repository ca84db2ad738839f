"""``meshwright check``: every field of a plan file is verified, or its name is said to be not."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from meshwright.base.errors import MeshwrightError
from meshwright.commands import check

DATA = Path(__file__).resolve().parents[2] / "data" / "readers"
PROFILE = str(DATA / "pipedream_txt.pbs-4.txt")


def leaves(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Give the values of a JSON object with their ways; of lists the first entry."""
    parts = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    if not isinstance(value, (dict, list)) or not value:
        yield way, value
    for key, part in parts:
        yield from leaves(part, (*way, key))


def other(value: Any) -> Any:
    """Return another value, of the same kind where it has one."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value * 2 + 1
    return f"{value}x" if isinstance(value, str) else 7 if value is None else {"x": 1}


@pytest.mark.parametrize(
    "words",
    [
        (PROFILE, "--search", "partition", "--set", "n_stages=2", "--set", "bandwidth=1e9"),
        (PROFILE, "--search", "dapple", "--set", "machines=2,4", "--set", "global_batch=8", "--set", "profile_batch=4"),
        (str(DATA / "piper_json.json"), "--search", "piper"),
        ("pase:alexnet", "--search", "pase", "--cluster", "flat:2"),
    ],
    ids=lambda words: words[2],
)
def test_a_changed_field_is_refused_or_said_not_to_have_been_looked_at(meshwright: Any, words: tuple[str, ...]) -> None:
    done = meshwright("plan", *words, "--no-what-if", "--out", "plan.json")
    assert done.code == 0, done.err
    entry = json.loads(Path("plan.json").read_text())
    assert check._verdict(entry, "plan.json", "").valid
    n_refused = 0
    for way, value in leaves(entry):
        changed = copy.deepcopy(entry)
        part = changed
        for key in way[:-1]:
            part = part[key]
        part[way[-1]] = other(value)
        Path("plan.json").write_text(json.dumps(changed))
        try:
            verdict: Any = check._verdict(changed, "plan.json", "")
        except MeshwrightError:
            n_refused += 1
            continue
        n_refused += not verdict.valid
        names = {word.strip(":,") for line in getattr(verdict, "not_checked", ()) for word in line.split()}
        name = ".".join(key for key in way if isinstance(key, str))
        assert not verdict.valid or {name, name.rpartition(".")[0], str(way[0])} & names, (way, value)
    assert n_refused >= 12


def test_a_setting_that_the_search_does_not_have_is_refused(meshwright: Any) -> None:
    assert (
        meshwright("plan", str(DATA / "piper_json.json"), "--search", "piper", "--no-what-if", "--out", "plan.json").code == 0
    )
    entry = json.loads(Path("plan.json").read_text())
    Path("plan.json").write_text(json.dumps(entry | {"settings": {"x": "1"}}))
    done = meshwright("check", "plan.json")
    assert done.code == 2 and "no option of search piper called 'x'" in done.err
