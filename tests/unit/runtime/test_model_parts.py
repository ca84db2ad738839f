"""What parts of a model are called, how it is cut, what it is trained on: rules and refusals, one by one."""

from __future__ import annotations

import pathlib
import re
import sys
from typing import Any

import pytest

from recorded import Recorded

torch = pytest.importorskip("torch", reason="running plans needs PyTorch: pip install 'meshwright[torch]'")
pytestmark = pytest.mark.torch

from torch import nn  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import zoo  # noqa: E402

from meshwright.base.errors import InputError, MissingExtraError  # noqa: E402
from meshwright.runtime.model import data, naming, source, stacked  # noqa: E402
from meshwright.runtime.model.cut import cut  # noqa: E402
from meshwright.runtime.model.data import batches_of, default_loss, example_of, repeated, rows_of_inputs  # noqa: E402
from meshwright.runtime.model.sequence import in_order, part_of_sequence, ranges_of  # noqa: E402
from meshwright.runtime.step.stage import StageModule  # noqa: E402


def linears(n: int, width: int = 2) -> list[nn.Module]:
    return [nn.Linear(width, width) for _ in range(n)]


class Holds(nn.Module):
    """Holds parts by name."""

    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)


def tower() -> nn.Module:
    """Return a model with a list of three, another list inside each, and a list of two."""
    return Holds(
        embed=nn.Embedding(5, 2),
        inner=Holds(blocks=nn.ModuleList([Holds(parts=nn.ModuleList(linears(4))) for _ in range(3)])),
        side=nn.ModuleList(linears(2)), norm=nn.LayerNorm(2), head=nn.Linear(2, 5),
    )  # fmt: skip


BLOCKS = ["inner.blocks.0", "inner.blocks.1", "inner.blocks.2"]


@pytest.mark.parametrize(
    ("names", "paths"),
    [
        (["embed", "layers.0", "layers.1", "layers.2", "head"], ["embed", *BLOCKS, "head"]),
        (["words", "layers.0", "layers.1", "layers.2", "out"], ["", *BLOCKS, ""]),
        (["words", "h.0", "h.1", "norm"], ["", "side.0", "side.1", "norm"]),
        (["blocks.0", "blocks.1", "blocks.2"], BLOCKS),
        (BLOCKS, BLOCKS),
        (["layers.0", "layers.1", "layers.2", "layers.3"], [f"inner.blocks.0.parts.{i}" for i in range(4)]),
        (["embed", "blocks.0.parts.1", "blocks.1.parts", "head"],
         ["embed", "inner.blocks.0.parts.1", "inner.blocks.1.parts", "head"]),
        (["start", "blocks.0.parts", "blocks.1.parts", "out"], ["", "inner.blocks.0.parts", "inner.blocks.1.parts", ""]),
        (["all"], [""]), (["norm"], ["norm"]), (["x", "y"], ["", ""]),
    ],
)  # fmt: skip
def test_names_mean_parts(names: list[str], paths: list[str]) -> None:
    assert naming.resolve(tower(), names) == paths


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["embed", *[f"layers.{i}" for i in range(5)], "head"],
         "Holds: inner.blocks holds 3 layers, but the plan has 5; is this the plan of another model?"),
        (["inner.blocks.0", "inner.blocks.1"], "Holds: inner.blocks holds 3 layers, but the plan has 2; is this the"),
        (["embed", "middle", "head"],
         "Holds: has no layer 'middle'; is this the plan of another model? Its parts are: embed, inner, inner.blocks, side, "
         "side.0, side.1, norm, head"),
    ],
)  # fmt: skip
def test_names_that_mean_nothing_are_refused(names: list[str], told: str) -> None:
    with pytest.raises(InputError, match=re.escape(told)):
        naming.resolve(tower(), names)


def test_models_without_lists_and_with_many_parts_are_told_apart() -> None:
    with pytest.raises(
        InputError, match=r"Linear: has no repeated layers, but the plan has 2; is this the plan of another model\?"
    ):
        naming.resolve(nn.Linear(2, 2), ["layers.0", "layers.1"])
    many = Holds(**{f"p{i}": nn.Linear(1, 1) for i in range(22)})
    with pytest.raises(InputError, match=r"Its parts are: p0, p1, .*, p19, \.\.\.$"):
        naming.resolve(many, ["p0", "x.y", "p1"])
    exact = Holds(**{f"p{i}": nn.Linear(1, 1) for i in range(20)})
    with pytest.raises(InputError, match=r", p19$"):
        naming.resolve(exact, ["p0", "x.y", "p1"])
    unlike = nn.ModuleDict({"wte": nn.Embedding(2, 2), "h": nn.Linear(2, 2)})
    alike = nn.ModuleDict({"one": nn.Linear(2, 2), "two": nn.Linear(2, 2)})
    assert naming._lists(Holds(a=unlike, b=alike, c=nn.Sequential(nn.Linear(1, 1)))) == {"b": ["one", "two"]}
    assert naming._lists(nn.Sequential(*linears(2))) == {"": ["0", "1"]}


def test_layers_of_a_model_are_named_in_the_words_of_readers() -> None:
    assert naming.layer_names(tower()) == ["embed", "layers.0", "layers.1", "layers.2", "head"]
    assert naming.layer_names(nn.Sequential(*linears(2))) == ["0", "1"]
    with pytest.raises(InputError, match="Holds: has no repeated layers to cut it at"):
        naming.layer_names(Holds(one=nn.Linear(1, 1)))


def test_the_first_tensor_of_an_answer() -> None:
    one, two = torch.zeros(1), torch.zeros(2)
    answer = type("Answer", (), {"logits": two})()
    cases = [one, (one, two), [one], answer, {"a": one, "b": two}, ((one,),), (), {}, 3, None]
    assert [naming.first_tensor(case) for case in cases] == [one, one, one, two, one, one, (), {}, 3, None]


def test_samples_are_repeated_a_number_of_times_that_no_other_axis_has() -> None:
    assert [value.shape for value in repeated((torch.zeros(1, 4), torch.zeros(1, 5)))] == [(2, 4), (2, 5)]
    assert repeated((torch.zeros(1, 2, 3), torch.zeros(1, 5)))[0].shape == (7, 2, 3)
    assert repeated((torch.zeros(1, 2, 3, 5, 7, 11, 13),))[0].shape[0] == 13
    assert repeated((torch.zeros(1),))[0].shape == (2,)
    rows = rows_of_inputs((torch.arange(5), torch.arange(10).view(5, 2)), 1, 3)
    assert rows[0].tolist() == [1, 2] and rows[1].tolist() == [[2, 3], [4, 5]]


def test_the_default_loss_goes_by_the_target() -> None:
    output = torch.tensor([[[2.0, 0.0], [0.0, 1.0]]])
    assert float(default_loss(output, torch.zeros(1, 2, 2))) == pytest.approx(5.0 / 4)
    expected = nn.functional.cross_entropy(output[0], torch.tensor([0, 1]))
    assert float(default_loss(output, torch.tensor([[0, 1]]))) == pytest.approx(float(expected))


def test_a_sample_is_read_off_the_model() -> None:
    table, line = nn.Sequential(nn.Embedding(5, 2), nn.Linear(2, 2)), nn.Sequential(nn.ReLU(), nn.Linear(3, 2))
    assert example_of(table, (), 7)[0].shape == (1, 7) and example_of(table, (), 0)[0].shape == (1, 1)
    assert example_of(table, (), 7)[0].dtype == torch.int64
    assert example_of(line, (), 1)[0].shape == (1, 3) and example_of(line, (), 2)[0].shape == (1, 2, 3)
    given = example_of(line, (torch.ones(4, 3), torch.zeros(4)), 9)
    assert [value.shape for value in given] == [(1, 3), (1,)]
    told = "cannot tell what it takes (it begins with neither a table nor a linear layer); let its callable return"
    for other in (nn.Sequential(nn.Conv2d(1, 1, 1), nn.Linear(2, 2)), nn.ReLU()):
        with pytest.raises(InputError, match=re.escape(told)):
            example_of(other, (), 1)
    inside = Holds(norm=nn.LayerNorm(2), line=nn.Linear(2, 2))
    with pytest.raises(InputError, match="cannot tell"):
        example_of(inside, (), 1)
    inside.weight = nn.Parameter(torch.zeros(1))  # of a module that has children
    with pytest.raises(InputError, match="Holds: cannot tell"):
        example_of(inside, (), 1)


def test_synthetic_batches_are_drawn_by_seed_and_step() -> None:
    tokens = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9))
    (inputs,), targets = batches_of(None, tokens, (torch.zeros(1, 5, dtype=torch.long),), 3, 2)(4)
    drawn = torch.randint(9, (3, 6), generator=torch.Generator().manual_seed(1_000_003 * 2 + 4))
    assert torch.equal(inputs, drawn[:, :-1]) and torch.equal(targets, drawn[:, 1:])
    line = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 2))
    torch.manual_seed(5)
    batches = batches_of(None, line, (torch.zeros(1, 4, dtype=torch.float64).float(),), 3, 0)
    assert line.training and float(torch.rand(())) == float(_after(5))
    (inputs,), targets = batches(1)
    generator = torch.Generator().manual_seed(1)
    assert torch.equal(inputs, torch.randn(3, 4, generator=generator))
    assert torch.equal(targets, torch.randn(3, 2, generator=generator))
    several = zoo.TwoInputs()
    sample = zoo.two_inputs()[1]
    inputs, _ = batches_of(None, several, rows_of_inputs(sample, 0, 1), 4, 0)(0)
    assert [(value.shape[0], value.dtype) for value in inputs] == [(4, value.dtype) for value in sample]
    smallest = min(part.num_embeddings for part in several.modules() if isinstance(part, nn.Embedding))
    assert all(int(value.max()) < smallest for value in inputs if not value.is_floating_point())
    table = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9))
    longer = nn.Sequential(table, nn.Flatten(1), nn.Linear(45, 7))
    _, targets = batches_of(None, longer, (torch.zeros(1, 5, dtype=torch.long),), 3, 0)(0)
    assert targets.shape == (3, 7) and targets.is_floating_point(), "one answer for all tokens is no next token"


def _after(seed: int) -> torch.Tensor:
    torch.manual_seed(seed)
    return torch.rand(())


@pytest.mark.parametrize(
    ("pair", "told"),
    [
        (3, "--data: step 6 gave a int; give a pair of tensors, inputs and targets"),
        ((torch.zeros(2),), "--data: step 6 gave a tuple; give a pair"),
        ((torch.zeros(2), 1.0), "--data: step 6 gave a float; give a pair"),
        (([torch.zeros(2), "a"], torch.zeros(2)), "--data: step 6 gave a str; give a pair"),
        (([torch.zeros(2)] * 2, torch.zeros(2)),
         "--data: step 6 gave 2 inputs, but 1 are known; where the model takes several, let its callable "
         "return (model, example_inputs)"),
        ((torch.zeros(3, 1), torch.zeros(2)), "gave a tensor of shape (3, 1); inputs and targets need 2 rows"),
        ((torch.zeros(2), torch.zeros(())), "gave a tensor of shape (); inputs and targets need 2 rows"),
    ],
)  # fmt: skip
def test_data_of_the_wrong_kind_is_told_in_these_words(pair: Any, told: str) -> None:
    with pytest.raises(InputError, match=re.escape(told)):
        data._checked(pair, 6, 1, 2)
    with pytest.raises(InputError, match=re.escape(told)):
        batches_of(lambda step, n: pair, nn.Linear(1, 1), (torch.zeros(1, 1),), 2, 0)(6)


def test_data_of_the_right_kind_is_taken_as_it_is() -> None:
    one, two = torch.zeros(2, 3), torch.ones(2)
    assert data._checked((one, two), 0, 1, 2)[0] == (one,) and data._checked([[one, two], two], 0, 2, 2)[0] == (one, two)


def test_the_parts_of_sequences_of_every_length_and_degree(recorded: Recorded) -> None:
    recorded(
        {
            f"{n} by {d}": [ranges_of(n, rank, d) for rank in range(d)]
            for n, d in ((8, 1), (12, 2), (6, 2), (24, 3), (9, 3), (16, 4))
        }
    )
    value = torch.arange(24).view(2, 12)
    parts = [part_of_sequence(value, 1, rank, 3) for rank in range(3)]
    assert [part[0].tolist() for part in parts] == [[0, 1, 10, 11], [2, 3, 8, 9], [4, 5, 6, 7]]
    assert torch.equal(in_order(torch.cat(parts, 1), 1, 3), value) and torch.equal(in_order(value.T, 0, 1), value.T)


def segments_of(parts: list[nn.Module]) -> list[Any]:
    """Return what the segments run, and how many values go in and out."""
    return [
        [[str(getattr(node.target, "__name__", node.target)) for node in part.plan_nodes],
         len(part.plan_inputs), len(part.plan_outputs)]
        if hasattr(part, "plan_nodes") else type(part).__name__
        for part in parts
    ]  # fmt: skip


CUTS: dict[str, Any] = {
    "Plain": (["embed", "layers.0", "layers.1", "layers.2", "layers.3", "head"], 1),
    "Skips": (None, 1),
    "SharedLayers": (["embed", "layers.0", "layers.1", "layers.2", "layers.3", "head"], 1),
    "Options": (["embed", "layers.0", "layers.1", "layers.2", "layers.3", "head"], 1),
    "Masked": (["embed", "layers.0", "layers.1", "layers.2", "layers.3", "head"], 1),
    "Dictionary": (None, 1), "Images": (None, 3), "TwoInputs": (None, 2), "UnlikeDepths": (None, 1), "Pairs": (None, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", CUTS)
def test_a_model_is_cut_into_what_each_layer_runs(name: str, recorded: Recorded) -> None:
    torch.manual_seed(0)
    model = getattr(zoo, name)()
    names, kind = CUTS[name]
    sample = (torch.zeros(1, 3, dtype=torch.long),)
    if kind == 2:
        model, given = zoo.two_inputs()
        sample = rows_of_inputs(given, 0, 1)
    elif kind == 3:
        model, given = zoo.images()
        sample = (given[:1],)
    names = names or naming.layer_names(model)
    expected = naming.first_tensor(model.eval()(*sample))
    parts = cut(model, names, sample)
    recorded(segments_of(parts))
    carried: Any = sample
    for part in parts:
        carried = part.eval()(*carried)
    assert len(carried) == 1 and torch.allclose(carried[0], expected, atol=1e-6)
    held = [{id(parameter) for parameter in part.parameters()} for part in parts]
    assert set().union(*held) == {id(parameter) for parameter in model.parameters()}


class Backwards(nn.Module):
    """Runs its second layer first."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(linears(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers[0](self.layers[1](x))


class Constant(nn.Module):
    """Gives back nothing that it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(linears(2))

    def forward(self, x: torch.Tensor) -> int:
        self.layers[1](self.layers[0](x))
        return 3


@pytest.mark.parametrize(
    ("model", "names", "told"),
    [
        (Backwards, ["layers.0", "layers.1", "layers.2"],
         "Backwards: runs 'layers.0' after 'layers.1', so that no stage boundary can lie between them; keep them in one stage, "
         "or is this the plan of another model?"),
        (Constant, ["layers.0", "layers.1"], "the model's forward returns nothing that it computes"),
    ],
)  # fmt: skip
def test_a_model_that_cannot_be_cut_there_is_refused(model: Any, names: list[str], told: str) -> None:
    with pytest.raises(InputError, match=re.escape(told)):
        cut(model(), names, (torch.zeros(1, 2),))


class Fewer(Backwards):
    """Runs the first two of its layers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers[1](self.layers[0](x))


def test_a_layer_that_never_runs_is_told() -> None:
    with pytest.raises(InputError, match=r"Fewer: its forward never runs the plan's layer 'layers\.2'"):
        cut(Fewer(), ["layers.0", "layers.1", "layers.2"], (torch.zeros(1, 2),))


def test_lists_are_told_from_scattered_layers() -> None:
    assert stacked.fits(["a", "l.0", "l.1", "b"]) and stacked.fits(["", "l.0", ""]) and not stacked.fits(["l.0", "l.1"])
    assert not stacked.fits(["a", "l.0", "m.1", "b"]) and not stacked.fits(["a", "", "b"])


class Untraced(nn.Module):
    """Looks at values, so that it cannot be traced; what goes wrong is told by a word."""

    def __init__(self, how: str = "") -> None:
        super().__init__()
        self.how = how
        self.embed, self.scale = nn.Embedding(7, 4), nn.Linear(4, 4)
        self.layers = nn.ModuleList([Pairs(how) for _ in range(3)])
        self.norm, self.head = nn.LayerNorm(4), nn.Linear(4, 7)

    def forward(self, tokens: torch.Tensor) -> Any:
        x = self.scale(self.embed(tokens))
        if bool((x == 12345.0).any()):
            return x
        layers = reversed(self.layers) if self.how == "reversed" else list(self.layers)[: 2 if self.how == "fewer" else 3]
        for layer in layers:
            if self.how == "between":
                x = x + 1.0
            x = layer(x, x) if self.how == "more" else layer(x, scale=2.0)
            x = x[0] if isinstance(x, tuple) else x
        return self.head(self.norm(x)), x


class Beside(nn.Module):
    """Takes a mask, which layers are handed; cannot be traced."""

    def __init__(self, how: str = "") -> None:
        super().__init__()
        self.embed, self.head, self.how = nn.Embedding(7, 4), nn.Linear(4, 7), how
        self.layers = nn.ModuleList(Masked() for _ in range(3))

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> Any:
        x = self.embed(tokens)
        seen = mask.cumsum(1)[..., None].float() if mask.sum() > 0 else mask[..., None].float()
        for layer in self.layers:
            x = layer(x, weight=seen + x.mean() if self.how else seen)[0]
        return self.head(x), mask


class Masked(nn.Module):
    """A layer that weighs tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> Any:
        return x + torch.tanh(self.line(x)) * weight, None


class Pairs(nn.Module):
    """A layer that takes an option; gives a tuple."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.line, self.how = nn.Linear(4, 4), how

    def forward(self, x: torch.Tensor, other: Any = None, scale: float = 1.0) -> Any:
        found = torch.tanh(self.line(x)) * scale
        return found if self.how == "tensor" else (found, scale)


NAMES = ["embed", "layers.0", "layers.1", "layers.2", "head"]


@pytest.mark.parametrize("how", ["", "tensor"])
def test_a_model_that_cannot_be_traced_is_cut_by_watching(how: str) -> None:
    torch.manual_seed(0)
    model = Untraced(how)
    tokens = torch.tensor([[1, 2, 3], [4, 5, 6]])
    expected = model(tokens)[0]
    parts = cut(model, NAMES, (tokens[:1],))
    assert [type(part).__name__ for part in parts] == ["_First", "_Layer", "_Layer", "_Layer", "_Last"]
    carried: Any = (tokens,)
    for part in parts:
        carried = part(*carried)
    assert len(carried) == 1 and torch.allclose(carried[0], expected)
    held = [sorted(name for name, _ in part.named_parameters()) for part in parts]
    layer = ["layer.line.bias", "layer.line.weight"]
    assert held == [["model.embed.weight", "model.scale.bias", "model.scale.weight"], layer, layer, layer,
                    ["model.head.bias", "model.head.weight", "model.norm.bias", "model.norm.weight"]]  # fmt: skip
    assert model.training and not model._forward_hooks and not model.layers[0]._forward_pre_hooks


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("fewer", "Untraced: does not run its layers layers.0 to layers.2 once each, so it cannot be cut between its layers"),
        ("reversed", "Untraced: runs 'layers.2' where 'layers.0' was expected, or without a tensor; it cannot be cut between"),
        (
            "between",
            "Untraced: computes something before 'layers.1' that belongs to no layer; it cannot be cut between its layers",
        ),
        (
            "more",
            "Untraced: hands 'layers.0' more tensors than the one of the layer before; it cannot be cut between its layers",
        ),
    ],
)
def test_what_watching_sees_that_cannot_be_cut_is_told(how: str, told: str) -> None:
    with pytest.raises(InputError, match=re.escape(told)):
        cut(Untraced(how), NAMES, (torch.zeros(1, 3, dtype=torch.long),))
    model = Untraced()
    with pytest.raises(InputError, match="cannot be cut between its layers: its forward"):
        cut(model, ["embed", "scale", "layers.0", "layers.1", "layers.2"], (torch.zeros(1, 3, dtype=torch.long),))
    two = (torch.zeros(1, 3, dtype=torch.long), torch.ones(1, 3, dtype=torch.long))
    with pytest.raises(InputError, match=r"Beside: hands 'layers\.0' more tensors .* not make of its further inputs alone"):
        cut(Beside("looks"), NAMES, two)


class Gathering(Beside):
    """Goes by all that its layers return, in tuples of two."""

    def __init__(self, needs: bool) -> None:
        super().__init__()
        self.needs = needs

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> Any:
        x, found = self.embed(tokens), []
        seen = mask[..., None].float() if mask.sum() > 0 else mask[..., None].float() * 2
        for layer in self.layers:
            x, more = layer(x, weight=seen)
            found.append(more)
        return self.head(x) + (found[0].sum() if self.needs else 0.0)


def test_layers_that_return_more_than_the_tensor_are_cut_where_the_model_does_not_need_it() -> None:
    two = (torch.zeros(1, 3, dtype=torch.long), torch.ones(1, 3, dtype=torch.long))
    model = Gathering(needs=False)
    carried: Any = two
    for unit in cut(model, NAMES, two):
        carried = unit(*carried)
    assert torch.equal(carried[0], model(*two))
    needy = Gathering(needs=True)
    for layer in needy.layers:
        layer.register_forward_hook(lambda *given: (given[2][0], given[2][0]))
    with pytest.raises(InputError, match=r"Gathering: needs more of its layers than the tensor .* cannot be cut"):
        cut(needy, NAMES, two)


@pytest.mark.parametrize("recompute", ["none", "selective"])
def test_masks_go_along_where_a_model_is_cut_by_watching(recompute: str) -> None:
    torch.manual_seed(0)
    model, generator = Beside(), torch.Generator().manual_seed(1)
    batches = [(torch.randint(5, (2, 3), generator=generator), torch.tensor([[1, 1, 1], [1, a, 0]])) for a in (0, 1)]
    expected = [model(*batch)[0] for batch in batches]
    assert not torch.allclose(expected[0], model(batches[0][0], torch.ones(2, 3))[0])
    stage = StageModule(cut(model, NAMES, tuple(value[:1] for value in batches[0])), [recompute] * 5, {})
    found = [stage(*batch)[0] for batch in batches]
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other)
    wanted = torch.autograd.grad(sum(one.square().sum() for one in expected), list(model.parameters()))
    sum(one.square().sum() for one in found).backward()
    assert all(torch.allclose(weight.grad, other) for weight, other in zip(model.parameters(), wanted, strict=True))


def test_samples_watched_besides_are_of_the_same_kind() -> None:
    words = stacked._others(nn.Sequential(nn.Embedding(7, 2)), torch.zeros(1, 50, dtype=torch.int32))
    assert len(words) == 4 and all(one.shape == (1, 50) and one.dtype == torch.int32 for one in words)
    assert max(int(one.max()) for one in words) == 6 and len({tuple(one[0].tolist()) for one in words}) == 4
    plain = stacked._others(nn.Linear(2, 2), torch.zeros(1, 50, dtype=torch.long))
    assert max(int(one.max()) for one in plain) == 1
    assert all(one.dtype == torch.float64 for one in stacked._others(nn.Linear(2, 2), torch.zeros(1, 2, dtype=torch.float64)))


class Callable_:
    """Something to name."""

    @staticmethod
    def made() -> nn.Module:
        return nn.Linear(2, 2).eval()


number = 3


def fails() -> nn.Module:
    raise ValueError("no weights")


def several() -> Any:
    return nn.Linear(2, 2), torch.zeros(3, 2), "word"


def listed() -> Any:
    return nn.Linear(2, 2), [torch.zeros(3, 2), torch.ones(3)]


def wrong() -> Any:
    return (3, torch.zeros(1))


HERE = __name__


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("nothing", "--model nothing: write package.module:callable, for example examples.models:small"),
        (":f", "--model :f: write package.module:callable"), ("m:", "--model m:: write package.module:callable"),
        ("nowhere_at_all:f", "--model nowhere_at_all:f: there is no module 'nowhere_at_all' (looked in "),
        (f"{HERE}:Callable_.other", f"--model {HERE}:Callable_.other: {HERE} has no 'Callable_.other'; it has "),
        (f"{HERE}:number", f"--model {HERE}:number: is a int; name something to call"),
        (f"{HERE}:fails", f"--model {HERE}:fails: calling it failed: ValueError: no weights ("),
        (f"{HERE}:wrong", f"--model {HERE}:wrong: returned a tuple; it must return a torch.nn.Module"),
    ],
)  # fmt: skip
def test_callables_that_give_no_model_are_refused(name: str, told: str) -> None:
    with pytest.raises(InputError, match="^" + re.escape(told)):
        source.build(name, 0)


def test_a_model_comes_with_its_seed_its_mode_and_its_samples() -> None:
    model, examples = source.build(f"{HERE}:Callable_.made", 3)
    torch.manual_seed(3)
    assert torch.equal(model.weight, Callable_.made().weight) and model.training and examples == ()
    assert [value.shape for value in source.build(f"{HERE}:several", 0)[1]] == [(3, 2)]
    assert [value.shape for value in source.build(f"{HERE}:listed", 0)[1]] == [(3, 2), (3,)]


def test_an_import_that_fails_is_told(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ends_at_once.py").write_text("raise SystemExit('no licence')")
    (tmp_path / "imports_nothing.py").write_text("import nowhere_at_all")
    (tmp_path / "good_one.py").write_text("def f(): return 1")
    with pytest.raises(InputError, match="--data ends_at_once:f: importing ends_at_once failed: SystemExit: no licence"):
        source.load("ends_at_once:f", "--data")
    with pytest.raises(InputError, match="there is no module 'nowhere_at_all'"):
        source.load("imports_nothing:f", "--data")
    assert source.load("good_one:f", "--data")() == 1
    with pytest.raises(InputError, match=r"--data good_one:g: good_one has no 'g'; it has f$"):
        source.load("good_one:g", "--data")


@pytest.mark.parametrize(
    ("version", "fine"), [("2.6.0", True), ("2.13.0+cpu", True), ("10.0.1", True), ("2.5.9", False), ("1.20", False)]
)
def test_pytorch_must_be_young_enough(version: str, fine: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source.importlib.metadata, "version", lambda _: version)
    if fine:
        source.require_torch()
        return
    told = f"PyTorch {version} is too old to run a plan: 2.6 or newer is needed; pip install --upgrade torch"
    with pytest.raises(InputError, match=re.escape(told)):
        source.require_torch()


def test_pytorch_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(_: str) -> str:
        raise source.importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(source.importlib.metadata, "version", absent)
    with pytest.raises(MissingExtraError, match="torch"):
        source.require_torch()
