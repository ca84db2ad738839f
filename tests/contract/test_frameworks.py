"""Every framework keeps the promises of its room: figures and limits with sources, refusals that say all, files read back."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import tomllib
from functools import cache
from typing import Any

import pytest

import meshwright
from meshwright import frameworks, schedules
from meshwright.base import registry
from meshwright.base.errors import ExportError, InputError
from meshwright.core import framework_file
from meshwright.core.framework import AXES, SCOPES, Framework, FrameworkLimits
from meshwright.core.launch import StartCommand
from meshwright.core.plan import Plan, Stage
from meshwright.core.plan_forms.exceeded import exceeded
from meshwright.core.problem import ModelSpec, Problem
from meshwright.core.result import Answer, Result
from meshwright.core.strategy import Strategy, is_recompute

NAMES = frameworks.names()
DATA = pathlib.Path(meshwright.__file__).parent / "frameworks" / "data"
OURS = [name for name in NAMES if registry.home("frameworks", name)]


@cache
def _problem(model: str = "gpt2") -> Problem:
    from meshwright import api

    return api.make_problem(model, "flat:16")


def _plan(
    n_ranks: int = 1, *, chunks: int = 1, schedule: str = "1f1b", word: str = "none", inner: int = 12, **degrees: Any
) -> Plan:
    """Return a plan of a model's layers (GPT-2's fourteen) in even stages, the ranks blocks of devices in order."""
    strategy = Strategy(**{"data": 2, "shard": 0, **degrees})
    size, n_stages = strategy.n_devices, n_ranks * chunks
    per_stage = inner // n_stages
    assert per_stage * n_stages == inner
    stages = []
    for i in range(n_stages):
        ops = list(range(1 + i * per_stage, 1 + (i + 1) * per_stage))
        ops = [0] * (i == 0) + ops + [inner + 1] * (i == n_stages - 1)
        words = tuple("none" if op in (0, inner + 1) else word for op in ops)
        rank = i % n_ranks
        stages.append(Stage(tuple(ops), tuple(range(rank * size, (rank + 1) * size)), strategy, words))
    return Plan(tuple(stages), 4, 1, schedule, 4 * strategy.data)


def _with_words(plan: Plan, words: list[str]) -> Plan:
    """Return the plan where the layers between embedding and head of each stage recompute as told, in turn."""
    stages, last = [], plan.stages[-1].ops[-1]
    for stage in plan.stages:
        inner = iter(words * 12)
        stages.append(
            dataclasses.replace(stage, recompute=tuple("none" if op in (0, last) else next(inner) for op in stage.ops))
        )
    return dataclasses.replace(plan, stages=tuple(stages))


def _outside(limits: FrameworkLimits, n_layers: int = 12) -> dict[str, Plan]:
    """Return, for every limit that there is, a plan that is outside of it and of no other."""
    make, level = functools.partial(_plan, inner=n_layers), limits.shards[0]
    found: dict[str, Plan] = {}
    for axis in AXES:
        if axis not in limits.degrees:
            found[axis] = make(2, shard=level) if axis == "pipeline" else make(shard=level, **{axis: 2})
    piped = "pipeline" in limits.degrees
    if limits.schedules and piped:
        found["schedule"] = make(
            2, schedule=next(word for word in schedules.words() if word not in limits.schedules), shard=level
        )
    for other in {0, 1, 2, 3} - set(limits.shards):
        found[f"level {other}"] = make(shard=other)
    for own in set(limits.shards) - set(limits.hybrid_shards) - {0}:
        found[f"level {own} sharded over"] = make(data=4, shard=own, shard_degree=2)
    if not limits.sequence_parallel:
        found["norms"] = make(tensor=2, sequence_parallel=True, shard=level)
    if not limits.virtual_stages and piped:
        found["virtual"] = make(2, chunks=2, shard=level, schedule=limits.schedules[0] if limits.schedules else "1f1b")
    plan = make(2, shard=level, schedule=limits.schedules[0] if limits.schedules else "1f1b")
    first, last = plan.stages
    if not limits.uneven_stages and piped:
        moved = (
            dataclasses.replace(first, ops=first.ops[:-1], recompute=()),
            dataclasses.replace(last, ops=(first.ops[-1], *last.ops), recompute=()),
        )
        found["equally many"] = dataclasses.replace(plan, stages=moved)
    if not limits.unlike_stages and piped and "tensor" in limits.degrees:
        unlike = dataclasses.replace(last, strategy=dataclasses.replace(last.strategy, data=1, tensor=2))
        found["sets of degrees"] = dataclasses.replace(plan, stages=(first, unlike))
    if not limits.free_ends and piped:
        moved = (
            dataclasses.replace(first, ops=first.ops[1:], recompute=()),
            dataclasses.replace(last, ops=(0, *last.ops), recompute=()),
        )
        found["embedding"] = dataclasses.replace(plan, stages=moved)
    if not limits.any_order:
        one = make(shard=level)
        found["out of order"] = dataclasses.replace(one, stages=(dataclasses.replace(one.stages[0], devices=(1, 0)),))
    if "data" not in limits.layouts and piped:
        apart = (dataclasses.replace(first, devices=(0, 2)), dataclasses.replace(last, devices=(1, 3)))
        found["slowest"] = dataclasses.replace(plan, stages=apart)
    if not limits.gradient_rings:
        one = make(shard=level)
        found["rings"] = dataclasses.replace(one, stages=(dataclasses.replace(one.stages[0], ring=(1, 0)),))
    for word in ("selective", "every_second_product", "mlp"):
        if word not in limits.recompute:
            found[f"'{word}'"] = make(shard=level, word=word)
    if limits.recompute_scope == "plan":
        found["differently"] = _with_words(make(shard=level), [limits.recompute[-1], limits.recompute[0]])
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_framework_is_called_like_its_file_and_its_words_are_known(name: str) -> None:
    module = frameworks.load(name)
    for framework in (module.FRAMEWORK, *(one.framework for one in frameworks.variants(name))):
        assert isinstance(framework, Framework) and framework.name == name
        limits = framework.limits
        assert set(limits.degrees) <= set(AXES) and limits.recompute_scope in SCOPES
        assert set(limits.schedules) <= set(schedules.words())
        assert set(limits.shards) <= {0, 1, 2, 3} >= set(limits.hybrid_shards)
        assert limits.recompute[0] == "none" and all(map(is_recompute, limits.recompute))
        assert hash(framework) == hash(dataclasses.replace(framework))
    words = [one.framework.variant for one in frameworks.variants(name)]
    assert all(words) and len(set(words)) == len(words)
    assert all(frameworks.find(f"{name}:{word}").variant == word for word in words)


@pytest.mark.parametrize("name", OURS)
def test_every_figure_and_every_limit_has_a_source(name: str) -> None:
    entry = tomllib.loads((DATA / f"{name}.toml").read_text())
    assert entry["title"]
    for table in (entry, *entry.get("variants", {}).values()):
        for part in ("how", "limits"):
            for key, value in table.get(part, {}).items():
                assert isinstance(value, dict) and value["source"].strip(), f"{name}: {part}.{key}"


@pytest.mark.parametrize("name", [name for name in NAMES if name != frameworks.ASSUMED])
def test_a_framework_has_a_version_and_limits_and_says_how_it_runs(name: str) -> None:
    """Our own runtime has the package's version, and no limits."""
    framework = frameworks.plain(name)
    assert framework.version, "of which release is this?"
    assert framework.limits != FrameworkLimits(), "it runs every plan that there is"
    assert not framework_file.unsaid(framework), "nothing is said of how it runs"


def test_the_smallest_framework_file_of_the_pages_says_enough() -> None:
    page = (pathlib.Path(__file__).resolve().parents[2] / "docs" / "howto" / "add_a_search.md").read_text()
    (text,) = [block.partition("```")[0] for block in page.split("```toml\n")[1:] if "[how]" in block.partition("```")[0]]
    framework, variants = framework_file.of_content(tomllib.loads(text), "mine", "mine.toml", Framework())
    assert framework_file.unsaid(framework) == "" and framework.version and variants == ()
    assert framework.issue_seconds == pytest.approx(90e-6) and framework.limits.schedules == ("1f1b", "gpipe")


def test_an_answer_for_a_framework_that_says_nothing_says_so(tmp_path: pathlib.Path) -> None:
    """Silently, it would be the quickest of all."""
    from meshwright import api

    path = tmp_path / "mine.toml"
    limits = '[limits]\nschedules = { value = ["1f1b"], source = "mine" }\n'
    for text, parts in (("", ("how it runs", "what it can run")), (limits, ("how it runs",))):
        path.write_text(f'title = "mine"\n{text}')
        result = api.plan("gpt2", "flat:2", search="data_parallel", batch=api.Batch(2), framework=str(path))
        (note,) = [note for note in result.answer.notes if f"framework {path} says nothing of" in note]
        assert all(part in note for part in parts) and ("what it can run" in note) == (len(parts) == 2)
    path.write_text('base = "megatron"\n')
    for word in (str(path), "megatron", ""):
        result = api.plan("gpt2", "flat:2", search="data_parallel", batch=api.Batch(2), framework=word)
        assert not [note for note in result.answer.notes if "says nothing of" in note]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_inside_the_limits_is_refused_by_none_and_every_limit_by_a_plan_outside(name: str) -> None:
    limits = frameworks.plain(name).limits
    inside = _plan(shard=limits.shards[0])
    assert exceeded(limits, inside, _problem().graph) == ()
    assert frameworks.refusals(frameworks.plain(name), inside, _problem()) == ()
    for kind, plan in _outside(limits).items():
        reasons = frameworks.refusals(frameworks.plain(name), plan, _problem())
        assert any(kind in reason for reason in reasons), (kind, reasons)
        assert all(reason and "\n" not in reason and not reason.endswith(".") for reason in reasons)
        assert set(exceeded(limits, plan, _problem().graph)) <= set(reasons)


WRITING = [name for name in NAMES if hasattr(frameworks.load(name), "write")]


@pytest.mark.parametrize("name", WRITING)
def test_what_is_written_and_read_again_is_the_same_plan_and_what_is_refused_leaves_no_file(
    name: str, tmp_path: pathlib.Path
) -> None:
    module, limits = frameworks.load(name), frameworks.plain(name).limits
    problem = _problem("llama-3.2-1b" if name in ("torchtitan", "nanotron", "maxtext") else "gpt2")  # of those that they hold
    make = functools.partial(_plan, inner=len(problem.graph.ops) - 2)
    inside = [make(shard=level, word=word) for level in limits.shards for word in limits.recompute]
    for i, plan in enumerate((*inside, *_outside(limits, len(problem.graph.ops) - 2).values())):
        path = tmp_path / f"{i}"
        result = Result(problem, "best", 0, Answer(plan))
        if frameworks.refusals(frameworks.plain(name), plan, problem):
            with pytest.raises(ExportError) as error:
                module.write(result, str(path))
            assert "\n" not in str(error.value) and not path.exists()
            continue
        notes = module.write(result, str(path))
        assert all(isinstance(note, str) and "\n" not in note for note in notes or ())
        once = path.read_bytes()
        module.write(result, str(path))
        assert path.read_bytes() == once
        if hasattr(module, "read"):
            said = module.read(str(path), problem.graph, plan.n_devices)
            assert said.plan == plan and said.precision in ("", "bf16")
            assert said.sequence_length in (0, problem.graph.sequence_length)


def _written(name: str, folder: pathlib.Path, file: str = "written") -> tuple[Result, pathlib.Path]:
    """Return a plan that a framework runs, and its file of it."""
    limits = frameworks.plain(name).limits
    problem = _problem("llama-3.2-1b" if name in ("torchtitan", "nanotron", "maxtext") else "gpt2")
    plan = _plan(shard=limits.shards[0], word=limits.recompute[0], inner=len(problem.graph.ops) - 2)
    result = Result(problem, "best", 0, Answer(plan))
    frameworks.load(name).write(result, str(folder / file))
    return result, folder / file


@pytest.mark.parametrize("name", [name for name in WRITING if hasattr(frameworks.load(name), "recognises")])
def test_what_is_written_is_recognised_by_its_framework_alone_and_nothing_makes_that_fail(
    name: str, tmp_path: pathlib.Path
) -> None:
    text = _written(name, tmp_path)[1].read_text()
    knowing = {other: frameworks.load(other) for other in NAMES if hasattr(frameworks.load(other), "recognises")}
    assert [other for other, module in knowing.items() if module.recognises(text)] == [name]
    for odd in ("", "{", "[]", "null", "a = ", "- a\n- b\n", "#!/bin/bash\nif", "<xml/>", "'", "\x00", "é: [" * 50):
        assert knowing[name].recognises(odd) is False, odd


@pytest.mark.parametrize("name", [name for name in WRITING if hasattr(frameworks.load(name), "model_of")])
def test_the_model_of_a_written_file_is_the_one_that_was_planned_or_is_asked_for_in_one_line(
    name: str, tmp_path: pathlib.Path
) -> None:
    result, path = _written(name, tmp_path)
    try:
        found = frameworks.load(name).model_of(str(path), 0)
    except InputError as error:
        assert "\n" not in str(error) and str(path) in str(error)
    else:
        assert isinstance(found, ModelSpec) and len(found.graph.ops) == len(result.problem.graph.ops)


@pytest.mark.parametrize("name", [name for name in WRITING if hasattr(frameworks.load(name), "program")])
def test_what_starts_a_framework_names_its_file_and_every_host(name: str, tmp_path: pathlib.Path) -> None:
    result, path = _written(name, tmp_path, "written.json" if name == "transformers" else "written")  # else it is a module
    program = frameworks.load(name).program(result, str(path))
    assert isinstance(program, StartCommand) and program.command and "\n" not in program.command
    assert path.name in program.command and set(program.axes) <= {*AXES, "data"}


def test_the_block_method_is_inside_where_equally_many_first_layers_of_each_stage_recompute() -> None:
    limits, graph = frameworks.plain("megatron").limits, _problem().graph
    assert limits.block_recompute
    plan = _plan(2, shard=1)
    for count in range(1, 7):
        assert exceeded(limits, _with_words(plan, ["full"] * count + ["none"] * (6 - count)), graph) == ()
    assert exceeded(limits, _with_words(plan, ["none", "full", "none", "none", "none", "none"]), graph)
    unlike = tuple(
        dataclasses.replace(stage, recompute=("none", *("full",) * (2 + i), *("none",) * (4 - i)))
        for i, stage in enumerate(plan.stages)
    )
    assert exceeded(limits, dataclasses.replace(plan, stages=unlike), graph)


def test_a_variant_is_chosen_by_what_is_told_and_a_release_that_is_not_told_is_the_newest() -> None:
    def variant(**told: str | bool) -> str:
        return frameworks.find("megatron", told).variant

    assert variant() == ""
    assert variant(experts=True, host="x86") == "experts_x86"
    assert variant(experts=True, host="arm", release="26.02") == "experts_2025"
    assert variant(experts=True, host="arm", release="26.06") == variant(experts=True, host="arm") == "experts_captured"
    assert variant(experts=True, host="x86", drops_tokens=True) == "experts_drop"
    assert variant(experts=False, host="x86") == ""


def test_a_file_of_ones_own_says_what_differs_from_its_base(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('base = "torchtitan"\n[how]\nissue_seconds = "70 us"\n[limits]\nshards = [3]\n')
    mine, base = frameworks.find(str(path)), frameworks.plain("torchtitan")
    assert mine.issue_seconds == pytest.approx(70e-6)
    assert mine == dataclasses.replace(
        base, issue_seconds=mine.issue_seconds, name=str(path), limits=dataclasses.replace(base.limits, shards=(3,))
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[how]\nissue = 3\n", "no field in framework"), ("[limits]\nshards = [4]\n", "limits.shards"),
        ("[limits]\nrecompute = ['sometimes']\n", "sometimes"), ("[limits]\ndegrees = ['depth']\n", "depth"),
        ("[how]\nissue_seconds = '3 GB'\n", "issue_seconds"), ("how = 3\n", "how"), ("= 3\n", "is no TOML"),
        ("[how]\noverlaps_scatter = 1\n", "overlaps_scatter"), ('base = "nobody"\n', "nobody"),
        ("[how]\ntensor_overlap_ratio = -1\n", "tensor_overlap_ratio"), ("[variants.a]\nwhen = {weather = 'bad'}\n", "weather"),
    ],
)  # fmt: skip
def test_a_wrong_file_of_ones_own_is_one_line(tmp_path: pathlib.Path, text: str, told: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=told) as error:
        frameworks.find(str(path))
    assert "\n" not in str(error.value)


def test_circumstances_are_read_from_the_model_and_the_cluster() -> None:
    from meshwright import clusters, models

    dense, mixture = (models.read(name).graph for name in ("gpt2", "mixtral-8x7b"))
    assert frameworks.circumstances(dense, clusters.cluster("dgx-h100:8"), "bf16") == {
        "experts": False, "host": "x86", "precision": "bf16", "reference_copy": False,
    }  # fmt: skip
    assert frameworks.circumstances(mixture, clusters.cluster("gb200-nvl72:72"))["host"] == "arm"
    assert frameworks.for_problem("", mixture, None).name == frameworks.ASSUMED
    assert framework_file.Variant(Framework(), when=()).applies({}) is False
