"""Runs of one's own: read with or without the optional columns, compared with what was measured, wrong ones listed."""

from __future__ import annotations

import json
import math
import pathlib
import re

import pytest

from meshwright import api, models, schedules, validation
from meshwright.api import advise
from meshwright.base.errors import InputError
from meshwright.core.problem import Batch
from meshwright.models.readers import huggingface
from meshwright.validation import Point, Skipped, own_runs
from meshwright.validation._points import CellError
from meshwright.writers import plan_json

RUN = {"model": "gpt2", "cluster": "dgx-a100:8", "global_batch": "16", "micro_batch": "1", "data": "8", "tensor": "1",
       "pipeline": "1",
       "step_seconds": "0.5"}  # fmt: skip

MACHINE = """format: meshwright/cluster/1
name: machine
source: test
launch: 25 us
algorithms: [ring]
nodes:
  - name: n
    count: 1
    devices: [a100-sxm-80gb, a100-sxm-80gb]
    switch: {bandwidth: 234 GB/s, latency: 3.5 us}
"""


def _point(**cells: str) -> Point | Skipped:
    (found,) = own_runs.points([RUN | cells])
    return found


def test_memory_is_compared_with_the_column_that_is_there() -> None:
    plain, allocated, reserved = _point(), _point(allocated_gib="10"), _point(allocated_gib="10", reserved_gib="11")
    assert isinstance(plain, Point) and isinstance(allocated, Point) and isinstance(reserved, Point)
    assert plain.measured_bytes == 0.0 and allocated.measured_bytes == 10 * 2**30 and reserved.measured_bytes == 11 * 2**30
    assert allocated.predicted_bytes < reserved.predicted_bytes
    assert sum(value for _, value in reserved.memory_causes) > reserved.predicted_bytes  # the context is in no column


def test_sharding_and_recomputation_hold_less() -> None:
    plain, sharded, full = (
        _point(allocated_gib="1"),
        _point(allocated_gib="1", shard="3"),
        _point(allocated_gib="1", recompute="full"),
    )
    assert isinstance(plain, Point) and isinstance(sharded, Point) and isinstance(full, Point)
    assert sharded.predicted_bytes < plain.predicted_bytes and full.predicted_bytes < plain.predicted_bytes


def test_a_run_that_failed_for_memory_is_judged_by_its_verdict() -> None:
    failed = _point(model="llama-3.1-70b", step_seconds="OOM")
    assert isinstance(failed, Point) and not failed.ran and not failed.fits and failed.measured_seconds == math.inf


def test_what_cannot_be_predicted_says_why() -> None:
    for cells, word in (
        ({"model": "gpt9"}, "gpt9"), ({"cluster": "dgx-z9:8"}, "dgx-z9"), ({"data": "16"}, "needs 16 devices"),
    ):  # fmt: skip
        found = _point(**cells)
        assert isinstance(found, Skipped) and word in found.reason, (cells, found)


@pytest.mark.parametrize(
    ("column", "cell"),
    [
        ("data", "1.5"), ("tensor", "-1"), ("pipeline", ""), ("micro_batch", "none"), ("step_seconds", "0"), ("step_seconds", ""),  # noqa: E501
        ("sequence_length", "1e99"), ("recompute", "some"), ("precision", "bf17"), ("schedule", "2f2b"), ("shard", "4"), ("sp", "2"),  # noqa: E501
        ("shard_degree", "x"), ("gradient_bytes", "2.5"), ("nvidia_smi_gib", "-3"), ("virtual", "many"),
    ],
)  # fmt: skip
def test_a_cell_that_cannot_be_read_is_named_with_file_row_and_column(column: str, cell: str, tmp_path: pathlib.Path) -> None:
    good, bad = RUN, RUN | {column: cell}
    header = list(bad)
    lines = [",".join(header), *(",".join(row.get(name, "") for name in header) for row in (good, bad))]
    (tmp_path / "runs.csv").write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError, match=rf"runs\.csv: row 2, column {column}: "):
        validation.validate(tmp_path / "runs.csv")


def test_every_column_that_tells_a_plan_changes_the_prediction() -> None:
    def seconds_and_bytes(**cells: str) -> tuple[float, float]:
        found = _point(nvidia_smi_gib="9", tensor="2", data="4", shard="3", **cells)
        assert isinstance(found, Point) and found.measured_bytes == 9 * 2**30
        return found.predicted_seconds, found.predicted_bytes

    plain = seconds_and_bytes()
    assert seconds_and_bytes(sp="1") == plain and seconds_and_bytes(sp="0")[1] > plain[1]
    assert seconds_and_bytes(shard_degree="2")[1] > plain[1]
    assert seconds_and_bytes(gradient_bytes="2")[1] < plain[1] < seconds_and_bytes(precision="fp32")[1]


@pytest.mark.parametrize("word", ["1f1b", "one_f_one_b", "gpipe", "zb-h1", "interleaved"])
def test_a_schedule_is_named_as_on_the_command_line(word: str) -> None:
    found = own_runs._degrees({**RUN, "schedule": word})["schedule"]
    assert found == schedules.word(word) and found in schedules.words()


@pytest.mark.parametrize("word", schedules.words())
def test_a_run_under_any_schedule_is_predicted(word: str) -> None:
    """Virtual stages lie where the schedule has them: round the ranks, or in a V."""
    one_each = word in ("1f1b", "early_backward_a", "early_backward_b", "gpipe", "zb_h1", "zb_h2")
    found = _point(data="2", pipeline="4", virtual="1" if one_each else "2", schedule=word)
    assert isinstance(found, Point), found
    assert found.predicted_seconds > 0.0


def test_rows_of_one_job_are_one_group() -> None:
    groups = {getattr(_point(job=job), "group", None) for job in ("a", "a", "")}
    assert groups == {"a", f"('gpt2', 0) {RUN['cluster']} {RUN['global_batch']} bf16"}


def test_files_that_a_row_names_lie_beside_the_csv_and_unused_columns_are_told(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, elsewhere = tmp_path / "runs", tmp_path / "elsewhere"
    (folder / "models").mkdir(parents=True)
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    (folder / "models" / "small.json").write_text(json.dumps(huggingface.configuration("gpt2") | {"n_layer": 2}))
    (folder / "machine.yaml").write_text(MACHINE)
    text = "model,cluster,global_batch,micro_batch,data,tensor,pipeline,step_seconds,note,program,source\n"
    text += "models/small.json,machine.yaml,16,1,2,1,1,0.5,an old driver,megatron,\n"
    text += "models/none.json,dgx-a100:8,16,1,8,1,1,0.5,,,\n"
    (folder / "runs.csv").write_text(text)
    report = validation.validate(folder / "runs.csv")
    assert [point.row for point in report.points] == [1] and report.points[0].device == "A100-SXM-80GB"
    assert "no such file" in report.skipped[0].reason and str(folder) in report.skipped[0].reason
    assert report.descriptions[0].startswith("model models/small.json, cluster machine.yaml")  # as the file says it
    assert report.unused == ("note",) and report.points[0].framework == "megatron"
    assert "columns that no prediction uses: note\n" in validation.explain([report])
    slips = ",".join([*RUN, "precison", "Sharding"]) + "\n" + ",".join([*RUN.values(), "fp16", "3"]) + "\n"
    (folder / "slips.csv").write_text(slips)
    said = "columns that no prediction uses: precison (is 'precision' meant?), Sharding (is 'shard' meant?)"
    assert said in validation.explain([validation.validate(folder / "slips.csv")])


def test_devices_that_idle_are_said_where_they_are_as_many_as_work() -> None:
    whole, most, half = _point(), _point(cluster="dgx-a100:12"), _point(cluster="dgx-a100:16")
    assert isinstance(whole, Point) and isinstance(most, Point) and isinstance(half, Point)
    assert "idle" not in whole.note + most.note and "8 of the 16 devices of dgx-a100:16 idle" in half.note


def test_columns_that_a_plan_file_fills_need_not_be_there(tmp_path: pathlib.Path) -> None:
    result = api.plan("gpt2", "dgx-a100:8", batch=Batch(global_batch=64))
    (tmp_path / "plan.json").write_text(json.dumps(plan_json.as_json(result)))
    (tmp_path / "runs.csv").write_text("model,cluster,config,step_seconds\ngpt2,dgx-a100:8,plan.json,1.5\n")
    (point,) = validation.validate(tmp_path / "runs.csv").points
    assert point.predicted_seconds == pytest.approx(result.step_seconds)
    (tmp_path / "runs.csv").write_text("model,cluster,config\ngpt2,dgx-a100:8,plan.json\n")
    with pytest.raises(InputError, match="row 1, column step_seconds: step_seconds is not given"):
        validation.validate(tmp_path / "runs.csv")


def test_a_row_names_its_framework_or_one_is_assumed_and_said() -> None:
    row = RUN
    found = own_runs.points([
        row, {**row, "shard": "3"}, {**row, "framework": "torchtitan"}, {**row, "program": "megatron"}, {**row, "program":
        "mine"},
    ])  # fmt: skip
    assert [point.framework for point in found] == ["meshwright", "fsdp2", "torchtitan", "megatron", "meshwright"]
    assert [point.note for point in found] == [
        "framework is not told: meshwright assumed; say --for NAME",
        "framework is not told: fsdp2 assumed, the slowest that runs it; say --for NAME", "", "",
        "framework is not told: meshwright assumed; say --for NAME",
    ]  # fmt: skip
    with pytest.raises(CellError, match="no framework called 'mine'"):
        own_runs.points([{**row, "framework": "mine"}])


@pytest.mark.parametrize(
    ("cells", "said"),
    [({"framework": "fsdp2", "program": "megatron"}, "program is megatron, but framework says fsdp2"),
     ({"allocated_gib": "70", "reserved_gib": "66.1"}, "allocated_gib is 70, more than reserved_gib, 66.1")],
)  # fmt: skip
def test_cells_of_a_row_that_cannot_both_be_are_refused(cells: dict[str, str], said: str) -> None:
    with pytest.raises(CellError, match=said):
        own_runs.points([LLAMA | cells])
    assert own_runs.points([LLAMA | {"framework": "fsdp2:compiled", "program": "fsdp2"}])


LLAMA = RUN | {"global_batch": "64", "model": "llama-3.1-8b", "cluster": "dgx-h100:8", "shard": "3", "sequence_length": "8192",
               "step_seconds": "9"}  # fmt: skip


def test_the_trainer_holds_whole_gradients_over_several_micro_batches() -> None:
    """16 GB of llama-3.1-8b's, unless there is one micro-batch, or the configuration synchronises each."""
    for word in ("transformers", "accelerate"):
        held = {}
        for batch in ("8", "64"):
            found = _point(**LLAMA | {"global_batch": batch, "recompute": "full"}, framework=word)
            assert isinstance(found, Point) and ("gradients stand whole" in found.note) is (batch == "64")
            held[batch] = dict(found.memory_causes)["gradients"]
        assert (held["64"], held["8"]) == (pytest.approx(2 * 8_030_261_248), pytest.approx(4 * 8_030_261_248 / 8))


def test_of_sharded_runs_without_a_framework_the_slowest_that_runs_the_plan_counts() -> None:
    words = ("fsdp2", "fsdp2:fsdp1_2023", "torchtitan", "maxtext")
    assumed = []
    sizes = (("1", "none"), ("1", "full"), ("2", "none"), ("4", "full"))
    for row in (RUN | {"shard": "2"}, *(LLAMA | {"micro_batch": size, "recompute": way} for size, way in sizes)):
        found = {word: one for word in words if isinstance(one := _point(**row, framework=word), Point)}
        (untold,) = own_runs.points([row])
        safe = [word for word in words if found[word].planned_fits]
        roomy = safe or [word for word in words if found[word].fits] or words
        slowest = max(roomy, key=lambda word: found[word].planned_seconds)
        assert isinstance(untold, Point) and f"{slowest} assumed, the slowest that runs it; say --for NAME" in untold.note, row
        assert untold.planned_seconds == found[slowest].planned_seconds and untold.planned_fits is bool(safe)
        assumed.append(slowest)
    assert len(set(assumed)) > 1


def test_of_sharded_runs_without_a_framework_only_programs_of_their_precision_are_assumed() -> None:
    eight_bits = _point(**LLAMA, precision="fp8", recompute="full")
    assert isinstance(eight_bits, Point) and eight_bits.framework in ("torchtitan", "maxtext")  # FSDP2's script has no fp8


def test_what_the_framework_that_is_named_does_not_run_is_said() -> None:
    found = _point(**LLAMA, precision="fp8", framework="fsdp2")
    assert isinstance(found, Point)
    assert found.note == "outside what fsdp2 runs: products in fp8; it has bf16, fp16, fp32; predicted as if it did"
    inside = _point(**LLAMA, framework="fsdp2")
    assert isinstance(inside, Point) and not inside.note


def test_where_no_program_leaves_room_the_one_that_needs_least_is_assumed() -> None:
    untold = _point(**LLAMA | {"micro_batch": "16", "global_batch": "128"})
    assert isinstance(untold, Point) and not untold.planned_fits
    words = ("fsdp2", "fsdp2:fsdp1_2023", "torchtitan", "maxtext")
    found = [_point(**LLAMA | {"micro_batch": "16", "global_batch": "128"}, framework=word) for word in words]
    assert untold.room_ratio == max(one.room_ratio for one in found if isinstance(one, Point))


@pytest.mark.parametrize("cell", ["abc", "2x4", "1;2", "8 or 16", "--"])
def test_a_cell_that_is_no_number_is_refused_with_file_row_and_column(cell: str, tmp_path: pathlib.Path) -> None:
    header = "model,cluster,global_batch,micro_batch,data,tensor,pipeline,step_seconds"
    (tmp_path / "runs.csv").write_text(f"{header}\ngpt2,dgx-a100:8,16,1,8,1,1,0.5\ngpt2,dgx-a100:8,16,1,{cell},1,1,0.5\n")
    with pytest.raises(InputError, match=rf"runs.csv: row 2, column data: '{re.escape(cell)}'"):
        validation.validate(tmp_path / "runs.csv")


def test_uneven_layers_and_layers_that_recompute_are_told_by_stage() -> None:
    plan = {"data": "4", "pipeline": "2", "allocated_gib": "1"}
    even, uneven = _point(**plan), _point(**plan, layers="2|10")
    assert isinstance(even, Point) and isinstance(uneven, Point)
    assert uneven.predicted_seconds > even.predicted_seconds
    assert _point(**plan, layers="6|6") == even
    full, half = _point(**plan, recompute="full"), _point(**plan, recompute="full", recompute_layers="3")
    assert isinstance(full, Point) and isinstance(half, Point)
    assert even.predicted_seconds < half.predicted_seconds < full.predicted_seconds
    assert even.predicted_bytes > half.predicted_bytes > full.predicted_bytes
    assert _point(**plan, recompute="full", recompute_layers="3|3") == half
    for cells, words in (
        ({"layers": "4|4|4"}, "layers has 3 numbers; there are 2 stages"),
        ({"recompute": "full", "recompute_layers": "3|9"}, "the stages have 6|6 layers"),
        ({"recompute_layers": "3"}, "recompute_layers is 3, but recompute says none"),
    ):
        with pytest.raises(CellError, match=re.escape(words)):
            _point(**plan, **cells)


def test_a_configuration_or_a_plan_file_beside_the_row_tells_its_plan(tmp_path: pathlib.Path) -> None:
    config = {"train_batch_size": 16, "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}}
    config["zero_optimization"] = {"stage": 2, "overlap_comm": True}
    (tmp_path / "ds.json").write_text(json.dumps(config))
    plan_json.write(api.plan("gpt2", "dgx-a100:8", batch=Batch(global_batch=16)), str(tmp_path / "plan.json"))
    header = "model,cluster,global_batch,micro_batch,data,tensor,pipeline,step_seconds,framework,shard,precision,config"
    lines = [header, "gpt2,dgx-a100:8,16,1,8,1,1,0.5,deepspeed,2,bf16,", "gpt2,dgx-a100:8,,,,,,0.5,deepspeed,,,ds.json"]
    (tmp_path / "runs.csv").write_text("\n".join([*lines, "gpt2,dgx-a100:8,,,,,,0.5,meshwright,,,plan.json"]) + "\n")
    told, read, ours = validation.validate(tmp_path / "runs.csv").points
    assert (read.predicted_seconds, read.planned_bytes) == (told.predicted_seconds, told.planned_bytes)
    assert ours.predicted_seconds == pytest.approx(json.loads((tmp_path / "plan.json").read_text())["step_seconds"])
    for line, column in (
        ("gpt2,dgx-a100:8,32,,,,,0.5,deepspeed,,,ds.json", "global_batch"),
        ("gpt2,dgx-a100:8,,,,,,0.5,deepspeed,,fp16,ds.json", "precision"),
        ("gpt2,dgx-a100:8,,,,,,0.5,megatron_deepspeed,,,ds.json", "config"),
    ):
        (tmp_path / "runs.csv").write_text(f"{header}\n{line}\n")
        with pytest.raises(InputError, match=rf"row 1, column {column}: "):
            validation.validate(tmp_path / "runs.csv")


SCRIPT = (
    "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 12 --seq-length 1024 --micro-batch-size 1 --global-batch-size 16 "
    "--tensor-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer --overlap-grad-reduce "
    "--overlap-param-gather --bf16 {}\n"
)


def test_what_a_configuration_says_of_the_program_counts(tmp_path: pathlib.Path) -> None:
    """As `advise` prices it: overlap of the tensor axis, bytes of gradients, the optimizer, attention that is not fused."""

    def found(options: str = "", **cells: str) -> Point:
        (tmp_path / "run.sh").write_text(SCRIPT.format(options))
        row = dict.fromkeys(RUN, "") | {"model": "gpt2", "cluster": "dgx-a100:8", "step_seconds": "0.5"}
        config = {"framework": "megatron", "config": str(tmp_path / "run.sh"), "nvidia_smi_gib": "9"}
        (point,) = own_runs.points([row | config | cells])
        assert isinstance(point, Point)
        return point

    plain, overlapped = found(), found("--tp-comm-overlap")
    advised = advise.advise(str(tmp_path / "run.sh"), "dgx-a100:8", "gpt2").result.timeline
    assert advised is not None and overlapped.predicted_seconds == pytest.approx(advised.step_seconds)
    assert overlapped.predicted_seconds < plain.predicted_seconds
    mine = tmp_path / "mine.toml"
    mine.write_text('base = "megatron"\n[how]\ncompute_ratio = 1.2\n')
    for options, built_in in (("", plain), ("--tp-comm-overlap", overlapped)):
        own = found(options, framework=str(mine)).predicted_seconds
        advised = advise.advise(str(tmp_path / "run.sh"), "dgx-a100:8", "gpt2", framework=str(mine)).result.timeline
        assert advised is not None and own == pytest.approx(advised.step_seconds) and own > built_in.predicted_seconds
    narrow, sgd = found("--grad-reduce-in-bf16"), found("--optimizer sgd --sgd-momentum 0")
    assert narrow.planned_bytes < plain.planned_bytes > sgd.planned_bytes and sgd.predicted_bytes == sgd.planned_bytes
    unfused = found("--attention-backend unfused")
    assert unfused.predicted_seconds > plain.predicted_seconds and unfused.predicted_bytes > plain.predicted_bytes
    same = {"tensor": "2", "data": "4", "sp": "1", "shard": "1", "shard_degree": "4", "layers": "12", "recompute": "none"}
    assert found(**same, schedule="1f1b", micro_batch="1", virtual="1") == plain
    wrong = {"sp": "0", "shard": "2", "layers": "11", "recompute": "full", "recompute_layers": "3", "schedule": "gpipe"}
    counts = ("tensor", "data", "context", "expert", "pipeline", "virtual", "micro_batch", "shard_degree")
    for column, cell in (wrong | dict.fromkeys(counts, "3")).items():
        with pytest.raises(CellError, match=rf"{column} is {cell}, but .*run.sh says .*; correct one of them") as caught:
            found(**{column: cell})
        assert caught.value.column == column


def test_a_plan_file_tells_its_length_its_training_and_what_runs_it(tmp_path: pathlib.Path) -> None:
    row = dict.fromkeys(RUN, "") | {"model": "gpt2", "cluster": "dgx-a100:8", "step_seconds": "0.5"}
    model = models.read("gpt2", sequence_length=512, lora="r=8,targets=mlp")
    planned = api.plan(model, "dgx-a100:8", batch=Batch(global_batch=16), framework="fsdp2")
    plan_json.write(planned, str(tmp_path / "plan.json"))
    (point,) = own_runs.points([row | {"config": str(tmp_path / "plan.json"), "nvidia_smi_gib": "9"}])
    assert isinstance(point, Point) and planned.timeline is not None
    assert (point.framework, point.note) == ("fsdp2", "no interval: no run that trains a part of the weights was measured")
    assert point.predicted_seconds == pytest.approx(planned.timeline.step_seconds)
    assert point.planned_bytes == pytest.approx(max(planned.timeline.peak_bytes))


def test_what_of_a_plan_the_framework_does_not_run_is_said() -> None:
    for cells, words in (
        ({"framework": "megatron", "schedule": "gpipe", "pipeline": "2", "data": "4"}, "schedule gpipe; it has 1f1b"),
        ({"framework": "fsdp2", "pipeline": "2", "data": "4"}, "pipeline degree 2; it has no pipeline parallelism"),
        ({"framework": "megatron_deepspeed", "shard": "3"}, "sharding level 3 of the data axis; it has 0, 1"),
        ({"framework": "megatron", "recompute": "selective"}, "recomputation 'selective'; it has none, layernorm"),
        ({"framework": "deepspeed", "tensor": "2", "data": "4", "sp": "1"}, "it has no sequence parallelism"),
        ({"framework": "megatron", "virtual": "2"}, "virtual stages on one pipeline rank, which follow each other"),
    ):  # fmt: skip
        found = _point(**cells)
        assert isinstance(found, Point) and f"outside what {cells['framework']} runs: " in found.note and words in found.note
    alike = [_point(framework="megatron", recompute=word) for word in ("core_attn+mlp", "mlp+core_attn")]
    assert alike[0] == alike[1] and getattr(alike[0], "note", None) == ""
    assert getattr(_point(framework="deepspeed", tensor="2", data="4"), "note", None) == ""  # nothing is split that is not told


@pytest.mark.parametrize(
    ("column", "cell", "words"),
    [
        ("gradient_bytes", "32", "8 at most"),
        ("optimizer_bytes", "120", "16 at most"),
        ("reserved_gib", "6610", "has 79.15 GiB"),
    ],
)
def test_a_cell_in_another_unit_is_refused(column: str, cell: str, words: str) -> None:
    with pytest.raises(CellError, match=rf"{column} is {cell}; .*{words}"):
        _point(**{column: cell})


def test_a_framework_in_the_column_program_counts_over_the_one_given(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "runs.csv"
    header = [*RUN, "program"]
    path.write_text("\n".join(",".join(line) for line in (header, [*RUN.values(), "megatron"], [*RUN.values(), "mine"])) + "\n")
    assert [point.framework for point in validation.validate(path, framework="torchtitan").points] == ["megatron", "torchtitan"]
    path.write_text("\n".join(",".join(line) for line in (header, [*RUN.values(), "megatron"])) + "\n")
    with pytest.raises(InputError, match=r"every row of .* names its framework, so it changes nothing"):
        validation.validate(path, framework="torchtitan")


def test_the_seconds_of_a_row_may_stand_in_its_log(tmp_path: pathlib.Path) -> None:
    head = "[2023-12-29 13:02:00,000] [INFO] [config.py:1003:print]   {} ............ {}\n"
    line = (
        "[2023-12-29 13:02:{:06.3f}] [INFO] [timer.py:260:stop] epoch=0/micro_step=0/global_step={}, RunningAvgSamplesPerSec=1"
    )
    log = "".join(
        head.format(*cells) for cells in (("train_batch_size", 16), ("world_size", 8), ("zero_optimization_stage", 1))
    )
    log += head.format("train_micro_batch_size_per_gpu", 1)
    log += "".join(f"{line.format(step, 10 * step)}, CurrSamplesPerSec=160, MaxMemAllocated=3.5GB\n" for step in range(1, 9))
    (tmp_path / "run.log").write_text(log)
    header = "model,cluster,global_batch,micro_batch,data,tensor,pipeline,step_seconds,log"
    (tmp_path / "runs.csv").write_text(f"{header}\ngpt2,dgx-a100:8,,,,,,,run.log\n")
    (point,) = validation.validate(tmp_path / "runs.csv").points
    assert point.measured_seconds == pytest.approx(0.1) and point.measured_bytes == pytest.approx(3.5 * 2**30, rel=1e-5)
    assert point.framework == "deepspeed" and "none but what the row says" in point.note
    (tmp_path / "runs.csv").write_text(f"{header}\ngpt2,dgx-a100:8,,2,,,,,run.log\n")
    with pytest.raises(InputError, match=r"row 1, column micro_batch: micro_batch is 2, but the log .*run\.log says 1"):
        validation.validate(tmp_path / "runs.csv")
