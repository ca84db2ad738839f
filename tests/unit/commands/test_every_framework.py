"""``meshwright plan --for`` every framework and variant that there is, as one types it first: nothing switched off."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright import api, frameworks

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


@pytest.mark.parametrize("word", sorted(LIMITS.values()))
def test_the_grid_swept_by_hand_keeps_to_what_a_framework_has(word: str, tiny: str) -> None:
    """It names degrees of its own, which are refused where they are not there."""
    found = api.plan(tiny, "dgx-h100:8", search="megatron_grid", global_batch=32, framework=word)
    assert found.feasible and not frameworks.refusals(found.problem.framework, found.plan, found.problem)


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


@pytest.mark.parametrize("word", ["megatron", "fsdp2", "transformers:deepspeed"])
def test_frameworks_of_gpus_are_not_planned_for_on_tpus(word: str, meshwright: Any, tiny: str) -> None:
    """Figures for what cannot run would be believed."""
    words = ("plan", tiny, "--cluster", "tpu-v4:8", "--global-batch", "16", "--no-what-if", "-v")
    found = meshwright(*words, "--for", word)
    assert found.code == 2 and "it runs on GPUs, not on TPU-v4 (for TPUs: maxtext)" in found.err
    assert meshwright(*words, "--for", "maxtext").code == 0
    assumed = " ".join(meshwright(*words).out.split())
    assert "note: meshwright: it runs on GPUs, not on TPU-v4" in assumed
