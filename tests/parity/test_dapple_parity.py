"""DAPPLE's published planner: every row of the reference table, which the authors' compiled code answered."""

from __future__ import annotations

import ast
import pathlib
from functools import cache

import numpy as np
import pytest

import reference
from meshwright import api
from meshwright.planners.dapple import published
from meshwright.planners.dapple import states as _dapple_states

BASELINES = ("dp_no_overlap", "dp_p3", "dp_ga_p3", "dp_ga_normal_overlap", "dp_optga_p3")
FLAT = str(list(range(1, 17)))


def rows() -> list[dict[str, str]]:
    return reference.rows("dapple/dapple.csv")


@cache
def content(path: pathlib.Path) -> tuple:
    model_spec = api.read(str(path))
    states = _dapple_states.states_of(model_spec, fold=False)
    return states, _dapple_states.interval_tables(model_spec, states)


def answer(row: dict[str, str], path: pathlib.Path) -> tuple:
    states, (seconds, _, parameter_bytes) = content(path)
    sizes = tuple(int(size) for size in np.diff([0, *ast.literal_eval(row["seps"])]))
    setting = published.Setting(
        int(row["pbs"]), int(row["gbs"]), int(row["min_micro_batch"]), sizes,
        float(row["optimizer_memory_scaling"]), float(row["peak_act_per_sample"]),
    )  # fmt: skip
    instance = published.scaled(
        seconds, parameter_bytes, states.cut_bytes, (states.before_first, states.before), int(row["gbs"]) / int(row["pbs"])
    )
    found, _ = published.candidates(instance, setting)
    return instance, setting, found


def last_best(found: list[published.Candidate], n_stages: int) -> published.Candidate:
    best = None
    for candidate in found:
        if len(candidate.stages) >= n_stages and (best is None or candidate.speedup_ratio >= best.speedup_ratio):
            best = candidate
    assert best is not None
    return best


def stages(candidate: published.Candidate) -> list[tuple]:
    return [(*stage[:3], set(cards)) for stage, cards in zip(candidate.stages, candidate.cards, strict=True)]


def test_every_row_from_the_linearised_profiles_is_equal() -> None:
    for row in rows():
        instance, setting, found = answer(row, reference.path(f"dapple/linearised/{row['profile']}.imp"))
        best, several = last_best(found, 1), last_best(found, 2)
        assert best.speedup_ratio == pytest.approx(float(row["best_hybrid_speedup"]), rel=1e-12)
        assert several.speedup_ratio == pytest.approx(float(row["best_multistage_speedup"]), rel=1e-12)
        assert stages(best) == eval(row["best_stages"]) and best.replication == int(row["best_rp"])
        assert stages(several) == eval(row["best_ms_stages"]) and several.replication == int(row["best_ms_rp"])
        for name, value in published.baselines(instance, setting).items():
            assert value == pytest.approx(float(row[name]), rel=1e-12), name
        recursive = published.recursive_speedup(instance, setting, best)
        assert recursive == pytest.approx(float(row["recursive_speedup"]), rel=1e-12)


def test_every_hierarchical_row_and_all_baselines_follow_from_the_text_profiles_too() -> None:
    for row in rows():
        instance, setting, found = answer(row, reference.path(f"dapple/{row['profile']}.txt"))
        for name, value in published.baselines(instance, setting).items():
            assert value == pytest.approx(float(row[name]), rel=1e-12), name
        if row["seps"] != FLAT:
            best = last_best(found, 1)
            assert best.speedup_ratio == pytest.approx(float(row["best_hybrid_speedup"]), rel=1e-12)
            assert stages(best) == eval(row["best_stages"])


def test_flat_rows_from_the_text_have_the_same_bottleneck() -> None:
    """Ties between straight pipelines fall as the text's predecessors are visited, so only the bottleneck is the same."""
    for row in rows():
        if row["seps"] != FLAT or len(eval(row["best_stages"])) != 16:
            continue
        path = reference.path(f"dapple/{row['profile']}.txt")
        instance, _, found = answer(row, path)
        cells = [candidate for candidate in found if len(candidate.stages) == 16]
        assert bottleneck(instance, stages(cells[0])) == pytest.approx(
            bottleneck(instance, eval(row["best_stages"])), rel=1e-12
        )


def bottleneck(instance: published.Instance, plan: list[tuple]) -> float:
    """The slowest stage or transfer of a straight pipeline on single-device machines: whatever is handed over crosses one."""
    ends = [stop - 1 for _, stop, _, _ in plan[:-1]] + [instance.n_states - 1]
    begins = [0] + [end + 1 for end in ends[:-1]]
    slowest = max(float(instance.seconds[begin, end]) for begin, end in zip(begins, ends, strict=True))
    return max([slowest] + [2.0 * float(instance.cut_bytes[end]) / 1e9 for end in ends[:-1]])


def test_the_command_answers_what_the_table_says() -> None:
    row = next(row for row in rows() if row["profile"].startswith("vgg") and row["seps"] == "[8, 16]" and row["gbs"] == "1024")
    result = api.plan(
        str(reference.path(f"dapple/{row['profile']}.txt")),
        search="dapple",
        settings={
            "mode": "published", "profile_batch": row["pbs"], "global_batch": row["gbs"], "machines": "8,16",
            "min_micro_batch": row["min_micro_batch"], "optimizer_memory_scaling": row["optimizer_memory_scaling"],
            "peak_activation_per_sample": row["peak_act_per_sample"],
        },
    )  # fmt: skip
    assert result.answer.objective is not None and result.answer.objective.name == "speedup"
    assert result.answer.objective.value == pytest.approx(float(row["best_hybrid_speedup"]), rel=1e-12)
    assert [set(stage.devices) for stage in result.plan.stages] == [ids for *_, ids in eval(row["best_stages"])]
    assert [len(stage.ops) for stage in result.plan.stages] == [16, 9]
    baselines = result.answer.extra["baselines"]
    assert isinstance(baselines, dict)
    assert {name: baselines[name] for name in BASELINES} == {
        name: pytest.approx(float(row[name]), rel=1e-12) for name in BASELINES
    }
