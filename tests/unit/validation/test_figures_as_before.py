"""What errors, intervals and pages make of rows by hand, and logs and tables with one thing changed at a time, as before."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import pathlib
import random
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest

from edited import answer, answers
from meshwright import validation
from meshwright.base.errors import InputError
from meshwright.core import interval
from meshwright.core.interval import TimeInterval
from meshwright.core.interval.run_kind import Kind
from meshwright.core.problem import MixedPrecision
from meshwright.core.stage_cost import StageCost
from meshwright.core.strategy import Strategy
from meshwright.validation import (
    _calibration,
    _completed,
    _coverage,
    _domains,
    _intervals,
    _page,
    _points,
    _report,
    _table,
    _worst,
    own_runs,
)
from meshwright.validation._logs import entries, trainer
from meshwright.validation._points import Point, Skipped
from meshwright.validation._report import Report
from meshwright.validation._runs import Run, built_in
from recorded import Recorded

KINDS = [Kind((device,), mixture=False, shard=1, n_tokens=2048, layer_seconds=5e-3) for device in "AB"]
ENDS = {
    word: TimeInterval(0.5 + 0.1 * i, 2.0 - 0.2 * i, 9, 3)
    for i, word in enumerate(word for kind in KINDS for word in kind.classes)
}


def some(seed: int, n: int = 30) -> tuple[Point, ...]:
    """Return rows of all sorts: some failed, some without memory, a plan, a group or a framework."""
    chance, found = random.Random(seed), []
    for row in range(1, n + 1):
        ran, measured = chance.random() > 0.15, chance.choice([1.0, 2.0, 3.5, 0.0]) * chance.uniform(0.9, 1.1)
        kind = Kind((chance.choice("AB"),), mixture=False, shard=1, n_tokens=2048, layer_seconds=5e-3,
                    framework=chance.choice(["", "megatron"]), cluster="c")  # fmt: skip
        held = chance.choice([0.0, 4e9, 8e9]) * chance.uniform(0.9, 1.1)
        causes = tuple(
            (word, chance.choice([0.0, 0.3, 0.2])) for word in ("compute", "bubble", "tensor", "reduce", "idle", "optimizer")
        )
        parts = (("weights", 3e9), ("context", 5e8), ("allocator", 2e8))
        found.append(
            Point(
                row, measured if ran else math.inf, round(chance.uniform(0.8, 4.0), 1), held,
                chance.choice([3e9, 3.2e9, 3.7e9]),
                chance.choice(["", "one", "two", "two by x"]), chance.random() > 0.2, ran, "A", chance.choice(["", "assumed"]),
                causes, parts, chance.uniform(0.8, 4.0), chance.uniform(3e9, 9e9), chance.random() > 0.3,
                kind if chance.random() > 0.2 else None, chance.choice(["", "megatron", "fsdp2"]), chance.uniform(0.9, 3.0),
            )
        )  # fmt: skip
    return tuple(found)


def reports() -> list[Report]:
    skipped = (Skipped(31, "no such model"), *(Skipped(32 + i, "too large") for i in range(8)))
    says = tuple(f"tp {row}" for row in range(1, 40))
    return [
        Report("/a/mine.csv", "own_runs", some(1), skipped, frozenset(range(1, 30, 2)), says, ("color", "weather")),
        Report("/a/a_name_longer_than_the_column.csv", "amp", some(2), (), frozenset({3}), ()),
        Report("one.csv", "amp", some(3, 1), ()), Report("none.csv", "amp", (), skipped[:1]),
        Report("failed.csv", "amp", tuple(replace(p, ran=False, measured_seconds=math.inf) for p in some(4, 5)), ()),
        Report("equal.csv", "amp", tuple(replace(p, ran=True, measured_seconds=2.0, group="g") for p in some(5, 4)), ()),
    ]  # fmt: skip


def test_errors_of_rows_are_reported_as_before(monkeypatch: pytest.MonkeyPatch, recorded: Recorded) -> None:
    monkeypatch.setattr(interval, "factors", lambda: MappingProxyType(ENDS))
    listed = reports()
    recorded(_report.as_json(listed))
    recorded(_report.explain(listed).splitlines(), "text")
    recorded(_worst.explain(listed[:2], 3).splitlines(), "worst")
    recorded(_worst.explain(listed[3:5], 1), "no worst")
    data = _page.page(listed[:1]).partition('"sets":')[2][:6000]
    recorded([data.count("["), data[:1800]], "page")
    assert _coverage.coverage(listed[3].points, frozenset()) is None


def test_ranks_and_medians_are_those_of_a_plain_twin() -> None:
    chance = random.Random(3)
    for _ in range(20):
        values = np.array([chance.randrange(5) for _ in range(7)], dtype=float)
        plain = [sum(x < y for x in values) + (sum(x == y for x in values) + 1) / 2 for y in values]
        assert _report._ranks(values).tolist() == plain
    one, two = np.array([1.0, 2.0, 3.0]), np.array([3.0, 2.0, 1.0])
    assert _report._spearman(one, two) == pytest.approx(-1.0) and _report._spearman(one, one) == pytest.approx(1.0)
    assert _report._spearman(one[:1], two[:1]) is None and _report._spearman(one, np.ones(3)) is None
    assert _report._spearman(one[:2], two[:2]) == pytest.approx(-1.0)


def test_intervals_of_rows_by_hand_are_as_before(recorded: Recorded) -> None:
    sets = {str(seed): some(seed, 12) for seed in range(6)}
    for n in (2, 5, 6):
        own = dict(list(sets.items())[:n])
        recorded([_intervals.ends(own), _intervals.left_out(own), _intervals.kept_back(own, 3)], f"{n} sets")
        found = _intervals.peak_ratios(own)
        recorded({word: [r.low_ratio, r.high_ratio, r.below_ratio[::8], r.n_runs, r.n_sets, r.basis, r.n_ran]
                  for word, r in found.items()}, f"{n} sets of peaks")  # fmt: skip
    known = next(p.kind for p in some(1) if p.kind)
    ran = tuple(replace(p, framework="new", measured_bytes=0.0, ran=True, kind=p.kind or known,
                                    room_ratio=1.0 + i / 50) for i, p in enumerate(some(9, 60)))  # fmt: skip
    held = _intervals.peak_ratios({**sets, "ran": ran})["new"]
    recorded([held.high_ratio, held.below_ratio[::8], held.basis, held.n_ran, held.n_runs], "bounded by those that ran")
    assert "new" not in _intervals.peak_ratios({"ran": ran})


@pytest.mark.parametrize(("n", "share", "expected"), [(4, 0.25, 1), (4, 0.26, 2), (4, 1.0, 4), (4, 0.0, 1), (1, 0.5, 1)])
def test_quantiles_are_the_smallest_value_with_the_share(n: int, share: float, expected: float) -> None:
    assert _intervals._quantile({"a": [float(i) for i in range(1, n + 1)]}, share) == expected
    assert _intervals._quantile({"a": [1.0], "b": [2.0] * 9}, 0.5) == 1.0
    assert _intervals._quantile({"a": [1.0], "b": [2.0] * 9}, 0.51) == 2.0


CELLS = (
    "", " ", "n/a", "0", "1", "-1", "2.0", "2.5", "1,000", "1,00", "12,345.5", "1e3", "1e15", "1e16", "nan", "inf", "x",
    "1e-9", "2e-9", "1|2", "1|", "1|x", "0|3", "1234567890|1",
)  # fmt: skip


def test_cells_are_read_as_before(recorded: Recorded) -> None:
    found: dict[str, list[str]] = {}
    for cell in CELLS:
        fields = {"a": cell}
        for name, call in (
            ("count", lambda f: _points.count(f, "a")), ("count or 0", lambda f: _points.count(f, "a", 0)),
            ("count or 3", lambda f: _points.count(f, "a", 3)), ("counts", lambda f: _points.counts(f, "a")),
            ("ratio", lambda f: _points.ratio(f, "a")),
        ):  # fmt: skip
            found.setdefault(name, []).append(f"{cell}: {answer(lambda _, call=call, fields=fields: call(fields), '')}")
    found["missing"] = [answer(lambda _: _points.count({}, "a", 7), ""), answer(lambda _: _points.ratio({}, "a"), "")]
    recorded(found)
    kinds = ("amp", "own_runs", "vtrain", "sailor")
    rows = [[_points.fitted(kind, row, {"gpus": gpus}, built_in=own) for row in range(1, 14)]
            for kind, gpus, own in itertools.product(kinds, ("8", "16"), (False, True))]  # fmt: skip
    recorded(["".join("01"[one] for one in row) for row in rows], "fitted")


COLUMNS = (
    "model", "cluster", "data", "tensor", "pipeline", "virtual", "micro_batch", "global_batch", "shard", "shard_degree",
    "recompute", "recompute_layers", "layers", "schedule", "precision", "gradient_bytes", "sequence_length", "step_seconds",
    "reserved_gib", "framework", "job", "color",
)  # fmt: skip
TABLE = f"""{",".join(COLUMNS)}
llama-3.2-1b,dgx-h100:16,2,2,2,1,2,16,1,0,full,3|0,8|8,gpipe,bf16,2,1024,1.5,40,megatron,a,red
llama-3.2-1b,dgx-h100:8,4,1,1,1,1,8,3,2,none,,,,fp16,,512,oom,,,,
"""


def test_tables_of_own_runs_are_read_as_before(tmp_path: pathlib.Path, recorded: Recorded) -> None:
    path = tmp_path / "mine.csv"

    def read(text: str) -> str:
        path.write_text(text)
        found = own_runs.told(_table.read(path).rows)
        return str([one.reason if isinstance(one, Skipped) else line(one) for one in found])

    def line(own: own_runs.OwnRun) -> list[object]:
        run, training = own.run, own.run.training
        return [
            own.row, own.measured_seconds, own.held_bytes, own.memory, own.group, own.note, own.framework, run.strategies[0],
            run.pipeline, run.virtual, run.layers_per_stage, run.micro_batch, run.global_batch, run.recompute, run.schedule,
            training.precision, training.gradient_bytes, training.optimizer_bytes, run.used_of_domain, run.framework.word,
            run.recompute_of_stage, run.graph.sequence_length, run.cluster.n_devices,
        ]  # fmt: skip

    recorded(answers(read, TABLE, str(tmp_path)))


def test_tables_that_are_none_are_refused_word_by_word(tmp_path: pathlib.Path, recorded: Recorded) -> None:
    texts = {
        "no rows": "a,b\n", "binary": "a\0b\n1,2\n", "one cell": "a;b;c\n1;2;3\n", "twice": "model,model\n1,2\n",
        "cells": "a,b\n1,2,3\n", "quote": 'a,b\n"1,2\n', "unknown": "a,b,c,d,e,f,g,h,i\n1,2,3,4,5,6,7,8,9\n",
        "like": TABLE.replace("micro_batch,", "x,"),
        "names": TABLE.replace("micro_batch", "Micro Batch").replace("layers,s", "LAYERS,s"),
        "number": TABLE.replace(",1.5,", ",fast,"), "beside": TABLE.replace(",1.5,", ",1.5 (3 runs),"),
    }  # fmt: skip
    found = {}
    for key, text in texts.items():
        path = tmp_path / "mine.csv"
        path.write_bytes(text.encode())
        found[key] = answer(lambda _, path=path: (_table.read(path).kind, sorted(_table.read(path).rows[0])), "", str(tmp_path))
    path.write_bytes(b"\xff\xfe")
    found["bytes"] = answer(lambda _: _table.read(path), "", str(tmp_path))
    recorded(found)
    row = {"a": "x.json", "b": "torus:2/3", "c": "f/x", "d": "llama", "e": " x.yaml#frag ", "f": "g:a/b"}
    assert _table.located("/d/t.csv", [row], "abcdefz") == [
        {"a": "/d/x.json", "b": "torus:2/3", "c": "/d/f/x", "d": "llama", "e": "/d/x.yaml#frag", "f": "g:a/b"}
    ]
    assert _table.describe({"a": " 1 ", "b": " ", "c": "x"}, ("c", "b", "a", "z")) == "c x, a 1"


MEGATRON = """using world size
----- arguments -----
  bf16 .... True
  fp8 .... hybrid
  num_layers .... 4
  world_size .... 8
  recompute_modules .... ['core_attn', 'mlp']
  deepspeed .... True
  zero_stage .... 1
  checkpoint_activations .... True
--- end of arguments ---
memory (MB) | max allocated: 2048.0 | max reserved: 4096.0
memory (GB) | mem-max-allocated-gigabytes: 3 |
"""
TORCHTITAN = """Building device mesh with parallelism: pp=1, dp_replicate=2, dp_shard=2, cp=1, tp=2
Applied selective activation checkpointing
Trainer initialized with local batch size 2, global batch size 8, gradient accumulation steps 1, sequence length 128
"""
DEEPSPEED = """config.py:10:print] train_batch_size .... 16
config.py:10:print] train_micro_batch_size_per_gpu .... 2
config.py:10:print] zero_optimization_stage .... 2
config.py:10:print] bfloat16_enabled .... True
config.py:10:print] world_size .... 8
Max_MA 3.5 GB CA 1 GB Max_CA 4.5 GB
"""
TRAINER = """Instantaneous batch size per device = 2
Total train batch size (w. parallel, distributed & accumulation) = 16
Gradient Accumulation steps = 2
Total optimization steps = 100
"""


def lines_of(kind: str) -> str:
    """Return a log of few lines."""
    if kind == "megatron":
        line = (
            "iteration {0} / 50 | consumed samples: 8 | elapsed time per iteration (ms): {1} | throughput per GPU "
            "(TFLOP/s/GPU): 400.5 | global batch size: 16 | samples per second: 8.0 |\n"
        )
        return MEGATRON + "".join(line.format(i, 2000 + 10 * i) for i in (1, 2, 11, 12, 13, 14)) + line.format(15, 3900)
    if kind == "torchtitan":
        line = "2024-05-01 12:00:{1},500 step: {0} loss: 1.0 memory: 10.5GiB(1.0%) tps: 256.0 tflops: 3.5 mfu: 1%\n"
        return TORCHTITAN + "".join(line.format(step, second) for step, second in ((1, 10), (11, 20), (12, 22), (13, 24)))
    if kind == "deepspeed":
        line = (
            "[2024-05-01 12:00:{1},500] timer.py:1:stop] epoch=0/global_step={0}, RunningAvgSamplesPerSec=8.0, "
            "CurrSamplesPerSec=8.0, MaxMemAllocated=5.0GB\n"
        )
        return DEEPSPEED + "".join(line.format(step, second) for step, second in ((10, 10), (12, 14), (14, 18), (16, 22)))
    if kind == "pipeline":
        return "".join(f"steps: {i} loss: 2.0 iter time (s): 2.5 samples/sec: 6.4\n" for i in (1, 11, 12, 13)) + "zero_config\n"
    if kind == "state":
        last = {"train_runtime": 80.0, "step": 20, "train_samples_per_second": 4.0}
        return json.dumps({"train_batch_size": 2, "global_step": 40, "log_history": [{"loss": 1}, last]}, indent=1)
    moments = ((1, 0, 5), (12, 0, 27), (23, 0, 49), (40, 1, 23), (60, 2, 5), (80, 2, 44))
    bar = "".join(f" | {step}/100 [{minutes:02d}:{seconds:02d}<1:00, 2.0s/it]\n" for step, minutes, seconds in moments)
    return TRAINER + bar + "{'train_runtime': 210.0, 'train_steps_per_second': 0.5}\n"


@pytest.mark.parametrize("kind", ["megatron", "torchtitan", "deepspeed", "pipeline", "state", "trainer"])
def test_logs_are_read_as_before(kind: str, tmp_path: pathlib.Path, recorded: Recorded) -> None:
    path = tmp_path / "run.log"

    def read(text: str) -> str:
        path.write_text(text)
        run = validation.measured_run(path)
        try:
            seconds = f"{run.seconds_of(16, 128, 8):.6g}"
        except InputError as error:
            seconds = str(error)
        plain = {f.name: getattr(run, f.name) for f in dataclasses.fields(run) if f.name not in ("file", "settings", "options")}
        plain = {name: f"{value:.6g}" if isinstance(value, float) else value for name, value in plain.items()}
        return f"{plain} {dict(run.settings)} {dict(run.options)} {seconds} {run.words}"

    recorded(answers(read, lines_of(kind), f"{tmp_path}/"))


def test_parts_of_logs_are_as_before(tmp_path: pathlib.Path) -> None:
    assert entries.moment("x 2024-05-01 12:00:01,25 y") - entries.moment("2024-05-01T12:00:00") == pytest.approx(1.25)
    assert entries.moment("no") == 0.0 == entries.moment("2024-13-01 12:00:00") and entries.moment("1970-01-01 00:00:07") == 7.0
    assert entries.number("1,024.5 ") == 1024.5 and math.isnan(entries.number("x"))
    line, notes = entries.TimedLine, list[str]()
    steps = [(line(1, 5), 10.0), (line(2, 7), 14.0), (line(3, 7), 15.0), (line(4, 3), 20.0), (line(5, 4), 0.0),
             (line(6, 5), 30.0),
             (line(7, 9), 30.0), (line(8, 10), 33.0)]  # fmt: skip
    assert [(one.line, one.seconds) for one in entries.between(steps, notes)] == [(2, 2.0), (8, 3.0)]
    assert notes == ["line 4: step 3 after step 7: taken for a restart"]
    assert entries.clock("01:02:03") == 3723.0 and entries.clock("7") == 7.0 and entries.clock("1::") == 3600.0
    moments = [(line(i, i), float(at)) for i, at in enumerate((0, 10, 19, 20, 45, 46, 70), 1)] + [
        (line(9, 1), 80.0),
        (line(10, 9), 200.0),
    ]
    assert [(one.step, one.seconds) for one in entries.windows(moments, [])] == [
        (4, 20.0 / 3), (5, 25.0), (7, 12.5), (9, 15.0),
    ]  # fmt: skip
    for text in ("{", "[]", '{"log_history": 3}', "x"):
        assert trainer.state(text) is None
    for name, is_log in (("a.log", True), ("a.csv", False), ("a.CSV", False), ("amp", False), ("x/none", False)):
        assert validation._logs.is_log(name) == is_log
    (tmp_path / "plain").write_text("")
    assert validation._logs.is_log(tmp_path / "plain")


def test_ratios_of_runs_are_those_that_bring_back_what_was_put_in() -> None:
    grid = np.array(_calibration.GRID)
    seconds = np.outer([1.0, 2.0, 5.0], grid)  # steps as long as operators
    assert _calibration._at(seconds, 1.0) == pytest.approx(np.log([1.0, 2.0, 5.0]))
    assert _calibration._at(seconds, 1.6) == pytest.approx(np.log([1.6, 3.2, 8.0]))
    assert _calibration.errors(seconds, np.array([2.0, 2.0, 4.0]), 1.0) == pytest.approx([0.5, 0.0, 0.25])
    assert _calibration._ratio(seconds, seconds[:, 3]) == 1.0
    n, mean = 3, math.log(1.5)
    believed = 1.0 - _calibration.SPREAD**2 / (n * mean**2)
    assert _calibration._ratio(seconds, 1.5 * seconds[:, 3]) == pytest.approx(math.exp(believed * mean), rel=3e-3)
    assert _calibration._ratio(seconds[:1], 1.05 * seconds[:1, 3]) == 1.0  # one run that is 5 % off says nothing
    spread = np.array([1.2, 1.5, 1.9])
    logs = np.log(spread)
    believed = 1.0 - logs.var(ddof=1) / (n * logs.mean() ** 2)
    assert _calibration._ratio(seconds, spread * seconds[:, 3]) == pytest.approx(math.exp(believed * logs.mean()), rel=3e-3)
    text = _calibration.content("megatron", 1.25, 'a "b" c\\d', "t")
    assert text == (
        'title = "megatron, t"\nbase = "megatron"\n\n[how]\n'
        "compute_ratio = { value = 1.25, source = \"meshwright calibrate: a 'b' c/d\" }\n"
    )
    found = _calibration.Calibration("megatron", "/a/b.csv, /c/d.csv", 2, 1, 1.2, 0.1, 0.05, 0.07)
    assert found.words == "2 runs of b.csv, d.csv: mean error 10.0% before, 5.0% after, 7.0% on each with what the others say"
    assert replace(found, n_runs=1, left_out_ratio=None).words.startswith("1 run of b.csv, d.csv: mean error 10.0%")


def test_devices_that_a_run_leaves_out_are_those_of_each_node() -> None:
    assert [_domains.racks(n) for n in (1, 72, 73, 128, 129)] == [1, 72, 144, 144, 216]
    place = validation._runs.clusters()
    dgx, rack = place("dgx-h100:32"), place("gb200-nvl72:144")
    assert [_domains.spread(dgx, n) for n in (8, 12, 16, 9, 32, 6)] == [(8, 8), (6, 8), (8, 8), (1, 1), (8, 8), (6, 8)]
    assert _domains.rack(rack) == (64, 72) and _domains.rack(dgx) == (1, 1) and _domains.rack(place("gb200-nvl72:72")) == (1, 1)
    run = Run(built_in("llama-3.2-1b", 128), dgx, (Strategy(6),), used_of_domain=(6, 8), global_batch=12, pipeline=2)
    plan = validation._runs.laid_out(run)
    assert [stage.devices for stage in plan.stages] == [(0, 1, 2, 3, 4, 5), (8, 9, 10, 11, 12, 13)]
    assert [stage.ops for stage in plan.stages] == [tuple(range(9)), tuple(range(9, 18))] and plan.n_microbatches == 2
    for change, said in (
        ({"strategies": (Strategy(6),) * 3}, "3 strategies are given for 2 pipeline ranks"),
        ({"strategies": (Strategy(24),)}, "the plan needs 62 devices; dgx-h100:32 has 32"),
        ({"strategies": (Strategy(6), Strategy(3))}, "stages of different data degrees are not modelled"),
        ({"global_batch": 13}, "the global batch 13 does not divide by micro-batch 1 times data degree 6"),
        ({"pipeline": 19}, "needs 150 devices"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=said):
            validation._runs.laid_out(replace(run, **change))
    with pytest.raises(InputError, match="19 stages for 16 layers"):
        validation._runs.layers_of_stages(replace(run, pipeline=19))
    assert validation._runs.layers_of_stages(replace(run, pipeline=18)) == [0, *[1] * 16, 0]
    kept = validation._runs._told(replace(MixedPrecision.of("fp16"), gradient_bytes=2, loss_bytes=8, optimizer_bytes=6))
    assert (kept.gradient_bytes, kept.optimizer_bytes, kept.loss_bytes, kept.precision) == (2, 6, 2, "fp16")
    for name, n, cluster in (("a100-x", 4, "p4d-a100:8"), ("a10g", 16, "g5-a10g:16"), ("l4x", 9, "g6-l4:9")):
        assert _completed.cluster_of(name, n) == cluster
    with pytest.raises(InputError, match="no cluster is known for 'b200'"):
        _completed.cluster_of("b200", 8)


def test_layers_recompute_as_little_as_fits_on_a_rank_by_hand() -> None:
    def cost(seconds: float, kept: float, working: float = 1.0) -> StageCost:
        plain = {field.name: 0.0 for field in dataclasses.fields(StageCost) if field.type == "float"}
        return StageCost(**plain | {
            "forward_seconds": seconds, "backward_input_seconds": 2 * seconds,
            "activation_bytes": kept, "working_bytes": working,
            "weight_bytes": 10.0, "communication_bytes": 3.0})  # fmt: skip

    ways = {"none": cost(1.0, 8.0), "selective": cost(1.1, 5.0, 2.0), "full": cost(1.4, 1.0, 4.0)}
    for n, room, flight in itertools.product((0, 1, 3), (13.0, 40.0, 61.0, 70.0, 85.0, 100.0, 200.0), (1, 2)):
        rank = _completed._Rank(MappingProxyType(ways), (cost(0.5, 2.0, 2.5),), room, flight)
        expected: tuple[tuple[str, ...], float] = ((), math.inf)
        for mix in [(n - k, k, 0) for k in range(n + 1)] + [(0, n - k, k) for k in range(1, n + 1)]:
            kept = sum(k * ways[how].activation_bytes for k, how in zip(mix, ways, strict=True)) + 2.0
            work = max([2.5, *(ways[how].working_bytes for k, how in zip(mix, ways, strict=True) if k)])
            if kept * flight + work + 10.0 * (n + 1) + 3.0 <= room:
                words = ("full",) * mix[2] + ("selective",) * mix[1] + ("none",) * mix[0]
                expected = words, 1.5 + sum(k * 3 * ways[how].forward_seconds for k, how in zip(mix, ways, strict=True))
                break
        words, seconds = _completed._least(rank, n)
        assert words == expected[0] and seconds == pytest.approx(expected[1])
    row = [((), 1.0), ((), 2.0), ((), 4.0), ((), math.inf)]
    assert [_completed._most(row, s) for s in (0.5, 1.0, 3.9, 4.0, 9.0)] == [-1, 0, 1, 2, 2]
