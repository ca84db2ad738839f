"""A search of another package whose answer is no plan of the model ends in one sentence, not in a report."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from meshwright import api

SOURCE = pathlib.Path(api.__file__).parent
while not (SOURCE / "meshwright").is_dir():
    SOURCE = SOURCE.parent

SEARCH = '''
from dataclasses import dataclass

from meshwright.core.plan import Plan, Stage
from meshwright.core.result import Answer


@dataclass(frozen=True, slots=True)
class Params:
    """Nothing to set."""


def search(problem, params, *, seed, stop):
    """Return two stages, with what is planted in them."""
    n = len(problem.graph.ops)
    first, second, devices = tuple(range(n // 2)), tuple(range(n // 2, n)), ((0,), (1,))
    PLANTED
    stages = tuple(Stage(ops, at, recompute=("none",) * len(ops)) for ops, at in zip((first, second), devices))
    return Answer(Plan(stages, n_microbatches=4, micro_batch=1, schedule="1f1b", global_batch=4))
'''


def planned(folder: pathlib.Path, planted: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run ``plan`` by a search installed beside the package, as any other package installs one."""
    (folder / "halves_of_mine.py").write_text(SEARCH.replace("PLANTED", planted))
    info = folder / "halves_of_mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: halves-of-mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[meshwright.search]\nmine = halves_of_mine\n")
    return subprocess.run(
        [sys.executable, "-m", "meshwright", "plan", "gpt2", "--cluster", "dgx-h100:8", "--search", "mine", *words],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(SOURCE), str(folder)))},
    )


def test_the_search_itself_is_planned_with(tmp_path: pathlib.Path) -> None:
    done = planned(tmp_path, "pass")
    assert done.returncode == 0, done.stderr
    assert "1f1b" in done.stdout


@pytest.mark.parametrize(
    ("planted", "message"),
    [
        ("second = second[:-5]", "(and 4 more) is in no stage"),
        ("first = first + second[:1]", "is in two stages, 0 and 1"),
        ("devices = ((0,), (0,))", "schedule 1f1b"),
        ("devices = ((0, 1), (1, 2))", "device 1 also works for a stage on other devices"),
        ("second = second + (n,)", "is no layer"),
    ],
    ids=[
        "the last five layers left out",
        "a layer twice",
        "two stages of a rank",
        "devices shared in part",
        "a layer too many",
    ],
)
def test_what_is_no_plan_is_refused_and_nothing_is_written(planted: str, message: str, tmp_path: pathlib.Path) -> None:
    done = planned(tmp_path, planted, "--out", "plan.json")
    assert done.returncode == 2, done.stdout
    assert message in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "plan.json").exists() and not done.stdout


def test_a_search_that_breaks_is_named(tmp_path: pathlib.Path) -> None:
    done = planned(tmp_path, "1 // 0")
    assert done.returncode == 2 and "ZeroDivisionError" in done.stderr and "Traceback" not in done.stderr
    assert "search mine of package halves-of-mine 1.0 breaks in search" in done.stderr.splitlines()[-1]
