"""Proofs of search best on random small problems: every bound and every refusal against plans that an enumerator plays one by
one.

``python benchmarks/prove.py [--problems 5000] [--seed N] [--plans 200] [--families random,virtual] [--seconds 900]``; seeds are
fresh each day unless given. All kinds of problems take turns, large ones too, of which the tests ask few. It prints of each
how many bounds and refusals were asked, how many were false, and by how much the worst bound exceeded a plan. Bounds of meshes,
schedules and configurations on the way to an answer are compared with all plans too. Ctrl-C ends it with what was counted.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import itertools
import math
import pathlib
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests"), str(ROOT / "tests" / "oracle")]

import joint_enumerator as enumerator  # noqa: E402
from played_bounds import largest_excess  # noqa: E402


class Counts:
    """What was asked of one family of questions, and what was false."""

    def __init__(self) -> None:
        self.n_questions = self.n_played = self.n_bounds = self.n_proven = self.n_refusals = self.n_beaten = 0
        self.n_false_bounds = self.n_false_refusals = self.n_false_parts = 0
        self.worst, self.seconds = -1.0, 0.0

    def judge(self, verdict: enumerator.Verdict) -> None:
        """Count one question; say at once what is false."""
        self.n_questions += 1
        self.n_played += verdict.n_played
        if verdict.false_refusal:
            self.n_false_refusals += 1
            print(f"FALSE REFUSAL  {verdict.question.name}: {verdict.best}", flush=True)
        excess = largest_excess(verdict.question, verdict.fitting)
        if excess.ratio > enumerator.TOLERANCE:
            self.n_false_parts += 1
            print(f"FALSE BOUND ON THE WAY  {verdict.question.name}: {excess}", flush=True)
        if verdict.answer is None or verdict.answer.objective is None or verdict.answer.bound is None:
            self.n_refusals += 1
            return
        self.n_bounds += 1
        value, bound = verdict.answer.objective.value, verdict.answer.bound.value
        self.n_proven += bound >= value * (1 - 1e-9)
        if verdict.best is None:
            return
        self.n_beaten += verdict.best.step_seconds < value * (1 - enumerator.TOLERANCE)
        self.worst = max(self.worst, verdict.excess_ratio)
        if verdict.excess_ratio > enumerator.TOLERANCE:
            self.n_false_bounds += 1
            print(f"FALSE BOUND  {verdict.question.name}: bound {bound}, answer {value}: {verdict.best}", flush=True)

    def line(self, family: str) -> str:
        """Return all of it in one line."""
        return (
            f"{family:10} {self.n_questions:5} problems, {self.n_played:7} plans played, {self.seconds:6.0f} CPU s | "
            f"bounds {self.n_bounds:5}, gap 0: {self.n_proven:5}, false: {self.n_false_bounds}, worst over best plan "
            f"{self.worst:+.1e}, beaten within their gap: {self.n_beaten} | refusals {self.n_refusals:4}, "
            f"false: {self.n_false_refusals} | bounds on the way false: {self.n_false_parts}"
        )


def main() -> int:
    """Ask, compare, print; return 1 where anything was false."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=datetime.date.today().toordinal() * 100_000)
    parser.add_argument("--plans", type=int, default=200, help="plans played of each problem")
    parser.add_argument("--families", default=",".join(enumerator.FAMILIES), help="kinds of problems, asked in turn")
    parser.add_argument("--seconds", type=float, default=math.inf, help="CPU seconds after which no more is asked")
    asked = parser.parse_args()
    counts = {family: Counts() for family in asked.families.split(",")}
    if unknown := sorted(counts.keys() - enumerator.FAMILIES.keys()):
        parser.error(f"--families: {', '.join(unknown)}; there are {', '.join(enumerator.FAMILIES)}")
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(KeyboardInterrupt):
        for seed, family in zip(range(asked.seed, asked.seed + asked.problems), itertools.cycle(counts)):
            if time.process_time() > asked.seconds:
                break
            started = time.process_time()
            counts[family].judge(enumerator.ask(family, seed, pathlib.Path(folder), asked.plans))
            counts[family].seconds += time.process_time() - started
    print(f"{sum(own.n_questions for own in counts.values())} problems from seed {asked.seed}")
    print("\n".join(own.line(family) for family, own in counts.items()))
    return int(any(own.n_false_bounds or own.n_false_refusals or own.n_false_parts for own in counts.values()))


if __name__ == "__main__":
    sys.exit(main())
