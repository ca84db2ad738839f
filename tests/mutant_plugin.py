"""What pytest loads in every run of `make mutants`: which tests of a room run and in which order, and what each runs and takes.

Told by a file of JSON that MUTANTS_PLAN names: `only` these tests, in this order; all but these, `without`; whether `all` run after one
failed; `seconds` of a processor for a test; `failed`, a file for the names of those that fail; and `times`, one for the seconds of a
processor that each took: where that is asked for, coverage runs, and every test is a context of its own.
"""  # noqa: E501

from __future__ import annotations

import json
import os
import pathlib
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings

PLAN = json.loads(pathlib.Path(os.environ["MUTANTS_PLAN"]).read_text())
TIMES: dict[str, float] = {}

# A failure is enough, the smallest one is not asked for; and a busy machine is no failure
settings.register_profile(
    "mutants", phases=[Phase.explicit, Phase.generate, Phase.target], deadline=None, report_multiple_bugs=False, database=None,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
settings.load_profile("mutants")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the tests that are asked for, in their order."""
    only, without = PLAN.get("only"), set(PLAN.get("without", []))
    rank = {test: i for i, test in enumerate(only or [])}
    kept = [item for item in items if item.nodeid not in without and (only is None or item.nodeid in rank)]
    items[:] = sorted(kept, key=lambda item: rank.get(item.nodeid, 0))


def _late(*_: object) -> None:
    pytest.fail("out of time", pytrace=False)


def _seconds() -> float:
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Count what a test and its processes take, and end it when that is too much."""
    if "times" in PLAN:
        from coverage import Coverage

        Coverage.current().switch_context(item.nodeid)
    else:
        signal.signal(signal.SIGPROF, _late)
        signal.setitimer(signal.ITIMER_PROF, PLAN["seconds"])
    before = _seconds()
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        TIMES[item.nodeid] = _seconds() - before


def _note(report: pytest.CollectReport | pytest.TestReport) -> None:
    if report.failed:
        with open(PLAN["failed"], "a") as file:
            file.write(report.nodeid + "\n")


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Note a file that cannot be read."""
    _note(report)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note a test that fails."""
    _note(report)


def pytest_configure(config: pytest.Config) -> None:
    """Stop at the first failure unless all are asked for."""
    config.option.maxfail = 0 if PLAN.get("all") else 1


def pytest_sessionfinish() -> None:
    """Write the seconds of every test."""
    if "times" in PLAN:
        pathlib.Path(PLAN["times"]).write_text(json.dumps(TIMES))
