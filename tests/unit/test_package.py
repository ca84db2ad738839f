"""The names of the package itself: what a user's script finds after ``import meshwright``."""

from __future__ import annotations

import importlib
import os
import pathlib
import pkgutil
import re
import subprocess
import sys
import tomllib
from types import FunctionType

import pytest

import meshwright


def test_a_call_of_the_package_stays_a_call_whatever_was_imported_before() -> None:
    for module in pkgutil.iter_modules(meshwright.__path__):
        if not module.name.startswith("_"):
            importlib.import_module(f"meshwright.{module.name}")
    for name in meshwright.__all__:
        assert isinstance(getattr(meshwright, name), (FunctionType, type)), name


def test_the_names_that_are_listed_are_the_public_ones() -> None:
    assert sorted(dir(meshwright)) == sorted([*meshwright.__all__, "__version__"])


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'plna'"):
        _ = meshwright.plna


@pytest.mark.parametrize(("cluster", "precision"), [("dgx-a100:8", "bf16"), ("g4dn-t4:4", "fp16"), ("dgx-v100:8", "fp16")])
def test_products_are_in_bf16_unless_a_device_has_none(cluster: str, precision: str) -> None:
    assert meshwright.make_problem("gpt2", cluster).training.precision == precision


def test_the_version_stands_in_one_place_which_the_command_line_prints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from meshwright import cli

    root = pathlib.Path(__file__).resolve().parents[2]
    settings = tomllib.loads((root / "pyproject.toml").read_text())
    assert settings["project"]["dynamic"] == ["version"] and "version" not in settings["project"]
    source = (root / settings["tool"]["hatch"]["version"]["path"]).read_text()
    assert re.findall(r'^__version__ = "(\d+\.\d+\.\d+)"$', source, re.M) == [meshwright.__version__]
    assert "version:" not in (root / "CITATION.cff").read_text().replace("cff-version:", "")

    monkeypatch.setattr(sys, "argv", ["meshwright", "--version"])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"meshwright {meshwright.__version__}\n"


def test_names_from_before_the_first_release_still_work_and_say_their_new_ones() -> None:
    for old, new in (("Reading", "ModelSpec"), ("Training", "MixedPrecision"), ("pose", "make_problem")):
        with pytest.warns(DeprecationWarning, match=f"meshwright.{new}"):
            assert getattr(meshwright, old) is getattr(meshwright, new)


def test_a_plan_is_simulated_with_the_problems_own_costs() -> None:
    result = meshwright.plan("gpt2", "dgx-h100:8")
    assert result.plan is not None and result.timeline is not None
    assert meshwright.simulate(result.problem, result.plan).step_seconds == result.timeline.step_seconds


def test_files_are_written_and_nothing_is_complained_of_where_nobody_reads_the_output(tmp_path: pathlib.Path) -> None:
    """As after ``| head -1``: the reader has gone before the first word."""
    plan = ["plan", "gpt2", "--cluster", "dgx-a100:2", "--global-batch", "8", "--search", "data_parallel"]
    codesign = ["codesign", "topoopt:moe", "--servers", "2", "--degree", "1", "--link-bandwidth", "1e9", "--budget", "1"]
    asked = (
        (["list", "models"], []),
        (plan, ["--out", "--trace"]),
        ([*plan, "--json"], ["--out"]),
        (codesign, ["--out", "--wiring"]),
    )
    for number, (words, options) in enumerate(asked):
        files = {option: tmp_path / f"{number}{option}" for option in options}
        reader, writer = os.pipe()
        os.close(reader)
        targets = [word for option, path in files.items() for word in (option, str(path))]
        done = subprocess.run(
            [sys.executable, "-m", "meshwright", *words, *targets],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
        )
        os.close(writer)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr and "BrokenPipe" not in done.stderr
        assert all(path.stat().st_size > 0 for path in files.values())


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
@pytest.mark.parametrize("words", [("list", "models"), ("--help",), ("--version",), ("plan", "--json", "--out")], ids=" ".join)
def test_an_output_that_takes_nothing_is_one_line_and_files_are_written(words: tuple[str, ...], tmp_path: pathlib.Path) -> None:
    path = tmp_path / "plan.json"
    plan = ("gpt2", "--cluster", "dgx-a100:2", "--global-batch", "8", "--search", "data_parallel")
    asked = (*words, str(path), *plan) if "--out" in words else words
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "meshwright", *asked], stdout=full, stderr=subprocess.PIPE, text=True, timeout=120
        )
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1] == "meshwright: standard output cannot be written: No space left on device"
    assert path.exists() == ("--out" in words)
