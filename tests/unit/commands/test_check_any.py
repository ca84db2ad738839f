"""``meshwright check`` of plans whose search has no check of its own: judged anew, and the search asked again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

PROFILE = str(Path(__file__).resolve().parents[2] / "data" / "readers" / "pipedream_txt.pbs-4.txt")
DAPPLE = [PROFILE, "--set", "machines=2,4", "--set", "global_batch=8", "--set", "profile_batch=4"]


def planned(meshwright: Any, *words: str) -> dict[str, Any]:
    done = meshwright("plan", *words, "--no-what-if", "--out", "plan.json")
    assert done.code in (0, 3), done.err
    entry: dict[str, Any] = json.loads(Path("plan.json").read_text())
    return entry


def checked(meshwright: Any, entry: dict[str, Any]) -> tuple[int, str]:
    Path("plan.json").write_text(json.dumps(entry))
    done = meshwright("check", "plan.json")
    return done.code, done.out + done.err


def test_plans_of_every_search_are_confirmed(meshwright: Any, tiny: str) -> None:
    for words in (
        [*DAPPLE, "--search", "dapple"],
        [*DAPPLE, "--search", "dapple", "--set", "mode=published"],
        [*DAPPLE, "--search", "pipedream"],
        ["pase:alexnet", "--search", "one_weird_trick", "--set", "n_processors=4"],
        [tiny, "--cluster", "flat:2", "--global-batch", "8", "--search", "megatron_grid"],
        [tiny, "--cluster", "flat:2", "--global-batch", "8", "--search", "piper"],
    ):
        status, said = checked(meshwright, planned(meshwright, *words))
        assert status == 0, (words, said)
        assert "its stages and its step are those of the file" in said


@pytest.mark.parametrize("field", ["objective.value", "bound.value", "bound.gap_ratio", "step_seconds"])
def test_a_changed_figure_is_refused_by_its_name(meshwright: Any, field: str) -> None:
    entry = planned(meshwright, *DAPPLE, "--search", "dapple")
    *way, last = field.split(".")
    part = entry[way[0]] if way else entry
    part[last] = part[last] * 0.9 - 0.001
    status, said = checked(meshwright, entry)
    assert status == 2
    assert field in said


def test_that_nothing_fits_is_asked_again_with_the_batch_of_the_file(meshwright: Any) -> None:
    words = [PROFILE, "--set", "machines=2", "--set", "profile_batch=4", "--set", "optimizer_memory_scaling=1000000000"]
    entry = planned(meshwright, *words, "--global-batch", "8", "--search", "dapple")
    assert entry["feasible"] is False
    assert entry["batch"]["asked_global_batch"] == 8
    status, said = checked(meshwright, entry)
    assert status == 0, said
    assert "finds nothing that fits either" in said
    status, said = checked(meshwright, entry | {"missing_bytes": 1.0})
    assert status == 2
    assert "missing_bytes is 1.0" in said
    status, said = checked(meshwright, {key: value for key, value in entry.items() if key != "batch"})
    assert status == 2
    assert "'batch'" in said


@pytest.mark.parametrize(("place", "what"), [(".", "is a folder"), ("/dev/null", "is a device"), ("none.json", "no such file")])
def test_what_is_no_file_is_called_what_it_is(meshwright: Any, place: str, what: str) -> None:
    done = meshwright("check", place)
    assert done.code == 2 and what in done.err
