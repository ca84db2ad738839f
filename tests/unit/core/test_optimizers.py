"""What is told of optimizers: names, bytes of their state, and which of these go together."""

from __future__ import annotations

import pytest

from meshwright.base.errors import InputError, UnknownNameError
from meshwright.core.optimizers import FORMS, OPTIMIZERS, optimizer
from meshwright.core.problem import MixedPrecision


def test_every_optimizer_has_a_form_and_a_source() -> None:
    for name, one in OPTIMIZERS.items():
        assert one.name == name and one.form in FORMS and one.source
    assert [name for name, one in OPTIMIZERS.items() if one.shaped] == ["adam-8bit", "adafactor", "muon"]


@pytest.mark.parametrize(
    ("name", "n_bytes"),
    [
        ("adamw", 12),
        ("adam", 12),
        ("sgd", 4),
        ("sgd-momentum", 8),
        ("lion", 8),
        ("adam-8bit", 4),
        ("adafactor", 4),
        ("muon", 4),
    ],
)
def test_bytes_that_every_weight_has_are_the_copy_and_plain_moments(name: str, n_bytes: int) -> None:
    mixed, wide = MixedPrecision().updated_by(name), MixedPrecision.of("fp32").updated_by(name)
    assert (mixed.optimizer_bytes, mixed.has_copy) == (n_bytes, True)
    assert (wide.optimizer_bytes, wide.has_copy) == (n_bytes - 4, False)
    assert mixed.updated_by(copy=False).optimizer_bytes == n_bytes - 4
    assert mixed.updated_by(copy=False).updated_by(copy=True) == mixed


def test_moments_and_gradients_of_two_bytes() -> None:
    """DeepSeek-V3 (arXiv 2412.19437, section 3.3.3): moments in bf16, the copy and gradients in fp32."""
    told = MixedPrecision().updated_by(state_bytes=2)
    assert (told.optimizer_bytes, told.gradient_bytes, told.has_copy) == (8, 4, True)
    assert told.updated_by("lion").state_bytes == 4  # of another optimizer, its usual
    assert MixedPrecision().updated_by(gradient_bytes=2) == MixedPrecision(gradient_bytes=2)
    assert MixedPrecision().updated_by("adamw") == MixedPrecision()


def test_what_training_kept_before_there_was_a_choice_is_as_it_was() -> None:
    assert MixedPrecision(optimizer_bytes=10).has_copy is False
    assert MixedPrecision(optimizer_bytes=12).has_copy is True
    assert MixedPrecision(weight_bytes=4).has_copy is False


def test_unknown_names_and_widths_are_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"muno.*did you mean 'muon'"):
        optimizer("muno")
    with pytest.raises(InputError, match="optimizer adam-8bit: state_bytes is 4; numbers of its state have 1 bytes"):
        MixedPrecision(optimizer="adam-8bit")
    with pytest.raises(InputError, match="adafactor: state_bytes is 2"):
        MixedPrecision().updated_by("adafactor", state_bytes=2)
