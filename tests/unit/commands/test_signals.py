"""SIGTERM, by which schedulers end programs, is taken as Ctrl-C; once all is said, Ctrl-C breaks nothing."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from meshwright import __main__, cli


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Put back what a program changes for good, since it ends."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("heed", [signal.default_int_handler, signal.SIG_IGN])
def test_a_scheduler_ends_a_command_as_ctrl_c_does(
    heed: signal.Handlers, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also in the background of a shell, where Ctrl-C is not heard."""
    signal.signal(signal.SIGINT, heed)
    monkeypatch.setattr(cli, "main", lambda: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(SystemExit) as stopped:
        __main__.main()
    assert stopped.value.code == 130 and capsys.readouterr().err == "meshwright: interrupted; nothing was written\n"


def test_a_search_that_asks_hears_it_as_it_hears_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    pressed: list[int] = []

    def main() -> None:
        signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(cli, "main", main)
    __main__.main()
    assert len(pressed) == 1
    signal.raise_signal(signal.SIGINT)  # all is said
    assert len(pressed) == 1
