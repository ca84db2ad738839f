"""What layers do beside giving a result, and whether a plan can bear it; no process is started."""

from __future__ import annotations

import random
import re
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="running plans needs PyTorch: pip install 'meshwright[torch]'")
pytestmark = pytest.mark.torch

from torch import nn  # noqa: E402

from meshwright.base.errors import InputError  # noqa: E402
from meshwright.core.plan import Plan, Stage  # noqa: E402
from meshwright.core.strategy import Strategy  # noqa: E402
from meshwright.runtime.job.preflight import check_model  # noqa: E402
from meshwright.runtime.model.as_given import evaluating, untouched  # noqa: E402
from meshwright.runtime.model.in_place import changeable  # noqa: E402
from meshwright.runtime.parallel.shard_equivalence import check_context  # noqa: E402
from meshwright.runtime.step.effects import effects_of  # noqa: E402
from meshwright.runtime.step.split_backward import DeferredWeightGrad, delay_weight_gradients  # noqa: E402

TOKENS = (torch.zeros(1, 4, dtype=torch.long),)


class Unit(nn.Module):
    """A layer as a cut model has them."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *given: Any) -> Any:
        return (self.inner(*given),)


def told(
    *inner: nn.Module, recompute: str = "none", sample: Any = TOKENS, n_microbatches: int = 1, **degrees: int
) -> list[str]:
    units = [Unit(part) for part in inner]
    strategy = Strategy(**degrees)  # type: ignore[arg-type]
    stage = Stage(tuple(range(len(units))), tuple(range(strategy.n_devices)), strategy, (recompute,) * len(units))
    names = [f"layers.{i}" for i in range(len(units))]
    return effects_of(nn.ModuleList(inner), units, names, Plan((stage,), n_microbatches, 1, "1f1b", 8), sample, "the plan")


@pytest.mark.parametrize(
    "kind, degrees, why",
    [
        ({"sparse": True}, {}, "has sparse gradients"),
        ({"max_norm": 1.0}, {"data": 2}, "has max_norm, which goes by the words of a whole step, and with data degree"),
        ({"max_norm": 1.0}, {"context": 2}, "has max_norm, .* with context degree"),
        ({"scale_grad_by_freq": True}, {"data": 2, "shard": 2}, "has scale_grad_by_freq, .* with data degree"),
    ],
)
def test_tables_that_do_more_than_look_up_are_refused_where_ranks_see_other_words(kind: Any, degrees: Any, why: str) -> None:
    table = nn.Embedding(5, 4, **kind)
    with pytest.raises(InputError, match=why):
        told(table, **degrees)
    assert kind.get("sparse") or told(table) == []


def test_looking_leaves_a_table_as_it_is() -> None:
    table = nn.Embedding(5, 4, max_norm=0.1)
    before = table.weight.detach().clone()
    assert told(table, nn.Linear(4, 4)) == [] and torch.equal(table.weight, before)
    with pytest.raises(InputError, match="with weights shared with another layer"):
        head = nn.Linear(4, 5, bias=False)
        head.weight = table.weight
        told(table, head)


@pytest.mark.parametrize("degrees, why", [({"shard": 3, "data": 2}, "shard 3"), ({"tensor": 2}, "tensor degree")])
def test_hooks_on_weights_are_refused_where_ranks_hold_other_tensors(degrees: Any, why: str) -> None:
    linear = nn.Linear(4, 4)
    linear.bias.register_hook(lambda gradient: gradient * 2)
    with pytest.raises(InputError, match=f"weight '0.bias' has a hook, which is lost with {why}"):
        told(linear, sample=(torch.zeros(1, 4),), **degrees)
    assert "called in every replica" in told(linear, sample=(torch.zeros(1, 4),), data=2, shard=2)[0]
    linear.weight.register_post_accumulate_grad_hook(lambda weight: None)
    with pytest.raises(InputError, match=r"weight '0\.weight' has a hook .* after every micro-batch"):
        told(linear, sample=(torch.zeros(1, 4),), data=2, shard=2)


class Mixing(nn.Module):
    def __init__(self, odd: Any = None) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        if odd is not None:
            self.odd = nn.Parameter(odd)

    def forward(self, x: Any) -> Any:
        return self.linear(x - x.mean(0))


def test_layers_that_look_across_rows_are_told_where_ranks_or_micro_batches_have_some() -> None:
    rows = (torch.ones(1, 4),)
    found = told(nn.Linear(4, 4), Mixing(), data=2, sample=rows)
    assert "what layers give for a sample goes by the others of its batch (layers.1)" in found[0]
    assert "micro-batch" in told(Mixing(), sample=rows, n_microbatches=2)[0]
    assert told(Mixing(), sample=rows) == told(nn.Linear(4, 4), nn.LayerNorm(4), data=2, sample=rows) == []


@pytest.mark.parametrize(
    "odd, why",
    [
        (torch.ones(3, dtype=torch.float64), "has weights of torch.float32 and torch.float64"),
        (torch.ones(3, 2).t(), "has a weight that is no contiguous one"),
    ],
)
def test_weights_that_cannot_be_sharded_together_are_refused(odd: Any, why: str) -> None:
    with pytest.raises(InputError, match=re.escape(why)):
        told(Mixing(odd), shard=3, data=2, sample=(torch.ones(1, 4),))
    told(Mixing(odd), shard=2, data=2, sample=(torch.ones(1, 4),))


class Remembering(nn.Module):
    """Adds what it saw before."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.last, self.state = how, torch.zeros(1), {"n": 0}
        self.weight = nn.Parameter(torch.ones(4), requires_grad=False)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Any) -> Any:
        if self.how == "cache":
            self.last = x.mean()
        if self.how == "state":
            self.state = {"n": self.state["n"] + 1}
        if self.how == "weight":
            self.weight.data.mul_(0.5)
        if self.how == "buffer":
            self.seen += 1
        if self.how == "outside":
            OUTSIDE.append(1)
            return x * len(OUTSIDE)
        return x * self.weight


OUTSIDE: list[int] = []


def test_what_a_layer_remembers_is_told_or_refused() -> None:
    rows = (torch.ones(1, 4),)
    for how in ("full", "none"):
        assert told(Remembering("cache"), recompute=how, data=2, sample=rows) == [], "the same on every pass"
    assert (
        "changes 0.seen: every replica keeps its own" in told(Remembering("buffer"), recompute="full", data=2, sample=rows)[0]
    )
    assert "changes 0.state" in told(Remembering("state"), data=2, sample=rows)[0]
    with pytest.raises(InputError, match=r"'layers\.0' changes its attribute '0\.state' in every pass, and recompute full"):
        told(Remembering("state"), recompute="full", sample=rows)
    with pytest.raises(InputError, match=r"'layers\.0' changes its weight '0\.weight' as it runs"):
        told(Remembering("weight"), sample=rows)
    assert told(Remembering("outside"), sample=rows) == []
    with pytest.raises(InputError, match="gives something else when it runs again"):
        told(Remembering("outside"), recompute="selective", sample=rows)


class Centred(nn.Module):
    """Takes the mean of the batch away, and drops out or not."""

    def __init__(self, drop: float) -> None:
        super().__init__()
        self.linear, self.drop = nn.Linear(4, 4), nn.Dropout(drop)

    def forward(self, x: Any) -> Any:
        return self.drop(self.linear(x - x.mean(0)))


def test_layers_that_go_by_the_whole_batch_are_named_where_it_is_divided() -> None:
    rows = (torch.randn(1, 4),)
    mixing = r"what layers give .* goes by the others of its batch \(layers\.1, layers\.2\): every replica and micro-batch"
    for drop, n_notes in ((0.0, 1), (0.5, 2)):  # dropout is told, too
        layers = [nn.Linear(4, 4), Centred(drop), Centred(drop), nn.LayerNorm(4)]
        for how in ({"data": 2}, {"n_microbatches": 2}):
            found = told(*layers, sample=rows, **how)
            assert len(found) == n_notes and re.match(mixing, found[-1]), found
        assert len(told(*layers, sample=rows)) == n_notes - 1
    norms = [nn.Linear(4, 4), nn.BatchNorm1d(4), nn.BatchNorm1d(4, track_running_stats=False).eval(), nn.BatchNorm1d(4)]
    for how in ({"data": 2}, {"n_microbatches": 2}):
        assert any("has batch norms (1, 3): every replica and" in one for one in told(*norms, sample=rows, **how))
    assert not any("batch norms" in one for one in told(*norms, sample=rows))


def test_layers_that_the_model_compiles_are_named_where_they_run_otherwise() -> None:
    rows = (torch.randn(1, 4),)
    layers = [nn.Linear(4, 4), nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))]
    for layer in layers[1:]:
        layer.compile(backend="eager", fullgraph=True)
    wrapped = torch.compile(nn.Linear(4, 4), backend="eager")
    found = told(*layers, wrapped, sample=rows, context=2)
    assert any("compiles (layers.1, layers.2, layers.3) run as they are written under a context degree" in one for one in found)
    found = told(*layers, sample=rows, tensor=2)
    assert any("compiles (layers.2) draw the same numbers on all tensor ranks" in one for one in found)
    assert not any("compiles" in one for one in told(*layers, sample=rows, data=2))


class Turned(Centred):
    """Drops out of what is turned round, so that a row's numbers hang on how many rows there are, and takes no mean."""

    def __init__(self, drop: float) -> None:
        super().__init__(drop)
        self.linear = nn.Linear(4, 64)

    def forward(self, x: Any) -> Any:
        return self.drop(self.linear(x).t().contiguous()).t()


def test_dropout_alone_makes_no_layer_go_by_the_whole_batch() -> None:
    found = told(nn.Linear(4, 4), Turned(0.5), sample=(torch.randn(1, 4),), data=2)
    assert len(found) == 1 and "draws random numbers" in found[0]


class Drawing(nn.Module):
    """Drops a whole layer now and then, by the numbers of a library."""

    def __init__(self, draw: Any) -> None:
        super().__init__()
        self.linear, self.draw = nn.Linear(4, 4), draw

    def forward(self, x: Any) -> Any:
        return self.linear(x) * (self.draw() < 0.5)


@pytest.mark.parametrize("draw", [random.random, np.random.rand])
def test_numbers_that_are_not_pytorchs_are_refused_where_they_would_be_drawn_again(draw: Any) -> None:
    rows, plain = (torch.randn(1, 4),), Drawing(lambda: torch.rand(()))
    for how, said in (({"recompute": "full"}, "recomputation would"), ({"tensor": 2}, "ranks of a tensor or context degree")):
        with pytest.raises(InputError, match=f"'layers.0' draws numbers of Python's random or of NumPy .*, and {said}"):
            told(Drawing(draw), sample=rows, **how)
        assert "draws random numbers" in told(plain, sample=rows, **how)[0]
    assert "draws random numbers" in told(Drawing(draw), sample=rows, data=2)[0]


def test_a_pass_that_looks_leaves_no_trace() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5), Remembering("buffer"))
    model[1].eval()
    model[2].box, model[2].table = [1], torch.zeros(2)
    numbers, state = torch.get_rng_state(), {name: value.clone() for name, value in model.state_dict().items()}
    with untouched(model) as traces:
        model(torch.randn(8, 4))
        model[2].box.append(2)
        model[2].table += 1
        model[2].new = 3
    assert {"0.running_mean", "0.num_batches_tracked", "2.seen"} <= traces.buffers
    assert traces.attributes == {"2.box", "2.table", "2.new"} and traces.drew
    with evaluating(model):
        assert not any(part.training for part in model.modules())
    assert [part.training for part in model] == [True, False, True]
    assert model[2].box == [1] and not model[2].table.any() and not hasattr(model[2], "new")
    assert torch.equal(torch.get_rng_state(), numbers)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_products_whose_weight_gradients_wait_may_be_changed_in_place_and_those_with_hooks_do_not_wait() -> None:
    model, later = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4)), DeferredWeightGrad()
    rows = torch.randn(2, 3, 4)
    model(rows).sum().backward()
    expected = [weight.grad.clone() for weight in model.parameters()]
    model.zero_grad()
    called: list[Any] = []
    model[2].weight.register_hook(called.append)
    assert delay_weight_gradients(model, later) == 1
    later.collecting = []
    model(rows).sum().backward()
    assert len(called) == len(later.collecting) == 1 and model[0].weight.grad is None
    later.collecting[0][0]()
    assert all(torch.allclose(weight.grad, one) for weight, one in zip(model.parameters(), expected, strict=True))


class Kept(nn.Module):
    """Holds what cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 4), nn.Linear(4, 4)
        self.kept = (value for value in ())

    def forward(self, x: Any) -> Any:
        return self.fc2(self.fc1(x))


def test_what_the_trial_of_a_model_runs_into_is_one_line() -> None:
    stage = Stage((0, 1), (0, 1), Strategy(tensor=2), ("none",) * 2)
    with pytest.raises(InputError, match=r"the plan: Sequential cannot be tried under this plan \(TypeError: cannot pickle"):
        check_model(nn.Sequential(Kept(), Kept()), ["0", "1"], Plan((stage,), 1, 1, "1f1b", 1), (torch.ones(1, 4),), "the plan")


class _View(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:  # type: ignore[override]
        return gradient


def test_what_a_function_gives_as_a_view_may_be_changed_in_place() -> None:
    given = torch.ones(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
        _View.apply(given * 2).mul_(3)
    result = changeable(_View.apply(given * 2))
    result.mul_(3)
    result.sum().backward()
    assert torch.equal(given.grad, torch.full((3,), 6.0)) and torch.equal(result, given * 6)


class Summing(nn.Module):
    """Adds up tokens from the first one on, padding apart."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Any, mask: Any) -> Any:
        return self.linear(x * mask.unsqueeze(-1)).mul(mask.unsqueeze(-1)).cumsum(1), mask


def test_a_sample_that_is_padding_for_the_most_part_does_not_hide_that_tokens_are_not_alike() -> None:
    mask = torch.zeros(3, 8, dtype=torch.long)
    mask[:, -1] = 1
    with pytest.raises(InputError, match="on parts of a sequence, it computes something else than whole"):
        check_context(_Masked(), [torch.randn(3, 8, 4), mask], 2, "layer")


class _Masked(Summing):
    """Takes its part of the mask, as layers of Hugging Face models are handed it."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = (0, 1)

    def forward(self, x: Any, mask: Any) -> Any:
        from meshwright.runtime.model.sequence import part_of_sequence

        rank, degree = self.positions
        return super().forward(x, mask if degree == 1 else part_of_sequence(mask, 1, rank, degree))[:1]
