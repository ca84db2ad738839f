"""Run the tests of a room against a copy of the package in which a mutant is planted.

Tests that may notice come first; only when all of these pass do the room's others run, so that the order saves time and changes no
verdict. First come the tests that run the mutant's line, the cheapest of them first, where `make mutants MUTANTS=--look` has seen which
these are; else the files that name its module. (Others may notice too: what a fixture of a module keeps, a process that a test kills.)
Runs have process numbers and a network of their own where the machine allows it: what a mutant of a launcher kills or takes down lies
inside.
"""  # noqa: E501

from __future__ import annotations

import ast
import contextlib
import ctypes
import hashlib
import json
import math
import os
import pathlib
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from mutations import SOURCE, Mutant, one_line

ROOT = pathlib.Path(__file__).resolve().parents[1]
KEPT = ROOT / "build" / "mutants"  # what was seen of each room as it is, and the verdicts
LONGEST_SECONDS = 3600.0  # of the wall, for a mutant that waits without working: long, since a machine may be busy
TEST_SECONDS = 60.0  # of a processor, for one test: several times the longest as it is
LARGEST_BYTES = 16 * 2**30  # of one process: a mutant that allocates without end is stopped; browsers reserve more addresses
NO_TESTS = 5  # pytest's exit status
PASSED = (0, NO_TESTS)
KERNELS = "_kernels"

APART = (
    "unshare", "--pid", "--net", "--fork", "--mount-proc", "--kill-child", "sh", "-c",
    'ip link set lo up && mkdir -p /run/netns && mount -t tmpfs none /run/netns || exit; "$@"; exit $?', "sh",
)  # fmt: skip
STARTED = "import coverage\n\ncoverage.process_startup()\n"
COVERAGE = """[run]
include = {package}/meshwright/*
parallel = true
data_file = {folder}/lines
context = ${{PYTEST_CURRENT_TEST-}}
disable_warnings = no-data-collected, module-not-imported, module-not-measured, couldnt-parse, no-sysmon
"""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the room's tests said of a mutant: the first test that failed, or none; `seconds` of a processor."""

    mutant: Mutant
    killed: bool
    why: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Room:
    """What was seen of a room's tests: the seconds of each, and which lines of a file it runs."""

    tests: dict[str, float]
    lines: dict[str, dict[str, list[str]]]


@cache
def apart() -> tuple[str, ...]:
    """Return the words that start a process with process numbers and a network of its own; none where that is not allowed."""
    if shutil.which("unshare") and shutil.which("ip") and not subprocess.run([*APART, "true"], capture_output=True).returncode:
        return APART
    print("no namespaces here (Linux, root, iproute2): mutants of launchers could end other processes", flush=True)
    return ()


def _limit(seconds: float) -> None:
    """Let a process have so much time of a processor, memory that leaves room for others, and no life after ours."""
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds), math.ceil(seconds)))
    resource.setrlimit(resource.RLIMIT_DATA, (LARGEST_BYTES, LARGEST_BYTES))
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _run(
    room: str, package: pathlib.Path, tests: Sequence[str], seconds: float, told: dict, variables: dict[str, str] | None = None
) -> tuple[int, list[str], float]:
    """Run tests against a copy of the package; return pytest's exit status, what failed, and the seconds of a processor."""
    plan, failed = package / "plan.json", package / "failed.txt"
    plan.write_text(json.dumps({"failed": str(failed), "seconds": TEST_SECONDS, **told}))
    failed.write_text("")
    environment = {**os.environ, "PYTHONPATH": str(package), "MUTANTS_PLAN": str(plan), **(variables or {})}
    environment["HYPOTHESIS_STORAGE_DIRECTORY"] = str(package / "hypothesis")
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [*apart(), sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", "-p", "no:cov", "--tb=no"]
    command += ["-p", "mutant_plugin", "-m", "not slow", "--hypothesis-seed=0", f"--basetemp={package / 'temporary'}"]
    if room.startswith(KERNELS):
        environment["NUMBA_DISABLE_JIT"] = "1"
        command += ["-W", "ignore::RuntimeWarning"]  # hashes overflow on purpose, which compiled code does in silence
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            [*command, *tests], cwd=ROOT, env=environment, start_new_session=True, stdout=output,
            stderr=subprocess.STDOUT, preexec_fn=lambda: _limit(seconds),
        )  # fmt: skip
        alarm = threading.Timer(LONGEST_SECONDS, os.killpg, (process.pid, signal.SIGKILL))
        alarm.start()
        _, status, usage = os.wait4(process.pid, 0)
        alarm.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        why = failed.read_text().splitlines() or [one_line(output.read())[-200:]]
    if process.returncode < 0 or process.returncode > 128:
        why = ["out of time"]
    return process.returncode, why, usage.ru_utime + usage.ru_stime


@cache
def _package() -> bytes:
    """Return a hash of the package."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(SOURCE.rglob("*.py")))).digest()


def fingerprint(tests: Sequence[str]) -> str:
    """Return a hash of the package and of tests: what was seen holds as long as it stays the same."""
    digest = hashlib.sha256(_package())
    for test in tests:
        digest.update((ROOT / test.partition("::")[0]).read_bytes())
    return digest.hexdigest()


def seen(room: str, tests: Sequence[str]) -> Room | None:
    """Return what was seen of a room's tests, None where it was not or has changed since."""
    kept = KEPT / (room.replace("/", ".") + ".json")
    known = json.loads(kept.read_text()) if kept.exists() else {}
    return Room(known["tests"], known["lines"]) if known.get("of") == fingerprint(tests) else None


def look(room: str, files: Sequence[str], tests: Sequence[str], package: pathlib.Path, seconds: float) -> str:
    """See which lines of its files a room's tests run as the package is, and how long they take; return what fails, if any."""
    with tempfile.TemporaryDirectory(prefix="mutants-lines-") as folder:
        settings = pathlib.Path(folder, "coverage.ini")
        settings.write_text(COVERAGE.format(package=package, folder=folder))
        start, times = package / "sitecustomize.py", pathlib.Path(folder, "times.json")
        start.write_text(STARTED)
        told = {"times": str(times), "all": True}
        try:
            status, why, _ = _run(room, package, tests, seconds, told, {"COVERAGE_PROCESS_START": str(settings)})
        finally:
            start.unlink()
        if not times.exists():
            return "; ".join(why)
        lines = _lines(pathlib.Path(folder), package / "meshwright", files)
        KEPT.mkdir(parents=True, exist_ok=True)
        kept = {"of": fingerprint(tests), "tests": json.loads(times.read_text()), "lines": lines}
        (KEPT / (room.replace("/", ".") + ".json")).write_text(json.dumps(kept))
        return "; ".join(why) if status else ""


def _lines(folder: pathlib.Path, package: pathlib.Path, files: Sequence[str]) -> dict[str, dict[str, list[str]]]:
    """Return the lines of each file that each test ran, as coverage writes them: sets of bits, in hexadecimal digits."""
    found: dict[str, dict[str, list[str]]] = {file: {} for file in files}
    named = {str(package / file): lines for file, lines in found.items()}
    query = (
        "select path, context, numbits from line_bits join file on file.id = file_id join context on context.id = context_id"
    )
    for written in folder.glob("lines.*"):
        with contextlib.closing(sqlite3.connect(written)) as data:
            for file, context, bits in data.execute(query):
                if file in named:
                    named[file].setdefault(context.rpartition(" (")[0] or context, []).append(bits.hex())
    return found


def statement(text: str, line: int) -> range:
    """Return the lines of the smallest statement that holds a line, of a compound one those before what lies inside."""
    best = range(line, line + 1)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.stmt) and node.lineno <= line <= node.end_lineno:
            body = [
                part for part in ast.iter_child_nodes(node) if isinstance(part, (ast.stmt, ast.ExceptHandler, ast.match_case))
            ]
            last = min((part.lineno for part in body if hasattr(part, "lineno")), default=node.end_lineno + 1)
            if line < last or line == node.lineno:
                best = range(node.lineno, max(last, node.lineno + 1))
    return best


def nearest(mutant: Mutant, text: str, room: Room) -> list[str]:
    """Return the tests that run the statement of a mutant, the cheapest first."""
    wanted = sum(1 << line for line in statement(text, mutant.line))
    runs = {
        test
        for test, lines in room.lines.get(mutant.path, {}).items()
        if any(int.from_bytes(bytes.fromhex(bits), "little") & wanted for bits in lines)
    }
    return sorted(runs & set(room.tests), key=lambda test: room.tests[test])


def _names(test: str, path: str) -> bool:
    """Return whether the file of a test names a module of the package."""
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    text = (ROOT / test.partition("::")[0]).read_text()
    return f"meshwright.{module}" in text or module.rpartition(".")[2].strip("_") in text


def _stages(mutant: Mutant, text: str, room: Room | None, tests: Sequence[str]) -> list[tuple[list[str], dict]]:
    """Return what to run, one after the other until something fails: files or tests, and what the plugin is told."""
    if room is None:  # tests by hand are over sooner than searches against all there is
        by_hand = [test for test in tests if test.split("/")[1] in ("unit", "contract")]
        near = [test for test in by_hand if _names(test, mutant.path)]
        others = [test for test in tests if test not in by_hand]
        return [(near, {}), ([test for test in by_hand if test not in near], {}), (others, {})]
    near = nearest(mutant, text, room)
    files = list(dict.fromkeys(test.partition("::")[0] for test in near))
    return [(files, {"only": near}), (list(tests), {"without": near})]


def try_one(mutant: Mutant, room: Room | None, tests: Sequence[str], package: pathlib.Path, seconds: float) -> Verdict:
    """Plant a mutant in a copy of the package, run its room's tests, and put the file back as it was."""
    path = package / "meshwright" / mutant.path
    text, kept = path.read_text(), path.stat()
    path.write_text(text[: mutant.start] + mutant.after + text[mutant.end :])
    os.utime(path, (time.time() + 10 * mutant.start,) * 2)  # compiled modules are known by whole seconds
    status, why, taken = NO_TESTS, [""], 0.0
    try:
        for run, told in _stages(mutant, text, room, tests):
            if run and status in PASSED:
                status, why, more = _run(mutant.room, package, run, seconds, told)
                taken += more
    finally:
        path.write_text(text)
        os.utime(path, ns=(kept.st_atime_ns, kept.st_mtime_ns))  # kernels compiled before stay valid
    return Verdict(mutant, status not in PASSED, why[0] if status not in PASSED else "", taken)


def failing(room: str, tests: Sequence[str], package: pathlib.Path, seconds: float) -> list[str]:
    """Return which of a room's tests fail when nothing is planted: a mutant that one of these noticed was not noticed."""
    files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
    status, why, _ = _run(room, package, files, seconds, {"only": list(tests), "all": True})
    return [] if status in PASSED else why
