"""``meshwright compare``: several searches on one problem, ranked on one simulated timeline."""

from __future__ import annotations

from typing import Any

QUESTION = ("--cluster", "flat:4", "--global-batch", "16")


def test_json_holds_one_whole_answer_per_search_in_the_order_asked(meshwright: Any, tiny: str) -> None:
    done = meshwright("compare", tiny, *QUESTION, "--searches", "data_parallel,best,megatron_grid", "--json")
    assert done.code == 0 and done.json["format"] == "meshwright/comparison/1"
    results = done.json["results"]
    assert [entry["search"] for entry in results] == ["data_parallel", "best", "megatron_grid"]
    assert all(entry["format"] == "meshwright/plan/1" and entry["step_seconds"] > 0 for entry in results)


def test_best_is_never_slower_than_the_baselines(meshwright: Any, tiny: str) -> None:
    done = meshwright("compare", tiny, *QUESTION, "--searches", "data_parallel,best,megatron_grid", "--json")
    steps = {entry["search"]: entry["step_seconds"] for entry in done.json["results"]}
    assert steps["best"] <= min(steps.values()) * (1 + 1e-9)


def test_the_table_ranks_by_step_and_tells_the_seconds_each_took(meshwright: Any, tiny: str) -> None:
    done = meshwright("compare", tiny, *QUESTION, "--searches", "data_parallel,best")
    assert done.code == 0 and "planning" in done.out
    assert done.out.index("best") < done.out.index("data_parallel") or "data_parallel" in done.out


def test_a_search_that_refuses_the_input_is_listed_with_its_reason(meshwright: Any, tiny: str) -> None:
    done = meshwright("compare", tiny, *QUESTION, "--searches", "best,dapple", "--json")
    assert done.code == 0
    refused = done.json["results"][1]
    assert refused["search"] == "dapple" and "profile" in refused["error"]


def test_where_every_search_refuses_the_input_is_wrong(meshwright: Any, tiny: str) -> None:
    done = meshwright("compare", tiny, *QUESTION, "--searches", "dapple,pipedream")
    assert done.code == 2 and done.out == "" and "profile" in done.err


def test_where_nothing_fits_the_exit_code_is_three(meshwright: Any) -> None:
    done = meshwright(
        *(
            "compare",
            "llama-3.2-3b",
            "--cluster",
            "g4dn-t4:1",
            "--global-batch",
            "8",
            "--sequence-length",
            "512",
            "--precision",
            "fp16",
        ),
        *("--searches", "data_parallel", "--json"),
    )
    assert done.code == 3 and done.json["results"][0]["feasible"] is False
