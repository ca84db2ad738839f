"""Errors are few, and their messages say what to do."""

from __future__ import annotations

import pytest

from meshwright.base import errors


def test_wrong_input_can_be_caught_as_the_builtin_it_is() -> None:
    assert issubclass(errors.InputError, ValueError)
    assert issubclass(errors.UnknownNameError, LookupError)
    assert issubclass(errors.MissingExtraError, ImportError)
    assert all(issubclass(getattr(errors, name), errors.MeshwrightError) for name in errors.__all__)


def test_an_unknown_name_is_answered_by_the_closest_and_all_known_in_order() -> None:
    message = str(errors.UnknownNameError("search", "pyper", ["piper", "best"]))
    assert message == "no search called 'pyper'; did you mean 'piper'? (there are: best, piper)"


def test_a_name_far_from_all_gets_no_suggestion() -> None:
    assert "did you mean" not in str(errors.UnknownNameError("search", "zzz", ["piper", "best"]))


def test_a_missing_extra_says_how_to_install_it() -> None:
    with pytest.raises(errors.MissingExtraError, match=r"pip install 'meshwright\[torch\]'"):
        raise errors.MissingExtraError("capturing a module", "torch")


def test_a_name_in_short_is_answered_by_what_ends_so() -> None:
    known = ("dgx-h100", "p5-h100", "g6-l4")
    assert "did you mean 'dgx-h100'?" in str(errors.UnknownNameError("cluster", "h100", known))
    assert "did you mean 'g6-l4'?" in str(errors.UnknownNameError("cluster", "l4", known))
    assert "did you mean 'g6-l4'?" in str(errors.UnknownNameError("cluster", "6-", known))
