"""An engine in a process alone: forms of batches and losses, groups, evaluation, checkpoints, and what is refused."""

from __future__ import annotations

import json
import math
import os
import pathlib
import re
import signal
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="running plans needs PyTorch: pip install 'meshwright[torch]'")
pytestmark = pytest.mark.torch

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1])]

import torch.distributed as dist  # noqa: E402
from runtime_processes import plan_of  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict  # noqa: E402

import meshwright  # noqa: E402
from meshwright.base.errors import InputError  # noqa: E402
from meshwright.runtime.job import recording  # noqa: E402
from meshwright.runtime.job.trainer import NonFiniteError  # noqa: E402
from meshwright.runtime.open.building import _packed, build  # noqa: E402
from meshwright.runtime.open.grouping import groups_of  # noqa: E402

NAMES = ["embed", "layers.0", "layers.1", "head"]
PLAN = plan_of([(2, [0], {}), (2, [0], {})], names=NAMES, schedule="interleaved_1f1b", global_batch=5, n_microbatches=2,
               sequence_length=6)  # fmt: skip
ONE_STAGE = plan_of([(4, [0], {})], names=NAMES, global_batch=5, n_microbatches=2, sequence_length=6)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear, self.drop = nn.LayerNorm(8), nn.Linear(8, 8), nn.Dropout(0.5)

    def forward(self, x: Any) -> Any:
        return x + self.drop(torch.tanh(self.linear(self.norm(x))))


def compiled() -> Any:
    """Return a model compiled as a whole."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # what PyTorch imports for it
        return torch.compile(Model())


class Model(nn.Module):
    """Two layers between a table and a head of the same weights, a buffer, and a weight that nothing runs."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 8), nn.Linear(8, 20, bias=False)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.head.weight = self.embed.weight
        self.layers[1].register_buffer("seen", torch.arange(3.0))
        self.spare = nn.Linear(2, 2)
        for layer in self.layers:
            layer.drop.p = dropout

    def forward(self, tokens: Any, scale: Any = None) -> Any:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


@pytest.fixture(scope="module", autouse=True)
def _alone() -> Iterator[None]:
    """Be a process group of one."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def sgd(groups: Any) -> Any:
    return torch.optim.SGD(groups, 0.2)


def tokens(n_samples: int = 5, length: int = 6) -> Any:
    return torch.randint(20, (n_samples, length), generator=torch.Generator().manual_seed(1))


def made(plan: Any = PLAN, model: Any = Model, **told: Any) -> Any:
    engine = meshwright.parallelize(model, plan, **told)
    engine.optimizer(sgd)
    return engine


def plain() -> nn.Module:
    torch.manual_seed(0)
    return Model()


def entropy(output: Any, targets: Any) -> Any:
    return nn.functional.cross_entropy(output.flatten(0, 1), targets.flatten())


def test_a_pair_is_trained_on_by_the_default_loss_or_ones_own_and_a_mapping_by_names() -> None:
    inputs, targets = tokens(), tokens().flip(1)
    alone = plain()
    expected = entropy(alone(inputs), targets).item()
    engines = [made() for _ in range(3)]
    losses = [engines[0].step((inputs, targets)), engines[1].step([inputs, targets], entropy)]
    losses.append(engines[2].step({"tokens": inputs, "wanted": targets}, lambda out, part: entropy(out, part["wanted"])))
    assert losses == pytest.approx([expected] * 3, abs=1e-6)
    optimizer = torch.optim.SGD(alone.parameters(), 0.2)
    entropy(alone(inputs), targets).backward()
    norm = float(nn.utils.clip_grad_norm_(alone.parameters(), math.inf))
    optimizer.step()
    for engine in engines:
        assert engine.gradient_norm == pytest.approx(norm, rel=1e-5) and engine.notes == ()
        state = engine.state_dict()
        assert list(state) == list(alone.state_dict())
        for name, value in alone.state_dict().items():
            assert torch.allclose(state[name], value, atol=1e-6), name


def test_a_sum_is_divided_by_all_that_is_counted_in_every_step_anew() -> None:
    engine, alone = made(), plain()
    optimizer = torch.optim.SGD(alone.parameters(), 0.2)
    for step, n_ignored in enumerate([3, 27, 12]):
        inputs, targets = tokens(), tokens().flip(1)
        targets.flatten()[:n_ignored] = -100

        def summed(output: Any, wanted: Any) -> Any:
            value = nn.functional.cross_entropy(output.flatten(0, 1), wanted.flatten(), reduction="sum", ignore_index=-100)
            return value, int((wanted != -100).sum())

        optimizer.zero_grad()
        value, count = summed(alone(inputs), targets)
        (value / count).backward()
        optimizer.step()
        assert engine.step((inputs, targets), summed) == pytest.approx(value.item() / count, abs=1e-5), step
    assert all(torch.allclose(engine.state_dict()[name], value, atol=1e-5) for name, value in alone.state_dict().items())
    with pytest.raises(InputError, match="counts over 0: no sample of it has a label that counts"):
        engine.step((tokens(), torch.full((5, 6), -100)), summed)


def test_evaluation_changes_nothing_and_draws_nothing() -> None:
    engine = made(model=lambda: Model(dropout=0.5))
    before, batch = engine.state_dict(), (tokens(), tokens().flip(1))
    alone = plain().eval()
    losses = [engine.evaluate(batch) for _ in range(2)]
    assert losses == pytest.approx([entropy(alone(batch[0]), batch[1]).item()] * 2, abs=1e-6)
    assert all(torch.equal(value, before[name]) for name, value in engine.state_dict().items())
    assert all(part.training for module in engine.modules for part in module.modules())
    assert "random numbers" in engine.notes[0], "dropout is told"
    assert engine.step(batch) != pytest.approx(losses[0], abs=1e-4), "dropout works again"


def test_gradients_can_be_had_before_the_update_and_clipping_takes_their_true_norm() -> None:
    engine, batch = made(clip_norm=0.25), (tokens(), tokens().flip(1))
    with pytest.raises(InputError, match="there are no gradients"):
        engine.update()
    before = engine.state_dict()
    loss = engine.forward_backward(batch)
    assert loss == pytest.approx(entropy(plain()(batch[0]), batch[1]).item(), abs=1e-6) and engine.gradient_norm > 0.25
    assert all(torch.equal(value, before[name]) for name, value in engine.state_dict().items())
    engine.update()
    moved = [value - before[name] for name, value in engine.state_dict().items() if name != "head.weight"]
    assert math.sqrt(sum(float(part.square().sum()) for part in moved)) == pytest.approx(0.2 * 0.25, rel=1e-4)
    with pytest.raises(InputError, match="there are no gradients"):
        engine.update()
    engine.clip_norm = 0.0
    assert engine.clip_norm == engine.trainer.clip_norm == 0.0


@pytest.mark.parametrize(("given", "said"), [
    ({"clip_norm": math.nan}, "clip_norm=nan"), ({"clip_norm": -1.0}, "clip_norm=-1.0"),
    ({"precision": "bf16"}, "precision='bf16'"), ({"plan": 7}, "plan=7"), ({"seed": -1}, "seed=-1"),
])  # fmt: skip
def test_arguments_of_the_wrong_kind_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=re.escape(f"parallelize({said}): must be")):
        build(nn.Linear(2, 2), **{"plan": "plan.json", **given})


def test_a_step_that_is_not_finite_is_refused_or_left_out() -> None:
    def broken(output: Any, targets: Any) -> Any:
        return entropy(output, targets) * math.inf

    batch = (tokens(), tokens())
    engine = made()
    engine.step(batch)
    with pytest.raises(NonFiniteError) as ended:
        engine.step(batch, broken)
    told = "step 2: the loss or a gradient is not finite on rank 0 (stages 0, 1); the step was not taken"
    assert str(ended.value) == told
    engine = made(skip_non_finite=True)
    before = engine.state_dict()
    engine.step(batch, broken)
    assert engine.skipped and all(torch.equal(value, before[name]) for name, value in engine.state_dict().items())
    engine.step(batch)
    assert not engine.skipped


def test_a_signal_is_heeded_once_a_step_has_ended() -> None:
    engine, before = made(), signal.getsignal(signal.SIGTERM)
    try:
        engine.heed_signals()
        engine.step((tokens(), tokens()))
        assert not engine.stopping
        os.kill(os.getpid(), signal.SIGTERM)
        engine.step((tokens(), tokens()))
        assert engine.stopping
    finally:
        signal.signal(signal.SIGTERM, before)


def test_steps_are_numbered_from_where_training_goes_on(tmp_path: pathlib.Path) -> None:
    engine = made()
    engine.step((tokens(), tokens()))
    engine.save(str(tmp_path), 6)
    engine = made()
    assert engine.resume(str(tmp_path)) == 6
    with pytest.raises(NonFiniteError, match=r"^step 7: "):
        engine.step((tokens(), tokens()), lambda output, targets: entropy(output, targets) * math.nan)


@pytest.mark.parametrize(("kind", "said"), [
    (torch.optim.lr_scheduler.ReduceLROnPlateau, "ReduceLROnPlateau steps by a measure"), (id, "gave a int; it must give"),
])  # fmt: skip
def test_a_schedule_that_cannot_be_stepped_alone_is_refused_at_once(kind: Any, said: str) -> None:
    with pytest.raises(InputError, match=re.escape(f"schedule(make): {said}")):
        made().schedule(kind)


def test_groups_are_said_by_pattern_or_function_and_are_the_optimizers() -> None:
    engine = meshwright.parallelize(Model, PLAN)
    optimizer = engine.optimizer(sgd, groups={"*norm*": {"lr": 0.0}, "*.bias": {"lr": 0.1}, "*.0.*": {"lr": 0.1}})
    assert sorted(group["lr"] for group in optimizer.param_groups) == [0.0, 0.1, 0.2]
    before = engine.state_dict()
    schedule = engine.schedule(lambda made: torch.optim.lr_scheduler.LambdaLR(made, lambda step: 0.5**step))
    engine.step((tokens(), tokens().flip(1)))
    moved = {name: not torch.equal(value, before[name]) for name, value in engine.state_dict().items()}
    assert moved["layers.0.linear.weight"] and moved["layers.1.linear.bias"] and moved["embed.weight"]
    assert not moved["layers.0.norm.weight"] and not moved["layers.1.norm.bias"] and not moved["spare.weight"]
    assert schedule.get_last_lr() == [group["lr"] for group in optimizer.param_groups]
    assert sorted(schedule.get_last_lr()) == [0.0, 0.05, 0.1]

    trained = {"a.weight": (3, 2), "a.bias": (3,), "b.weight": (4, 4)}
    by_shape = groups_of(trained, lambda name, shape: {"weight_decay": 0.1 * (len(shape) > 1)})
    assert by_shape.number == {"a.weight": 0, "a.bias": 1, "b.weight": 0}
    assert by_shape.options == ({"weight_decay": 0.1}, {"weight_decay": 0.0})
    assert groups_of(trained, None).options == ({},) == groups_of({}, None).options
    first = groups_of(trained, {"*.weight": {"lr": 1}, "b.*": {"lr": 2}})
    assert first.number == {"a.weight": 0, "a.bias": 1, "b.weight": 0}, "the first pattern that fits counts"
    with pytest.raises(InputError, match=r"'\*\.wieght' fits no trained weight; they are called a\.weight"):
        groups_of(trained, {"*.wieght": {}})
    with pytest.raises(InputError, match=r"gave a float for 'a\.weight'"):
        groups_of(trained, lambda *_: 0.1)  # type: ignore[arg-type, return-value]


def test_a_run_goes_on_from_its_checkpoint_with_its_groups(tmp_path: pathlib.Path) -> None:
    def adam() -> Any:
        engine = meshwright.parallelize(Model, PLAN)
        engine.optimizer(lambda groups: torch.optim.AdamW(groups, lr=0.01), groups={"*norm*": {"weight_decay": 0.0}})
        return engine

    batch, folder = (tokens(), tokens().flip(1)), str(tmp_path / "saved")
    through = adam()
    losses = [through.step(batch) for _ in range(4)]
    first = adam()
    assert first.resume(folder) == 0
    assert [first.step(batch) for _ in range(2)] == pytest.approx(losses[:2], rel=1e-6)
    first.save(folder, 2)
    second = adam()
    assert second.resume(folder) == 2 and [second.step(batch) for _ in range(2)] == pytest.approx(losses[2:], rel=1e-6)


@pytest.mark.parametrize(
    ("batch", "loss", "told"),
    [
        (tokens(), None, "a batch is a Tensor; give"),
        ((tokens(),), None, "a batch is a tuple; give"),
        ((tokens(4), tokens(4)), None, "input 0 has shape \\(4, 6\\), but this process gives 5 samples"),
        ((tokens(), tokens(4)), None, "targets has shape \\(4, 6\\)"),
        (((tokens(), tokens()), tokens()), None, "has 2 inputs, but 1 tensors are known"),
        ((tokens(5, 7), tokens(5, 7)), None, "samples of shape \\(7,\\), but the stages of this plan exchange what samples"),
        ({"ids": tokens()}, entropy, "no tensor 'tokens', which Model takes; it has ids"),
        ({"tokens": tokens(), "scale": tokens()}, entropy, "has 'scale', which Model takes, but it was built for tokens alone"),
        ({"tokens": tokens(), "wanted": tokens(4)}, entropy, "'wanted' has shape"),
        ({"tokens": tokens(), "labels": tokens()}, None, "no loss is given"),
        ((tokens(), tokens()), lambda out, _: out, "the loss gave a tensor of shape \\((3|2), 6, 20\\)"),
        ((tokens(), tokens()), lambda *_: 1.0, "the loss gave a float"),
    ],
)
def test_a_wrong_batch_or_loss_is_told(batch: Any, loss: Any, told: str) -> None:
    engine = made()
    with pytest.raises(InputError, match=told):
        engine.step(batch, loss)


def test_a_plan_of_one_stage_takes_samples_of_any_length() -> None:
    engine, alone = made(ONE_STAGE), plain()
    for length in (6, 9):
        inputs = tokens(5, length)
        assert engine.evaluate((inputs, inputs)) == pytest.approx(entropy(alone(inputs), inputs).item(), abs=1e-6)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: meshwright.parallelize(Model), "no plan: call parallelize\\(model, 'plan.json'\\)"),
        (lambda: meshwright.parallelize(Model, "none.json"), "none.json: cannot be read"),
        (lambda: meshwright.parallelize(Model, plan_of([(2, [0], {}), (2, [1], {})], names=NAMES)), "needs 2 processes"),
        (lambda: meshwright.parallelize(Model, {**PLAN, "feasible": False}), "the plan given"),
        (lambda: meshwright.parallelize("model", PLAN), "the model is a str"),
        (lambda: meshwright.parallelize(lambda: 3, PLAN), "the model's function gave a int"),
        (lambda: meshwright.parallelize(Model, plan_of([(9, [0], {})])), "has 2 layers|holds 2 layers"),
        (lambda: meshwright.parallelize(lambda: Model().half(), PLAN), "is float16, in which updates are rounded away"),
        (lambda: meshwright.parallelize(compiled(), PLAN), "compile its blocks, which run compiled"),
        (lambda: meshwright.parallelize(Model, {**PLAN, "training": {"optimizer": "muon"}}), "works on whole tensors"),
        (lambda: meshwright.parallelize(Model, PLAN).step((tokens(), tokens())), "there is no optimizer yet"),
        (lambda: meshwright.parallelize(Model, PLAN).schedule(lambda _: None), "there is no optimizer yet"),
        (lambda: meshwright.parallelize(Model, PLAN).save("folder", 1), "there is no optimizer yet"),
        (lambda: meshwright.parallelize(Model, PLAN).optimizer(lambda _: 3), "the optimizer's function gave a int"),
    ],
)
def test_what_does_not_go_together_is_told(call: Any, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MESHWRIGHT_PLAN", raising=False)
    with pytest.raises(InputError, match=told):
        call()


def test_models_that_take_more_say_so_by_name() -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'meshwright[huggingface]'")

    def llama() -> Any:
        config = transformers.LlamaConfig(
            hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, vocab_size=20
        )
        return transformers.LlamaForCausalLM(config)

    ids, mask = tokens(), torch.ones(5, 6, dtype=torch.long)
    mask[:2, :3] = 0
    with pytest.raises(InputError, match="Model takes no 'mask'; it takes tokens, scale"):
        meshwright.parallelize(Model, PLAN, example={"mask": ids})
    with pytest.raises(
        InputError, match="LlamaForCausalLM is run on input_ids, attention_mask and position_ids, not on labels"
    ):
        meshwright.parallelize(llama, PLAN, example={"input_ids": ids, "labels": ids})
    with pytest.raises(
        InputError, match="'attention_mask', which LlamaForCausalLM takes, but it was built for input_ids alone"
    ):
        made(PLAN, llama).step({"input_ids": ids, "attention_mask": mask, "labels": ids})
    batch = {"labels": ids.masked_fill(mask == 0, -100), "input_ids": ids, "attention_mask": mask}
    engine = made(PLAN, llama, example={"attention_mask": mask, "input_ids": ids})
    torch.manual_seed(0)
    expected = llama()(**batch).loss.item()  # transformers' own
    assert engine.step(batch) == pytest.approx(expected, abs=1e-6)


def test_the_plan_may_be_a_file_its_content_or_that_of_the_command_and_the_model_a_module(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, batch = tmp_path / "plan.json", (tokens(), tokens())
    path.write_text(json.dumps(PLAN))
    monkeypatch.setenv("MESHWRIGHT_PLAN", str(path))
    monkeypatch.setenv("MESHWRIGHT_PLAN_USED", "")
    losses = [made(plan, plain()).evaluate(batch) for plan in (path, str(path), PLAN, None)]
    assert losses == pytest.approx([losses[0]] * 4, abs=1e-6)
    state = torch.get_rng_state()
    engine = meshwright.parallelize(Model, PLAN, seed=5)
    assert torch.equal(torch.get_rng_state(), state), "building a model draws from a generator of its own"
    torch.manual_seed(5)
    assert all(torch.equal(engine.state_dict()[name], value) for name, value in Model().state_dict().items())


class Used(Model):
    """All of whose weights are run."""

    def __init__(self) -> None:
        super().__init__()
        del self.spare


def test_a_model_without_values_takes_those_of_files_and_says_what_they_lack(tmp_path: pathlib.Path) -> None:
    torch.manual_seed(3)
    state = Used().state_dict()
    torch.distributed.checkpoint.save(state, checkpoint_id=tmp_path / "right")
    engine = made(PLAN, Used, weights=tmp_path / "right")
    assert all(torch.equal(engine.state_dict()[name], value) for name, value in state.items())
    lacking = {name: value for name, value in state.items() if name != "layers.1.linear.bias"}
    torch.distributed.checkpoint.save(lacking, checkpoint_id=tmp_path / "less")
    odd = state | {"layers.0.linear.bias": torch.zeros(3)}
    torch.distributed.checkpoint.save(odd, checkpoint_id=tmp_path / "odd")
    for folder, model, told in [
        ("less", Used, "less: there is no 'layers.1.linear.bias'; are they of another model"),
        ("odd", Used, r"'layers.0.linear.bias' has shape \(3,\), but in the model \(8,\)"),
        ("none", Used, "none: holds neither"),
        ("right", Model, "'spare.weight' is on the meta device, and no layer of the plan has it"),
    ]:
        with pytest.raises(InputError, match=told):
            made(PLAN, model, weights=tmp_path / folder)
    with pytest.raises(InputError, match=r"buffer 'layers.1.seen' of the model is on the meta device"):
        made(PLAN, Used().to("meta"))


def test_a_model_on_the_meta_device_trains_once_it_was_given_values() -> None:
    def empty() -> Any:
        model = Used()
        for module in model.modules():
            for name, value in list(module.named_parameters(recurse=False)):
                module._parameters[name] = nn.Parameter(value.to("meta"))
        model.head.weight = model.embed.weight
        return model

    torch.manual_seed(3)
    state, batch = Used().state_dict(), (tokens(), tokens())
    engine = made(PLAN, empty)
    with pytest.raises(InputError, match="its weights have no values yet: parallelize"):
        engine.step(batch)
    engine.load_state_dict({name: value for name, value in state.items() if "norm" not in name}, strict=False)
    with pytest.raises(InputError, match="no values yet"):  # some may be missing
        engine.evaluate(batch)
    engine.load_state_dict(state)
    torch.manual_seed(3)
    assert engine.evaluate(batch) == pytest.approx(made(PLAN, Used()).evaluate(batch), abs=1e-6)


def test_weights_and_optimizer_state_go_to_plain_pytorch_and_back() -> None:
    """Two steps under a plan, two alone, two under another plan: as six alone."""

    def adamw(named: Any) -> Any:
        return torch.optim.AdamW(named, lr=0.01, weight_decay=0.1)

    engine, batch, alone, ever = made(), (tokens(), tokens().flip(1)), plain(), plain()
    engine.optimizer(adamw)
    optimizer, other = adamw(alone.named_parameters()), adamw(ever.parameters())
    for _ in range(6):
        other.zero_grad()
        entropy(ever(batch[0]), batch[1]).backward()
        other.step()
    for _ in range(2):
        engine.step(batch)
    alone.load_state_dict(engine.state_dict())
    nothing_of_spare = StateDictOptions(strict=False)
    set_optimizer_state_dict(alone, optimizer, engine.optimizer_state_dict(), options=nothing_of_spare)
    for _ in range(2):
        optimizer.zero_grad()
        entropy(alone(batch[0]), batch[1]).backward()
        optimizer.step()
    last = made(ONE_STAGE)
    last.optimizer(lambda groups: torch.optim.AdamW(groups, lr=0.5))
    last.load_state_dict(alone.state_dict())
    last.load_optimizer_state_dict(optimizer.state_dict())
    assert last.trainer.optimizer.param_groups[0]["lr"] == 0.01
    for _ in range(2):
        last.step(batch)
    for name, value in ever.state_dict().items():
        assert torch.allclose(last.state_dict()[name], value, atol=1e-6), name
    counts = {float(held["step"]) for held in last.optimizer_state_dict()["state"].values()}
    assert counts == {6.0}, "those that are never run have no state"


def test_states_of_other_models_and_optimizers_are_refused() -> None:
    engine = made()
    state = engine.state_dict()
    for change, message in (
        ({"embed.weight": torch.zeros(3, 8)}, r"'embed.weight' has shape \(3, 8\), but in the model \(20, 8\)"),
        ({"more": torch.zeros(1)}, "has 'more', which the model has not"),
        ({}, "has no 'layers.0.norm.weight'"),
    ):
        wrong = {**state, **change} if change else {key: value for key, value in state.items() if "0.norm" not in key}
        with pytest.raises(InputError, match=f"load_state_dict: .*{message}"):
            engine.load_state_dict(wrong)
    engine.load_state_dict({"layers.0.norm.bias": torch.full((8,), 3.0), "more": torch.zeros(1)}, strict=False)
    after = engine.state_dict()
    assert float(after["layers.0.norm.bias"].sum()) == 24.0 and torch.equal(after["embed.weight"], state["embed.weight"])
    with pytest.raises(InputError, match="process 0 was given nothing"):
        engine.load_state_dict(None)
    nameless = torch.optim.SGD(plain().parameters(), 0.1, momentum=0.9).state_dict()
    with pytest.raises(InputError, match=r"knows weights by number \(0\)"):
        engine.load_optimizer_state_dict(nameless)
    with pytest.raises(InputError, match="has lr; give what optimizer_state_dict"):
        engine.load_optimizer_state_dict({"lr": 0.1})
    engine.optimizer(lambda groups: torch.optim.AdamW(groups, lr=0.1))
    stray = {"state": {"other.weight": {"exp_avg": torch.zeros(2)}}, "param_groups": []}
    with pytest.raises(InputError, match=r"has 'other\.weight', which the model has not"):
        engine.load_optimizer_state_dict(stray)
    odd = {"state": {"embed.weight": {"exp_avg": torch.zeros(2, 2)}}, "param_groups": []}
    with pytest.raises(
        InputError, match=r"load_optimizer_state_dict: .*exp_avg was saved with shape \(2, 2\), where this plan"
    ):
        engine.load_optimizer_state_dict(odd)


def test_a_recorded_step_is_the_step_with_its_tasks_marked(tmp_path: pathlib.Path) -> None:
    engine, other, batch = made(), made(), (tokens(), tokens().flip(1))
    loss = recording.recorded(engine.trainer, str(tmp_path), lambda: engine.step(batch))
    assert loss == other.step(batch)
    trace = json.loads(recording.file_of(str(tmp_path), 0).read_text())
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    whole = next(event for event in events if event["name"] == recording.STEP)
    tasks = [event for event in events if "stage" in event.get("args", {})]
    assert {event["name"] for event in tasks} >= {"forward 0", "forward 1", "backward 0", "backward 1", "optimizer"}
    assert len([event for event in tasks if event["name"].startswith("forward")]) == 2 * 2
    products = [event for event in events if event["name"] == "aten::addmm"]
    assert products and all(
        whole["ts"] <= event["ts"] and event["ts"] + event["dur"] <= whole["ts"] + whole["dur"] for event in (*tasks, *products)
    )
    # the profiler and the tasks have clocks of their own, which a busy machine reads a moment apart
    slack, wards = 0.02 * whole["dur"], [t for t in tasks if "ward" in t["name"]]
    middles = [p["ts"] + 0.5 * p["dur"] for p in products]
    inside = [at for at in middles if any(t["ts"] - slack <= at <= t["ts"] + t["dur"] + slack for t in wards)]
    assert len(inside) == len(products), "tasks stand where their operators do"


def test_packed_sequences_that_a_plain_loop_may_not_keep_apart_are_told_of() -> None:
    pytest.importorskip("transformers", reason="needs transformers: pip install 'meshwright[huggingface]'")
    import own_loops

    model, positions = own_loops.llama(), torch.arange(4)[None]
    model.config.use_cache = True
    assert "use_cache=False" in _packed(model, {"input_ids": positions, "position_ids": positions})[0]
    masked = {"input_ids": positions, "attention_mask": positions, "position_ids": positions}
    assert _packed(model, masked) == _packed(model, {}) == _packed(torch.nn.ReLU(), masked) == ()
