"""Every launcher keeps the promises of its room: an ending of its own, the same text of the same job, which parses."""

from __future__ import annotations

import subprocess

import pytest
import yaml

from meshwright import launchers
from meshwright.core.launch import Hosts, LaunchJob, StartCommand

NAMES = launchers.names()


def job(n: int, per_domain: int = 1, kinds: tuple[str, ...] = ()) -> LaunchJob:
    """Return a job of hosts with two devices each."""
    hosts = Hosts(
        tuple((2 * k, 2 * k + 1) for k in range(n)), tuple(k // per_domain for k in range(n)), kinds or ("H100",) * n, (0,) * n
    )
    program = StartCommand('run "$NODE_RANK" "$@"', needs=(("MODEL", "a folder"),), environment=(("A", "b c", "why 'so'"),))
    return LaunchJob("tiny", "tiny on devices", "plan.py", "x = 'a'\n\ny = \"$HOME\"\n", program, hosts, ("all inside",))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("one", [job(1), job(4), job(4, 2), job(2, 2)], ids=["one", "four", "two domains", "one domain"])
def test_a_launcher_writes_the_same_shell_or_yaml_each_time(name: str, one: LaunchJob) -> None:
    module = launchers.load(name)
    text = module.text(one)
    assert text == module.text(one) and text.endswith("\n") and "\t" not in text
    assert module.SUFFIX.startswith(".")
    if module.SUFFIX.endswith(".yaml"):
        assert isinstance(yaml.safe_load(text), dict)
    else:
        assert text.startswith("#!/bin/bash\n")
        subprocess.run(["bash", "-n"], input=text, text=True, check=True)
        assert "MASTER_ADDR" in text and "MASTER_PORT" in text
    assert "NODE_RANK" in text and one.program.command in text
    assert "${MODEL:?a folder}" in text and "b c" in text and "all inside" in text


def test_endings_are_of_one_launcher_each() -> None:
    assert len({launchers.load(name).SUFFIX for name in NAMES}) == len(NAMES)
