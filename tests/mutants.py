"""Plant small bugs in the package, one at a time, and see whether the tests of the same room notice (`make mutants`).

A room is a folder of the package; which tests are its own is said once, in ``mutants.toml``. A mutant is one change of the syntax
tree: an operator, a comparison, a constant, a term dropped, a condition negated, a statement gone. It is planted in a copy of the
package, and the room's tests run against it until the first fails (killed) or all pass (survived). Kernels run as plain Python.
"""  # noqa: E501

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import pathlib
import queue
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from mutations import SOURCE, Mutant, mutants, one_line

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference" / "mutants.md"
BASELINES = ROOT / "build" / "mutants"  # how long each room's tests took against the package as it is, and against which
N_AT_ONCE = 2
LONGEST_SECONDS = 1200.0  # of the wall, for a mutant that waits without working
LARGEST_BYTES = 16 * 2**30  # address space of one run: a mutant that allocates without end is stopped
KERNELS = "_kernels"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the room's tests said of a mutant: the first test that failed, or none; `seconds` of a processor."""

    mutant: Mutant
    killed: bool
    why: str
    seconds: float


def settings() -> dict:
    """Return ``mutants.toml``."""
    return tomllib.loads((ROOT / "tests" / "mutants.toml").read_text())


def room_of(path: pathlib.Path, rooms: Sequence[str]) -> str | None:
    """Return the room of a file: the longest folder (or file) of the list that holds it; None where no room does."""
    name = str(path.relative_to(SOURCE))
    held = [room for room in rooms if name == room or name.startswith(f"{room}/")]
    return max(held, key=len) if held else None


def rooms() -> dict[str, list[Mutant]]:
    """Return the mutants of every room; files of the package that belong to no room are an error."""
    chosen = settings()
    found: dict[str, list[Mutant]] = {room: [] for room in chosen["rooms"]}
    for path in sorted(SOURCE.rglob("*.py")):
        room = room_of(path, list(found))
        if room is not None:
            found[room] += mutants(room, path)
        elif room_of(path, list(chosen["without"])) is None and mutants("", path):
            raise SystemExit(f"{path.relative_to(SOURCE)} belongs to no room of tests/mutants.toml")
    equivalent = set(chosen["equivalent"])
    return {room: [mutant for mutant in listed if mutant.name not in equivalent] for room, listed in found.items()}


def room_tests() -> dict[str, list[str]]:
    """Return the tests of every room: files, and single tests of files; those that are not there are an error."""
    found: dict[str, list[str]] = {}
    for room, names in settings()["rooms"].items():
        tests: list[str] = []
        for name in names:
            path = ROOT / "tests" / name.partition("::")[0]
            if not path.exists():
                raise SystemExit(f"tests/mutants.toml: room {room!r} names tests/{name}, which does not exist")
            tests += (
                sorted(str(file.relative_to(ROOT)) for file in path.glob("test_*.py")) if path.is_dir() else [f"tests/{name}"]
            )
        found[room] = list(dict.fromkeys(tests))
    return found


def sample(n: int, seed: int, only: Sequence[str], without: Sequence[str]) -> tuple[list[Mutant], int]:
    """Return `n` mutants drawn with `seed`, each as likely as any other, and from how many; `only` and `without` name rooms."""
    listed = rooms()
    for room in (*only, *without):
        if room not in listed:
            raise SystemExit(f"no room {room!r}; rooms: {', '.join(listed)}")
    everything = [mutant for room in (only or listed) if room not in without for mutant in listed[room]]
    return random.Random(seed).sample(everything, min(n, len(everything))), len(everything)


def _nearest_first(tests: list[str], path: str) -> list[str]:
    """Return the tests with those first that name the module of `path`: they fail soonest."""
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    word = module.rpartition(".")[2].strip("_")

    def distance(test: str) -> tuple[bool, bool]:
        text = (ROOT / test.partition("::")[0]).read_text()
        return f"meshwright.{module}" not in text, word not in text

    return sorted(tests, key=distance)


def _run(package: pathlib.Path, tests: Sequence[str], seconds: float, plain: bool) -> tuple[int, str, float]:
    """Run tests against a copy of the package; return pytest's exit status, the first failure, and the seconds of a processor."""  # noqa: E501
    environment = {**os.environ, "PYTHONPATH": str(package), "HYPOTHESIS_STORAGE_DIRECTORY": str(package / "hypothesis")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:xdist", "-p", "no:cacheprovider", "--tb=no", "-m", "not slow"]
    if plain:
        environment["NUMBA_DISABLE_JIT"] = "1"
        command += ["-W", "ignore::RuntimeWarning"]  # hashes overflow on purpose, which compiled code does in silence
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            [*command, "--hypothesis-seed=0", *tests], cwd=ROOT, env=environment, start_new_session=True, stdout=output,
            stderr=subprocess.STDOUT, preexec_fn=lambda: _limit(seconds),
        )  # fmt: skip
        alarm = threading.Timer(LONGEST_SECONDS, os.killpg, (process.pid, signal.SIGKILL))
        alarm.start()
        _, status, usage = os.wait4(process.pid, 0)
        alarm.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read()
    failed = [line.split()[1] for line in text.splitlines() if line.startswith(("FAILED", "ERROR")) and len(line.split()) > 1]
    why = "out of time" if process.returncode < 0 else failed[0] if failed else one_line(text)[-200:]
    return process.returncode, why, usage.ru_utime + usage.ru_stime


def _limit(seconds: float) -> None:
    """Let the process that tests run in have so much time of a processor, and memory that leaves room for others."""
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds), math.ceil(seconds)))
    resource.setrlimit(resource.RLIMIT_AS, (LARGEST_BYTES, LARGEST_BYTES))


def _fingerprint(tests: Sequence[str]) -> str:
    """Return a hash of the package and of tests: a baseline holds as long as it stays the same."""
    digest = hashlib.sha256()
    for path in [*sorted(SOURCE.rglob("*.py")), *(ROOT / test.partition("::")[0] for test in tests)]:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _baseline(room: str, package: pathlib.Path, limit: float) -> tuple[float, str]:
    """Return how long a room's tests take when nothing is planted; or, with 0, why nothing can be said of its mutants."""
    tests = room_tests()[room]
    mark = _fingerprint(tests)
    kept = BASELINES / (room.replace("/", ".") + ".json")
    known = json.loads(kept.read_text()) if kept.exists() else {}
    if known.get("of") == mark:
        return known["seconds"], ""
    status, why, seconds = _run(package, tests, limit, room.startswith(KERNELS))
    print(f"{room}: {seconds:.1f} s as it is{f', but fails: {why}' if status else ''}", flush=True)
    if status:
        return 0.0, why
    BASELINES.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps({"of": mark, "seconds": seconds}))
    return seconds, ""


def _try(mutant: Mutant, package: pathlib.Path, seconds: float) -> Verdict:
    """Plant a mutant in a copy of the package, run its room's tests, and put the file back as it was."""
    path = package / "meshwright" / mutant.path
    text, kept = path.read_text(), path.stat()
    path.write_text(text[: mutant.start] + mutant.after + text[mutant.end :])
    os.utime(
        path, (time.time() + 10 * mutant.start, time.time() + 10 * mutant.start)
    )  # compiled modules are known by whole seconds
    try:
        tests = _nearest_first(room_tests()[mutant.room], mutant.path)
        status, why, taken = _run(package, tests, seconds, mutant.room.startswith(KERNELS))
    finally:
        path.write_text(text)
        os.utime(path, ns=(kept.st_atime_ns, kept.st_mtime_ns))  # kernels compiled before stay valid
    return Verdict(mutant, status != 0, why if status else "", taken)


def try_all(
    drawn: Sequence[Mutant], folder: pathlib.Path, limit: float, minutes: float
) -> tuple[list[Verdict], dict[str, str]]:
    """Return the verdicts, two at a time, in the order drawn, and the rooms of which nothing can be said, with why.

    After so many minutes no other mutant is begun: those tried are the first of the draw, as fair a sample as all of it.
    """
    end = time.monotonic() + 60.0 * minutes
    copies: queue.Queue[pathlib.Path] = queue.Queue()
    for i in range(N_AT_ONCE):
        package = folder / str(i)
        shutil.copytree(SOURCE, package / "meshwright")
        copies.put(package)

    def as_it_is(room: str) -> tuple[float, str]:
        package = copies.get()
        try:
            return _baseline(room, package, limit)
        finally:
            copies.put(package)

    def one(mutant: Mutant) -> Verdict | None:
        if time.monotonic() > end:
            return None
        package = copies.get()
        try:
            verdict = _try(mutant, package, 1.5 * known[mutant.room][0] + 5.0)
        finally:
            copies.put(package)
        print(
            f"{'killed  ' if verdict.killed else 'SURVIVED'} {verdict.seconds:5.1f} s  {_said(mutant)}  {verdict.why}",
            flush=True,
        )
        return verdict

    with ThreadPoolExecutor(N_AT_ONCE) as pool:
        named = sorted({mutant.room for mutant in drawn})
        known = dict(zip(named, pool.map(as_it_is, named), strict=True))
        verdicts = list(pool.map(one, [mutant for mutant in drawn if not known[mutant.room][1]]))
    return [verdict for verdict in verdicts if verdict is not None], {room: why for room, (_, why) in known.items() if why}


def _said(mutant: Mutant) -> str:
    return f"{mutant.path}:{mutant.line}  {one_line(mutant.before)[:90]}  ->  {one_line(mutant.after)[:90]}"


def report(verdicts: Sequence[Verdict], silent: Mapping[str, str], seed: int, n_all: int) -> str:
    """Return the page: killed and survived by room, and every survivor."""
    n_killed = sum(verdict.killed for verdict in verdicts)
    lines = [
        "# Mutants: do the tests of a room notice a bug planted in it?",
        "",
        "Made by `make mutants`; see `tests/mutants.py` for what is planted and `tests/mutants.toml` for which tests are a room's own.",  # noqa: E501
        "",
        f"{len(verdicts)} mutants drawn with seed {seed} from {n_all}: {n_killed} killed ({100 * n_killed / len(verdicts):.0f} %), "  # noqa: E501
        f"{len(verdicts) - n_killed} survived.",
        "",
        "| room | tried | killed | survived |",
        "|---|--:|--:|--:|",
    ]
    for room in sorted({verdict.mutant.room for verdict in verdicts}):
        of_room = [verdict.killed for verdict in verdicts if verdict.mutant.room == room]
        lines.append(f"| `{room}` | {len(of_room)} | {sum(of_room)} | {len(of_room) - sum(of_room)} |")
    lines += [f"| `{room}` | not tried: {why} | | |" for room, why in sorted(silent.items())]
    survivors = [verdict.mutant for verdict in verdicts if not verdict.killed]
    if survivors:
        lines += ["", "## Survivors", ""]
    for mutant in sorted(survivors, key=lambda mutant: (mutant.path, mutant.line)):
        lines += [
            f"`{mutant.path}:{mutant.line}`",
            "",
            "```diff",
            f"- {one_line(mutant.before)}",
            f"+ {one_line(mutant.after)}",
            "```",
            "",
        ]
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    """Draw, try, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--n", type=int, default=60, help="mutants to draw")
    parser.add_argument(
        "--room", action="append", default=[], help="draw from this room only; repeatable; the page stays as it is"
    )
    parser.add_argument("--without", action="append", default=[], help="draw nothing from this room; repeatable")
    parser.add_argument(
        "--limit", type=float, default=180.0, help="seconds of a processor that a room's tests may take as the package is"
    )
    parser.add_argument("--minutes", type=float, default=math.inf, help="after these no other mutant is begun")
    parser.add_argument("--draw", action="store_true", help="print the mutants, try none")
    chosen = parser.parse_args()
    drawn, n_all = sample(chosen.n, chosen.seed, chosen.room, chosen.without)
    if chosen.draw:
        print("\n".join(_said(mutant) for mutant in drawn))
        return
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        verdicts, silent = try_all(drawn, pathlib.Path(folder), chosen.limit, chosen.minutes)
    page = report(verdicts, silent, chosen.seed, n_all)
    print(page)
    if not chosen.room:
        PAGE.write_text(page)


if __name__ == "__main__":
    main()
