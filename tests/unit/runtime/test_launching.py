"""Starting, watching and ending processes, played with processes that only say how they end; what commands a network takes."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright import clusters
from meshwright.base.errors import InputError
from meshwright.core.plan import Plan, Stage
from meshwright.runtime.job import launch, namespaces, options
from meshwright.runtime.job.job import Job
from meshwright.runtime.job.launch import Failure
from recorded import Recorded


class Clock:
    """A clock that sleeping moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


class Process:
    """A process that ends with a status after so many looks at it, or when it is killed."""

    stdin = None

    def __init__(self, status: int | None, looks: int = 0) -> None:
        self.status, self.looks = status, looks
        self.returncode: int | None = None
        self.got: list[Any] = []

    def poll(self) -> int | None:
        if self.looks == 0 and self.returncode is None:
            self.returncode = self.status
        self.looks = max(0, self.looks - 1)
        return self.returncode

    def send_signal(self, number: int) -> None:
        self.got.append(signal.Signals(number).name)

    def kill(self) -> None:
        self.got.append("killed")
        self.returncode = -9

    def wait(self) -> None:
        self.got.append("waited")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(launch, "time", made)
    return made


@pytest.mark.parametrize(
    ("processes", "seconds", "found"),
    [
        ([(0, 0), (0, 3)], 0.0, None),
        ([(0, 0), (1, 2)], 0.0, 1),
        ([(0, 0), (3, 0), (1, 0)], 0.0, 1),
        ([(1, 0), (-9, 1), (-11, 1)], 0.0, 1),  # who was killed is the cause, though it is seen later
        ([(1, 0), (None, 0)], 0.0, 0),
        ([(0, 0), (None, 0)], 1.0, -1),
        ([(0, 0), (0, 15)], 1.0, None),
    ],
)
def test_the_first_that_does_not_end_well_is_found(processes: list, seconds: float, found: int | None, clock: Clock) -> None:
    made: Any = [Process(*one) for one in processes]
    assert launch._watch(made, seconds, []) == found
    assert all(one.got == [] for one in made)
    assert (0.3 in clock.slept) == (found not in (None, -1)), "others may be the cause, and have a moment to end"
    if found == -1:
        assert clock.now == pytest.approx(101.05) and set(clock.slept) == {0.05}


def test_who_is_asked_to_stop_is_asked_once_and_has_a_while(clock: Clock) -> None:
    made: Any = [Process(None), Process(0)]
    assert launch._watch(made, 0.0, [signal.SIGTERM]) == -2 == launch._NOT_IN_TIME
    assert [one.got for one in made] == [["SIGTERM"], ["SIGTERM"]] and clock.now == pytest.approx(125.05, abs=0.06)
    willing: Any = [Process(0, 5), Process(0, 2)]
    assert launch._watch(willing, 0.0, [signal.SIGINT]) is None and willing[0].got == ["SIGTERM"]


def test_what_still_runs_is_asked_where_it_is_and_ended(clock: Clock) -> None:
    made: Any = [Process(None), Process(0), Process(3)]
    launch._ask_where(made)
    assert [one.got for one in made] == [["SIGUSR1"], [], []] and clock.slept == [0.5]
    launch._stop(made)
    assert [one.got for one in made] == [["SIGUSR1", "killed", "waited"], ["waited"], ["waited"]]


def test_where_ranks_were_is_told_by_number_and_the_innermost_calls_only(tmp_path: pathlib.Path) -> None:
    for rank, n_calls in ((10, 2), (2, 8), (3, 0)):
        lines = ["Current thread:", *[f'  File "a.py", line {i} in f{i}' for i in range(n_calls)]]
        (tmp_path / f"where-{rank}").write_text("\n".join(lines))
    told = launch._where(tmp_path)
    assert re.findall(r"rank (\d+) was at", told) == ["2", "10"]
    assert re.findall(r"in f(\d)", told) == list("01234501") and told.startswith("\nrank 2 was at\n  File")


def left(folder: pathlib.Path, *errors: tuple[int, float, str]) -> None:
    """Leave errors of ranks, by the time of each."""
    for rank, time, text in errors:
        (folder / f"error-{rank}.json").write_text(json.dumps({"time": time, "text": text, "wrong_input": rank == 0}))


def test_a_failure_is_that_of_who_left_its_error_first(tmp_path: pathlib.Path) -> None:
    ended: Any = [Process(1), Process(-9), Process(3), Process(None)]
    for one in ended:
        one.poll()
    assert launch._failure(ended, tmp_path, None) is None
    assert launch._failure(ended, tmp_path, -1) == Failure(-1, "the time given is up", False)
    assert launch._failure(ended, tmp_path, 1) == Failure(1, "killed by signal 9 (SIGKILL)", False, lost=True)
    assert launch._failure(ended, tmp_path, 2) == Failure(2, "ended with status 3 and left no traceback", False)
    assert launch._failure(ended, tmp_path, 3) == Failure(3, "ended with status None and left no traceback", False)
    left(tmp_path, (2, 5.0, "two"), (0, 4.0, "zero"), (3, 4.0, "three"))
    (tmp_path / "error-1.json").write_text('{"time": 1')  # killed while it wrote
    assert launch._failure(ended, tmp_path, 2) == Failure(0, "zero", True)
    assert launch._failure(ended, tmp_path, -1) == Failure(0, "zero", True)
    assert launch._failure(ended, tmp_path, 1) == Failure(1, "killed by signal 9 (SIGKILL)", False, lost=True)
    left(tmp_path, (1, 9.0, "one"))
    assert launch._failure(ended, tmp_path, 1) == Failure(0, "zero", True)


def test_who_left_without_a_word_is_the_cause_of_what_others_missed(tmp_path: pathlib.Path) -> None:
    processes: Any = [Process(1), Process(7), Process(0)]
    for one in processes:
        one.poll()
    left(tmp_path, (3, 5.0, "connection closed by peer"))
    found = launch._failure(processes, tmp_path, 0, {1: 7, 2: 0, 3: 1})
    assert found == Failure(1, "ended with status 7 and left no traceback", False)
    found = launch._failure(processes, tmp_path, 0, {2: 0, 3: 1})
    assert found == Failure(3, "connection closed by peer\nrank 2 had ended before, with status 0", False)
    for rank, moment in ((1, "4.0"), (4, "6.0"), (5, "")):  # the last was killed while it wrote
        (tmp_path / f"ended-{rank}").write_text(moment)
    found = launch._failure(processes, tmp_path, 0, {3: 1})
    assert found == Failure(3, "connection closed by peer\nrank 1 had ended before, with status 0", False)
    left(tmp_path, (0, 1.0, "wrong"))
    assert launch._failure(processes, tmp_path, 0, {0: 2, 2: 0, 3: 1}) == Failure(0, "wrong", True)


def played(monkeypatch: pytest.MonkeyPatch, *processes: Process, result: dict[str, Any] | None = None) -> list[Any]:
    """Let these processes be what is started, the first of which leaves a result; return what was started."""
    started: list[Any] = []

    def start(module: str, rank: int, n_ranks: int, path: pathlib.Path, prefix: list[str], *, prints: bool) -> Process:
        assert not prints
        started.append([module, rank, n_ranks, json.loads(path.read_text()), prefix])
        if result is not None:
            (path.parent / "result.json").write_text(json.dumps(result))
        return processes[rank]

    monkeypatch.setattr(launch, "_start", start)
    return started


def test_a_run_starts_every_rank_and_returns_what_was_left(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    started = played(monkeypatch, Process(0, 2), Process(0), result={"losses": [1.0]})
    found = launch.run(Job("plan.json", "m:f", seed=3), 2, prefixes=[["a"], ["b", "c"]])
    assert found == {"losses": [1.0]}
    assert [(one[0], one[1], one[2], one[4]) for one in started] == [
        ("meshwright.runtime.job.worker", 0, 2, ["a"]), ("meshwright.runtime.job.worker", 1, 2, ["b", "c"]),
    ]  # fmt: skip
    assert started[0][3]["seed"] == 3 and started[0][3]["folder"] and not pathlib.Path(started[0][3]["folder"]).exists()
    started = played(monkeypatch, Process(0), result={"pairs": []})
    assert launch.run_module("a.module", 1, {"device": "cpu"}) == {"pairs": []}
    assert started == [["a.module", 0, 1, {"device": "cpu"}, []]]


def test_a_run_that_ends_otherwise_says_how(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    job = Job("plan.json", "m:f")
    still, done = Process(None), Process(0)
    played(monkeypatch, still, done)
    assert launch.run(job, 2, timeout_seconds=2.0) == Failure(-1, "the time given is up", False)
    assert still.got == ["SIGUSR1", "killed", "waited"] and done.got == ["waited"]

    @contextlib.contextmanager
    def asked() -> Iterator[list[signal.Signals]]:
        yield [signal.SIGTERM]

    monkeypatch.setattr(launch, "_asked_to_stop", asked)
    played(monkeypatch, Process(None))
    assert launch.run(job, 1) == Failure(-1, "asked to stop by SIGTERM, it had not done so after 25 s", False, signal=15)
    played(monkeypatch, Process(0), Process(-15, 1))
    assert launch.run(job, 2) == Failure(-1, "asked to stop by SIGTERM before the first step", False, signal=15)
    ends = (Failure(-1, "", False, signal=15), Failure(-1, "", False), Failure(-1, "", True))
    assert [end.status for end in ends] == [143, 1, 2]
    played(monkeypatch, Process(-9))
    assert launch.run(job, 1) == Failure(0, "killed by signal 9 (SIGKILL)", False, lost=True)
    played(monkeypatch, Process(0), result={"stopped_after": 3})
    assert launch.run(job, 1) == {"stopped_after": 3, "signal": 15}


def test_a_first_signal_is_a_wish_and_a_second_one_ends(capsys: pytest.CaptureFixture[str]) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(KeyboardInterrupt), launch._asked_to_stop() as asked:
        assert asked == []
        signal.raise_signal(signal.SIGTERM)
        assert asked == [signal.SIGTERM]
        assert capsys.readouterr().err == "meshwright: SIGTERM: ending after this step; a second one ends at once\n"
        signal.raise_signal(signal.SIGINT)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before

    def elsewhere() -> None:
        with launch._asked_to_stop() as asked:
            inside.append((asked, [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]))

    inside: list[Any] = []
    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert inside == [([], before)], "signals are the main thread's"


@pytest.mark.parametrize("interfaces", [[(1, "lo"), (2, "eth0")], [(2, "eth0")]])
@pytest.mark.parametrize("prefix", [[], ["ip", "netns", "exec", "x"]])
def test_a_process_is_told_its_place(interfaces: list, prefix: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(launch.subprocess, "Popen", lambda command, **told: given.update(told, command=command))
    monkeypatch.setattr(launch.socket, "if_nameindex", lambda: interfaces)
    monkeypatch.setattr(launch.sys, "stderr", SimpleNamespace(fileno=lambda: 7))
    monkeypatch.setattr(launch.sys, "path", ["/one", "", "/two"])
    for name in ("GLOO_SOCKET_IFNAME", "TORCH_CPP_LOG_LEVEL", "KINETO_LOG_LEVEL", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    launch._start("a.module", 2, 5, pathlib.Path("/there/job.json"), prefix)
    told = given["env"]
    assert given["command"] == [*prefix, sys.executable, "-m", "a.module", "/there/job.json"]
    assert (given["stdout"], given["stdin"]) == (7, subprocess.PIPE)
    assert (told["RANK"], told["LOCAL_RANK"], told["WORLD_SIZE"]) == ("2", "2", "5")
    assert told["MESHWRIGHT_RENDEZVOUS"] == "file:///there/rendezvous"
    assert (told["OMP_NUM_THREADS"], told["TORCH_CPP_LOG_LEVEL"], told["KINETO_LOG_LEVEL"]) == ("1", "ERROR", "6")
    assert told["PYTHONPATH"] == os.pathsep.join([os.getcwd(), "/one", "/two"])
    assert ("GLOO_SOCKET_IFNAME" in told) == (not prefix and len(interfaces) == 2)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    launch._start("a.module", 2, 5, pathlib.Path("/there/job.json"), prefix)
    assert (given["env"]["GLOO_SOCKET_IFNAME"], given["env"]["OMP_NUM_THREADS"]) == ("eth7", "3")
    launch._start("a.script", 2, 5, pathlib.Path("/there/job.json"), prefix, prints=True)
    assert "KINETO_LOG_LEVEL" not in given["env"], "what a script's own profiler says is left to it"


def test_torchrun_is_known_by_all_of_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    for name in names:
        monkeypatch.setenv(name, "1")
    assert launch.under_torchrun()
    for name in names:
        with monkeypatch.context() as patch:
            patch.delenv(name)
            assert not launch.under_torchrun()


@pytest.mark.parametrize(("store", "n_agents", "is_said"), [("True", "3", True), ("True", "1", False), ("False", "3", False)])
def test_agents_that_may_not_find_each_other_are_said(
    monkeypatch: pytest.MonkeyPatch, store: str, n_agents: str, is_said: bool
) -> None:
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", store)
    monkeypatch.setenv("GROUP_WORLD_SIZE", n_agents)
    assert [("TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in note) for note in launch.shared_store()] == [True] * is_said
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE")
    assert launch.shared_store() == []


def test_every_option_of_a_run_is_passed_on_to_torchrun(recorded: Recorded) -> None:
    job = Job("plan.json", "m:f", n_steps=7, data="d:d", loss="l:l", optimizer="o:o", learning_rate_value=0.5, seed=4,
              save="kept",
              save_every=2, keep=3, resume="auto", non_finite="skip", backend="nccl", precision="bf16", clip_norm_value=1.5,
              log="log.jsonl", lr_schedule="s:s", keep_every=4)  # fmt: skip
    (elastic,) = launch.torchrun_lines(replace(job, elastic=True, max_restarts=5), "", 6, 1, "p")
    assert elastic.endswith(" --keep-every 4 --max-restarts 5 --resume auto --elastic")
    recorded([
        launch.torchrun_lines(job, "", 6, 1, "p"), launch.torchrun_lines(job, "profile.json", 6, 3, "p"),
        launch.torchrun_lines(Job("plan.json", "m:f"), "", 1, 1, "p"),
    ])  # fmt: skip
    for n_ranks, n_machines in ((6, 4), (2, 4)):
        told = f"p: {n_machines} machines cannot share the plan's {n_ranks} processes evenly; give --torchrun 1, or a divisor"
        with pytest.raises(InputError, match=told):
            launch.torchrun_lines(job, "", n_ranks, n_machines, "p")
    launch.check_ranks(3, 3, "p")
    with pytest.raises(InputError, match="p: the plan needs 2 processes, but torchrun started 3; give --nproc-per-node 2"):
        launch.check_ranks(3, 2, "p")


def test_gpus_that_are_left_are_named_as_this_process_sees_them(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []

    def run(module: str, path: pathlib.Path, n_ranks: int, seconds: float, prefixes: Any) -> Failure:
        started.append([" ".join(prefix) for prefix in prefixes])
        return Failure(0, "", False)

    monkeypatch.setattr(launch, "_run", run)
    for seen, backend in (("", "nccl"), ("4,7,5", "nccl"), ("", "gloo")):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen)
        launch.run(Job("plan.json", "m:f", backend=backend), 2, gpus=(0, 2))
    assert started == [["env CUDA_VISIBLE_DEVICES=0,2"] * 2, ["env CUDA_VISIBLE_DEVICES=4,5"] * 2, []]


def test_who_ended_a_run_is_told_with_its_device_and_stages() -> None:
    plan = Plan((Stage((0,), (7, 3)), Stage((1,), (5,)), Stage((2,), (7, 3))))
    assert launch.describe(Failure(-1, "the time given is up", False), plan) == "the run was ended: the time given is up"
    assert launch.describe(Failure(0, "no such file", True), plan) == "no such file"
    assert launch.describe(Failure(2, "Traceback\n\n", False), plan) == "rank 2 (device 7, stage 0, 2) ended the run: Traceback"
    assert launch.describe(Failure(1, "x", False), plan).startswith("rank 1 (device 5, stage 1) ended")


def test_a_job_is_written_and_read_back(tmp_path: pathlib.Path) -> None:
    job = Job("plan.json", "m:f", order=[[(0, 1, 2)]])
    job.write(tmp_path / "job.json")
    assert replace(Job.read(tmp_path / "job.json"), order=job.order) == job
    defaults = (job.n_steps, job.learning_rate_value, job.seed, job.save_every, job.keep, job.memory, job.clip_norm_value)
    assert defaults == (5, 1e-3, 0, 0, 2, True, 0.0) and (job.keep_every, job.non_finite, job.backend) == (0, "stop", "")


BASE = Job("plan.json", "m:f", save="there", save_every=2)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"n_steps": 0}, "--steps 0: must be between 1 and 1000000000"),
        ({"n_steps": 10**9 + 1}, "--steps 1000000001: must be"),
        ({"backend": "mpi"}, "--backend mpi: must be gloo or nccl"),
        ({"non_finite": "go"}, "--non-finite go: must be stop or skip"),
        ({"clip_norm_value": -0.5}, "--clip-norm -0.5: must be a number of at least 0 (0: no limit)"),
        ({"clip_norm_value": float("inf")}, "--clip-norm inf: must be"),
        ({"clip_norm_value": float("nan")}, "--clip-norm nan: must"),
        ({"keep_every": -2}, "--keep-every -2: must be at least 0, and needs --save-every"),
        ({"keep_every": 2, "save_every": 0}, "--keep-every 2: must be at least 0, and needs --save-every"),
        ({"keep_every": 3}, "--keep-every 3: must be a multiple of --save-every 2"),
        ({"keep": 0}, "--keep 0: must be at least 1"),
        ({"save_every": -1}, "--save-every -1: must be at least 0"),
        ({"limits": (-1, 0.0)}, "--processes -1: must be at least 0"),
        ({"limits": (0, -1.0)}, "--timeout -1: must be a number of seconds"),
        ({"save": ""}, "--resume and --save-every need --save FOLDER"),
        ({"save": "", "save_every": 0, "resume": "auto"}, "--resume and --save-every need --save FOLDER"),
        ({"profiles": ("", "better.json")}, "--calibrate corrects the profile of --profile; give that too"),
        ({"max_restarts": -1}, "--max-restarts -1: must be between 0 and 1000000000"),
        ({"elastic": True, "save_every": 0}, "--elastic goes on from checkpoints: give --save FOLDER and --save-every N too"),
        ({"elastic": True, "save": "", "save_every": 0}, "--elastic goes on from checkpoints: give --save FOLDER and"),
        ({"elastic": True, "profiles": ("profile.json", "")}, "--elastic plans for other devices while it runs: leave"),
        ({"elastic": True, "emulate": True}, "leave --profile, --calibrate and --emulate out"),
    ],
)  # fmt: skip
def test_options_out_of_range_are_refused_in_these_words(changes: dict[str, Any], told: str) -> None:
    limits, profiles = changes.pop("limits", (0.0, 0.0)), changes.pop("profiles", ("", ""))
    emulate = changes.pop("emulate", False)
    with pytest.raises(InputError, match=re.escape(told)):
        options.check(replace(BASE, **changes), limits, profiles, emulate=emulate)


@pytest.mark.parametrize(
    "changes",
    [{}, {"n_steps": 1}, {"n_steps": 10**9}, {"backend": "nccl"}, {"non_finite": "skip"}, {"keep_every": 2}, {"keep_every": 4},
     {"keep": 1}, {"save_every": 1}, {"save_every": 0}, {"save": "", "save_every": 0}, {"resume": "last"},
     {"clip_norm_value": 3.0}],
)  # fmt: skip
def test_options_in_range_are_taken(changes: dict[str, Any]) -> None:
    for profiles in (("", ""), ("profile.json", ""), ("profile.json", "better.json")):
        options.check(replace(BASE, **changes), (2.0, 3.0), profiles)


RACKS = pathlib.Path(__file__).resolve().parents[3] / "examples" / "two_racks.yaml"


class Commands:
    """Answers commands and keeps them."""

    def __init__(self, listed: str = "", fails: str = "never") -> None:
        self.given: list[str] = []
        self.listed, self.fails = listed, fails

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        line = " ".join(words)
        self.given.append(line)
        failed = self.fails in line
        return subprocess.CompletedProcess(words, int(failed), self.listed if words[:3] == ("ip", "netns", "list") else "",
                                           " not allowed \n" if failed else "")  # fmt: skip


def test_a_network_is_built_by_these_commands(monkeypatch: pytest.MonkeyPatch, recorded: Recorded) -> None:
    cluster = clusters.cluster(str(RACKS))
    listed = "mwns77x0 (id: 1)\n\nmwns4999999x1\nmwnsprobe\nother4999998x2\nmwns77x3\n"
    commands = Commands(listed)
    monkeypatch.setattr(namespaces, "_command", commands)
    monkeypatch.setattr(namespaces.os, "getpid", lambda: 77)
    monkeypatch.setattr(namespaces.os.path, "exists", lambda path: path == "/proc/77")
    monkeypatch.setattr(namespaces.shutil, "which", lambda word: f"/sbin/{word}")
    with namespaces.emulated(cluster) as prefixes:
        commands.given.append("--- the block")
    recorded([prefixes, commands.given])
    monkeypatch.setattr(namespaces, "_command", Commands(listed, fails="type veth"))
    with (
        pytest.raises(InputError, match=r"emulating the network: 'ip link add .*' failed: not allowed$"),
        namespaces.emulated(cluster),
    ):
        pass
    assert namespaces._command.given[-1] == "ip netns del mwns77x3", "what was made is taken down"
    recorded({str(rate): namespaces._limit(rate) for rate in (1e3, 1e6, 1.25e8, 1.2e9)}, "rates")


@pytest.mark.parametrize(
    ("missing", "fails", "told"),
    [
        ("ip", "never", "the programs ip and tc (package iproute2) are not installed"),
        ("tc", "never", "the programs ip and tc (package iproute2) are not installed"),
        ("", "netns add", "network namespaces cannot be made: not allowed"),
        ("", "tc qdisc", "rates cannot be limited: not allowed"),
        ("", "never", ""),
    ],
)  # fmt: skip
def test_why_a_machine_cannot_emulate_is_told(missing: str, fails: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = Commands(fails=fails)
    monkeypatch.setattr(namespaces, "_command", commands)
    monkeypatch.setattr(namespaces.shutil, "which", lambda word: None if word == missing else word)
    assert namespaces.unavailable() == told
    assert bool(commands.given) == (not missing) and (missing or commands.given[-1].startswith("ip netns del mwns"))
    if told:
        reason = re.escape(f": {told}; this needs Linux and root")
        with pytest.raises(InputError, match=reason), namespaces.emulated(clusters.cluster(str(RACKS))):
            pass


def test_only_trees_with_devices_as_leaves_are_emulated() -> None:
    rates = namespaces._rates(clusters.cluster(str(RACKS)))
    assert len(rates) == 10 and all((b, a) in rates for a, b in rates)
    told = (
        r"only devices with one link each on a tree of switches can be emulated; this one has 4 wires between 4 devices and 0"
    )
    with pytest.raises(InputError, match=told):
        namespaces._rates(clusters.cluster("ring:4"))
