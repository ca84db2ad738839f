"""What launchers write of plans and hosts given by hand, which groups and settings they look at, as when this was written."""

from __future__ import annotations

import functools
import zlib
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edited import answer
from meshwright import api, launchers
from meshwright.core.cluster import Cluster
from meshwright.core.launch import Hosts, LaunchJob, StartCommand, hosts_of
from meshwright.core.plan import Plan, Stage
from meshwright.core.result import Answer, Result
from meshwright.core.strategy import Strategy
from meshwright.launchers import _groups, _network, _shell
from recorded import Recorded

CLUSTERS = (
    "dgx-h100:32",
    "dgx-h100:16",
    "flat:16",
    "gb200-nvl72:144",
    "rail-only:16,per_node=4",
    "rail-optimised:24,per_node=4",
    "p4d-a100:16",
    "two-level:16,per_node=8,bandwidth=25 GB/s",
    "tpu-v4:64",
)


@functools.cache
def place(name: str) -> Cluster:
    return api.make_problem("llama-3.2-1b", name).required_cluster


def piped(strategy: Strategy, n_ranks: int = 1, first: int = 0, step: int = 1) -> Plan:
    """Return ranks one after the other on devices from `first` on, every `step`-th of them."""
    size = strategy.n_devices
    stages = [Stage((r,), tuple(first + step * d for d in range(r * size, (r + 1) * size)), strategy) for r in range(n_ranks)]
    return Plan(tuple(stages), 4, 1, "1f1b", 4 * strategy.data)


PLANS = {
    "one": piped(Strategy(1)),
    "node": piped(Strategy(8)),
    "two nodes": piped(Strategy(16)),
    "tensor": piped(Strategy(2, 4), 2),
    "wide tensor": piped(Strategy(1, 16)),
    "context": piped(Strategy(2, 2, 4)),
    "experts": piped(Strategy(8, 1, 1, 4), 2),
    "folded": piped(Strategy(2, 4, 1, 8), 2),
    "later": piped(Strategy(4), 1, 4),
    "across": piped(Strategy(8), 1, 4),
    "odd": piped(Strategy(4), 1, 0, 2),
    "twelve": piped(Strategy(12)),
    "uneven": piped(Strategy(3), 4),
}


def test_hosts_groups_and_settings_are_as_before(recorded: Recorded) -> None:
    for name in CLUSTERS:
        cluster, found = place(name), dict[str, Any]()
        for key, plan in PLANS.items():
            if max(max(devices) for devices in plan.ranks()) >= cluster.n_devices:
                continue
            said = [answer(lambda _, p=plan, c=cluster: hosts_of(p, c), "")]
            for axes in ((), ("tensor", "context", "data", "pipeline"), ("tensor", "context", "pipeline", "data")):
                said.append(answer(lambda _, p=plan, c=cluster, a=axes: _groups.checked(p, c, a), ""))
            program = StartCommand("run", environment=(("A", "1", "why"),))
            said.append(answer(lambda _, p=plan, c=cluster, g=program: _network.with_environment(g, c, hosts_of(p, c)), ""))
            found[key] = [f"{one.removeprefix('refused: ')[:60]} {zlib.crc32(one.encode()):08x}" for one in said]
        recorded(found, name)
        recorded([_network._only_rails(cluster), cluster.devices_per_host], f"{name} rails")
    assert _groups.checked(PLANS["tensor"], None, ()) == ()
    assert hosts_of(PLANS["odd"], None) == Hosts(((0, 2, 4, 6),), (0,), ("",), (0,))
    unlike = replace(
        PLANS["tensor"], stages=(PLANS["tensor"].stages[0], replace(PLANS["tensor"].stages[1], strategy=Strategy(8)))
    )
    said = answer(lambda _: _groups.checked(unlike, place("dgx-h100:16"), ("tensor", "context", "data", "pipeline")), "")
    assert "stages of different degrees have no one numbering" in said


def test_the_widest_group_is_the_one_that_is_told() -> None:
    first = Stage((0,), (6, 7, 8, 9), Strategy(1, 4))
    plan = Plan((first, Stage((1,), (10, 11, 12, 13), Strategy(1, 4))), 1, 1, "1f1b", 1)
    said = _groups.checked(plan, place("dgx-h100:16"), ())
    assert said == ("tensor groups of 4: each crosses up to 2 nodes or NVLink domains, as planned",)


def test_ranks_are_numbered_by_the_axis_that_changes_fastest() -> None:
    plan = piped(Strategy(2, 2, 2), 2)
    outer = _groups._launched(plan, ("tensor", "context", "data", "pipeline"))
    assert [ranks.tolist() for ranks in outer] == [list(range(8)), list(range(8, 16))]
    inner = _groups._launched(plan, ("tensor", "pipeline", "context", "data"))
    assert [ranks.tolist() for ranks in inner] == [[0, 1, 4, 5, 8, 9, 12, 13], [2, 3, 6, 7, 10, 11, 14, 15]]
    context = [places.tolist() for places in _groups._groups(Strategy(2, 2, 2), "context")]
    assert context == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert [p.tolist() for p in _groups._groups(Strategy(4, 2, 1, 2), "expert")] == [[0, 2], [4, 6], [1, 3], [5, 7]]
    assert [p.tolist() for p in _groups._groups(Strategy(1, 4, 1, 4), "expert")] == [[0, 1, 2, 3]]
    for axis in ("tensor", "context", "expert", "data"):
        assert not list(_groups._groups(Strategy(4), axis))


def jobs() -> dict[str, LaunchJob]:
    """Return jobs of hosts by hand: one, some, domains of several hosts, of unlike sizes and kinds."""
    needs, settings = (("MODEL", "a folder"),), (("A", "x y", "because " * 20), ("B", "1", "so"))
    program = StartCommand("run 'a b' $NODE_RANK", needs=needs, environment=settings)
    plain = StartCommand("run")

    def hosts(nodes: list[int], kinds: list[str], n: int = 4, first: int = 0) -> Hosts:
        devices = tuple(tuple(range(i * 8 + first, i * 8 + first + n)) for i in range(len(nodes)))
        return Hosts(devices, tuple(nodes), tuple(kinds), (first,) * len(nodes))

    base = LaunchJob(
        "name", "title " * 30, "plan.v1.py", "text of\n'the' $plan\n", program, hosts([0], ["H100"]), ("a remark", "two")
    )
    return {
        "one": base,
        "plain": replace(base, program=plain, remarks=()),
        "two": replace(base, hosts=hosts([0, 1], ["H100"] * 2)),
        "single": replace(base, hosts=hosts([0, 1], [""] * 2, 1)),
        "three": replace(base, file="noending", hosts=hosts([0, 1, 2], ["A"] * 3)),
        "domains": replace(base, hosts=hosts([0, 0, 1, 1], ["GB200"] * 4)),
        "one domain": replace(base, hosts=hosts([0, 0], ["GB200"] * 2)),
        "uneven domains": replace(base, hosts=hosts([0, 0, 1], ["GB200"] * 3)),
        "unlike": replace(base, hosts=hosts([0, 1], ["A", "B"])),
        "later": replace(base, hosts=hosts([0, 1], ["A"] * 2, 2, 4)),
        "large": replace(base, text="x" * (2**20 + 1)),
        "just": replace(base, text="x" * 2**20),
        "marked": replace(base, text="END_OF_CONFIGURATION\nEOF\nCONFIGURATION\n"),
        "no newline": replace(base, text="last"),
    }


@pytest.mark.parametrize("name", launchers.names())
def test_scripts_of_hosts_by_hand_are_as_before(name: str, recorded: Recorded) -> None:
    text, found = launchers.load(name).text, {}
    for key, job in jobs().items():
        said = answer(lambda _, j=job: text(j), "")
        found[key] = said if said.startswith("refused") else [said.count("\n"), f"{zlib.crc32(said.encode()):08x}"]
    recorded(found)
    recorded(text(jobs()["domains"]).splitlines()[:40], "domains as written")


def test_jobs_have_names_titles_and_stems_as_before(recorded: Recorded) -> None:
    problem = api.make_problem("llama-3.2-1b", "dgx-h100:16")
    plan, found = PLANS["two nodes"], []
    for name in ("Llama 3.2_1B!", "---", "x" * 60, "a" * 39 + "--b"):
        posed = replace(problem, model_spec=replace(problem.model_spec, name=name))
        for timeline in (None, SimpleNamespace(step_seconds=1.23456)):
            result = Result(posed, "best", 0, Answer(plan), (), timeline)  # type: ignore[arg-type]
            job = launchers.job_of(result, StartCommand("run"), "/a/plan.v1.json", "text")
            found.append([job.name, job.title, job.file, job.stem, job.remarks, len(job.hosts.devices)])
    bare = launchers.job_of(Result(replace(problem, cluster=None), "best", 0, Answer(plan)), StartCommand("r"), ".x", "t")
    recorded([*found, bare.title, bare.stem, [_shell.devices_of(jobs()[key], 0) for key in ("one", "single", "later")]])
    assert [hosts.per_domain for hosts in (jobs()[key].hosts for key in ("one", "domains", "uneven domains"))] == [1, 2, 0]
    assert np.array_equal(jobs()["later"].hosts.devices[1], [12, 13])
