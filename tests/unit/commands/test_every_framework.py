"""``meshwright plan --for`` every framework and variant that there is, as one types it first: nothing switched off."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright import frameworks

LIMITS = {
    str(one.limits): one.word
    for name in reversed(frameworks.names())
    for one in (*(other.framework for other in frameworks.variants(name)), frameworks.plain(name))
}  # one for all variants that run the same plans


@pytest.mark.parametrize("word", sorted(LIMITS.values()))
def test_plans_and_says_what_would_help(word: str, meshwright: Any, tiny: str) -> None:
    """A degree that a framework lacks is refused where it is asked for, so nothing of ours may ask for it."""
    found = meshwright("plan", tiny, "--cluster", "dgx-h100:8", "--global-batch", "32", "--for", word)
    assert found.code == 0, found.err
    assert word in found.out and "twice the memory" in found.out


def test_what_would_help_keeps_a_micro_batch_that_is_given(meshwright: Any, tiny: str) -> None:
    found = meshwright("plan", tiny, "--cluster", "dgx-h100:8", "--global-batch", "32", "--micro-batch", "2", "-v")
    assert found.code == 0, found.err
    helped = found.out[found.out.index("what would help most") :]
    assert "twice the memory" in helped and "micro-batches of 2" in helped and "micro-batches of 4" not in helped


def test_a_schedule_without_the_pipeline_it_needs_is_refused_with_that_reason(meshwright: Any) -> None:
    """One table of words for both ends: torchtitan has no pipeline for it."""
    words = ("plan", "llama-3.2-1b", "--cluster", "dgx-h100:8", "--global-batch", "8")
    found = meshwright(*words, "--for", "torchtitan:functions", "--set", "schedules=zb_h1")
    assert found.code == 2
    assert "pipeline 1, all that framework torchtitan:functions has here, runs 1f1b" in found.err
