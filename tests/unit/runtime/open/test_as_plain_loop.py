"""Models that do more in a pass than give a result train as in a plain loop over the same micro-batches, or are refused."""

from __future__ import annotations

import copy
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="running plans needs PyTorch: pip install 'meshwright[torch]'")
pytestmark = pytest.mark.torch

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1])]

import torch.distributed as dist  # noqa: E402
from runtime_processes import plan_of  # noqa: E402
from torch import nn  # noqa: E402

import meshwright  # noqa: E402
from meshwright.base.errors import InputError  # noqa: E402
from meshwright.runtime.model import stacked  # noqa: E402
from meshwright.runtime.model.cut import cut  # noqa: E402

NAMES = ["embed", "layers.0", "layers.1", "head"]
N_SAMPLES, N_PARTS = 6, 2


def plan(how: str = "none") -> Any:
    """Return a plan of two stages on one device that recompute so."""
    stages = [(2, [0], {"recompute": [how] * 2})] * 2
    return plan_of(stages, names=NAMES, schedule="interleaved_1f1b", global_batch=N_SAMPLES, n_microbatches=N_PARTS,
                   sequence_length=4)  # fmt: skip


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear, self.drop = nn.BatchNorm1d(8), nn.Linear(8, 8), nn.Dropout(0.0)

    def forward(self, x: Any) -> Any:
        return x + self.drop(torch.tanh(self.linear(self.norm(x.transpose(1, 2)).transpose(1, 2))))


class Averaging(Layer):
    """Keeps a moving average that its result goes by, and the number of its passes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(8))
        self.register_buffer("n_passes", torch.zeros((), dtype=torch.long))
        self.linear = nn.utils.parametrizations.spectral_norm(self.linear)

    def forward(self, x: Any) -> Any:
        if self.training:
            with torch.no_grad():
                self.average.mul_(0.5).add_(x.mean((0, 1)), alpha=0.5)
        self.n_passes = self.n_passes + 1
        return super().forward(x - self.average) * (1 + 0.1 * self.n_passes)


class Counting(Layer):
    """Counts its passes in an attribute that its result goes by, and keeps what it gave."""

    def __init__(self) -> None:
        super().__init__()
        self.n_passes, self.given = 0, []

    def forward(self, x: Any) -> Any:
        self.n_passes += 1
        self.given.append(x.shape)
        assert len(self.given) == self.n_passes
        return super().forward(x) * (1 + 0.1 * self.n_passes)


class Model(nn.Module):
    kind: Any = Layer

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 8), nn.Linear(8, 20)
        self.layers = nn.ModuleList(self.kind() for _ in range(2))

    def forward(self, tokens: Any) -> Any:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def of(layer: Any, root: Any = Model) -> Any:
    return type("Of", (root,), {"kind": layer})


@pytest.fixture(scope="module", autouse=True)
def _alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def batch(step: int) -> tuple[Any, Any]:
    tokens = torch.randint(20, (N_SAMPLES, 4), generator=torch.Generator().manual_seed(step))
    return tokens, tokens.flip(1)


def entropy(output: Any, targets: Any) -> Any:
    return nn.functional.cross_entropy(output.flatten(0, 1), targets.flatten())


def sgd(groups: Any) -> Any:
    return torch.optim.SGD(groups, 0.3, momentum=0.9)


def in_a_loop(model: nn.Module) -> tuple[list[float], dict[str, Any]]:
    """Return losses of three steps and an evaluation, and the state, without the package."""
    optimizer, losses = sgd(list(model.parameters())), []
    for step in range(3):
        optimizer.zero_grad()
        total = 0.0
        for inputs, targets in zip(*(value.chunk(N_PARTS) for value in batch(step)), strict=True):
            value = entropy(model(inputs), targets) / N_PARTS
            value.backward()
            total += float(value.detach())
        optimizer.step()
        losses.append(total)
    model.eval()
    with torch.no_grad():
        parts = zip(*(value.chunk(N_PARTS) for value in batch(99)), strict=True)
        losses.append(sum(float(entropy(model(inputs), targets)) / N_PARTS for inputs, targets in parts))
    return losses, model.state_dict()


def check(build: Any, how: str = "none", given: Any = None) -> Any:
    """Compare an engine with the loop; return the engine."""
    torch.manual_seed(0)
    expected, state = in_a_loop(build())
    torch.manual_seed(0)
    engine = meshwright.parallelize(build(), given or plan(how))
    engine.optimizer(sgd)
    losses = [engine.step(batch(step), entropy) for step in range(3)]
    assert [*losses, engine.evaluate(batch(99), entropy)] == pytest.approx(expected, abs=1e-5)
    found = engine.state_dict()
    assert list(found) == list(state)
    for name, value in state.items():
        assert torch.allclose(found[name], value, atol=1e-5), name
    return engine


def in_part_frozen(layer: Any = Layer) -> nn.Module:
    model = of(layer)()
    for part in model.layers:
        part.drop.p = 0.5
        part.drop.eval()
    model.layers[0].norm.eval()
    model.layers[0].norm.running_mean.fill_(0.3)
    return model


@pytest.mark.parametrize("how", ["none", "full", "selective"])
def test_modules_in_evaluation_mode_stay_so(how: str) -> None:
    engine = check(in_part_frozen, how)
    assert engine.notes[0] == (
        "in evaluation mode, as the model was given, and trained so: layers.0.norm, layers.0.drop, layers.1.drop"
    )
    assert len(engine.notes) == 2 and "has batch norms (layers.1.norm): every" in engine.notes[1]
    modes = [part.training for module in engine.modules for part in module.modules() if isinstance(part, nn.Dropout)]
    assert modes == [False, False] and engine.state_dict()["layers.0.norm.num_batches_tracked"] == 0


def test_a_model_all_of_which_is_in_evaluation_mode_is_trained_and_that_is_told() -> None:
    engine = meshwright.parallelize(Model().eval(), plan())
    assert all(part.training for module in engine.modules for part in module.modules())
    assert engine.notes[1:] == ("the model came in evaluation mode; it trains in training mode, as after model.train()",)


@pytest.mark.parametrize("how", ["none", "full", "selective"])
def test_buffers_change_once_for_each_micro_batch_however_often_it_runs(how: str) -> None:
    engine = check(of(Averaging), how)
    assert engine.state_dict()["layers.1.n_passes"] == 4 * N_PARTS, "passes before training leave no trace"


def test_attributes_count_the_passes_of_training_alone_and_are_refused_where_it_recomputes() -> None:
    check(of(Counting))
    with pytest.raises(
        InputError, match=r"'layers\.0' changes its attribute 'layers\.0\.\w+' in every pass, and recompute full"
    ):
        meshwright.parallelize(of(Counting), plan("full"))


class Skipping(Model):
    """Runs less in evaluation, and scales what it runs."""

    def forward(self, tokens: Any) -> Any:
        x = self.embed(tokens)
        for i, layer in enumerate(self.layers):
            y = layer(x) if self.training or i == 0 else x
            x = y if self.training else x + 0.8 * (y - x)
        return self.head(x) if self.training else self.head(x).tanh()


class Dropping(Model):
    def forward(self, tokens: Any) -> Any:
        return nn.functional.dropout(super().forward(tokens), 0.5, training=self.training)


def test_evaluation_goes_its_own_way() -> None:
    check(Skipping, "full")
    engine = meshwright.parallelize(Dropping, plan())
    values = {engine.evaluate(batch(0), entropy) for _ in range(3)}
    assert len(values) == 1 and "draws random numbers" in engine.notes[0]


class Naming(Model):
    def forward(self, tokens: Any) -> Any:
        logits = super().forward(tokens)
        return {"hidden": logits * 2, "logits": logits}


def test_of_a_mapping_the_loss_takes_the_logits() -> None:
    engines = []
    for kind in (Model, Naming):
        torch.manual_seed(0)
        engines.append(meshwright.parallelize(kind(), plan()))
    assert engines[0].evaluate(batch(0), entropy) == engines[1].evaluate(batch(0), entropy)


class Silent(Model):
    """Learns nothing of its table."""

    def forward(self, tokens: Any) -> Any:
        with torch.no_grad():
            x = self.embed(tokens) * 2.0
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def test_what_runs_without_gradients_between_layers_still_does() -> None:
    torch.manual_seed(0)
    before = Silent().embed.weight.detach().clone()
    engine = check(Silent)
    assert torch.equal(engine.state_dict()["embed.weight"], before)


class Two(Model):
    """Takes a second input."""

    n_passes = 0

    def forward(self, tokens: Any, scale: Any) -> Any:
        return super().forward(tokens) * scale


class Noisy(Two):
    def forward(self, tokens: Any, scale: Any) -> Any:
        return super().forward(tokens, scale) + torch.randn(20)


class Stepping(Two):
    def forward(self, tokens: Any, scale: Any) -> Any:
        self.n_passes += 1
        return super().forward(tokens, scale) * self.n_passes


class Casting(Two):
    def forward(self, tokens: Any, scale: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(tokens, scale)


class Another(Two):
    """In evaluation it runs a head that it does not train."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(8, 20)

    def forward(self, tokens: Any, scale: Any) -> Any:
        x = self.layers[1](self.layers[0](self.embed(tokens)))
        return (self.head(x) if self.training else self.other(x)) * scale


def hooked() -> nn.Module:
    model = Two()
    model.register_forward_hook(lambda *given: given[2] * 2)
    return model


@pytest.mark.parametrize(
    "build, told",
    [
        (Noisy, "its forward draws random numbers between them"),
        (Stepping, "its forward changes the attribute 'n_passes' in every pass"),
        (Casting, "its forward switches autocast between them"),
        (Another, r"if self\.training, its forward runs other layers"),
        (hooked, "the model as a whole has hooks, which would not be called"),
    ],
)
def test_what_one_trace_of_the_forward_does_not_repeat_is_refused(
    build: Any, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacked, "fits", lambda _: False)
    model = build()
    with pytest.raises(InputError, match=told):
        cut(model, NAMES, (torch.zeros(1, 4, dtype=torch.long), torch.ones(1, 1, 1)))
    assert model.training and model.n_passes == 0


def test_a_list_of_layers_is_watched_instead_and_counts_as_in_a_loop_with_a_second_input_too() -> None:
    model, scale = Stepping(), torch.rand(2, 1, 1)
    own, tokens = copy.deepcopy(model), batch(0)[0][:2]
    units = cut(model, NAMES, (tokens[:1], scale[:1]))
    for _ in range(3):
        carried: Any = (tokens, scale)
        for unit in units:
            carried = unit(*carried)
        assert torch.equal(carried[0] if isinstance(carried, tuple) else carried, own(tokens, scale))


class Choosing(Model):
    """Cannot be traced, and is cut by watching samples pass: counts as well, or runs its layers under autocast."""

    casts, n_passes = False, 0

    def forward(self, tokens: Any) -> Any:
        self.n_passes += 1
        x = self.embed(tokens)
        if float(x.detach().sum()) > 1e9:
            x = x * 2
        with torch.autocast("cpu", torch.bfloat16, enabled=self.casts):
            for layer in self.layers:
                x = layer(x)
        return self.head(x) * self.n_passes


def test_a_forward_that_is_watched_counts_as_in_a_loop_and_casts_nothing_around_its_layers() -> None:
    check(Choosing)
    with pytest.raises(InputError, match=r"runs 'layers\.0' without gradients, or under autocast"):
        meshwright.parallelize(type("Of", (Choosing,), {"casts": True}), plan())


def test_a_batch_of_another_number_of_samples_is_told() -> None:
    engine = meshwright.parallelize(Model, plan())
    with pytest.raises(InputError, match=r"own: a tensor of the batch has shape \(4, 4\), but a step .* takes 6 samples"):
        engine.own(tuple(value[:4] for value in batch(0)))
