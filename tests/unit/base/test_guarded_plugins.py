"""Whatever a plug-in of another package does, what is said has its name; nothing is half-written."""

from __future__ import annotations

import dataclasses
import pathlib
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint

import pytest

import meshwright
from meshwright import api, clusters, frameworks, schedules
from meshwright.api import advise, export
from meshwright.base import registry
from meshwright.base.errors import ExportError, InputError, MeshwrightError, PluginError, PluginWarning

PARAMS = "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass Params:\n    n: int = 1\n"
SEARCH = PARAMS + "def search(problem, params, *, seed, stop):\n    "
ANSWER = (
    "from dataclasses import replace\nfrom meshwright.core.plan import Plan, Stage\n"
    "from meshwright.core.strategy import Strategy\n"
    "from meshwright.core.result import Answer\nN = 14\n"
    "STAGE = Stage(tuple(range(N)), (0,), Strategy(), ('none',) * N)\nPLAN = Plan((STAGE,))\n" + SEARCH
)
FRAMEWORK = "from meshwright.core.framework import Framework\nFRAMEWORK = Framework(name='{}')\n"
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Return what installs plug-ins of a room for one test: ``install("search", name=code)``."""
    caches = (registry._others, registry._loaded, registry.warn)
    points: dict[str, list[EntryPoint]] = {}
    folder = tmp_path / "installed"
    folder.mkdir()

    def installed(room: str, **plugins: str) -> None:
        for name, code in plugins.items():
            module = f"guarded_{room}_{name}"
            (folder / f"{module}.py").write_text(code)
            sys.modules.pop(module, None)
            points.setdefault(room, []).append(EntryPoint(name, module, f"meshwright.{room}"))
        for cache in caches:
            cache.cache_clear()

    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(registry, "_entry_points", lambda: points)
    yield installed
    for cache in caches:
        cache.cache_clear()


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (SEARCH + "return 1 / 0\n", "breaks in search: ZeroDivisionError: division by zero"),
        (SEARCH + "raise SystemExit(3)\n", "breaks in search: SystemExit: 3"),
        (SEARCH + "from meshwright.base.errors import InputError; raise InputError('two\\nlines')\n", ": two lines"),
        (ANSWER + "return Answer(PLAN, notes='words')\n", "Answer.notes as str"),
        (ANSWER + "return Answer(PLAN, 3.5)\n", "Answer.objective as float"),
        (ANSWER + "return Answer(replace(PLAN, stages=(replace(STAGE, ops=list(STAGE.ops)),)))\n", "ops as list"),
        (ANSWER + "return Answer(replace(PLAN, stages=(replace(STAGE, recompute=('none',)),)))\n", "1 words for 14 layers"),
        (ANSWER + "return Answer(replace(PLAN, stages=(replace(STAGE, strategy=Strategy(shard=9)),)))\n", "shard is 9"),
        (ANSWER + "return Answer(replace(PLAN, schedule='nope'))\n", "no schedule called 'nope'"),
        (ANSWER + "return Answer(PLAN, extra={'a': object()})\n", "extra is not JSON-ready"),
        (SEARCH.replace("n: int = 1", "n: int"), "Params that cannot be built without arguments"),
        (SEARCH.replace("n: int = 1", "n: 'Nope' = 1"), "annotation that cannot be resolved: NameError"),
    ],
    ids=lambda text: text[-35:].strip() if "\n" in text else "",
)
def test_a_search_that_breaks_is_named_in_one_line(install: Install, code: str, told: str) -> None:
    install("search", mine=code if code.endswith("\n") else code + "return 1\n")
    with pytest.raises(MeshwrightError) as caught:
        meshwright.plan("gpt2", "flat:2", search="mine", batch=api.Batch(1))
    assert told in str(caught.value) and "mine" in str(caught.value) and "\n" not in str(caught.value)
    assert not isinstance(caught.value, PluginError) or "package guarded_search_mine" in str(caught.value)


def test_interrupts_and_a_full_memory_pass(install: Install) -> None:
    install("search", full=SEARCH + "raise MemoryError\n", stopped=SEARCH + "raise KeyboardInterrupt\n")
    for name, error in (("full", MemoryError), ("stopped", KeyboardInterrupt)):
        with pytest.raises(error):
            meshwright.plan("gpt2", "flat:2", search=name, batch=api.Batch(1))


def test_what_a_search_prints_goes_to_standard_error(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("search", loud=ANSWER + "print('here'); return Answer(PLAN)\n")
    assert meshwright.plan("gpt2", "flat:2", search="loud", batch=api.Batch(1)).feasible
    said = capsys.readouterr()
    assert "here" not in said.out and "here" in said.err


def test_our_own_bugs_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    from meshwright.search import data_parallel

    monkeypatch.setattr(data_parallel, "search", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        meshwright.plan("gpt2", "flat:2", search="data_parallel", batch=api.Batch(2))


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("Path(path).write_text('half'); raise RuntimeError('fire')", "breaks in write: RuntimeError: fire"),
        (
            "from meshwright.base.errors import ExportError; Path(path).touch(); raise ExportError('no')",
            "guarded_writers_mine: no",
        ),
        ("Path(path).write_text('x'); return 'a word'", "notes as str"),
        ("Path(path).write_text('x'); return 3", "notes as int"),
        ("Path(path).write_text('x'); return ['a', 3]", "notes[1] as int"),
        ("pass", "wrote no file"),
    ],
)
def test_a_writer_that_breaks_is_named_and_leaves_nothing(
    install: Install, tmp_path: pathlib.Path, body: str, told: str
) -> None:
    install("writers", mine=f"from pathlib import Path\ndef write(result, path):\n    {body}\n")
    result = meshwright.plan("gpt2", "flat:2", search="data_parallel", batch=api.Batch(2))
    out = tmp_path / "out" / "plan.txt"
    out.parent.mkdir()
    with pytest.raises((PluginError, ExportError)) as caught:
        export.export(result, "mine", str(out))
    assert told in str(caught.value) and "mine of package guarded_writers_mine" in str(caught.value)
    assert not list(out.parent.iterdir())


def test_a_writer_of_another_package_may_write_several_files_and_say_what_is_left_out(
    install: Install, tmp_path: pathlib.Path
) -> None:
    body = "Path(path).write_text('a'); Path(path + '.more').write_text('b'); return ['two\\nlines']"
    install("writers", mine=f"from pathlib import Path\ndef write(result, path):\n    {body}\n")
    result = meshwright.plan("gpt2", "flat:2", search="data_parallel", batch=api.Batch(2))
    out = tmp_path / "out" / "plan.txt"
    out.parent.mkdir()
    assert export.export(result, "mine", str(out))[0] == "two lines"
    assert {path.name: path.read_text() for path in out.parent.iterdir()} == {"plan.txt": "a", "plan.txt.more": "b"}


def test_frameworks_that_nobody_named_are_one_warning_each(install: Install, tmp_path: pathlib.Path) -> None:
    answer = "def refusals(plan, problem):\n    return {}\n"
    install(
        "frameworks",
        f_raises=FRAMEWORK.format("f_raises") + answer.format("1 / 0"),
        f_variants=FRAMEWORK.format("f_variants") + answer.format("()") + "VARIANTS = 3\n",
        f_other=FRAMEWORK.format("megatron") + answer.format("()"),
        f_reads=FRAMEWORK.format("f_reads") + answer.format("('no',)") + "def recognises(text):\n    return 1 / 0\n",
    )
    result = meshwright.plan("gpt2", "flat:2", search="data_parallel", batch=api.Batch(2))
    with pytest.warns(PluginWarning) as told:
        words = [one.word for one in api.targets.runs_on(result)]
    assert sorted(str(one.message).split()[1] for one in told) == ["f_other", "f_raises", "f_variants"]
    assert "f_reads" in words and "megatron" in words and "f_raises" not in words
    for name in ("f_variants", "f_other"):
        with pytest.raises(PluginError, match=name):
            frameworks.load(name)
    registry.warn.cache_clear()
    (tmp_path / "nothing.txt").write_text("nothing that anyone knows")
    with pytest.warns(PluginWarning, match="f_reads"), pytest.raises(InputError, match="is no configuration of"):
        advise.framework_of_file(str(tmp_path / "nothing.txt"))


def test_names_with_capitals_are_found_and_words_that_mean_something_else_are_left_out(install: Install) -> None:
    topology = (
        PARAMS.replace("n: int = 1", "n: int") + "EXAMPLE = '4'\ndef build(params, name):\n"
        "    import dataclasses\n    from meshwright import clusters\n"
        "    return dataclasses.replace(clusters.cluster(f'flat:{params.n}'), name=name)\n"
    )
    install("topologies", Upper=topology, dgx_h100=topology)
    with pytest.warns(PluginWarning, match="dgx_h100 of package guarded_topologies_dgx_h100 is left out"):
        assert clusters.names().count("dgx-h100") == 1
    assert clusters.cluster("Upper:2").n_devices == clusters.cluster("upper:2").n_devices == 2
    assert clusters.describe("upper").example == "upper:4"
    order = "from meshwright.schedules.gpipe import order, placement, in_flight\n"
    install("schedules", UpperCase=order, zbv=order)
    with pytest.warns(PluginWarning, match="schedules zbv of package guarded_schedules_zbv is left out"):
        assert "uppercase" in schedules.words()
    assert schedules.load("UpperCase").order(2, 1, 2, None).n_ranks == 2


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        ("[StageCost(1.0, 1.0) for _ in plan.stages]", "returned list; it must return tuple"),
        ("(1.0,)", "returned float; it must return StageCost"),
        ("(StageCost(1.0, 'a'),)", "StageCost.backward_input_seconds as str"),
        ("(StageCost(float('nan'), 1.0),)", "stage 0: forward_seconds is nan"),
        ("1 / 0", "breaks in stage_costs: ZeroDivisionError"),
    ],
)
def test_a_cost_model_that_breaks_is_named(install: Install, returned: str, told: str) -> None:
    code = "from meshwright.core.stage_cost import StageCost\ndef stage_costs(problem, plan):\n    return "
    install("costs", mine=f"{code}{returned}\n")
    install("search", one=ANSWER + "return Answer(PLAN)\n")
    with pytest.raises(MeshwrightError) as caught:
        meshwright.plan("gpt2", "flat:2", search="one", costs="mine", batch=api.Batch(1))
    assert told in str(caught.value) and "mine of package guarded_costs_mine" in str(caught.value)


def test_a_cost_model_of_one_function_is_planned_with_and_one_that_prices_layers_by_best(install: Install) -> None:
    whole = (
        "from meshwright.core.stage_cost import StageCost\n"
        "def stage_costs(problem, plan):\n    return tuple(StageCost(1.0 * len(s.ops), 2.0) for s in plan.stages)\n"
    )
    install("costs", whole=whole, layered="from meshwright.costs.analytic import *\n")
    size = api.Batch(8)
    found = meshwright.plan("gpt2", "flat:2", search="stage_mapping", costs="whole", batch=size)
    assert found.feasible and found.bound is None
    with pytest.raises(InputError, match=r"search best: cannot price its plans by costs whole, which lacks illegal"):
        meshwright.plan("gpt2", "flat:2", costs="whole", batch=size)
    with pytest.raises(InputError, match="costs whole know no frameworks"):
        meshwright.plan("gpt2", "flat:2", costs="whole", batch=size, framework="megatron")
    settings = {"alternatives": "1", "tensor": "1", "pipeline": "1"}
    mine, ours = (
        meshwright.plan("gpt2", "flat:2", costs=costs, batch=size, framework="megatron", settings=settings)
        for costs in ("layered", "analytic")
    )
    assert mine.step_seconds == ours.step_seconds and mine.plan == ours.plan


def test_a_writer_says_by_attributes_what_it_holds_of_frozen_weights_and_rings(
    install: Install, tmp_path: pathlib.Path
) -> None:
    code = "from pathlib import Path\ndef write(result, path):\n    Path(path).write_text('x')\n"
    install("writers", silent=code, knowing=code + "FROZEN = True\nRINGS = True\n")
    out = str(tmp_path / "out")
    frozen = api.make_problem("gpt2", "flat:2", batch=api.Batch(2), lora="r=4,targets=query")
    result = meshwright.plan(frozen, search="data_parallel")
    with pytest.raises(
        InputError, match=r"--to silent: .* are frozen, and it counts gradients .* of all of them .*export it to another format"
    ):
        export.export(result, "silent", out)
    assert export.export(result, "knowing", out) == ()
    whole = meshwright.plan("gpt2", "flat:2", search="data_parallel", batch=api.Batch(2))
    stage = dataclasses.replace(whole.plan.stages[0], ring=(1, 0))
    plan = dataclasses.replace(whole.plan, stages=(stage,))
    ringed = dataclasses.replace(whole, answer=dataclasses.replace(whole.answer, plan=plan))
    assert "the order of the gradient rings is left out" in export.export(ringed, "silent", out)[0]
    assert export.export(ringed, "knowing", out) == export.export(ringed, "plan_json", out) == ()


def test_a_first_field_of_several_numbers_is_written_with_an_x_whatever_it_is_called(install: Install) -> None:
    code = (
        PARAMS.replace("n: int = 1", "sizes: tuple[int, ...]") + "EXAMPLE = '2x4'\ndef build(params, name):\n"
        "    import dataclasses\n    from meshwright import clusters\n"
        "    return dataclasses.replace(clusters.cluster(f'torus:{params.sizes[0]}x{params.sizes[1]}'), name=name)\n"
    )
    install("topologies", grid_of_mine=code)
    assert clusters.cluster("grid-of-mine:2x4").n_devices == 8
