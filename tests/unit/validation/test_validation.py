"""Measured sets: recognised by their columns, every row predicted or explained, and the errors counted as they should be."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib

import numpy as np
import pytest

from meshwright import clusters as topologies
from meshwright import frameworks, validation
from meshwright.base import registry
from meshwright.base.errors import InputError
from meshwright.core import interval
from meshwright.core.interval.run_kind import Kind
from meshwright.core.problem import MixedPrecision
from meshwright.core.strategy import Strategy
from meshwright.validation import Point, Report, Skipped, megatron_bridge, simumax
from meshwright.validation._completed import complete
from meshwright.validation._domains import spread
from meshwright.validation._points import count, fitted, ratio
from meshwright.validation._runs import Run, clusters, gpt, predict

SMALL = {
    "vtrain": "set,params_b,gpus,gbs,mbs,hidden,heads,layers,seq,tp,dp,pp,iter_ms\n"
    "multi,3.6,8,16,2,1024,16,12,1024,1,8,1,500\n",
    "amp": "experiment,model,gbs,tp,dp,pp,mbs,layer_bounds,amp_pred_s,real_s,source,seen\n"
    'homogeneous,gpt2,32,1,4,4,1,"[0, 9, 15, 21, 31]",1.0,2.5,x,y\n'
    "homogeneous,gpt2,32,1,1,16,32,,1.0,inf,x,y\n"
    "het_cluster,gpt2,32,2,4,2,4,,1.0,2.5,x,y\n"
    "het_model,transgan,32,2,4,2,4,,1.0,2.5,x,y\n",
    "collectives": "gpu,collective,group,nodes,bytes,time_us,busbw_GBs,source\na100,all_reduce,8,1,1048576,60,,x\n",
}  # fmt: skip


def _written(folder: pathlib.Path, text: str) -> str:
    path = folder / "runs.csv"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("kind", sorted(SMALL))
def test_a_set_is_recognised_by_its_columns_and_every_row_is_accounted_for(kind: str, tmp_path: pathlib.Path) -> None:
    report = validation.validate(_written(tmp_path, SMALL[kind]))
    assert report.kind == kind
    rows = sorted([point.row for point in report.points] + [skipped.row for skipped in report.skipped])
    assert rows == list(range(1, SMALL[kind].count("\n")))
    assert all(point.predicted_seconds > 0 for point in report.points)


def test_a_run_that_failed_for_memory_is_kept_apart_from_the_times(tmp_path: pathlib.Path) -> None:
    report = validation.validate(_written(tmp_path, SMALL["amp"]))
    assert [point.ran for point in report.points] == [True, False, True]
    assert report.skipped == (
        Skipped(4, "the model 'transgan' is not modelled; there are: gpt, gpt2, gpt2medium, gpt2large, gpt2xl"),
    )
    (found,) = validation.as_json([report])["sets"]  # type: ignore[misc]
    assert found["memory"]["false_fits"] == sum(point.fits for point in report.points if not point.ran)
    json.dumps(found, allow_nan=False)


def test_no_two_sets_claim_the_same_columns() -> None:
    names = registry.names("validation")
    columns = {name: set(registry.load("validation", name, "set").COLUMNS) for name in names}
    for a in names:
        for b in names:
            assert a == b or columns[a] != columns[b], (a, b)


def test_errors_are_those_of_a_case_computed_by_hand() -> None:
    points = (
        Point(1, 1.0, 1.1, 100.0, 90.0, "a"),
        Point(2, 2.0, 1.0, 100.0, 120.0, "a"),
        Point(3, 4.0, 4.0, group="b"),
        Point(4, math.inf, 3.0, group="b", ran=False),
    )
    (found,) = validation.as_json([Report("x.csv", "vtrain", points, (Skipped(5, "why"),))])["sets"]  # type: ignore[misc]
    assert found["n_rows"] == 5 and found["n_predicted"] == 4
    assert found["time"]["mape_ratio"] == pytest.approx((0.1 + 0.5 + 0.0) / 3)
    assert found["time"]["median_ratio"] == pytest.approx(0.1)
    assert found["time"]["bias_ratio"] == pytest.approx((0.1 - 0.5) / 3)
    assert found["time"]["spearman"] == pytest.approx(0.5)
    assert found["memory"] == {
        "mape_ratio": pytest.approx(0.15), "max_ratio": pytest.approx(0.2), "planned_mape_ratio": None, "false_fits": 1,
        "false_refusals": 0,
    }  # fmt: skip
    assert found["verdicts"] == {
        "n_failed": 1,
        "false_fits": 1,
        "n_ran": 3,
        "false_refusals": 0,
        "planned_false_fits": 1,
        "planned_false_refusals": 0,
    }
    # group a: the second is ranked first and takes twice the best; group b: the failed one is ranked first
    assert found["regret"] == {
        "mean_ratio": pytest.approx(1.0),
        "max_ratio": pytest.approx(1.0),
        "n_groups": 2,
        "n_failed_choices": 1,
    }


def test_runs_of_one_plan_are_one_choice_that_takes_their_mean() -> None:
    points = (Point(1, 1.0, 0.9, group="a"), Point(2, 3.0, 0.9, group="a"), Point(3, 1.6, 1.5, group="a"))
    again = (Point(4, 1.0, 2.0, group="b"), Point(5, 9.0, 2.0, group="b"))  # one plan twice: nothing to choose
    (found,) = validation.as_json([Report("x.csv", "vtrain", (*points, *again), ())])["sets"]  # type: ignore[misc]
    assert found["regret"] == {
        "mean_ratio": pytest.approx(0.25), "max_ratio": pytest.approx(0.25), "n_groups": 1, "n_failed_choices": 0,
    }  # fmt: skip


def test_what_a_set_does_not_measure_is_null() -> None:
    (found,) = validation.as_json([Report("x.csv", "vtrain", (Point(1, 1.0, 1.0),), ())])["sets"]  # type: ignore[misc]
    assert found["memory"] is None and found["regret"] is None and found["time"]["spearman"] is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no rows"),
        ("a,b\n1,2\n", "no measured set"),
        ("a,b\n1\n", "row 1 has 1 cells"),
    ],
)
def test_a_wrong_file_is_answered_in_one_sentence(text: str, message: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match=message):
        validation.validate(_written(tmp_path, text))


def test_a_missing_or_binary_file_is_answered_in_one_sentence(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        validation.validate(tmp_path / "none.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(InputError, match="binary"):
        validation.validate(tmp_path / "binary.csv")


def test_an_impossible_number_makes_its_row_a_skipped_one(tmp_path: pathlib.Path) -> None:
    text = SMALL["vtrain"] + SMALL["vtrain"].splitlines()[1].replace(",500", ",-5") + "\n"
    report = validation.validate(_written(tmp_path, text))
    assert report.skipped == (Skipped(2, "iter_ms is -5; it must be a number above 0"),)


def test_degrees_that_do_not_make_the_devices_are_named(tmp_path: pathlib.Path) -> None:
    report = validation.validate(_written(tmp_path, SMALL["vtrain"].replace("multi,3.6,8,", "multi,3.6,16,")))
    assert report.skipped == (Skipped(1, "tp x dp x pp is 8, gpus is 16; they must agree"),)


def test_cells_are_read_strictly() -> None:
    assert count({"a": "8.0"}, "a") == 8 and count({"a": "n/a"}, "a", 1) == 1
    for text in ("1.5", "-1", "x", "nan", "inf"):
        with pytest.raises(InputError):
            count({"a": text}, "a")
    assert count({"a": "1,024"}, "a") == 1024 and ratio({"a": "12,345.5"}, "a") == 12345.5
    for text in ("0", "nan", "inf", "1e400", "1,5", "1,0245"):
        with pytest.raises(InputError):
            ratio({"a": text}, "a")


def _gpt_run(**changes: object) -> Run:
    graph = gpt("small", hidden=512, layers=10, heads=8, sequence=256, vocabulary=1024)
    parts: dict[str, object] = {
        "graph": graph,
        "cluster": clusters()("dgx-a100:8"),
        "strategies": (Strategy(),),
        "global_batch": 8,
    }
    return Run(**{**parts, **changes})  # type: ignore[arg-type]


def test_a_deeper_pipeline_of_the_same_work_is_faster_and_holds_less() -> None:
    one, four = predict(_gpt_run()), predict(_gpt_run(pipeline=4))
    assert four.seconds < one.seconds and four.peak_bytes < one.peak_bytes


def test_uneven_stages_must_make_the_whole_model() -> None:
    assert predict(_gpt_run(pipeline=2, layers_per_stage=(3, 7))).seconds > 0
    with pytest.raises(InputError, match="do not make"):
        predict(_gpt_run(pipeline=2, layers_per_stage=(3, 8)))
    with pytest.raises(InputError, match="needs 16 devices"):
        predict(_gpt_run(pipeline=16))


def test_a_completed_plan_deals_every_layer_and_recomputes_no_more_than_it_must() -> None:
    graph = gpt("gpt", hidden=2048, layers=12, heads=16, sequence=2048, vocabulary=51200)
    place = clusters()
    strategies = (Strategy(tensor=1), Strategy(tensor=2), Strategy(tensor=1))
    roomy = complete(Run(graph, place("dgx-a100:8"), strategies, pipeline=3, global_batch=8, training=MixedPrecision("fp16")))
    assert sum(roomy.layers_per_stage) == 12
    assert {how for stage in roomy.recompute_of_stage for how in stage} == {"none"}
    assert roomy.layers_per_stage[1] > max(roomy.layers_per_stage[0], roomy.layers_per_stage[2])  # it has two devices
    tight = complete(
        Run(graph, place("p3-v100:8"), strategies, pipeline=3, micro_batch=4, global_batch=16, training=MixedPrecision("fp16"))
    )
    assert {how for stage in tight.recompute_of_stage for how in stage} != {"none"}
    assert predict(tight).fits
    with pytest.raises(InputError, match="no deal of the layers"):
        complete(Run(graph, place("p3-v100:8"), (Strategy(),), global_batch=8, micro_batch=8, training=MixedPrecision("fp16")))


def test_a_completed_plan_says_so_in_its_row_and_its_set(tmp_path: pathlib.Path) -> None:
    text = (
        "cluster,size,run,layers,hidden,heads,seq,gbs,mbs,stages,gpus_per_stage,measured_ms,aceso_pred_ms,plan_json\n"
        "l4,1_3B,x,24,2048,32,2048,32,1,2,1|1,14000,1,y\nl4,1_3B,x,24,2048,32,2048,32,1,2,1|one,14000,1,y\n"
    )
    report = validation.validate(_written(tmp_path, text))
    assert report.kind == "mist_aceso"
    assert report.points[0].note.startswith("plan completed")
    assert "plan completed" in validation.explain([report])
    assert report.skipped == (Skipped(2, "gpus_per_stage is '1|one'; whole numbers with | between them are needed"),)


def test_coverage_counts_runs_inside_their_interval_and_keeps_those_held_out_apart() -> None:
    kind = Kind(("no such device",), mixture=False, shard=1, n_tokens=2048, layer_seconds=1.0)
    ends = interval.around(1.0, kind)

    def point(row: int, measured: float, ran: bool = True) -> Point:
        return Point(row, measured, 100.0, planned_seconds=1.0, ran=ran, kind=kind)  # the set's own prediction is not asked

    points = (
        point(1, 0.99 * ends.low_seconds), point(2, 1.0), point(3, 1.01 * ends.high_seconds), point(4, math.inf, ran=False),
        Point(5, 1.0, 1.0),
    )  # fmt: skip
    (found,) = validation.as_json([Report("x.csv", "vtrain", points, (), frozenset({2, 3}))])["sets"]  # type: ignore[misc]
    assert found["interval"]["coverage_ratio"] == pytest.approx(1 / 3)
    assert found["interval"]["held_out"]["n_rows"] == 2
    assert found["interval"]["held_out"]["coverage_ratio"] == pytest.approx(1 / 2)


def test_a_run_is_predicted_as_plan_for_its_framework_would_with_what_a_user_can_tell() -> None:
    default = predict(_gpt_run(overlap=True))
    told = predict(_gpt_run(overlap=True, framework=frameworks.plain("megatron_deepspeed")))
    assert default.planned is None and told.planned is None and told.framework == "megatron_deepspeed"
    assert told.seconds > default.seconds  # eager
    less = predict(_gpt_run(overlap=True, training=MixedPrecision(gradient_bytes=2)))
    assert less.planned is None and less.peak_bytes < default.peak_bytes  # bytes of gradients can be told
    own = predict(_gpt_run(overlap=True, training=MixedPrecision(loss_bytes=14)))
    assert own.planned is not None and own.planned.peak_bytes == default.peak_bytes  # bytes of the loss cannot


def test_a_run_on_part_of_the_racks_takes_equally_many_devices_of_the_fewest() -> None:
    racks, nodes = topologies.cluster("gb200-nvl72:144"), topologies.cluster("dgx-h100:64")
    assert spread(racks, 128) == (64, 72) and spread(racks, 64) == (64, 72) and spread(racks, 144) == (72, 72)
    assert spread(nodes, 32) == (8, 8) and spread(nodes, 17) == (1, 1)  # 17 ranks on 3 nodes: as they come
    unlike = dataclasses.replace(nodes, groups=np.repeat([[0, 1, 2]], [8, 24, 32], axis=1), devices_per_host=0)
    assert spread(unlike, 24) == (1, 1)  # of nodes of 8, 24 and 32 devices there is no number of equal parts


def test_rows_are_fitted_by_their_number_alone() -> None:
    assert [row for row in range(1, 8) if fitted("simumax", row, {})] == [1, 3, 5, 7]
    assert [row for row in range(1, 14) if fitted("vtrain", row, {"gpus": "8"})] == [1, 7, 13]
    assert [row for row in range(1, 6) if fitted("vtrain", row, {"gpus": "64"})] == [1, 3, 5]


@pytest.mark.parametrize("model", ["deepseekv2", "deepseekv3"])
def test_deepseek_rows_of_simumax_have_one_dense_layer(model: str) -> None:
    layers = [op for op in simumax._graph(model, 4, 4096).ops if op.kind not in ("embedding", "head")]
    assert [any(operator.expert for operator in op.body) for op in layers] == [False, True, True, True]


def test_a_mixture_is_predicted_by_the_variant_of_its_release_hosts_and_dropping() -> None:
    def variant(**fields: str) -> str:
        row = {"ep": "8", "model": "DeepSeek V3", "system": "DGX-GB200", "release": "26.02", **fields}
        return megatron_bridge._framework(row).variant

    assert variant(ep="1") == variant(ep="n/a") == ""
    assert variant() == "experts_2025"
    assert variant(release="26.06") == "experts_captured"
    assert variant(system="DGX-B200") == "experts_x86"
    assert variant(model="Mixtral (tokendrop)", system="DGX-H100") == "experts_drop"


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("GPT_OSS_120B", "gpt-oss-120b"),
        ("LLAMA3.1_405B", "llama-3.1-405b"),
        ("DeepSeekV3", "deepseek-v3"),
        ("Qwen3_8B", "qwen3-8b"),
    ],
)
def test_models_of_the_summary_are_the_built_in_ones_of_that_name(model: str, name: str) -> None:
    assert megatron_bridge._graph(model, 4096).name == name
    with pytest.raises(InputError, match="the model 'Qwen4_8B' is not known"):
        megatron_bridge._graph("Qwen4_8B", 4096)
