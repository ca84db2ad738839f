"""Llama 3's published run: 54 days on 16,384 H100, 419 unexpected interruptions, more than 90 % effective training time.

"The Llama 3 Herd of Models", arXiv 2407.21783, sec. 3.3.4. Inputs are the paper's (interruptions by cause, 2 TB/s of storage,
405 B weights of 14 bytes with their optimizer state) and MegaScale's restart of less than 10 minutes (arXiv
2402.15627, sec. 6.3).
"""

from __future__ import annotations

import pytest

from meshwright import api
from meshwright.core.problem import Batch
from meshwright.sizing.goodput import Upkeep, checkpoint_bytes
from meshwright.sizing.told import upkeep


@pytest.fixture(scope="module")
def state_bytes() -> float:
    return checkpoint_bytes(api.make_problem("llama-3.1-405b", "dgx-h100:8", batch=Batch(1)))


def test_the_state_of_405b_weights(state_bytes: float) -> None:
    assert state_bytes == pytest.approx(405.85e9 * 14, rel=2e-3)


def test_effective_time_is_the_published_one_within_a_few_per_cent(state_bytes: float) -> None:
    found = upkeep().of(state_bytes, 16384, 8)
    assert 54 * 86400 / found.mtbf_seconds == pytest.approx(419)
    assert 0.90 < found.effective_ratio < 0.94
    assert found.interval_seconds == pytest.approx(
        (2 * found.checkpoint_seconds * found.mtbf_seconds) ** 0.5, rel=0.02
    )  # Young


def test_it_is_no_accident_of_the_inputs(state_bytes: float) -> None:
    slow = upkeep("", {"restart": "1h"}).of(state_bytes, 16384, 8)
    assert slow.effective_ratio < 0.75
    often = upkeep("5000h").of(state_bytes, 16384, 8)
    assert often.effective_ratio < 0.6
    assert isinstance(upkeep(), Upkeep)
