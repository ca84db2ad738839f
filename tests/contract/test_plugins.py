"""Plug-ins of other packages: a broken one is one warning with its name, and everything else works; one that is named is one
error.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import textwrap
from collections.abc import Callable

import pytest
import samples

import meshwright
from meshwright import cli
from meshwright.base import registry

SOURCE = pathlib.Path(meshwright.__file__).parents[1]
PARAMS = "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass Params:\n    n: int = 1\n"
GONE = "import a_package_that_nobody_has\n"

BROKEN: dict[str, dict[str, str]] = {
    "commands": {
        "unimportable_command": GONE,
        "command_without_register": "",
        "raising_register": "def register(app):\n    raise RuntimeError('two\\nlines')\n",
        "command_of_odd_types": "def register(app):\n    @app.command()\n    def odd(x: int | str):\n        pass\n",
        "second_plan": "def register(app):\n    @app.command()\n    def plan(x: str):\n        print('stolen')\n",
        "list": "def register(app):\n    @app.command()\n    def list_(x: str):\n        print('stolen')\n",
    },
    "costs": {"unimportable_costs": GONE, "costs_without_stage_costs": "", "analytic": GONE},
    "frameworks": {
        "unimportable_framework": GONE,
        "framework_without_refusals": "FRAMEWORK = 3\n",
        "framework_of_nothing": "FRAMEWORK = 3\ndef refusals(plan, problem):\n    return ()\n",
        "megatron": GONE,
    },
    "readers": {
        "unimportable_reader": GONE,
        "reader_without_read": "def recognises(source):\n    return True\n",
        "raising_reader": "def recognises(source):\n    raise KeyError('x')\ndef read(source):\n    return None\n",
        "z_reader_of_everything": "def recognises(source):\n    return True\ndef read(source):\n    return None\n",
        "huggingface": "def recognises(source):\n    return True\ndef read(source):\n    return None\n",
    },
    "schedules": {
        "unimportable_schedule": GONE,
        "schedule_without_placement": "def order(a, b, c, d):\n    pass\n",
        "gpipe": GONE,
    },
    "search": {
        "unimportable_search": GONE,
        "exiting_search": "import sys\nsys.exit(7)\n",
        "misspelt_search": "def search(:\n",
        "search_without_search": PARAMS,
        "search_without_params": "def search(problem, params, *, seed, stop):\n    pass\n",
        "search_without_seed": PARAMS + "def search(problem, params):\n    pass\n",
        "search_of_nothing": PARAMS + "def search(problem, params, *, seed, stop):\n    return None\n",
        "best": GONE,
    },
    "topologies": {
        "unimportable_topology": GONE,
        "topology_without_example": PARAMS + "def build(params, name):\n    return None\n",
        "topology_without_build": PARAMS + "EXAMPLE = '4'\n",
        "topology_of_nothing": PARAMS + "EXAMPLE = '4'\ndef build(params, name):\n    return None\n",
        "torus": GONE,
    },
    "validation": {"unimportable_set": GONE, "set_without_columns": "def points(rows):\n    return []\n"},
    "writers": {
        "unimportable_writer": GONE,
        "writer_without_write": "",
        "writer_without_path": "def write(result):\n    pass\n",
        "dot": GONE,
    },
}
NAMED = {
    "raising_reader": "fails at recognising",
    "search_of_nothing": "must return Answer",
    "topology_of_nothing": "must return Cluster",
    "z_reader_of_everything": "recognises whatever it is shown",
}
"""Nothing is wrong with these until they are used, so only then something is said."""
TAKEN = [(room, name) for room in BROKEN for name in BROKEN[room] if registry.home(room, name)]


def install(folder: pathlib.Path, package: str, rooms: dict[str, dict[str, str]]) -> None:
    """Install plug-ins beside the package, as any other package installs its own."""
    lines = []
    for room, plugins in rooms.items():
        lines.append(f"[meshwright.{room}]")
        for name, code in plugins.items():
            module = f"{package}_{room}_{name}".replace("-", "_")
            (folder / f"{module}.py").write_text(code)
            lines.append(f"{name} = {module}")
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


def run(folder: pathlib.Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command line where a folder's plug-ins are installed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(SOURCE), str(folder))), "COLUMNS": "150"}
    return subprocess.run(
        [sys.executable, "-m", "meshwright", *words], capture_output=True, text=True, cwd=folder, env=environment
    )


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("broken")
    install(folder, "broken-things", BROKEN)
    return folder


@pytest.fixture
def plainly(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return what runs the command line in this process, where nothing is installed beside it, and gives what it prints."""

    def run_here(*words: str) -> str:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("COLUMNS", "150")
        monkeypatch.setattr(sys, "argv", ["meshwright", *words])
        with pytest.raises(SystemExit):
            cli.main()
        return capsys.readouterr().out

    return run_here


def _warned(text: str) -> list[str]:
    """Return the warnings of plug-ins on stderr, after checking that there is no traceback and none is said twice."""
    assert "Traceback" not in text
    lines = [line for line in text.splitlines() if "broken-things 1.0" in line]
    assert all(line.startswith("meshwright: ") for line in lines), text
    assert len(lines) == len(set(lines)), text
    return lines


@pytest.mark.parametrize(
    ("words", "rooms"),
    [
        (("--help",), ("commands",)),
        (("list", "clusters"), ("commands", "topologies")),
        (("list", "searches"), ("commands", "search")),
        (("list", "schedules"), ("commands", "schedules")),
        (("list", "topologies"), ("commands", "topologies")),
        (("list", "costs"), ("commands", "costs")),
        (("list", "formats"), ("commands", "readers")),
        (("list", "exports"), ("commands", "writers")),
        (("list", "measured"), ("commands", "validation")),
        (("list", "frameworks"), ("commands", "frameworks")),
        (("show", samples.of_reader("piper_json")[0]), ("commands",)),
        (("plan", "gpt2", "--cluster", "dgx-h100:8", "--search", "data_parallel"), ("commands", "frameworks")),
    ],
    ids=lambda words: " ".join(words[:2]) if words[0] in ("list", "show", "plan", "--help") else "",
)
def test_everything_else_works_beside_broken_plug_ins(
    broken: pathlib.Path, plainly: Callable[..., str], tmp_path: pathlib.Path, words: tuple[str, ...], rooms: tuple[str, ...]
) -> None:
    done = run(broken, *words)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if "broken-things 1.0" not in line]
    if words == ("--help",):  # which is as wide as was told when the process began
        before = run(tmp_path, *words).stdout.splitlines()
    else:
        before = (plainly(*words) if words[0] != "plan" else done.stdout).splitlines()
    assert before
    if words[0] == "list":
        assert {" ".join(line.split()) for line in before} <= {" ".join(line.split()) for line in said}
    else:
        assert said == before
    warned = _warned(done.stderr)
    for room in rooms:
        for name in BROKEN[room]:
            if (room, name) == ("commands", "list") and words[0] != "list":
                continue  # a name of ours that is neither listed nor called: see below
            if name not in NAMED:
                assert len([line for line in warned if name in line]) == 1, (name, done.stderr)
    for room in set(BROKEN) - set(rooms):
        for name in BROKEN[room]:
            if words[0] != "plan" or (room, name) not in TAKEN:  # a plan is made with ours of that name
                assert not [line for line in warned if f"{room} {name} of" in line], (name, done.stderr)


def test_a_file_that_no_reader_knows_is_still_refused_in_one_line(broken: pathlib.Path) -> None:
    (broken / "unknown.txt").write_text("nothing that anyone knows")
    done = run(broken, "show", "unknown.txt")
    assert done.returncode == 2, done.stderr
    warned = _warned(done.stderr)
    for name in ("unimportable_reader", "reader_without_read", "raising_reader"):
        assert len([line for line in warned if name in line and "it is left out" in line]) == 1
    assert NAMED["z_reader_of_everything"] in done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("plan", "gpt2", "--cluster", "flat:2", "--search", "unimportable-search"), "a_package_that_nobody_has"),
        (("plan", "gpt2", "--cluster", "flat:2", "--search", "search_of_nothing"), NAMED["search_of_nothing"]),
        (("plan", "gpt2", "--cluster", "topology_without_example:4"), "has no EXAMPLE"),
        (("plan", "gpt2", "--cluster", "topology-of-nothing:4"), NAMED["topology_of_nothing"]),
        (("show", samples.of_reader("piper_json")[0], "--format", "unimportable_reader"), "a_package_that_nobody_has"),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else "",
)
def test_a_broken_plug_in_that_is_named_is_one_line_with_its_package(
    broken: pathlib.Path, words: tuple[str, ...], told: str
) -> None:
    done = run(broken, *words)
    assert done.returncode == 2 and not done.stdout, done.stdout
    assert "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert told in last and "of package broken-things 1.0" in last and words[-1].partition(":")[0].replace("-", "_") in last


def test_what_is_wrong_with_a_broken_plug_in_is_told_by_name(broken: pathlib.Path) -> None:
    told = {
        ("commands", "command_without_register"): "has no register(app)",
        ("costs", "costs_without_stage_costs"): "has no stage_costs(problem, plan)",
        ("frameworks", "framework_without_refusals"): "has no refusals(plan, problem)",
        ("readers", "reader_without_read"): "has no read(source)",
        ("schedules", "schedule_without_placement"): "has no placement(n_ranks, n_chunks)",
        ("search", "exiting_search"): "SystemExit: 7",
        ("search", "misspelt_search"): "SyntaxError",
        ("search", "search_without_search"): "has no search(problem, params, *, seed, stop)",
        ("search", "search_without_params"): "has no Params",
        ("search", "search_without_seed"): "cannot be called as search(problem, params, *, seed, stop)",
        ("topologies", "topology_without_build"): "has no build(params, name)",
        ("validation", "set_without_columns"): "has no COLUMNS",
        ("writers", "writer_without_path"): "cannot be called as write(result, path)",
    }
    program = (
        "from meshwright.base import registry, errors\n"
        f"for room, name in {list(told)!r}:\n"
        "    try: registry.load(room, name, 'plug-in')\n"
        "    except errors.PluginError as error: print(error)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(SOURCE), str(broken)))}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    lines = done.stdout.splitlines()
    assert len(lines) == len(told), done.stderr
    for line, ((_, name), kind) in zip(lines, told.items(), strict=True):
        assert line.startswith(f"plug-in {name} of package broken-things 1.0 ") and kind in line


def test_a_name_of_ours_stays_ours_and_that_is_said_once(broken: pathlib.Path) -> None:
    code = "\n".join(f"from meshwright.base import registry; registry.load({room!r}, {name!r}, 'x')" for room, name in TAKEN)
    program = (
        f"{code}\nfor room, name in {TAKEN!r}:\n    print(registry.load(room, name, 'x').__name__ == registry.home(room, name))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(SOURCE), str(broken)))}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.stdout.split() == ["True"] * len(TAKEN), done.stderr
    assert len(TAKEN) >= 7
    for room, name in TAKEN:
        assert done.stderr.count(f"{room} {name} of package broken-things 1.0 is left out: meshwright itself has one") == 1


GOOD = {
    "search": {
        "front-half": PARAMS
        + textwrap.dedent(
            """
            from meshwright.core.plan import Plan, Stage
            from meshwright.core.result import Answer
            def search(problem, params, *, seed, stop):
                n = len(problem.graph.ops)
                stage = Stage(tuple(range(n)), (0,), recompute=("none",) * n)
                return Answer(Plan((stage,), n_microbatches=1, micro_batch=1, global_batch=1))
            """
        )
    },
    "commands": {"greet": "def register(app):\n    @app.command()\n    def greet(name: str):\n        print('hello', name)\n"},
}


def test_a_whole_plug_in_is_listed_with_its_package_and_works_whatever_dashes_its_name_has(tmp_path: pathlib.Path) -> None:
    install(tmp_path, "good-things", GOOD)
    listed = run(tmp_path, "list", "searches")
    assert "good-things 1.0" in next(line for line in listed.stdout.splitlines() if line.startswith("front_half"))
    done = run(tmp_path, "plan", "gpt2", "--cluster", "flat:2", "--search", "front-half", "--global-batch", "1", "--json")
    assert done.returncode == 0, done.stderr
    assert run(tmp_path, "greet", "you").stdout == "hello you\n"
    assert not listed.stderr


def test_plug_ins_that_nobody_asked_for_are_not_imported(tmp_path: pathlib.Path) -> None:
    marks = {room: {"noisy": "print('imported')\n"} for room in registry.ROOMS if room != "commands"}
    install(tmp_path, "noisy-things", marks)
    for words in (("--help",), ("list", "models"), ("show", samples.of_reader("huggingface")[0])):
        done = run(tmp_path, *words)
        assert done.returncode == 0 and "imported" not in done.stdout, done.stdout


def test_help_loads_neither_kernels_nor_solvers_nor_any_plug_in_but_commands() -> None:
    code = (
        "import sys; sys.argv = ['meshwright', '--help']\n"
        "from meshwright.cli import main\n"
        "try:\n    main()\nexcept SystemExit: pass\n"
        "print([name for name in sys.modules if name.partition('.')[0] in ('numba', 'scipy', 'numpy', 'torch')\n"
        "       or name.startswith('meshwright.') and name.split('.')[1] not in ('base', 'commands', 'cli')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(SOURCE)}
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stdout + done.stderr
