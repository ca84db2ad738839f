"""Networks emulated in namespaces: places matter as planned, nothing is left behind, and what cannot be emulated is refused."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
from runtime_processes import environment

from meshwright import clusters
from meshwright.base.errors import InputError
from meshwright.runtime.job import namespaces

RACKS = pathlib.Path(__file__).resolve().parents[3] / "examples" / "two_racks.yaml"
WHY = namespaces.unavailable()
here = pytest.mark.skipif(bool(WHY), reason=f"this machine cannot emulate a network: {WHY}")


def left() -> list[str]:
    """Return the namespaces of networks that this process built."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if line.startswith(f"mwns{os.getpid()}x")]


@here
def test_processes_inside_reach_each_other_and_nothing_is_left_behind_after_a_failure() -> None:
    with pytest.raises(KeyboardInterrupt), namespaces.emulated(clusters.cluster(str(RACKS))) as prefixes:
        assert len(prefixes) == 4 and len(left()) == 6
        reach = (
            "import socket; s = socket.create_server(('10.77.0.4', 9999)); s.settimeout(9); "
            "print(s.accept()[0].recv(9).decode())"
        )
        say = "import socket; socket.create_connection(('10.77.0.4', 9999), 9).send(b'hello')"
        server = subprocess.Popen([*prefixes[3], sys.executable, "-c", reach], stdout=subprocess.PIPE, text=True)
        time.sleep(0.5)
        subprocess.run([*prefixes[0], sys.executable, "-c", say], check=True)
        assert server.communicate(timeout=10)[0] == "hello\n"
        raise KeyboardInterrupt
    assert left() == []


@here
def test_what_a_killed_run_left_is_taken_away_by_the_next() -> None:
    script = "import os, sys; from meshwright import clusters; from meshwright.runtime.job import namespaces\n"
    script += f"with namespaces.emulated(clusters.cluster({str(RACKS)!r})): os.kill(os.getpid(), {int(signal.SIGKILL)})"
    killed = subprocess.Popen([sys.executable, "-c", script], env=environment())
    assert killed.wait(timeout=60) == -signal.SIGKILL
    with namespaces.emulated(clusters.cluster(str(RACKS))):
        pass
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert f"mwns{killed.pid}x" not in listed


def test_a_network_with_loops_is_refused() -> None:
    with pytest.raises(InputError, match="tree of switches"), namespaces.emulated(clusters.cluster("ring:4")):
        pass


@here
@pytest.mark.slow
@pytest.mark.torch
def test_the_placed_plan_beats_the_order_of_numbers_as_predicted(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="running plans needs PyTorch: pip install 'meshwright[torch]'")
    monkeypatch.syspath_prepend(str(RACKS.parent))
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    import two_racks

    runs: dict[str, Any] = two_racks.compare(tmp_path, n_steps=4)
    steps = {name: run["step_seconds"] for name, run in runs.items()}
    assert steps["placed"]["predicted"] < 0.6 * steps["numbered"]["predicted"]
    least = {name: min(run["all_step_seconds"]) for name, run in runs.items()}
    assert least["placed"] < 0.8 * least["numbered"]
    for name in runs:  # loosely: other programs may share the cores; the figures of a quiet machine stand in the how-to
        assert 0.6 < least[name] / steps[name]["predicted"] < 1.7, name
    assert runs["placed"]["losses"] == pytest.approx(runs["numbered"]["losses"], abs=1e-6)
