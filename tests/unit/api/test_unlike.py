"""Plans for documents of unlike length."""

import json
import pathlib
import sys
from types import SimpleNamespace

import pytest

import meshwright as mw
from meshwright import api, cli
from meshwright.api import export as api_export
from meshwright.api import plan_files
from meshwright.api.sizes import unlike
from meshwright.base.errors import InputError, UnknownNameError
from meshwright.base.units import format_count
from meshwright.core import words
from meshwright.core.problem import Batch
from meshwright.models.documents import UNTOLD
from meshwright.report.lengths import advice, lengths_lines
from meshwright.writers import plan_json

QUESTION = {"model": "llama-3.2-1b", "cluster": "dgx-h100:8", "global_batch": 64, "sequence_length": "8k"}


def _plan(**more):
    return mw.plan(**QUESTION, **more)


@pytest.fixture(scope="module")
def plain():
    return _plan()


@pytest.fixture(scope="module")
def under_mask():
    return _plan(lengths="lognormal:2k,1", batching="mask")


def test_documents_as_long_as_a_sample_change_nothing(plain) -> None:
    found = _plan(lengths="lognormal:8k,0", batching="mask")
    assert found.plan == plain.plan
    assert found.step_seconds == plain.step_seconds
    held = found.answer.extra["lengths"]
    assert held["pairs_ratio"] == 1.0 and held["n_cut"] == 0
    rate = 64 * 8192 / plain.step_seconds
    for row in held["ways"].values():
        assert row["real_tokens_per_second"] == pytest.approx(rate, rel=1e-12)
        assert row["padding_ratio"] == row["waiting_ratio"] == 0.0
    assert held["recommended"] == "pad"


def test_half_as_long_is_half_the_tokens_or_half_the_pairs(plain) -> None:
    found = _plan(lengths="lognormal:4k,0")
    held = found.answer.extra["lengths"]
    assert held["batching"] == "pack" and held["pairs_ratio"] == 0.5
    assert found.plan == plain.plan and found.step_seconds == plain.step_seconds
    ways, rate = held["ways"], 64 * 8192 / plain.step_seconds
    assert ways["pad"]["real_tokens_per_second"] == pytest.approx(0.5 * rate, rel=1e-12)
    assert ways["pad"]["padding_ratio"] == 0.5
    assert ways["pack"]["real_tokens_per_second"] == pytest.approx(rate, rel=1e-12)
    # two documents of 4k a sample: masked, or in buckets that are all of 4k, the same pairs for the same tokens
    assert ways["mask"]["waiting_ratio"] == ways["bucket"]["waiting_ratio"] == 0.0
    assert ways["mask"]["step_seconds"] < plain.step_seconds
    assert 0.5 * ways["mask"]["step_seconds"] <= ways["bucket"]["step_seconds"] < 0.6 * ways["mask"]["step_seconds"]


def test_in_however_many_parts_steps_are_played_the_answer_is_the_same(under_mask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unlike, "_MOST_TIMES", 1)
    assert _plan(lengths="lognormal:2k,1", batching="mask").answer.extra == under_mask.answer.extra


def test_a_mask_is_quicker_and_its_unlike_samples_wait(plain, under_mask) -> None:
    ways = under_mask.answer.extra["lengths"]["ways"]
    assert under_mask.step_seconds < plain.step_seconds
    assert ways["mask"]["waiting_ratio"] > ways["mask_dealt"]["waiting_ratio"] >= 0.0
    assert ways["mask"]["step_seconds"] == pytest.approx(
        under_mask.step_seconds / (1.0 - ways["mask"]["waiting_ratio"]), rel=1e-9
    )
    assert ways["pack"]["step_seconds"] > ways["mask"]["step_seconds"] > under_mask.step_seconds
    assert ways["pad"]["real_tokens_per_second"] < ways["bucket"]["real_tokens_per_second"]


def test_rows_of_one_piece_a_sample_hold_as_many_tokens_and_the_first_line_says_what_is_reached(under_mask) -> None:
    held = under_mask.answer.extra["lengths"]["ways"]
    tokens = {name: row["real_tokens_per_second"] * row["step_seconds"] for name, row in held.items()}
    assert tokens["bucket"] == pytest.approx(tokens["pad"], rel=1e-9) and held["bucket"]["padding_ratio"] >= 0.0
    real = format_count(held["mask"]["real_tokens_per_second"])
    assert f"tokens/s if samples were all alike ({real} real ones with mask)" in words.verdict(plan_json.as_json(under_mask))


def test_wider_spread_costs_more_under_a_mask(plain) -> None:
    problem = plain.problem
    held = [
        unlike.with_lengths(plain, problem, f"lognormal:2k,{sigma}", "pack").answer.extra["lengths"]
        for sigma in (0.0, 0.5, 1.0)
    ]  # fmt: skip
    for name in ("pairs_ratio",):
        assert held[0][name] < held[1][name] < held[2][name]
    steps = [one["ways"]["mask"]["step_seconds"] for one in held]
    assert steps == sorted(steps)


def test_the_same_seed_says_the_same(plain) -> None:
    one, same, other = (
        unlike.with_lengths(plain, plain.problem, "lognormal:2k,1", "pack", seed).answer.extra["lengths"] for seed in (0, 0, 1)
    )
    assert one == same != other


def test_the_pairs_of_a_short_file_depend_on_no_seed(plain, tmp_path: pathlib.Path) -> None:
    """Of three documents the order alone made 55 to 66 %."""
    (tmp_path / "held.txt").write_text("300\n9000\n1200\n")
    held = [
        unlike.with_lengths(plain, plain.problem, str(tmp_path / "held.txt"), "pack", seed).answer.extra["lengths"][
            "pairs_ratio"
        ]
        for seed in range(4)
    ]
    assert len(set(held)) == 1


def test_a_file_of_lengths_is_the_distribution_it_holds(plain, tmp_path: pathlib.Path) -> None:
    (tmp_path / "held.txt").write_text("4096\n" * 10)
    told, drawn = (
        unlike.with_lengths(plain, plain.problem, told, "pack").answer.extra["lengths"]["ways"]
        for told in (str(tmp_path / "held.txt"), "lognormal:4k,0")
    )
    assert told == drawn


def test_replicas_that_gather_weights_wait_at_every_micro_batch() -> None:
    steps = [
        _plan(lengths="lognormal:2k,1", batching="mask", micro_batch=1, fix=f"data=8,tensor=1,pipeline=1,shard={shard}")
        for shard in (1, 3)
    ]
    waits = [one.answer.extra["lengths"]["ways"]["mask"]["waiting_ratio"] for one in steps]
    assert waits[1] > 1.3 * waits[0] > 0.0


def test_a_plan_file_is_taken_up_with_its_mask(plain, under_mask, tmp_path: pathlib.Path) -> None:
    plan_json.write(under_mask, str(tmp_path / "plan.json"))
    again = plan_files.load(str(tmp_path / "plan.json"))
    assert again.problem.model_spec.pairs_ratio == under_mask.answer.extra["lengths"]["pairs_ratio"]
    assert again.step_seconds == under_mask.step_seconds
    assert plan_json.as_json(again)["lengths"] == plan_json.as_json(under_mask)["lengths"]
    plan_json.write(plain, str(tmp_path / "plain.json"))
    assert json.loads((tmp_path / "plain.json").read_text())["lengths"] is None
    assert "lengths" not in plan_files.load(str(tmp_path / "plain.json")).answer.extra


def test_the_table_says_what_is_recommended(under_mask) -> None:
    held = under_mask.answer.extra["lengths"]
    shown = lengths_lines(held)
    assert "mask: filled, seen inside *" in shown and "pack: filled, seen across *" not in shown
    gain = held["ways"][held["recommended"]]["real_tokens_per_second"] / held["ways"]["pad"]["real_tokens_per_second"] - 1.0
    assert gain > 1.0 and f"{1.0 + gain:.3g} times the real tokens/s of pad" in advice({**held, "batching": "pad"})
    gain = held["ways"][held["recommended"]]["real_tokens_per_second"] / held["ways"]["pack"]["real_tokens_per_second"] - 1.0
    assert f"{gain:+.1%} real tokens/s over pack" in advice({**held, "batching": "pack"})
    assert advice({**held, "batching": held["recommended"]}).endswith("as planned.")


@pytest.mark.parametrize(
    ("more", "said"),
    [({"batching": "mask"}, "give their --lengths too"), ({"batching": "mask", "lengths": "nowhere"}, "no such file"),
     ({"lengths": 7}, "must be a text")],
)  # fmt: skip
def test_nonsense_is_refused(more, said: str) -> None:
    with pytest.raises(InputError) as error:
        _plan(**more)
    assert said in str(error.value)


def test_an_unknown_way_and_measured_times_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="pad"):
        _plan(lengths="lognormal:2k,1", batching="stack")
    problem = api.make_problem("llama-3.2-1b", "dgx-h100:8", batch=Batch(64))
    with pytest.raises(InputError, match="mask already"):
        unlike.posed(unlike.posed(problem, "lognormal:2k,1", "mask"), "lognormal:2k,1", "mask")


def _said(words: list[str], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setattr(sys, "argv", ["meshwright", *words])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    said = capsys.readouterr()
    assert int(stopped.value.code or 0) == code, said.err
    return said.err if code else said.out


def test_the_command_line_shows_the_table_and_check_knows_the_mask(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "plan.json")
    words = ["plan", "gpt2", "--cluster", "dgx-h100:8", "--global-batch", "64", "--no-what-if", "--lengths"]
    said = _said([*words, "lognormal:300,1", "--batching", "mask", "--out", path], 0, monkeypatch, capsys)
    assert "Recommended: " in said
    assert "valid" in _said(["check", path], 0, monkeypatch, capsys)
    assert "lognormal:300: a log-normal" in _said([*words, "lognormal:300"], 2, monkeypatch, capsys)
    notes = api_export.export(path, "megatron", str(tmp_path / "run.sh"))
    assert UNTOLD in notes


@pytest.mark.parametrize(
    ("data", "context", "model", "said"),
    [
        ((2, 2), (1, 1), "gpt2", []), ((2, 1), (1, 1), "gpt2", ["stages have unlike numbers of replicas"]),
        ((1, 1), (2, 2), "gpt2", ["context parallelism"]), ((1, 1), (1, 2), "gpt2", ["context parallelism"]),
        ((2, 1), (1, 2), "gpt2", ["stages have unlike numbers of replicas", "context parallelism"]),
        ((1, 1), (1, 1), "none", ["the model has no fused attention"]),
    ],
)  # fmt: skip
def test_what_the_figures_leave_out_is_said(
    data: tuple[int, int], context: tuple[int, int], model: str, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = tuple(SimpleNamespace(strategy=SimpleNamespace(data=d, context=c)) for d, c in zip(data, context, strict=True))
    monkeypatch.setattr(unlike, "has_masked_attention", lambda spec: spec != "none")
    result, plain = SimpleNamespace(plan=SimpleNamespace(stages=stages)), SimpleNamespace(model_spec=model)
    found = unlike._Step.notes(None, result, plain)
    assert len(found) == len(said) and all(note.startswith(start) for note, start in zip(found, said, strict=True))
