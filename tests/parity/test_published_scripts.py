"""Scripts of published runs are read back and priced near their published speeds; nothing of them is fitted here."""

from __future__ import annotations

import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "benchmarks"))

import published_scripts


def test_published_runs_told_as_scripts_are_priced_near_their_speeds() -> None:
    """Mean (largest) errors of November 2026: torchtitan 6.3 % (20.3, interleaved stages), Megatron-Bridge 3.1 % (7.6)."""
    found = published_scripts.table()
    for name, count, mean, most in (("torchtitan", 17, 0.07, 0.22), ("megatron", 11, 0.035, 0.08)):
        errors = [abs(predicted / seconds - 1.0) for of, _, seconds, predicted, _ in found if of == name]
        assert len(errors) == count, "a row of them is no longer read"
        assert statistics.mean(errors) < mean and max(errors) < most
