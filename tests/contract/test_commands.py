"""Every command keeps the promises of its room: one word, help, and wrong words answered in one line with exit code 2."""

from __future__ import annotations

import sys

import pytest
import typer
from typer.main import get_group

from meshwright import cli
from meshwright.base import registry

NAMES = registry.names("commands")


def _run(words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["meshwright", *words])
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit) as caught:
        cli.main()
    out, err = capsys.readouterr()
    return int(caught.value.code or 0), out, err


@pytest.mark.parametrize("name", NAMES)
def test_a_command_registers_its_own_word_and_nothing_else(name: str) -> None:
    app = typer.Typer()
    registry.load("commands", name, "command").register(app)
    assert list(get_group(app).commands) == [name.replace("_", "-")]


@pytest.mark.parametrize("name", NAMES)
def test_help_says_what_a_command_does_and_what_every_option_is(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = _run([name.replace("_", "-"), "--help"], monkeypatch, capsys)
    assert code == 0 and not err and f"meshwright {name.replace(chr(95), chr(45))} " in out
    app = typer.Typer()
    registry.load("commands", name, "command").register(app)
    for command in get_group(app).commands.values():
        assert command.help
        for option in command.params:
            assert getattr(option, "help", "") or option.name == "help", f"{name}: {option.name} is not explained"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("words", [["--no-such-option"], ["a", "b", "c", "d", "e", "--no-such-option", "f"]], ids=len)
def test_wrong_words_are_answered_in_one_line(
    name: str, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = _run([name.replace("_", "-"), *words], monkeypatch, capsys)
    assert code == 2 and not out
    assert err.startswith("meshwright: ") and len(err.splitlines()) == 1 and "no-such-option" in err


def test_a_command_that_is_none_is_answered_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = _run(["plam"], monkeypatch, capsys)
    assert (code, out) == (2, "") and "plam" in err and len(err.splitlines()) == 1
