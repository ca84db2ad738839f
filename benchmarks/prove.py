"""Proofs of search best on random small problems: every bound and every refusal against plans that an enumerator plays one by
one.

``python benchmarks/prove.py [--problems 5000] [--seed N] [--plans 200]``; seeds are fresh each day unless given. It prints how
many bounds and refusals were asked, how many were false, and by how much the worst bound exceeded a plan.
"""

from __future__ import annotations

import argparse
import datetime
import pathlib
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests"), str(ROOT / "tests" / "oracle")]

import joint_enumerator as enumerator  # noqa: E402


def main() -> int:
    """Ask, compare, print; return 1 where anything was false."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=5000)
    parser.add_argument("--plans", type=int, default=200, help="plans played of each problem")
    parser.add_argument("--seed", type=int, default=datetime.date.today().toordinal() * 100_000)
    asked = parser.parse_args()
    n_bounds = n_proven = n_refusals = n_false_bounds = n_false_refusals = n_beaten = n_played = 0
    worst, started = -1.0, time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(asked.seed, asked.seed + asked.problems):
            verdict = enumerator.ask(seed, pathlib.Path(folder), asked.plans)
            n_played += verdict.n_played
            if verdict.false_refusal:
                n_false_refusals += 1
                print(f"FALSE REFUSAL  {verdict.question.name}: {verdict.best}", flush=True)
            if verdict.answer is None or verdict.answer.objective is None or verdict.answer.bound is None:
                n_refusals += 1
                continue
            n_bounds += 1
            value, bound = verdict.answer.objective.value, verdict.answer.bound.value
            n_proven += bound >= value * (1 - 1e-9)
            if verdict.best is None:
                continue
            n_beaten += verdict.best.step_seconds < value * (1 - enumerator.TOLERANCE)
            worst = max(worst, verdict.excess_ratio)
            if verdict.excess_ratio > enumerator.TOLERANCE:
                n_false_bounds += 1
                print(f"FALSE BOUND  {verdict.question.name}: bound {bound}, answer {value}: {verdict.best}", flush=True)
    print(
        f"{asked.problems} problems from seed {asked.seed}, {n_played} plans played, "
        f"{time.process_time() - started:.0f} CPU seconds"
    )
    print(f"bounds {n_bounds}, of them gap 0: {n_proven}; false: {n_false_bounds}; worst bound over best plan: {worst:+.2e}")
    print(f"refusals {n_refusals}; false: {n_false_refusals}; answers that a played plan beats, within their gap: {n_beaten}")
    return 1 if n_false_bounds or n_false_refusals else 0


if __name__ == "__main__":
    sys.exit(main())
