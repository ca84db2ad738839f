"""``meshwright run``: what it prints, what it refuses before a process starts, what a dead rank leaves, how it goes on."""

from __future__ import annotations

import json
import pathlib
import shlex
import subprocess
import sys
from typing import Any

import pytest
from forked_commands import meshwright
from runtime_processes import environment, plan_of

pytest.importorskip("torch", reason="running plans needs PyTorch: pip install 'meshwright[torch]'")
pytestmark = pytest.mark.torch

UNEVEN = [(3, [0], {}), (5, [1], {})]


def written(folder: pathlib.Path, plan: dict[str, Any]) -> str:
    """Write a plan file and return its path."""
    path = folder / "plan.json"
    path.write_text(json.dumps(plan))
    return str(path)


def profiled(folder: pathlib.Path) -> str:
    """Measure the small model quickly and return the profile's path."""
    from meshwright.runtime.profile.measure import profile_callable

    fields = profile_callable(
        "models:small", [4], [1], sequence_length=16, repeats=1, device="cpu", seed=0, say=lambda *_: None
    )  # fmt: skip
    path = folder / "profile.json"
    path.write_text(json.dumps({"format": "meshwright/profile/1", **fields}))
    return str(path)


def test_a_run_with_loss_and_optimizer_of_ones_own_equals_one_process_and_is_compared_with_its_prediction(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(pathlib.Path(__file__).resolve().parents[3] / "examples"))
    profile, plan = profiled(tmp_path), written(tmp_path, plan_of(UNEVEN, micro_batch=4))
    trace, better = tmp_path / "trace.json", tmp_path / "better.json"
    words = ("--model", "models:small", "--steps", "3", "--reference", "--json", "--trace", str(trace), "--profile", profile)
    log = tmp_path / "steps.jsonl"
    own = ("--optimizer", "fragile:descent", "--loss", "fragile:half_of_cross_entropy", "--calibrate", str(better))
    own += ("--clip-norm", "0.3", "--log", str(log))
    done = meshwright("run", plan, *words, *own)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["format"] == "meshwright/run/1"
    assert answer["n_ranks"] == 2
    assert len(answer["losses"]) == len(answer["reference_losses"]) == 3
    assert max(abs(a - b) for a, b in zip(answer["losses"], answer["reference_losses"], strict=True)) < 2e-5
    assert answer["losses"][0] < 0.6 * 4.7  # half of what cross entropy of 101 words begins with
    steps = [json.loads(line) for line in log.read_text().splitlines()]
    assert [step["step"] for step in steps] == [1, 2, 3] and [step["loss"] for step in steps] == answer["losses"]
    assert [step["gradient_norm"] for step in steps] == answer["gradient_norms"] and min(answer["gradient_norms"]) > 0.3
    for step in steps:
        assert step["tokens_per_second"] == pytest.approx(16 * 16 / step["step_seconds"]) and not step["skipped"]
    assert answer["step_seconds"]["measured"] > 0 and answer["step_seconds"]["predicted"] > 0
    for stage in answer["stages"]:
        for row in ("compute_seconds", "communication_seconds", "peak_bytes"):
            assert stage[row]["measured"] >= 0 and stage[row]["predicted"] >= 0, row
        assert stage["compute_seconds"]["measured"] > 0 and stage["peak_bytes"]["measured"] > 0
    events = json.loads(trace.read_text())["traceEvents"]
    assert {"forward", "backward", "wait", "optimizer"} <= {event["cat"] for event in events if event["ph"] == "X"}
    tracks = [event["args"]["name"] for event in events if event["ph"] == "M" and event["name"] == "process_name"]
    assert sum(name.startswith("measured: ") for name in tracks) == sum(name.startswith("predicted: ") for name in tracks) == 2
    before, after = (json.loads(pathlib.Path(path).read_text())["measures"] for path in (profile, better))
    assert [m["layer"] for m in before] == [m["layer"] for m in after] and before != after


@pytest.mark.parametrize(
    ("plan", "words", "told"),
    [
        (plan_of([(3, [0], {}), (4, [1], {})]), ("--model", "models:small"), "holds 6 layers, but the plan has 5"),
        (plan_of([(3, list(range(16)), {}), (5, [16], {})], global_batch=64), ("--model", "models:small"), "17 processes"),
        (
            plan_of([(3, [0, 1], {}), (5, [2], {})], global_batch=4),
            ("--model", "models:small"),
            "each replica needs at least one",
        ),
        (
            plan_of([(3, [0, 1], {"tensor": 2}), (5, [2], {})], sequence_length=15),
            ("--model", "nowhere:at_all"),
            "no module 'nowhere'",
        ),
        (plan_of(UNEVEN), ("--model", "models:smal"), "has no 'smal'"),
        (plan_of(UNEVEN), ("--model", "models:small", "--resume"), "need --save"),
        (plan_of(UNEVEN), ("--model", "models:small", "--resume", "auto"), "need --save"),
        (plan_of(UNEVEN), ("--model", "models:small", "another.json"), "unexpected word 'another.json'"),
        (plan_of(UNEVEN), ("--model", "models:small", "--keep", "0"), "--keep 0"),
        (plan_of(UNEVEN), ("--model", "models:small", "--non-finite", "ignore"), "must be stop or skip"),
        (plan_of(UNEVEN, schedule="1f2b"), ("--model", "models:small"), "did you mean '1f1b'"),
        (plan_of([(3, [0, 1, 2], {"tensor": 3}), (5, [3], {})]), ("--model", "models:small"), "does not divide"),
        (plan_of(UNEVEN), ("--model", "fragile:Decides"), "cannot be cut between its layers"),
        (plan_of(UNEVEN), ("--model", "fragile:HandsOnALength"), "a float is handed on"),
        (plan_of(UNEVEN), ("--model", "models:small", "--calibrate", "better.json"), "give that too"),
        (plan_of(UNEVEN), ("--model", "models:small", "--emulate"), "is not known"),
        (plan_of(UNEVEN), ("--model", "models:small", "--optimizer", "fragile:none"), "has no 'none'"),
        (
            plan_of([(2, [0], {}), (4, [1], {})]),
            ("--model", "zoo:Biased"),
            "is trained and has no rows of the batch",
        ),
        (plan_of([(2, [0], {}), (4, [1], {})]), ("--model", "zoo:Overwrites"), "in-place"),
        (
            plan_of([(8, [0, 1], {"context": 2})], sequence_length=15),
            ("--model", "models:small"),
            "does not divide the 15 tokens",
        ),
        (plan_of([(8, [0, 1], {"context": 2})]), ("--model", "fragile:Encoder"), "context degree 2: on parts of a sequence"),
        (plan_of([(8, [0, 1], {"expert": 2})]), ("--model", "models:small"), "no experts were recognised"),
        (plan_of(UNEVEN), ("--model", "models:small", "--precision", "fp8"), "must be bf16, fp16 or fp32"),
        (plan_of(UNEVEN), ("--model", "fragile:halved"), "is float16, in which updates are rounded away"),
    ],
    ids=[
        "another model",
        "too many ranks",
        "too few rows",
        "no module",
        "no callable",
        "no folder",
        "no folder to begin anew in",
        "two plans",
        "nothing kept",
        "no word for what is not finite",
        "no schedule",
        "odd degree",
        "no cut",
        "no tensor",
        "no profile",
        "no cluster",
        "no optimizer",
        "trained tensor handed on",
        "tensor overwritten",
        "odd length",
        "no attention to gather",
        "experts",
        "no precision",
        "weights in fp16",
    ],
)
def test_wrong_input_is_told_before_any_process_starts(
    plan: dict[str, Any], words: tuple[str, ...], told: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import typer

    from meshwright.base.errors import InputError
    from meshwright.commands import run as command
    from meshwright.runtime.job import launch

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(launch, "run", never)
    monkeypatch.syspath_prepend(str(pathlib.Path(__file__).resolve().parents[3] / "examples"))
    app = typer.Typer()
    command.register(app)
    with pytest.raises(InputError, match=told):
        app([written(tmp_path, plan), *words], standalone_mode=False)


def test_layers_that_cannot_train_as_in_one_process_are_told() -> None:
    import torch
    import zoo

    from meshwright.core.plan import Plan, Stage
    from meshwright.core.strategy import Strategy
    from meshwright.runtime.model.cut import _Whole
    from meshwright.runtime.step.effects import effects_of

    def told(model: torch.nn.Module, data: int, sample: torch.Tensor, n_microbatches: int = 4) -> list[str]:
        plan = Plan((Stage((0,), tuple(range(data)), Strategy(data=data)),), n_microbatches, 1, "1f1b", 4 * data)
        return effects_of(model, [_Whole(model)], ["all"], plan, (sample,), "the plan")

    image, tokens = torch.zeros(1, 3, 8, 8), torch.zeros(1, 4, dtype=torch.long)
    images = zoo.Images()
    before = images.layers[0][1].running_var.clone()
    assert told(zoo.Plain(), 2, tokens) == told(images, 1, image, 1) == []
    assert torch.equal(images.layers[0][1].running_var, before), "looking must change nothing"
    named = "batch norms (layers.0.1, layers.1.1, layers.2.1 and 1 more): every replica and micro-batch takes"
    assert all(named in told(images, *how)[0] for how in ((2, image, 1), (1, image, 2)))
    assert "dropout" in told(torch.nn.Dropout(0.1), 1, image)[0] and told(torch.nn.Dropout(0.0), 1, image) == []
    attention = torch.nn.MultiheadAttention(8, 2, dropout=0.1)  # holds no dropout module
    layer = torch.nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0)
    layer.self_attn = attention
    assert "dropout" in told(layer, 1, torch.zeros(1, 3, 8))[0]


@pytest.mark.parametrize("version", ["1.13.1", "2.5.1+cu124"])
def test_a_pytorch_that_is_too_old_is_told_before_it_is_imported(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.metadata

    from meshwright.base.errors import InputError
    from meshwright.runtime.model import source

    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    with pytest.raises(InputError, match=r"2\.6 or newer is needed"):
        source.require_torch()


def test_under_torchrun_another_number_of_processes_is_told() -> None:
    from meshwright.base.errors import InputError
    from meshwright.runtime.job import launch

    with pytest.raises(InputError, match="--nproc-per-node 2"):
        launch.check_ranks(4, 2, "plan.json")


@pytest.mark.slow
def test_a_rank_that_is_killed_is_named_with_its_signal(tmp_path: pathlib.Path) -> None:
    words = ("--model", "models:small", "--steps", "5", "--data", "fragile:killed_in_step_two")
    died = meshwright("run", written(tmp_path, plan_of(UNEVEN)), *words)
    assert (died.returncode, died.stdout) == (1, "")
    assert "rank 1 (device 1, stage 1) ended the run: killed by signal 9 (SIGKILL)" in died.stderr


@pytest.mark.slow
def test_a_rank_that_dies_ends_the_run_with_its_name_and_resume_goes_on(tmp_path: pathlib.Path) -> None:
    plan = written(tmp_path, plan_of([(3, [0, 1], {"shard": 1}), (5, [2], {})]))
    common = ("--model", "models:small", "--json", "--save", str(tmp_path / "saved"), "--save-every", "2")
    died = meshwright("run", plan, *common, "--steps", "6", "--data", "fragile:dies_on_rank_two_in_step_three")
    assert died.returncode == 1
    assert died.stdout == ""
    assert "rank 2 (device 2, stage 1) ended the run" in died.stderr
    assert "the disk is full" in died.stderr and "Traceback" in died.stderr
    resumed = meshwright("run", plan, *common, "--steps", "6", "--data", "fragile:tokens", "--resume")
    assert resumed.returncode == 0, resumed.stderr
    through = meshwright("run", plan, "--model", "models:small", "--json", "--steps", "6", "--data", "fragile:tokens")
    again, whole = json.loads(resumed.stdout), json.loads(through.stdout)
    assert again["first_step"] == 2
    assert max(abs(a - b) for a, b in zip(again["losses"], whole["losses"][2:], strict=True)) < 1e-6


@pytest.mark.slow
def test_a_run_whose_time_is_up_tells_where_each_rank_was(tmp_path: pathlib.Path) -> None:
    words = ("--model", "models:small", "--data", "fragile:hangs_on_rank_one", "--timeout", "30")
    hung = meshwright("run", written(tmp_path, plan_of(UNEVEN)), *words)
    assert (hung.returncode, hung.stdout) == (1, "")
    assert "the run was ended: the time given is up" in hung.stderr
    one = hung.stderr.partition("rank 1 was at")[2]
    assert "in hangs_on_rank_one" in one and "in hangs_on_rank_one" not in hung.stderr.partition("rank 1 was at")[0]


def test_a_checkpoint_that_cannot_be_read_is_told_before_any_process_starts(tmp_path: pathlib.Path) -> None:
    from torch import nn

    from meshwright.base.errors import InputError
    from meshwright.runtime.job import checkpoints
    from meshwright.runtime.job.holdings import names_of

    names = names_of(nn.Linear(2, 3))
    with pytest.raises(InputError, match="holds no complete checkpoint"):
        checkpoints.check(str(tmp_path), names)
    (tmp_path / "step-3").mkdir()
    (tmp_path / "step-3" / "done.json").write_text(json.dumps({"step": 3, "plan": [[2, [0], 1, 1, 1, 1, 0, 0]], "files": {}}))
    with pytest.raises(InputError, match=r"step-3 is of an earlier version, whose names belong to one plan"):
        checkpoints.check(str(tmp_path), names)


@pytest.mark.slow
def test_a_run_in_fp16_resumes_with_the_loss_scale_it_had_found(tmp_path: pathlib.Path) -> None:
    names = ["0", "1", "2", "3"]
    plan = written(tmp_path, plan_of([(1, [0], {}), (3, [1], {})], names=names, sequence_length=1))
    words = ("--model", "fragile:steep", "--json", "--precision", "fp16", "--optimizer", "fragile:descent")
    saved = ("--save", str(tmp_path / "saved"))
    told = [
        meshwright("run", plan, *words, *more)
        for more in (("--steps", "8"), ("--steps", "4", *saved), ("--steps", "8", *saved, "--resume"))
    ]
    assert [done.returncode for done in told] == [0, 0, 0], told[-1].stderr
    whole, first, rest = (json.loads(done.stdout)["losses"] for done in told)
    assert "gradients overflowed: skipped, loss scale now 32768" in told[1].stderr
    assert whole == pytest.approx([*first, *rest], rel=1e-6)


def test_learning_rates_follow_their_schedule_also_after_going_on_and_some_checkpoints_stay(tmp_path: pathlib.Path) -> None:
    names = ["0", "1", "2", "3"]
    plan = written(tmp_path, plan_of([(1, [0], {}), (3, [1], {})], names=names, sequence_length=1))
    log, saved = tmp_path / "steps.jsonl", ("--save", str(tmp_path / "saved"), "--save-every", "1", "--keep", "1")
    words = ("--model", "fragile:steep", "--json", "--optimizer", "fragile:descent", "--lr-schedule", "fragile:warming")
    told = [
        meshwright("run", plan, *words, *more)
        for more in (
            ("--steps", "6", "--reference"),
            ("--steps", "3", *saved, "--keep-every", "2", "--log", str(log)),
            ("--steps", "6", *saved, "--keep-every", "2", "--log", str(log), "--resume"),
        )
    ]
    assert [done.returncode for done in told] == [0, 0, 0], told[-1].stderr
    whole, first, rest = (json.loads(done.stdout) for done in told)
    assert whole["losses"] == pytest.approx(whole["reference_losses"], rel=1e-5)
    assert whole["losses"] == pytest.approx([*first["losses"], *rest["losses"]], rel=1e-6)
    rates = [json.loads(line)["learning_rate"] for line in log.read_text().splitlines()]
    assert rates == pytest.approx([0.125, 0.25, 0.375, 0.5, 0.3, 0.15])
    assert sorted(path.name for path in (tmp_path / "saved").glob("step-*")) == ["step-2", "step-4", "step-6"]
    alone = meshwright(
        "run", plan, "--model", "fragile:steep", "--optimizer", "fragile:descent", *saved, "--steps", "7", "--resume"
    )
    assert alone.returncode == 0, "a checkpoint holds more than is asked for"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--keep-every", "4"), "--keep-every 4: must be at least 0, and needs --save-every"),
        (("--keep-every", "3", "--save-every", "2", "--save", "there"), "must be a multiple of --save-every 2"),
        (("--clip-norm", "-1"), "--clip-norm -1: must be a number of at least 0"),
        (("--lr-schedule", "fragile:nowhere"), "--lr-schedule"),
        (("--learning-rate", "nan"), "--learning-rate nan: must be a number of at least 0"),
        (("--timeout", "inf"), "--timeout inf: must be a number of seconds"),
        (("--torchrun", "-1"), "--torchrun -1: must be at least 1"),
        (("--seed", "-1"), "--seed -1: must be a whole number"),
        (("--max-restarts", "2"), "--max-restarts: is for runs with --elastic"),
    ],
)
def test_options_that_do_not_go_together_are_refused(words: tuple[str, ...], said: str, tmp_path: pathlib.Path) -> None:
    done = meshwright("run", written(tmp_path, plan_of(UNEVEN)), "--model", "models:small", *words)
    assert done.returncode == 2 and said in done.stderr and done.stdout == ""


def test_scripts_are_asked_with_options_in_range(tmp_path: pathlib.Path) -> None:
    (tmp_path / "own.py").write_text("raise SystemExit('was started')\n")
    plan = written(tmp_path, plan_of(UNEVEN))
    for words, said in ((("--torchrun", "-1"), "--torchrun -1"), (("--timeout", "nan"), "--timeout nan"),
                        (("--elastic",), "--elastic: is for runs of a plan file")):  # fmt: skip
        done = meshwright("run", str(tmp_path / "own.py"), "--plan", plan, *words)
        assert done.returncode == 2 and said in done.stderr and "was started" not in done.stderr


def test_a_loader_gives_every_process_the_same_batches_from_any_step_on() -> None:
    import fragile
    import torch

    from meshwright.runtime.model.data import batches_of

    sample = (torch.zeros(1, 16, dtype=torch.long),)

    def drawn(first: int, disturbed: bool) -> list[torch.Tensor]:
        batches = batches_of(fragile.loader, torch.nn.Embedding(101, 4), sample, 16, 3)
        found = []
        for step in range(first, 5):  # two batches an epoch
            if disturbed:
                torch.rand(step + 1)
            (inputs,), targets = batches(step)
            assert torch.equal(inputs[:, 1:], targets[:, :-1])
            found.append(inputs)
        return found

    torch.manual_seed(1)
    whole = drawn(0, disturbed=False)
    torch.manual_seed(2)
    assert all(torch.equal(a, b) for a, b in zip(whole, drawn(0, disturbed=True), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(whole[3:], drawn(3, disturbed=True), strict=True))
    assert not torch.equal(whole[0].sort(0).values, whole[2].sort(0).values), "epochs must be shuffled anew"


def test_synthetic_tokens_are_followed_by_tokens_only_where_the_model_says_something_about_each() -> None:
    import torch

    from meshwright.runtime.model.data import batches_of

    tokens = (torch.zeros(1, 4, dtype=torch.long),)
    each = torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Linear(4, 9))
    inputs, targets = batches_of(None, each, tokens, 2, 0)(0)
    assert torch.equal(inputs[0][:, 1:], targets[:, :-1])
    whole = torch.nn.Sequential(torch.nn.EmbeddingBag(9, 4), torch.nn.Linear(4, 3))
    _, targets = batches_of(None, whole, tokens, 2, 0)(0)
    assert targets.shape == (2, 3) and targets.is_floating_point()


@pytest.mark.parametrize(
    ("data", "told"), [(list, "no batches"), (lambda: [3], "gave a int"), (lambda step, n: (step, n), "pair of tensors")]
)
def test_data_of_another_kind_is_told(data: Any, told: str) -> None:
    import torch

    from meshwright.base.errors import InputError
    from meshwright.runtime.model.data import batches_of

    batches = batches_of(data, torch.nn.Embedding(9, 4), (torch.zeros(1, 4, dtype=torch.long),), 2, 0)
    with pytest.raises(InputError, match=told):
        batches(0)


def test_torchrun_commands_say_what_the_run_was_told() -> None:
    from meshwright.base.errors import InputError
    from meshwright.runtime.job import launch
    from meshwright.runtime.job.job import Job

    job = Job("a plan.json", "models:small", n_steps=7, learning_rate_value=0.01, save="kept", resume="last", backend="nccl")
    (line,) = launch.torchrun_lines(job, "", 4, 1, "plan")
    assert line == (
        "torchrun --standalone --nproc-per-node 4 -m -- meshwright run 'a plan.json' --model models:small --steps 7 "
        "--learning-rate 0.01 --backend nccl --save kept --resume"
    )
    first, second = launch.torchrun_lines(job, "profile.json", 4, 2, "plan")
    assert (
        "--node-rank 0 --nproc-per-node 2 " in first
        and "--node-rank 1 " in second
        and second.endswith("--profile profile.json")
    )
    with pytest.raises(InputError, match="evenly"):
        launch.torchrun_lines(job, "", 4, 3, "plan")


def test_torchrun_leaves_the_words_of_a_printed_command_to_the_run() -> None:
    """Also those that it could take for its own: ``--log`` is the beginning of several."""
    from torch.distributed.run import parse_args

    from meshwright.runtime.job import launch
    from meshwright.runtime.job.job import Job

    job = Job("plan.json", "models:small", log="steps.jsonl", save="kept", max_restarts=5, elastic=True)
    wanted = "run plan.json --model models:small --save kept --log steps.jsonl --max-restarts 5 --elastic"
    for n_machines in (1, 2):
        for line in launch.torchrun_lines(job, "", 2, n_machines, "plan"):
            read = parse_args(shlex.split(line)[1:])
            assert (read.training_script, read.training_script_args) == ("meshwright", shlex.split(wanted))
            assert read.module and read.max_restarts == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stages", "n_ranks"),
    [(UNEVEN, 2), ([(3, [0, 1], {"shard": 3}), (5, [2, 3], {"tensor": 2})], 4)],
    ids=["two processes", "four processes"],
)
def test_the_torchrun_command_printed_trains_as_one_process_does(stages: list, n_ranks: int, tmp_path: pathlib.Path) -> None:
    plan = written(tmp_path, plan_of(stages))
    words = ("--model", "models:small", "--steps", "3", "--data", "fragile:loader")
    printed = meshwright("run", plan, *words, "--torchrun", "1")
    assert printed.returncode == 0, printed.stderr
    line = shlex.split(printed.stdout)
    assert line[:4] == ["torchrun", "--standalone", "--nproc-per-node", str(n_ranks)]
    command = [sys.executable, "-m", "torch.distributed.run", *line[1:], "--reference", "--json"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["n_ranks"] == n_ranks
    assert max(abs(a - b) for a, b in zip(answer["losses"], answer["reference_losses"], strict=True)) < 2e-5
    assert len(answer["losses"]) == 3


@pytest.mark.slow
def test_two_calls_in_a_script_of_ones_own_train_by_a_plan(tmp_path: pathlib.Path) -> None:
    script = """
import sys, torch, torch.distributed as dist
import fragile, models
from meshwright import runtime
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
torch.manual_seed(0)
model = models.small()
alone = fragile.tokens(0, 16)
expected = float(torch.nn.functional.cross_entropy(model(alone[0]).flatten(0, 1), alone[1].flatten()))
trainer = runtime.apply(model, f"{folder}/plan.json")
losses = [trainer.step(*alone) for _ in range(3)]
assert abs(losses[0] - expected) < 2e-5 and losses[2] < losses[0] - 0.01, (losses, expected)
assert trainer.notes == ()
dist.barrier()
dist.destroy_process_group()
"""
    written(tmp_path, plan_of(UNEVEN))
    words = [sys.executable, "-W", "ignore", "-c", script]
    processes = [
        subprocess.Popen([*words, str(rank), str(tmp_path)], env=environment(), stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    told = [process.communicate(timeout=200)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], told


def test_a_run_reads_its_weights_from_files_and_says_what_they_lack(tmp_path: pathlib.Path) -> None:
    from safetensors.torch import save_file

    from meshwright.runtime.model import source

    model, _ = source.build("fragile:steep", 5)
    state = {name: value * 0.5 for name, value in model.state_dict().items()}
    (tmp_path / "files").mkdir()
    save_file(state, tmp_path / "files" / "model.safetensors")
    first = next(iter(state))
    save_file({name: value for name, value in state.items() if name != first}, tmp_path / "less.safetensors")
    names = ["0", "1", "2", "3"]
    plan = written(tmp_path, plan_of([(1, [0], {}), (3, [1], {})], names=names, sequence_length=1))
    words = ("run", plan, "--model", "fragile:steep", "--json", "--optimizer", "fragile:descent", "--steps", "2")
    made, read = meshwright(*words), meshwright(*words, "--weights", str(tmp_path / "files"), "--reference")
    assert made.returncode == read.returncode == 0, read.stderr
    told = json.loads(read.stdout)
    assert told["losses"] == pytest.approx(told["reference_losses"], rel=1e-5)
    assert told["losses"][0] != json.loads(made.stdout)["losses"][0]
    lacking = meshwright(*words, "--weights", str(tmp_path / "less.safetensors"))
    assert lacking.returncode == 2 and f"there is no '{first}'; are they of another model?" in lacking.stderr


def test_several_plans_run_one_after_the_other_and_one_that_is_wrong_leaves_the_others(tmp_path: pathlib.Path) -> None:
    names = ["0", "1", "2", "3"]
    plans = []
    for word, stages in (("whole", [(4, [0], {})]), ("cut", [(1, [0], {}), (3, [1], {})]), ("wrong", [(5, [0], {})])):
        plan = plan_of(stages, names=[*names, "4"] if word == "wrong" else names, sequence_length=1)
        (tmp_path / f"{word}.json").write_text(json.dumps(plan))
        plans.append(str(tmp_path / f"{word}.json"))
    words = ("--model", "fragile:steep", "--steps", "2")
    done = meshwright("run", plans[0], plans[2], plans[1], *words, "--json")
    assert done.returncode == 2, done.stderr
    told = json.loads(done.stdout)
    assert told["format"] == "meshwright/runs/1" and told["dry_run"] is False
    assert [(one["plan"], one["status"]) for one in told["runs"]] == [(plans[0], 0), (plans[2], 2), (plans[1], 0)]
    whole, wrong, cut = told["runs"]
    assert (whole["n_ranks"], cut["n_ranks"]) == (1, 2) and wrong["reason"] and "step_seconds" not in wrong
    assert whole["losses"] == pytest.approx(cut["losses"], rel=1e-4) and cut["step_seconds"]["measured"] > 0.0
    dry = meshwright("run", plans[1], "--dry-run", *words, "--processes", "1")
    lines = dry.stdout.splitlines()
    assert dry.returncode == 0 and lines[0].split() == ["predicted", "peak", "memory", "processes"], dry.stderr
    assert lines[1].split()[0] == plans[1] and lines[1].split()[-1] == "2"
    assert lines[2].startswith(f"{plans[1]}: not on this machine: the plan needs 2 processes")
    for more, said in (
        (("--save", "there"), "--save is for one plan"), (("--trace", "t.json"), "--trace is for one plan"),
        (("--torchrun", "2"), "--torchrun is for one plan"),
    ):  # fmt: skip
        refused = meshwright("run", *plans, *words, *more)
        assert refused.returncode == 2 and said in refused.stderr and len(refused.stderr.splitlines()) == 1
