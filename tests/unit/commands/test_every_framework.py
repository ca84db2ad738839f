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
