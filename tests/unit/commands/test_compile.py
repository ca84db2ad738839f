"""``meshwright compile``: every package's kernels, each in a process of its own."""

from __future__ import annotations

import pathlib

import pytest
import typer

from meshwright.base import registry
from meshwright.base.errors import MeshwrightError
from meshwright.commands import compile as command

SAYS = "import warnings\ndef run(plan):\n    warnings.warn('no folder')\n    open({path!r}, 'w').close()\n"
ENDS = "import os\ndef run(plan):\n    os._exit(1)\n"


def compile_all(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, **sources: str) -> int:
    for name, source in sources.items():
        (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(registry, "beside", lambda name: {name: name for name in sources})
    app = typer.Typer()
    command.register(app)
    callback = app.registered_commands[0].callback
    assert callback is not None
    return int(callback())


def test_every_package_is_asked_and_what_is_warned_of_is_said_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = {name: SAYS.format(path=str(tmp_path / f"{name}.made")) for name in ("first_group", "second_group")}
    assert compile_all(monkeypatch, tmp_path, **made) == 0
    assert all((tmp_path / f"{name}.made").exists() for name in made)
    out, err = capsys.readouterr()
    assert out == "" and "[2/2]" in err and all(f": {name} took" in err for name in made)
    assert err.count("meshwright: no folder") == 1


def test_a_process_that_is_ended_is_told_of_in_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    with pytest.raises(MeshwrightError, match="ended from outside, for want of memory perhaps"):
        compile_all(monkeypatch, tmp_path, third_group=ENDS)


def test_after_ctrl_c_it_says_that_what_was_through_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        compile_all(monkeypatch, tmp_path, fourth_group="def run(plan):\n    raise KeyboardInterrupt\n")
    assert ended.value.code == 130
    assert capsys.readouterr().err.endswith("interrupted; every kernel that was through is kept, 0 of 1 groups are whole\n")


def test_the_share_of_the_work_that_is_done_goes_by_what_groups_took() -> None:
    groups = registry.beside("precompile")
    assert set(command._SHARES) == set(groups)
    assert command.share_of([], groups) == 0.0 and command.share_of(groups, groups) == 1.0
    assert command.share_of(["best"], groups) > 5 * command.share_of(["pase"], groups) > 0.0
    assert command.share_of(["new"], ["new", *groups]) == pytest.approx(1 / (len(groups) + 1))  # a mean one
