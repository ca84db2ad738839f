"""A framework fitted to runs of one's own: found again where runs were made with it, shrunk where they say little."""

from __future__ import annotations

import csv
import json
import pathlib

import numpy as np
import pytest

from meshwright import api, cli, frameworks, validation
from meshwright.base.errors import InputError
from meshwright.core.problem import Batch
from meshwright.validation import Point, _calibration, own_runs

RUN = {
    "model": "gpt3-2.7b", "cluster": "dgx-a100:8", "sequence_length": "2048", "global_batch": "64", "pipeline": "1",
    "framework": "megatron",
}  # fmt: skip
PLANS = [("1", "8", "1"), ("2", "8", "1"), ("2", "4", "2"), ("4", "2", "4"), ("4", "4", "2")]
"""Micro-batch, data and tensor degree."""


def rows(*seconds: float, **cells: str) -> list[dict[str, str]]:
    """Return rows that took so long."""
    return [
        RUN | {"micro_batch": micro, "data": data, "tensor": tensor, "step_seconds": f"{own:.9g}"} | cells
        for own, (micro, data, tensor) in zip(seconds, PLANS, strict=False)
    ]


def stored(folder: pathlib.Path, found: list[dict[str, str]]) -> pathlib.Path:
    """Return a file of rows."""
    path = folder / "runs.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(found[0]))
        writer.writeheader()
        writer.writerows(found)
    return path


def predicted(framework: str = "megatron") -> list[float]:
    """Return what is predicted of the rows."""
    points = own_runs.points(rows(*[1.0] * len(PLANS), framework=framework))
    return [point.predicted_seconds for point in points if isinstance(point, Point)]


def test_runs_made_with_a_ratio_give_it_back_and_the_file_predicts_them(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "true.toml"
    mine.write_text('base = "megatron"\n[how]\ncompute_ratio = 1.4\n')
    slower = predicted(str(mine))
    assert all(1.2 < slow / plain < 1.4001 for slow, plain in zip(slower, predicted(), strict=True))
    path, out = stored(tmp_path, rows(*slower)), tmp_path / "mine.toml"
    monkeypatch.setattr("sys.argv", ["meshwright", "calibrate", str(path), "--out", str(out), "--json"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code in (0, None)
    found = json.loads(capsys.readouterr().out)
    assert found["n_runs"] == 5 and found["compute_ratio"] == pytest.approx(1.4, rel=0.03)
    assert found["before_ratio"] > 0.15 and found["after_ratio"] < 0.03 and found["left_out_ratio"] < 0.03
    own = frameworks.find(str(out))
    assert own.compute_ratio == pytest.approx(found["compute_ratio"], rel=1e-5)
    assert own.limits == frameworks.plain("megatron").limits
    assert predicted(str(out)) == pytest.approx(slower, rel=0.03)
    planned = api.plan("gpt3-125m", "dgx-a100:2", batch=Batch(global_batch=8), framework=str(out))
    assert planned.problem.framework.compute_ratio == own.compute_ratio


def test_memory_under_a_file_of_ones_own_is_judged_by_the_runs_of_its_base(tmp_path: pathlib.Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(_calibration.content("megatron", 1.2, "runs", "mine"))
    assert frameworks.find(str(mine)).holds_as == "megatron" != frameworks.find(str(mine)).name
    mine.write_text('base = "megatron"\n[how]\nbuffer_bytes = 1e9\n')  # what it holds is another thing
    assert frameworks.find(str(mine)).holds_as == str(mine)
    mine.write_text(_calibration.content("megatron", 1.2, "runs", "mine"))
    batch = Batch(global_batch=64)
    own, base = (api.make_problem("gpt3-2.7b", "dgx-a100:8", batch=batch, framework=word) for word in (str(mine), "megatron"))
    assert own.memory_ratio == base.memory_ratio


def test_a_file_of_ones_own_is_for_rows_that_name_its_base_too(tmp_path: pathlib.Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text('base = "megatron"\n[how]\ncompute_ratio = 1.4\n')
    path = stored(tmp_path, rows(1.0) + rows(1.0, framework="megatron:sc21"))
    plain, other = (point.predicted_seconds for point in validation.validate(path).points)
    own, left = (point.predicted_seconds for point in validation.validate(path, framework=str(mine)).points)
    assert own > 1.2 * plain and left == other
    with pytest.raises(InputError, match="names another framework"):
        validation.validate(stored(tmp_path, rows(1.0, framework="fsdp2")), framework=str(mine))


def test_runs_of_variants_of_one_framework_are_calibrated_together(tmp_path: pathlib.Path) -> None:
    found = validation.calibrate(stored(tmp_path, rows(1.0) + rows(1.0, framework="megatron:plain")))
    assert found.framework == "megatron" and found.n_runs == 2
    assert any("runs of megatron, megatron:plain: what was found is for all of them" in note for note in found.notes)


def test_what_few_runs_cannot_tell_stays_as_it_was() -> None:
    seconds = np.array([[2.0 * ratio for ratio in _calibration.GRID]])
    # one run that took 5 % longer is within the spread of runs; of one of 50 % the share 1 - 0.09^2 / ln(1.5)^2 is believed
    assert _calibration._ratio(seconds, np.array([2.1])) == 1.0
    believed = 1.0 - _calibration.SPREAD**2 / np.log(1.5) ** 2
    assert _calibration._ratio(seconds, np.array([3.0])) == pytest.approx(1.5**believed, rel=0.01)
    many = _calibration._ratio(np.repeat(seconds, 50, axis=0), np.full(50, 3.0))
    assert many == pytest.approx(1.5, rel=0.01)
    wild = _calibration._ratio(np.repeat(seconds, 2, axis=0), np.array([1.2, 5.0]))
    assert wild == 1.0  # two runs that disagree by four times say nothing of their mean


def test_a_ratio_that_predicts_the_others_no_better_is_not_taken(tmp_path: pathlib.Path) -> None:
    """Three runs took 28 % longer than predicted, two 3 % less: half of the mean would be believed, and hurt the two."""
    seconds = np.outer(np.ones(5), _calibration.GRID)
    measured = np.array([1.28, 1.28, 1.28, 0.97, 0.97])
    ratio, left_out = _calibration.fitted(seconds, measured)
    assert (
        _calibration._ratio(seconds, measured) > 1.04 and left_out.mean() > _calibration.errors(seconds, measured, 1.0).mean()
    )
    assert ratio == 1.0
    ran = [own * off for own, off in zip(predicted(), measured, strict=True)]
    found = validation.calibrate(stored(tmp_path, rows(*ran)))
    assert found.compute_ratio == 1.0 and found.after_ratio == found.before_ratio
    assert "what the others say predicts each run no better" in found.notes[-1]


def test_one_run_has_no_others_and_failed_runs_say_nothing(tmp_path: pathlib.Path) -> None:
    found = validation.calibrate(stored(tmp_path, rows(2.0 * predicted()[0])))
    assert found.n_runs == 1 and found.left_out_ratio is None and "left" not in found.words
    failed = rows(2.0 * predicted()[0]) + [replace_cell(rows(1.0)[0], "step_seconds", "oom")]
    found = validation.calibrate(stored(tmp_path, failed))
    assert (found.n_runs, found.n_left) == (1, 1)
    with pytest.raises(InputError, match="no row was timed and predicted"):
        validation.calibrate(stored(tmp_path, failed[1:]))


def replace_cell(row: dict[str, str], name: str, text: str) -> dict[str, str]:
    """Return a row with another cell."""
    return {**row, name: text}


def test_a_run_far_from_the_others_is_said_and_so_is_why_a_row_says_nothing(tmp_path: pathlib.Path) -> None:
    usual = predicted()
    alike = validation.calibrate(stored(tmp_path, rows(*(1.1 * own for own in usual))))
    assert not alike.notes and alike.devices == ("A100-SXM-80GB",)
    odd = validation.calibrate(stored(tmp_path, rows(*(1.1 * own for own in usual[:4]), 3.3 * usual[4])))
    assert any("row 5 took 3.3 times as long as predicted, the runs in the middle 1.1" in note for note in odd.notes)
    quick = validation.calibrate(stored(tmp_path, rows(*(1.1 * own for own in usual[:4]), 0.3 * usual[4])))
    assert quick.n_left == 1 and any(note.startswith("row 5 is left out") and "is shorter than" in note for note in quick.notes)


def test_a_file_is_for_the_kind_of_device_that_it_was_calibrated_on(tmp_path: pathlib.Path) -> None:
    path = stored(tmp_path, rows(*(1.3 * own for own in predicted())))
    again = validation.calibrate([path, str(path)])
    assert again.n_runs == len(PLANS) and "1 of 2 files are named again, counted once" in again.notes
    mine = str(tmp_path / "mine.toml")
    validation.write_calibration(again, mine)
    assert frameworks.calibrated_on(mine) == frameworks.calibrated_on(f"{mine}:plain") == ("A100-SXM-80GB",)
    assert not frameworks.calibrated_on("megatron:plain")
    here, there = (
        api.plan("gpt3-125m", f"{kind}:2", batch=Batch(global_batch=8), framework=mine).answer.notes
        for kind in ("dgx-a100", "dgx-h100")
    )
    said = f"{mine} was calibrated to runs on A100-SXM-80GB; how far its figure holds on H100-SXM-80GB is not known"
    assert said in there and said not in here


def test_rows_have_to_name_one_built_in_framework(tmp_path: pathlib.Path) -> None:
    plain = [replace_cell(row, "framework", "") for row in rows(1.0, 1.0)]
    with pytest.raises(InputError, match="no row says which framework trained; give it with --for"):
        validation.calibrate(stored(tmp_path, plain))
    assert validation.calibrate(stored(tmp_path, plain), framework="fsdp2").framework == "fsdp2"
    with pytest.raises(InputError, match=r"several frameworks \(fsdp2, megatron\)"):
        validation.calibrate(stored(tmp_path, rows(1.0) + rows(1.0, framework="fsdp2")))
    with pytest.raises(InputError, match="is a file; calibrate starts from a built-in one"):
        validation.calibrate(stored(tmp_path, rows(1.0, framework="mine.toml")))
    with pytest.raises(InputError, match="has the columns of vtrain"):
        validation.calibrate("vtrain_a100")


def test_the_words_say_how_far_off_it_was_and_is() -> None:
    found = validation.Calibration("f", "d/x.csv", 2, 0, 1.1, 0.2, 0.1, 0.15)
    assert found.words == "2 runs of x.csv: mean error 20.0% before, 10.0% after, 15.0% on each with what the others say"


def test_a_run_that_is_another_one_is_refused_with_its_row(tmp_path: pathlib.Path) -> None:
    usual = predicted()
    milliseconds = stored(tmp_path, rows(usual[0], 1e3 * usual[1]))
    with pytest.raises(InputError, match=r"runs.csv: row 2, column step_seconds: the step took .* \(not milliseconds"):
        validation.calibrate(milliseconds)
    smaller = stored(tmp_path, rows(usual[0] / 6.0))  # that of another model: quicker than any device
    with pytest.raises(InputError, match=r"shorter than the .* take at the bf16 peak of .*: another unit, model"):
        validation.calibrate(smaller)
    slow = validation.calibrate(stored(tmp_path, rows(*(4.0 * one for one in usual))))
    assert slow.compute_ratio == pytest.approx(_calibration.GRID[-1]) and "is the end of its range" in slow.notes[-1]


def test_repeated_rows_count_once_and_runs_of_one_plan_say_so(tmp_path: pathlib.Path) -> None:
    usual = predicted()
    row = rows(1.5 * usual[0])
    once, often = validation.calibrate(stored(tmp_path, row)), validation.calibrate(stored(tmp_path, 4 * row))
    assert (often.n_runs, often.n_left, often.compute_ratio) == (1, 0, once.compute_ratio)
    assert "3 of 4 runs repeat another to the last digit, counted once" in often.notes[-1] and not once.notes
    again = validation.calibrate(stored(tmp_path, row + rows(1.52 * usual[0])))
    assert again.n_runs == 2 and "all 2 runs are of one plan" in again.notes[-1]
    assert not validation.calibrate(stored(tmp_path, rows(*usual[:2]))).notes


LOG = """------------------------ arguments ------------------------
  bf16 ............................................ True
  global_batch_size ............................... 64
  micro_batch_size ................................ 1
  num_layers ...................................... 32
  pipeline_model_parallel_size .................... 1
  seq_length ...................................... 2048
  sequence_parallel ............................... True
  tensor_model_parallel_size ...................... 2
  world_size ...................................... 8
-------------------- end of arguments ---------------------
"""


def log(folder: pathlib.Path, seconds: float, *, head: str = LOG, flops: str = "") -> pathlib.Path:
    """Return a log of Megatron-LM whose steps took so long."""
    line = " iteration {:8d}/     500 | elapsed time per iteration (ms): {} |{} global batch size:    64 |\n"
    path = folder / "run.log"
    path.write_text(head + "".join(line.format(step, 1e3 * seconds, flops) for step in range(1, 16)))
    return path


def test_a_log_is_a_run_whose_plan_stands_in_it_or_beside_it(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (row,) = rows(1.0, data="4", tensor="2", framework="megatron:plain+late_reduce")  # the log tells no overlap
    (point,) = own_runs.points([row])
    assert isinstance(point, Point)
    out = tmp_path / "mine.toml"
    words = ["calibrate", str(log(tmp_path, 2.0 * point.predicted_seconds)), "--out", str(out), "--json"]
    monkeypatch.setattr("sys.argv", ["meshwright", *words, "--model", "gpt3-2.7b", "--cluster", "dgx-a100:8"])
    with pytest.raises(SystemExit):
        cli.main()
    found = json.loads(capsys.readouterr().out)
    assert found["framework"] == "megatron:plain+late_reduce" and found["before_ratio"] == pytest.approx(0.5, abs=1e-6)
    assert found["after_ratio"] < 0.1 and frameworks.find(str(out)).compute_ratio > 1.7
    bare = log(tmp_path, 2.0 * point.predicted_seconds, head="")
    told = {"model": "gpt3-2.7b", "cluster": "dgx-a100:8"}
    with pytest.raises(InputError, match=r"run\.log: tensor is not given; the log does not tell it: add --config FILE"):
        validation.calibrate(bare, **told)
    script = tmp_path / "run.sh"
    script.write_text(
        "torchrun --nnodes 1 --nproc-per-node 8 pretrain_gpt.py --num-layers 32 --seq-length 2048 --micro-batch-size 1 "
        "--global-batch-size 64 --tensor-model-parallel-size 2 --sequence-parallel --bf16\n"
    )
    assert validation.calibrate(bare, config=str(script), **told).compute_ratio == found["compute_ratio"]


def test_a_log_that_contradicts_its_model_or_names_none_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match=r"none\.log: cannot be read: no such file"):
        validation.calibrate("none.log")
    with pytest.raises(InputError, match="does not say which model was trained on which cluster: add --model and --cluster"):
        validation.calibrate(log(tmp_path, 2.0))
    told = {"model": "gpt3-2.7b", "cluster": "dgx-a100:8"}
    rate = " throughput per GPU (TFLOP/s/GPU): {} |"  # 2.34e15 FLOP in 2 s on 8 devices are 146 TFLOP/s
    assert validation.calibrate(log(tmp_path, 2.0, flops=rate.format(150.0)), **told).n_runs == 1
    with pytest.raises(InputError, match=r"15 TFLOP/s a device make 2.4e.14 FLOP a step .* another model, batch or number"):
        validation.calibrate(log(tmp_path, 2.0, flops=rate.format(15.0)), **told)
    with pytest.raises(InputError, match="makes 32 layers, but gpt3-125m has 12: another model"):
        validation.calibrate(log(tmp_path, 2.0), model="gpt3-125m", cluster="dgx-a100:8")


def test_a_framework_that_no_row_is_left_for_is_refused(tmp_path: pathlib.Path) -> None:
    """Or a file fitted to one's own runs would be given and never used, without a word."""
    named = stored(tmp_path, rows(1.0, framework="megatron"))
    with pytest.raises(InputError, match="names its framework, so it changes nothing"):
        validation.validate(named, framework="fsdp2")
