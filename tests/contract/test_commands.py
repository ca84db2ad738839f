"""Every command keeps the promises of its room: one word, help, and wrong words answered in one line with exit code 2."""

from __future__ import annotations

import sys

import pytest
import typer
from typer.main import get_group

from meshwright import cli
from meshwright.base import registry
from meshwright.base.errors import InputError
from meshwright.base.parsing import Program

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


@pytest.mark.parametrize("name", NAMES)
def test_an_option_that_takes_one_value_is_given_once(name: str) -> None:
    app = Program()
    registry.load("commands", name, "command").register(app)
    (command,) = get_group(app).commands.values()
    several = 0
    for option in command.params:
        if option.param_type_name != "option" or option.name == "help":
            continue
        word = max(option.opts, key=len)
        words = [word] if option.is_flag else [word, "1"]  # type: ignore[attr-defined]
        if option.multiple:  # type: ignore[attr-defined]
            several += 1
            continue
        with pytest.raises(InputError, match=f"^{word}: is given more than once"):
            command.make_context(name, [*words, *words])
    assert several or name not in ("plan", "compare", "sweep")


def test_options_given_twice_are_refused_in_one_line_and_those_for_several_values_are_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["plan", "nowhere.json", "--set", "tensor=1", "--set", "pipeline=1", "--global-batch"]
    code, out, err = _run([*words, "4", "--global-batch", "8"], monkeypatch, capsys)
    assert (code, out, err) == (2, "", "meshwright: --global-batch: is given more than once; it takes one value\n")
    assert "nowhere.json" in _run([*words, "4"], monkeypatch, capsys)[2]


def test_a_command_that_is_none_is_answered_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = _run(["plam"], monkeypatch, capsys)
    assert (code, out) == (2, "") and "plam" in err and len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["plan", "gpt2", "--global-batch", "abc"], "--global-batch: number of samples abc: is not a whole number; write for"),
        (["plan", "gpt2", "--sequence-length", "1.3"], "--sequence-length 1.3: is 1.3, which is not a whole number"),
        (
            ["size", "gpt2", "--tokens", "1B", "--global-batch", "4x"],
            "--global-batch: number of samples 4x: is not a whole num",
        ),
    ],
)
def test_what_is_wrong_with_a_number_is_said(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = _run(words, monkeypatch, capsys)
    assert (code, out) == (2, "") and err.startswith(f"meshwright: {said}") and err.count("\n") == 1
