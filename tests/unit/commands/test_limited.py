"""A limit of time ends what is inside, at whatever moment it comes."""

from __future__ import annotations

import signal

import pytest

from meshwright.base.errors import InputError
from meshwright.commands import _early


@pytest.mark.parametrize("n_turns", [30, 300, 100_000])
def test_an_alarm_on_the_way_in_or_out_is_no_interruption(n_turns: int) -> None:
    """Between the `with` statement and the generator nobody would keep what there is, and it would end as by Ctrl-C."""
    before, n_ended = signal.getsignal(signal.SIGALRM), 0
    for i in range(1, 1501):
        try:
            with _early.limited(f"{0.5 + i * 0.027:.3f}us"):
                for _ in range(n_turns):
                    pass
        except InputError:
            n_ended += 1
        except KeyboardInterrupt:
            pytest.fail(f"turn {i}: the limit ended the program as Ctrl-C does")
        assert signal.getsignal(signal.SIGALRM) is before
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert n_ended > 1400 or n_turns < 100_000  # CPython notices one in some thousands only later
