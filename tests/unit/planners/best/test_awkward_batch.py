"""The note on a batch that divides among few of the devices: which batch near it is named, and when nothing is said."""

from __future__ import annotations

import pytest

from meshwright import api
from meshwright.core.problem import Batch
from meshwright.planners.best.limits import Limits
from meshwright.planners.best.question import awkward_batch


@pytest.mark.parametrize(
    ("batch", "n_devices", "said"),
    [
        (101, 21, "101 samples and 21 devices have no common divisor; 105 samples divide over 21 devices"),
        (97, 16, "97 samples and 16 devices have no common divisor; 96 samples divide over 16 devices"),
        (97, 64, "97 samples and 64 devices have no common divisor; 96 samples divide over 32 devices"),
        (60, 64, "60 samples and 64 devices have no common divisor above 4; 64 samples divide over 64 devices"),
        (7, 32, "7 samples and 32 devices have no common divisor; 8 samples divide over 8 devices"),
        (105, 21, ""), (512, 64, ""), (4, 64, ""), (3, 8, ""), (1, 8, ""), (9, 1, ""), (513, 3, ""),
    ],
)  # fmt: skip
def test_a_batch_near_it_that_divides_is_named(batch: int, n_devices: int, said: str) -> None:
    asked = api.make_problem("gpt2", f"flat:{n_devices}", batch=Batch(batch))
    assert awkward_batch(asked, Limits()) == said
    assert awkward_batch(asked, Limits(data=(1,))) == "" == awkward_batch(asked, Limits(micro_batch=(1,)))


def test_the_note_stands_beside_a_plan_and_beside_none() -> None:
    planned = api.plan("gpt2", "dgx-h100:8", batch=Batch(13, 0, 64))
    nothing = api.plan("llama-3.2-3b", "g5-a10g:4", batch=Batch(13))
    assert planned.feasible and not nothing.feasible
    for found, n in ((planned, 8), (nothing, 4)):
        assert any(note.startswith(f"13 samples and {n} devices have no common divisor") for note in found.answer.notes)
    assert "the smallest doubling" in nothing.answer.nearest and "a step of at most about" in nothing.answer.nearest


def test_nothing_is_said_where_a_framework_cannot_take_all_devices() -> None:
    """Eleven devices are a host of eight and one of three."""
    for framework, says in (("", True), ("transformers", False)):
        asked = api.make_problem("gpt2", "dgx-h100:11", batch=Batch(10), framework=framework)
        assert bool(awkward_batch(asked, Limits())) is says
