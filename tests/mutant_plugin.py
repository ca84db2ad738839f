"""What pytest loads in every run of `make mutants`: which tests of a room run and in which order, and what each runs and takes.

Told by a file of JSON that MUTANTS_PLAN names: `only` these tests, in this order; all but these, `without`; and `times`, a file
to write the seconds of a processor that every test took to. Where coverage runs, every test is a context of its own.
"""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Iterator

import pytest
from hypothesis import Phase, settings

PLAN = json.loads(pathlib.Path(os.environ["MUTANTS_PLAN"]).read_text())
TIMES: dict[str, float] = {}

# A failure is enough, the smallest one is not asked for; and a busy machine is no failure
settings.register_profile(
    "mutants", phases=[Phase.explicit, Phase.generate, Phase.target], deadline=None, report_multiple_bugs=False, database=None
)
settings.load_profile("mutants")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the tests that are asked for, in their order."""
    rank = {test: i for i, test in enumerate(PLAN.get("only", []))}
    without = set(PLAN.get("without", []))
    kept = [item for item in items if item.nodeid not in without and (not rank or item.nodeid in rank)]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = sorted(kept, key=lambda item: rank.get(item.nodeid, 0))


def _seconds() -> float:
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Count what a test and its processes take; what it runs is counted as its own where coverage runs."""
    if "times" not in PLAN:
        return (yield)
    from coverage import Coverage

    Coverage.current().switch_context(item.nodeid)
    before = _seconds()
    try:
        return (yield)
    finally:
        TIMES[item.nodeid] = _seconds() - before


def pytest_sessionfinish() -> None:
    """Write the seconds of every test."""
    if "times" in PLAN:
        pathlib.Path(PLAN["times"]).write_text(json.dumps(TIMES))
