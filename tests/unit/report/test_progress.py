"""What is said on stderr while something takes its time ends with it, whenever an interrupt comes."""

from __future__ import annotations

import threading

import pytest

from meshwright.report import progress as reports


def ended(before: set[threading.Thread]) -> bool:
    """Tell whether every thread that is not of `before` ends."""
    for thread in set(threading.enumerate()) - before:
        thread.join(10.0)
    return set(threading.enumerate()) <= before


def test_work_that_ends_or_fails_is_told_of_no_more() -> None:
    before = set(threading.enumerate())
    with reports.progress("planning"):
        assert len(threading.enumerate()) == len(before) + 1
    assert ended(before)
    with pytest.raises(ValueError), reports.progress("planning"):
        raise ValueError
    assert ended(before)


@pytest.mark.parametrize("where", ["start", "end"])
def test_an_interrupt_while_it_begins_or_ends_leaves_nothing_talking(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before, start, was_set = set(threading.enumerate()), threading.Thread.start, threading.Event.set

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        raise KeyboardInterrupt

    def not_set(event: threading.Event) -> None:
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        was_set(event)

    if where == "start":
        monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt), reports.progress("planning"):
        if where == "end":
            monkeypatch.setattr(threading.Event, "set", not_set)
    monkeypatch.undo()
    assert ended(before)
