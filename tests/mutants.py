"""Plant small bugs in the package, one at a time, and see whether the tests of the same room notice (`make mutants`).

A room is a folder of the package; which tests are its own is said once, in ``mutants.toml``. A mutant is one change of the syntax
tree: an operator, a comparison, a constant, a term dropped, a condition negated, a statement gone. It is planted in a copy of the
package, and the room's tests run against it until the first fails (killed) or all pass (survived). Kernels run as plain Python.
"""  # noqa: E501

from __future__ import annotations

import argparse
import json
import math
import pathlib
import queue
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, replace

from mutant_runs import KEPT, ROOT, Verdict, failing, fingerprint, look, seen, try_one
from mutations import SOURCE, Mutant, changes_code, mutants, one_line

PAGE = ROOT / "docs" / "reference" / "mutants.md"


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
    return found


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


def sample(n: int, seed: int, only: Sequence[str], without: Sequence[str]) -> tuple[list[Mutant], int, int]:
    """Return `n` mutants drawn with `seed`, each as likely as any other, from how many, and how many were left out on the way.

    Left out are those that no test can notice: the compiler makes the same code of them, or ``mutants.toml`` lists them with the
    reason. The next of the draw takes the place, so that to list one moves no other.

    `only`: rooms to draw from, all without; `without`: rooms whose mutants are drawn and then left out, so that the others stay the same.
    """  # noqa: E501
    listed = rooms()
    for room in (*only, *without):
        if room not in listed:
            raise SystemExit(f"no room {room!r}; rooms: {', '.join(listed)}")
    everything = [mutant for room in (only or listed) for mutant in listed[room]]
    equivalent, drawn, n_left_out = set(settings()["equivalent"]), [], 0
    for mutant in random.Random(seed).sample(everything, len(everything)):
        if len(drawn) == n:
            break
        if mutant.name in equivalent or not changes_code(mutant):
            n_left_out += 1
        else:
            drawn.append(mutant)
    return [mutant for mutant in drawn if mutant.room not in without], len(everything), n_left_out


def planted(only: Sequence[str], without: Sequence[str]) -> list[Mutant]:
    """Return the bugs that ``mutants.toml`` lists by hand; one whose text is not there once is an error."""
    chosen, found = settings(), []
    for bug in chosen["planted"]:
        path = SOURCE / bug["file"]
        text, room = path.read_text(), room_of(path, list(chosen["rooms"]))
        if text.count(bug["before"]) != 1:
            raise SystemExit(f"tests/mutants.toml: {bug['before']!r} is not once in {bug['file']}")
        start = text.index(bug["before"])
        line = text.count("\n", 0, start) + 1
        found.append(Mutant(room, bug["file"], line, start, start + len(bug["before"]), bug["before"], bug["after"]))
    return [mutant for mutant in found if mutant.room not in without and (not only or mutant.room in only)]


def copies_of_the_package(n: int, folder: pathlib.Path) -> queue.Queue[pathlib.Path]:
    """Return copies that mutants are planted in, each with what pytest loads beside it."""
    made: queue.Queue[pathlib.Path] = queue.Queue()
    for i in range(n):
        package = folder / str(i)
        shutil.copytree(SOURCE, package / "meshwright")
        shutil.copy(ROOT / "tests" / "mutant_plugin.py", package)
        made.put(package)
    return made


def try_all(drawn: Sequence[Mutant], folder: pathlib.Path, written: pathlib.Path, chosen: argparse.Namespace) -> list[Verdict]:
    """Return the verdicts in the order drawn.

    Every verdict is written to a file as it comes, and taken from there where the same was tried before. After so many minutes no other
    mutant is begun: those tried are the first of the draw, as fair a sample as all of it.
    """  # noqa: E501
    end = time.monotonic() + 60.0 * chosen.minutes
    tests = room_tests()
    marks = {room: fingerprint(tests[room]) for room in {mutant.room for mutant in drawn}}
    lines = map(json.loads, written.read_text().splitlines() if written.exists() else ())
    before = {tuple(line["mutant"]): line for line in lines}
    copies, writing = copies_of_the_package(chosen.at_once, folder), threading.Lock()

    def one(mutant: Mutant) -> Verdict | None:
        key = (*astuple(mutant), marks[mutant.room])
        if key in before:
            return Verdict(mutant, **{name: before[key][name] for name in ("killed", "why", "seconds")})
        package = copies.get()
        try:
            if time.monotonic() > end:
                return None
            verdict = try_one(mutant, seen(mutant.room, tests[mutant.room]), tests[mutant.room], package, chosen.limit)
        finally:
            copies.put(package)
        line = {"killed": verdict.killed, "seconds": verdict.seconds, "why": verdict.why, "mutant": key}
        with writing, written.open("a") as file:
            file.write(json.dumps(line) + "\n")
        said = "killed  " if verdict.killed else "SURVIVED"
        print(f"{said} {verdict.seconds:5.1f} s  {_said(mutant)}  {verdict.why}", flush=True)
        return verdict

    with ThreadPoolExecutor(chosen.at_once) as pool:
        verdicts = list(pool.map(one, drawn))
    # those after the first that was not begun would be a choice
    n_tried = verdicts.index(None) if None in verdicts else len(verdicts)
    return _checked([verdict for verdict in verdicts[:n_tried] if verdict is not None], copies.get(), chosen.limit)


def _checked(verdicts: list[Verdict], package: pathlib.Path, seconds: float) -> list[Verdict]:
    """Return the verdicts with those taken back that rest on a test that fails when nothing is planted, too."""
    for room in sorted({verdict.mutant.room for verdict in verdicts}):
        noticed = {verdict.why for verdict in verdicts if verdict.mutant.room == room and verdict.why.startswith("tests/")}
        wrong = failing(room, sorted(noticed), package, seconds) if noticed else []
        if wrong:
            print(f"{room}: fails as it is: {', '.join(wrong)}", flush=True)
            verdicts = [
                replace(it, killed=False, why="fails as it is") if it.mutant.room == room and it.why in wrong else it
                for it in verdicts
            ]
    return verdicts


def look_at_all(folder: pathlib.Path, chosen: argparse.Namespace) -> None:
    """See which tests run which lines, room by room."""
    copies = copies_of_the_package(chosen.at_once, folder)

    def one(room: str, found: list[Mutant]) -> None:
        tests = room_tests()[room]
        if room in chosen.without or (chosen.room and room not in chosen.room) or seen(room, tests):
            return
        package = copies.get()
        why = look(room, sorted({mutant.path for mutant in found}), tests, package, 4 * chosen.limit)
        copies.put(package)
        print(f"{room}: {why or 'looked at'}", flush=True)

    with ThreadPoolExecutor(chosen.at_once) as pool:
        list(pool.map(one, *zip(*rooms().items(), strict=True)))


def _said(mutant: Mutant) -> str:
    return f"{mutant.path}:{mutant.line}  {one_line(mutant.before)[:90]}  ->  {one_line(mutant.after)[:90]}"


def interval(n_killed: int, n: int, z: float = 1.645) -> tuple[float, float]:
    """Return Wilson's interval of a share: its 90 % interval, with the default `z`."""
    share, spread = n_killed / n, z * math.sqrt(n_killed * (n - n_killed) / n + z * z / 4)
    centre, scale = share + z * z / (2 * n), 1 + z * z / n
    return (centre - spread / n) / scale, (centre + spread / n) / scale


def report(title: str, verdicts: Sequence[Verdict], told: str, is_sample: bool) -> str:
    """Return a section of the page: killed and survived by room, and every survivor."""
    n, n_killed = len(verdicts), sum(verdict.killed for verdict in verdicts)
    low, high = interval(n_killed, n)
    share = f"{100 * n_killed / n:.1f} %" + (f"; 90 % interval {100 * low:.0f} to {100 * high:.0f} %" if is_sample else "")
    seconds = sum(verdict.seconds for verdict in verdicts)
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    lines = [
        f"## {title}",
        "",
        f"{told} Commit {commit}: {n} tried in {seconds / 60:.1f} minutes of a processor, "
        f"**{n_killed} killed ({share})**, {n - n_killed} survived.",
        "",
        "| room | tried | killed | survived |",
        "|---|--:|--:|--:|",
    ]
    for room in sorted({verdict.mutant.room for verdict in verdicts}):
        of_room = [verdict.killed for verdict in verdicts if verdict.mutant.room == room]
        lines.append(f"| `{room}` | {len(of_room)} | {sum(of_room)} | {len(of_room) - sum(of_room)} |")
    survivors = [verdict.mutant for verdict in verdicts if not verdict.killed]
    if survivors:
        lines += ["", "| survivor | before | after |", "|---|---|---|"]
    for mutant in sorted(survivors, key=lambda mutant: (mutant.path, mutant.line)):
        before, after = (one_line(text)[:120].replace("|", "\\|") for text in (mutant.before, mutant.after))
        lines.append(f"| `{mutant.path}:{mutant.line}` | `{before}` | `{after}` |")
    return "\n".join(lines) + "\n"


def put(page: str, section: str) -> str:
    """Return the page with a section in place of that of the same title, or at its end."""
    parts = re.split(r"(?m)^(?=## )", page)
    title = section.partition("\n")[0]
    if all(part.partition("\n")[0] != title for part in parts):
        return f"{page.rstrip()}\n\n{section}"
    return "\n\n".join((section if part.partition("\n")[0] == title else part).strip() for part in parts) + "\n"


def main() -> None:
    """Draw, try, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--n", type=int, default=60, help="mutants to draw")
    parser.add_argument("--planted", action="store_true", help="try the bugs that mutants.toml lists by hand, draw none")
    parser.add_argument(
        "--room", action="append", default=[], help="draw from this room only; repeatable; the page stays as it is"
    )
    parser.add_argument("--without", action="append", default=[], help="leave out what is drawn from this room; repeatable")
    parser.add_argument("--at-once", type=int, default=2, help="mutants that are tried at the same time")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds of a processor that a room's tests may take")
    parser.add_argument("--minutes", type=float, default=math.inf, help="after these no other mutant is begun")
    parser.add_argument("--draw", action="store_true", help="print the mutants, try none")
    parser.add_argument("--look", action="store_true", help="see which tests run which lines, which saves time later; try none")
    chosen = parser.parse_args()
    if chosen.look:
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
            look_at_all(pathlib.Path(folder), chosen)
        return
    if chosen.planted:
        drawn = planted(chosen.room, chosen.without)
        title, told = "Bugs of the list", f"`make mutants MUTANTS={shlex.quote(shlex.join(sys.argv[1:]))}`."
    else:
        drawn, n_all, n_left_out = sample(chosen.n, chosen.seed, chosen.room, chosen.without)
        title = f"Seed {chosen.seed}"
        told = f"`make mutants MUTANTS={shlex.quote(shlex.join(sys.argv[1:]))}`: {chosen.n} drawn from {n_all:,}, "
        told += f"{n_left_out} more left out that change nothing."
    if chosen.draw:
        print("\n".join(_said(mutant) for mutant in drawn))
        return
    KEPT.mkdir(parents=True, exist_ok=True)
    written = KEPT / f"{title.lower().replace(' ', '-')}.jsonl"
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        verdicts = try_all(drawn, pathlib.Path(folder), written, chosen)
    section = report(title, verdicts, told, not chosen.planted)
    print(section)
    if not chosen.room:
        PAGE.write_text(put(PAGE.read_text(), section))


if __name__ == "__main__":
    main()
