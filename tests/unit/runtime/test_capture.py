"""Capture of PyTorch modules: counts that can be worked out by hand, chains and branches, what is refused."""

from __future__ import annotations

import json
import pathlib
import sys

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an optional extra: pip install 'meshwright[torch]'")
pytestmark = [
    pytest.mark.torch,
    # PyTorch and transformers warn about themselves
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

from torch import nn  # noqa: E402

from meshwright import api, models  # noqa: E402
from meshwright.base.errors import InputError, UnknownNameError  # noqa: E402
from meshwright.core.flops import forward_flops  # noqa: E402
from meshwright.runtime.capture import capture  # noqa: E402
from meshwright.runtime.capture.document import as_json  # noqa: E402
from meshwright.runtime.capture.layers import Captured  # noqa: E402

HERE = f"{__name__}"


@pytest.fixture(autouse=True)
def _importable() -> None:
    """The callables of this file, and of the examples, can be named as on the command line."""
    sys.modules.setdefault(HERE, sys.modules[__name__])


def _of(name: str, **options: object) -> Captured:
    return capture(f"{HERE}:{name}", precision="fp32", **options)  # type: ignore[arg-type]


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, stream: torch.Tensor) -> torch.Tensor:
        return stream + self.down(torch.relu(self.up(self.norm(stream))))


class Chain(nn.Module):
    """An embedding, equal blocks in a row, a head."""

    def __init__(self, n_layers: int, skip: bool = False) -> None:
        super().__init__()
        self.skip = skip
        self.words = nn.Embedding(50, 8)
        self.blocks = nn.ModuleList(Block(8) for _ in range(n_layers))
        self.out = nn.Linear(8, 50, bias=False)
        self.example_inputs = torch.zeros(2, 6, dtype=torch.int64)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        stream = self.words(ids)
        kept = []
        for block in self.blocks:
            stream = block(stream)
            kept.append(stream)
        return self.out(sum(kept) if self.skip else stream)


def chain_of_five() -> nn.Module:
    return Chain(5)


def chain_of_two() -> nn.Module:
    return Chain(2)


def chain_with_skips() -> nn.Module:
    return Chain(5, skip=True)


class Parallel(nn.Module):
    """Equal branches that all read the stem."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(8, 8)
        self.branches = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.example_inputs = torch.zeros(3, 8)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        stem = self.stem(inputs)
        total = self.branches[0](stem)
        for branch in list(self.branches)[1:]:
            total = total + branch(stem)
        return total


def parallel() -> nn.Module:
    return Parallel()


class Tied(Chain):
    def __init__(self) -> None:
        super().__init__(3)
        self.out.weight = self.words.weight


def tied() -> nn.Module:
    return Tied()


def convolutional() -> tuple[nn.Module, torch.Tensor]:
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4 * 4 * 4, 10)
    )
    return net, torch.zeros(2, 3, 8, 8)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = nn.Linear(16, 16), nn.Linear(16, 8), nn.Linear(16, 8)
        self.out = nn.Linear(16, 16)
        self.example_inputs = torch.zeros(2, 6, 16)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        query = self.query(inputs).view(2, 6, 4, 4).transpose(1, 2)
        key = self.key(inputs).view(2, 6, 2, 4).transpose(1, 2).repeat_interleave(2, dim=1)
        value = self.value(inputs).view(2, 6, 2, 4).transpose(1, 2).repeat_interleave(2, dim=1)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(2, 6, 16))


def attention() -> nn.Module:
    return nn.Sequential(Attention()), torch.zeros(2, 6, 16)  # type: ignore[return-value]


class Eager(nn.Module):
    """Attention written out: ``matmul`` on (samples, heads, rows, head), or sums by name; queries,
    keys and values together or not.
    """

    def __init__(self, file_format: str, n_heads: int = 4, n_key_heads: int = 4) -> None:
        super().__init__()
        self.form, self.n_heads, self.n_key_heads = file_format, n_heads, n_key_heads
        sizes = (16, 4 * n_key_heads, 4 * n_key_heads)
        self.project = nn.ModuleDict({name: nn.Linear(16, size) for name, size in zip("qkv", sizes, strict=True)})
        self.together = nn.Linear(16, 48) if file_format == "together" else None
        if self.together is not None:
            del self.project
        self.drop, self.out = nn.Dropout(0.1), nn.Linear(16, 16)

    def forward(self, stream: torch.Tensor) -> torch.Tensor:
        n, length = stream.shape[:2]
        if self.together is not None:
            query, key, value = self.together(stream).view(n, length, 3, 4, 4).permute(2, 0, 3, 1, 4).unbind(0)
        else:
            query, key, value = (self.project[name](stream).view(n, length, -1, 4) for name in "qkv")
        if self.form == "sums":
            weights = torch.einsum("bqhd,bkhd->bhqk", query, key).div(2).softmax(-1)
            mixed = torch.einsum("bhqk,bkhd->bqhd", weights, value)
        elif self.form == "groups":
            query = query.view(n, length, self.n_key_heads, -1, 4)
            weights = torch.einsum("bqgrd,bkgd->bgrqk", query, key).div(2).softmax(-1)
            mixed = torch.einsum("bgrqk,bkgd->bqgrd", weights, value)
        else:
            if self.together is None:
                query, key, value = (tensor.transpose(1, 2) for tensor in (query, key, value))
                key, value = (tensor.repeat_interleave(self.n_heads // self.n_key_heads, 1) for tensor in (key, value))
            mask = torch.ones(length, length, dtype=torch.bool).triu(1)
            scores = (query @ key.transpose(-1, -2) / 2).masked_fill(mask, -1e9)
            mixed = (self.drop(scores.float().softmax(-1)) @ value).transpose(1, 2)
        return stream + self.out(mixed.reshape(n, length, 16))


def _layers_of(file_format: str, n_key_heads: int = 4) -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(*(Eager(file_format, n_key_heads=n_key_heads) for _ in range(3))), torch.zeros(2, 6, 16)


def eager() -> tuple[nn.Module, torch.Tensor]:
    return _layers_of("products")


def eager_grouped() -> tuple[nn.Module, torch.Tensor]:
    return _layers_of("products", 2)


def eager_together() -> tuple[nn.Module, torch.Tensor]:
    return _layers_of("together")


def eager_sums() -> tuple[nn.Module, torch.Tensor]:
    return _layers_of("sums")


def eager_groups() -> tuple[nn.Module, torch.Tensor]:
    return _layers_of("groups", 2)


def eager_one_key_head() -> tuple[nn.Module, torch.Tensor]:
    return _layers_of("groups", 1)


def packed() -> tuple[nn.Module, torch.Tensor]:
    """PyTorch's own module, asked for the weights of attention: it does not fuse then."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

        def forward(self, stream: torch.Tensor) -> torch.Tensor:
            return stream + self.attention(stream, stream, stream)[0]

    return nn.Sequential(*(Net() for _ in range(3))), torch.zeros(2, 6, 16)


class Gate(nn.Module):
    """A soft maximum between two products that is no attention: over the outputs of a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, stream: torch.Tensor) -> torch.Tensor:
        return stream + self.down(self.up(stream).softmax(-1))


def gates() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(*(Gate() for _ in range(3))), torch.zeros(2, 6, 16)


class Latent(nn.Module):
    """Fused attention whose values are narrower than its keys, with one rotated key head for all and a learned bias."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key_value, self.shared = nn.Linear(16, 24), nn.Linear(16, 32), nn.Linear(16, 2)
        self.bias, self.out = nn.Parameter(torch.zeros(4, 6, 6)), nn.Linear(16, 16)

    def forward(self, stream: torch.Tensor) -> torch.Tensor:
        n, length = stream.shape[:2]
        query = self.query(stream).view(n, length, 4, 6).transpose(1, 2)
        key, value = self.key_value(stream).view(n, length, 4, 8).transpose(1, 2).split([4, 4], -1)
        shared = self.shared(stream).view(n, 1, length, 2).expand(n, 4, length, 2)
        mixed = nn.functional.scaled_dot_product_attention(
            query, torch.cat([key, shared], -1), value, attn_mask=self.bias[None]
        )
        return stream + self.out(mixed.transpose(1, 2).reshape(n, length, 16))


class Shared(nn.Module):
    """Fused attention whose keys and values have fewer heads than its queries, as such kernels take them."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key_value, self.out = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, stream: torch.Tensor) -> torch.Tensor:
        n, length = stream.shape[:2]
        query = self.query(stream).view(n, length, 4, 4).transpose(1, 2)
        key, value = self.key_value(stream).view(n, length, 2, 2, 4).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return stream + self.out(mixed.transpose(1, 2).reshape(n, length, 16))


def shared_heads() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(*(Shared() for _ in range(3))), torch.zeros(2, 6, 16)


def latent() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(*(Latent() for _ in range(3))), torch.zeros(2, 6, 16)


def recurrent() -> tuple[nn.Module, torch.Tensor]:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells = nn.GRU(4, 8, num_layers=2, batch_first=True)
            self.head = nn.Linear(8, 3)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.head(self.cells(inputs)[0])

    return Net(), torch.zeros(2, 5, 4)


class Deciding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        out = self.inner(inputs)
        return out if out.sum() > 0 else -out


def deciding() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(nn.Linear(4, 4), Deciding()), torch.zeros(2, 4)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(4, 4)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return self.one(left) + right


def two() -> nn.Module:
    return Two()


def three() -> int:
    return 3


class Leaving(nn.Linear):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        raise SystemExit(5)


def leaving() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(nn.Linear(4, 4), Leaving(4, 4)), torch.zeros(2, 4)


def leaving_early() -> nn.Module:
    raise SystemExit(5)


class Choosing(nn.Linear):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs).argmax(-1)


def choosing() -> tuple[nn.Module, torch.Tensor]:
    return Choosing(4, 4), torch.zeros(2, 4)


class Cell(nn.Module):
    """One cell as NASNet builds them: sums of two branches over the last two cells' outputs, then everything side by side."""

    def __init__(self, two_back: int, one_back: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.squeeze = nn.ModuleList([nn.Conv2d(two_back, width, 1), nn.Conv2d(one_back, width, 1)])
        self.deep = nn.Conv2d(width, width, 3, stride, 1, groups=width)
        self.wide = nn.Conv2d(width, width, 5, stride, 2, groups=width)
        self.pool = nn.AvgPool2d(3, stride, 1)

    def forward(self, before: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        if before.shape[-1] != last.shape[-1]:
            before = before[..., ::2, ::2]
        left, right = self.squeeze[0](before), self.squeeze[1](last)
        return torch.cat([self.deep(left) + self.wide(right), self.pool(left) + self.deep(right), self.pool(right)], 1)


class Branching(nn.Module):
    """Cells that each read the two before them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.cells = nn.ModuleList(
            [Cell(8, 8, 8), Cell(8, 24, 8, 2), *(Cell(24, 24, 8) for _ in range(4)), Cell(24, 24, 8, 2), Cell(24, 24, 8)]
        )
        self.head = nn.Linear(24, 5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        before = last = self.stem(images)
        for cell in self.cells:
            before, last = last, cell(before, last)
        return self.head(last.mean((2, 3)))


def branching() -> tuple[nn.Module, torch.Tensor]:
    return Branching(), torch.zeros(2, 3, 16, 16)


class Widening(Block):
    """A block that hands on a wider type than the first of its kind reads."""

    def forward(self, stream: torch.Tensor) -> torch.Tensor:
        return stream.double() + super().forward(stream.float())


class Widened(Chain):
    def __init__(self) -> None:
        super().__init__(0)
        self.blocks = nn.ModuleList(Widening(8) for _ in range(6))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        stream = self.words(ids)
        for block in self.blocks:
            stream = block(stream)
        return self.out(stream.float())


def widened() -> nn.Module:
    return Widened()


class OneTower(Chain):
    """A list that this call does not use beside one that it uses."""

    def __init__(self) -> None:
        super().__init__(5)
        self.tower = nn.ModuleList(Block(8) for _ in range(4))


def one_tower() -> nn.Module:
    return OneTower()


class Recommending(nn.Module):
    """Tables of which a sample reads several rows at once, inputs in a dictionary with a list, outputs in another."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(13, 8)
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, 8, mode="sum") for rows in (100, 20000))
        self.top = nn.Linear(24, 1)

    def forward(self, samples: dict[str, object]) -> dict[str, torch.Tensor]:
        dense = self.dense(samples["dense"])
        rows = [table(ids) for table, ids in zip(self.tables, samples["ids"], strict=True)]  # type: ignore[call-overload]
        return {"logit": self.top(torch.cat([dense, *rows], 1))}


def recommending() -> tuple[nn.Module, dict[str, object]]:
    ids = [torch.zeros(4, 10, dtype=torch.int64) for _ in range(2)]
    return Recommending(), {"samples": {"dense": torch.zeros(4, 13), "ids": ids}}


class Checkpointed(Chain):
    """The chain above, its blocks recomputed in the backward pass."""

    reentrant = False

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        stream = self.words(ids)
        for block in self.blocks:
            stream = torch.utils.checkpoint.checkpoint(block, stream, use_reentrant=self.reentrant)
        return self.out(stream)


def checkpointed() -> nn.Module:
    return Checkpointed(5)


def checkpointed_reentrant() -> nn.Module:
    net = Checkpointed(5)
    net.reentrant = True
    return net


def grouped_convolutions() -> tuple[nn.Module, torch.Tensor]:
    net = nn.Sequential(
        nn.Conv2d(4, 8, 3, padding=1),
        nn.Conv2d(8, 8, 3, padding=1, groups=8),
        nn.GroupNorm(2, 8),
        nn.ConvTranspose2d(8, 4, 2, 2),
    )
    return net, torch.zeros(2, 4, 6, 6)


class Squared(torch.autograd.Function):
    """A function with a backward pass of its own: it multiplies once more and takes both gradients."""

    @staticmethod
    def forward(ctx, left, right):  # type: ignore[no-untyped-def,override]
        ctx.save_for_backward(left, right)
        return (left @ right.t()).square()

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def,override]
        left, right = ctx.saved_tensors
        inner = 2 * (left @ right.t()) * grad
        return inner @ right, inner.t() @ left


class OwnFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.weight = nn.Linear(8, 8), nn.Parameter(torch.zeros(8, 8))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return Squared.apply(self.before(inputs), self.weight)


def own_function() -> tuple[nn.Module, torch.Tensor]:
    return OwnFunction(), torch.zeros(4, 8)


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.idle = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.used(inputs)


def unused() -> tuple[nn.Module, torch.Tensor]:
    return Unused(), torch.zeros(2, 4)


def lazy() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(nn.LazyLinear(4)), torch.zeros(2, 4)


def scripted() -> tuple[nn.Module, torch.Tensor]:
    return torch.jit.script(nn.Sequential(nn.Linear(4, 4))), torch.zeros(2, 4)


def failing() -> nn.Module:
    raise RuntimeError("no weights\ntoday")


def test_a_chain_has_the_parameters_and_flops_that_its_shapes_tell() -> None:
    found = _of("chain_of_five")
    block = 2 * 8 + (8 * 32 + 32) + (32 * 8 + 8)
    assert found.graph.n_parameters == 2 * 50 * 8 + 5 * block
    assert found.totals.forward_flops == 6 * (5 * 2 * (2 * 8 * 32) + 2 * 8 * 50)
    # two products for each one of the forward pass: everything here depends on parameters
    assert found.totals.backward_flops == 2 * found.totals.forward_flops
    assert [op.name for op in found.graph.ops] == ["embed", *(f"blocks.{i}" for i in range(5)), "head"]
    assert [op.like for op in found.graph.ops] == [0, 1, 1, 1, 1, 1, 6]
    assert [(edge.source, edge.target, edge.n_elements) for edge in found.graph.edges] == [(i, i + 1, 48) for i in range(6)]


def test_a_shortened_chain_counts_as_much_as_the_same_chain_traced_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    short = _of("chain_of_five")
    from meshwright.runtime.capture import repeats

    monkeypatch.setattr(repeats, "shorten", lambda module, n_apart: ((), []))
    whole = _of("chain_of_five")
    assert short.totals == whole.totals
    assert short.graph == whole.graph


@pytest.mark.parametrize(("name", "n_traces"), [("chain_of_five", 1), ("widened", 2), ("one_tower", 1)])
def test_two_layers_of_a_run_are_traced_even_where_the_first_differs_or_none_is_used(
    name: str, n_traces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from meshwright.runtime.capture import repeats, session

    lengths: list[int] = []
    record = session.record

    def counted(module: nn.Module, *rest: object) -> object:
        lengths.append(len(module.blocks))  # type: ignore[arg-type]
        return record(module, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(session, "record", counted)
    short = _of(name)
    assert len(lengths) == n_traces and max(lengths) <= 3
    monkeypatch.setattr(repeats, "shorten", lambda module, n_apart: ((), []))
    whole = _of(name)
    assert short.graph == whole.graph
    assert short.totals.forward_flops == whole.totals.forward_flops


def test_layers_split_the_first_product_by_columns_and_the_second_by_rows() -> None:
    body = _of("chain_of_five").graph.ops[1].body
    axes = {operator.name.split(".")[0]: operator.tensor_axis for operator in body}
    assert axes == {"norm": "sequence", "up": "out", "relu": "hidden", "down": "in", "add": "sequence"}


def test_saved_bytes_are_those_that_autograd_keeps() -> None:
    found = _of("chain_of_five")
    # norm: its input and two statistics per token; up: its input; relu: its output, which is what down reads
    assert found.figures[2].saved_bytes == 4 * 6 * (8 + 2 + 8 + 32)


def test_connections_that_skip_layers_are_never_lost() -> None:
    found = _of("chain_with_skips")
    head = len(found.graph.ops) - 1
    into_head = {edge.source for edge in found.graph.edges if edge.target == head}
    assert into_head == {1, 2, 3, 4, 5}


def test_equal_branches_are_never_taken_for_layers_in_a_row() -> None:
    found = _of("parallel")
    ids = [found.graph.id_of(f"branches.{i}") for i in range(4)] if "branches.3" in [op.name for op in found.graph.ops] else []
    assert found.graph.n_parameters == 5 * (8 * 8 + 8)
    assert found.totals.forward_flops == 5 * 2 * 8 * 8
    readers_of_stem = {edge.target for edge in found.graph.edges if edge.source == 0}
    assert len(readers_of_stem) == 4 and readers_of_stem >= set(ids[:3])


def test_shared_weights_are_counted_once() -> None:
    found = _of("tied")
    assert found.graph.n_shared_parameters == 50 * 8
    assert found.graph.n_parameters == sum(parameter.numel() for parameter in Tied().parameters())


def test_a_convolutional_network_has_its_kinds_and_flops() -> None:
    found = _of("convolutional")
    kinds = [operator.kind for op in found.graph.ops for operator in op.body]
    assert kinds == ["convolution", "norm", "elementwise", "pooling", "matmul"]
    assert found.graph.ops[0].body[0].dims == (("sequence", 64), ("in", 3), ("out", 4), ("kernel", 9))
    assert found.totals.forward_flops == 2 * 64 * 3 * 4 * 9 + 2 * 64 * 10
    # the images need no gradient: the first convolution has one product backward
    assert found.totals.backward_flops == 2 * 64 * 3 * 4 * 9 + 2 * (2 * 64 * 10)


def test_attention_is_split_by_heads_and_knows_its_shared_key_heads() -> None:
    found = _of("attention")
    operators = {operator.kind: operator for op in found.graph.ops for operator in op.body}
    core = operators["causal_attention"]
    assert dict(core.dims) == {"sequence": 6, "key_sequence": 6, "heads": 4, "kv_heads": 2, "head": 4, "value": 4}
    assert core.tensor_axis == "heads"
    assert forward_flops(core) == 2 * 6 * 6 * 4 * 8 / 2
    products = [operator.tensor_axis for op in found.graph.ops for operator in op.body if operator.kind == "matmul"]
    assert products == ["out", "out", "out", "in"]


@pytest.mark.parametrize(
    ("name", "key_heads", "products"),
    [
        ("eager", 4, ["out", "out", "out", "in"]),
        ("eager_grouped", 2, ["out", "out", "out", "in"]),
        ("eager_together", 4, ["out", "in"]),
        ("eager_sums", 4, ["out", "out", "out", "in"]),
        ("eager_groups", 2, ["out", "out", "out", "in"]),
        ("eager_one_key_head", 1, ["out", "sequence", "sequence", "in"]),
        ("packed", 4, ["out", "in"]),
    ],
)
@pytest.mark.parametrize("batch", [1, 3])
def test_heads_of_attention_that_is_written_out_are_recognised(
    name: str, key_heads: int, products: list[str], batch: int
) -> None:
    found = _of(name, batch=batch)
    assert len(found.graph.ops) == 3
    kinds = [operator.kind for operator in found.graph.ops[1].body]
    core = found.graph.ops[1].body[kinds.index("attention")]
    assert dict(core.dims) == {"sequence": 6, "key_sequence": 6, "heads": 4, "kv_heads": key_heads, "head": 4, "value": 4}
    assert core.tensor_axis == "heads"
    assert forward_flops(core) == 2 * (2 * 6 * 6 * 4 * 4)
    softmax = found.graph.ops[1].body[kinds.index("attention") + 1]
    assert (softmax.kind, softmax.dims) == ("softmax", (("sequence", 6), ("hidden", 4 * 6)))
    assert [operator.tensor_axis for operator in found.graph.ops[1].body if operator.kind == "matmul"] == products
    body = sum(operator.saved_elements * 4 + operator.saved_extra_bytes for operator in found.graph.ops[1].body)
    assert body == found.figures[1].saved_bytes
    assert found.totals.backward_flops == 2 * found.totals.forward_flops - _first_input(found)


def _first_input(found: Captured) -> float:
    """The input of the model needs no gradient: what the first layer's first products would take for it."""
    inputs = [operator for operator in found.graph.ops[0].body if operator.kind == "matmul"][:-1]
    return sum(forward_flops(operator) for operator in inputs)


def test_a_soft_maximum_between_products_of_weights_is_no_attention() -> None:
    body = _of("gates").graph.ops[1].body
    assert [(operator.kind, operator.tensor_axis) for operator in body if operator.kind != "elementwise"] == [
        ("matmul", "sequence"), ("softmax", "sequence"), ("matmul", "sequence"),
    ]  # fmt: skip


def test_fused_attention_without_a_kernel_on_the_processor_is_one_operator_as_on_a_gpu() -> None:
    found = _of("latent")
    core = next(operator for operator in found.graph.ops[1].body if operator.kind == "attention")
    assert dict(core.dims) == {"sequence": 6, "key_sequence": 6, "heads": 4, "kv_heads": 4, "head": 6, "value": 4}
    assert core.tensor_axis == "heads"
    products = {operator.name: operator.tensor_axis for operator in found.graph.ops[1].body if operator.kind == "matmul"}
    assert products == {"query.addmm": "out", "key_value.addmm": "out", "shared.addmm": "sequence", "out.addmm": "in"}
    # queries, keys, what the values are a part of, the result, and a figure per row and head; the bias is a weight
    assert core.saved_elements + core.saved_extra_bytes // 4 == 6 * (24 + 24 + 32 + 16 + 4)
    square = 2 * 6 * 6 * 4 * (6 + 4)
    weights = 16 * (24 + 32 + 2 + 16)
    assert found.totals.forward_flops == 3 * (square + 2 * 6 * weights)
    first = 2 * 6 * 16 * (24 + 32 + 2)
    assert found.totals.backward_flops == 3 * (2.5 * square + 2 * 2 * 6 * weights) - first


def test_key_heads_that_fused_attention_shares_are_kept_once() -> None:
    body = _of("shared_heads").graph.ops[1].body
    core = next(operator for operator in body if operator.kind == "causal_attention")
    assert (core.size("heads"), core.size("kv_heads"), core.tensor_axis) == (4, 2, "heads")
    # queries, keys with values, the result (which the next product reads as it lies), a figure per row and head
    assert core.saved_elements + core.saved_extra_bytes // 4 == 6 * (16 + 16 + 16 + 4)
    assert [operator.kind for operator in body] == ["matmul", "matmul", "causal_attention", "matmul", "elementwise"]


def test_a_recurrent_module_is_one_operator_behind_the_products_with_an_input_that_carries_no_gradient() -> None:
    found = _of("recurrent")
    reading, cells = found.graph.ops[0].body
    assert (reading.kind, reading.input_gradient) == (cells.kind, not cells.input_gradient) == ("other", False)
    weights = 3 * 8 * 8 + 3 * 8 * (8 + 8)
    assert (forward_flops(reading), forward_flops(cells)) == (2 * 5 * 3 * 8 * 4, 2 * 5 * weights)
    assert (reading.n_parameters, cells.n_parameters) == (3 * 8 * 4, weights + 2 * 2 * 3 * 8)


def test_tables_that_are_summed_up_are_look_ups_and_inputs_may_be_nested() -> None:
    found = _of("recommending", batch=6)
    assert found.batch == 6
    assert found.graph.n_parameters == 13 * 8 + 8 + 8 * (100 + 20000) + 24 + 1
    large = next(operator for op in found.graph.ops for operator in op.body if operator.size("vocabulary") == 20000)
    assert (large.kind, large.dims[0], large.tensor_axis) == ("embedding", ("sequence", 1), "vocabulary")
    assert large.moved_elements == (10 + 1) * 8  # ten rows are read for each that is written


@pytest.mark.parametrize("name", ["checkpointed", "checkpointed_reentrant"])
def test_checkpoints_inside_a_module_are_left_to_the_plan(name: str) -> None:
    found, plain = _of(name), _of("chain_of_five")
    assert found.totals == plain.totals
    assert [op.body for op in found.graph.ops] == [op.body for op in plain.graph.ops]
    assert any("the plan chooses" in note for note in found.notes)


@pytest.mark.parametrize("name", ["grouped_convolutions", "own_function", "eager_groups", "convolutional", "recommending"])
def test_figures_equal_those_of_a_real_run(name: str) -> None:
    """FLOPs as PyTorch's own counter sees them, and the bytes that hooks see kept, both on real tensors."""
    from torch.utils._pytree import tree_leaves
    from torch.utils.flop_counter import FlopCounterMode

    found = _of(name)
    net, inputs = globals()[name]()
    constant = {tensor.untyped_storage().data_ptr() for tensor in (*net.parameters(), *net.buffers())}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in constant:
            kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    with FlopCounterMode(display=False) as forward, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = net(**inputs) if isinstance(inputs, dict) else net(inputs)
    with FlopCounterMode(display=False) as backward:
        torch.stack([leaf.sum() for leaf in tree_leaves(out)]).sum().backward()
    expected = backward.get_total_flops()
    if name == "grouped_convolutions":  # PyTorch counts the gradient of the weights as if there were no groups
        expected -= 2 * (2 * 36 * 9 * 8 * 8 - 2 * 36 * 9 * 8)
    assert found.totals.forward_flops * found.batch == forward.get_total_flops()
    assert found.totals.backward_flops * found.batch == expected
    assert found.totals.saved_bytes * found.batch == sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    assert sum(figures.saved_bytes for figures in found.figures) == found.totals.saved_bytes


def test_weights_that_a_call_does_not_use_are_noted_and_counted() -> None:
    found = _of("unused")
    assert found.graph.n_parameters == 2 * (16 + 4)
    assert any(note.startswith("20 weights are not used by this call") and "idle" in note for note in found.notes)


def test_every_computing_operator_is_a_node_at_the_level_of_operators() -> None:
    layers, operators = _of("chain_of_five"), _of("chain_of_five", level="operator")
    assert len(operators.graph.ops) == 1 + 5 * 5 + 1
    assert operators.totals == layers.totals
    assert operators.graph.n_parameters == layers.graph.n_parameters
    # the residual sum reads the stream and the branch
    add = operators.graph.id_of("blocks.1.add")
    assert len([edge for edge in operators.graph.edges if edge.target == add]) == 2


def test_figures_are_per_sample() -> None:
    one, eight = _of("convolutional"), _of("convolutional", batch=8)
    assert one.totals.forward_flops == eight.totals.forward_flops
    assert one.graph.ops[0].body[0].dims == eight.graph.ops[0].body[0].dims


def test_a_captured_graph_reads_back_as_it_was_written(tmp_path: pathlib.Path) -> None:
    for level in ("layers", "operator"):
        found = _of("chain_of_five", level=level)
        path = tmp_path / f"{level}.json"
        path.write_text(json.dumps(as_json(found, "here")))
        assert models.read(str(path)).graph == found.graph


def test_shapes_can_be_typed() -> None:
    found = _of("two", shapes=("left=3,4", "right=3,4"))
    assert found.batch == 3
    assert found.totals.forward_flops == 2 * 4 * 4


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("deciding", {}, ("module '1' (Deciding)", "_local_scalar_dense", "data-dependent", "test_capture.py")),
        ("two", {}, ("Two.forward needs left, right", "--input")),
        ("two", {"shapes": ("2,4",)}, ("Two.forward needs left, right", "right")),
        ("two", {"shapes": ("2,x", "2,4")}, ("--input 2,x",)),
        ("two", {"shapes": ("2,0", "2,4")}, ("--input 2,0",)),
        ("two", {"shapes": ("left=2,4", "2,4")}, ("names to all inputs or to none",)),
        ("two", {"shapes": ("2,3", "2,4")}, ("module 'one' (Linear)",)),
        ("three", {}, ("returned a int",)),
        ("leaving", {}, ("module '1' (Leaving)", "SystemExit: 5")),
        ("leaving_early", {}, ("calling it failed: SystemExit: 5",)),
        ("nowhere", {}, ("has no 'nowhere'",)),
        ("lazy", {}, ("'0.weight' is not known yet", "call the lazy module once")),
        ("scripted", {}, ("TorchScript",)),
        ("failing", {}, ("RuntimeError: no weights today",)),
    ],
)
def test_what_cannot_be_captured_is_said_plainly(name: str, options: dict[str, object], words: tuple[str, ...]) -> None:
    with pytest.raises(InputError) as caught:
        _of(name, **options)
    for word in words:
        assert word in str(caught.value)


def test_an_operator_that_fails_is_one_message_and_nothing_of_pytorch(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(InputError, match=r"module 'one' \(Linear\)"):
        _of("two", shapes=("2,5", "2,4"))
    assert not caplog.records


def test_a_module_whose_outputs_carry_no_gradient_is_noted() -> None:
    found = _of("choosing")
    assert found.totals.n_backward == 0
    assert any("no backward pass" in note for note in found.notes)


def test_cells_that_read_the_two_before_them_are_captured_with_all_their_connections(tmp_path: pathlib.Path) -> None:
    found = _of("branching", level="operator")
    own = {name: sum(p.numel() for p in part.parameters()) for name, part in Branching().named_children()}
    assert found.graph.n_parameters == sum(own.values())
    # by hand: products of each sample, positions x inputs x outputs x kernel; depthwise ones have one input per output
    flops = 2.0 * (256 * 3 * 8 * 9 + 24 * 5)
    for two_back, one_back, before, after in [(8, 8, 256, 256), (8, 24, 256, 64), (24, 24, 64, 64), *[(24, 24, 64, 64)] * 3,
                                              (24, 24, 64, 16), (24, 24, 16, 16)]:  # fmt: skip
        flops += 2.0 * 8 * (before * (two_back + one_back) + after * (9 + 25 + 9))
    assert found.totals.forward_flops == flops
    convolutions = [op for op in found.graph.ops if op.body[0].kind == "convolution"]
    assert len(convolutions) == 1 + 8 * 5
    cells = {n: int(op.name.split(".")[1]) for n, op in enumerate(found.graph.ops) if op.name.startswith("cells.")}
    reads = {(cells[e.source], cells[e.target]) for e in found.graph.edges if e.source in cells and e.target in cells}
    assert {(n, n + 2) for n in range(6)} | {(n, n + 1) for n in range(7)} <= reads
    path = tmp_path / "branching.json"
    path.write_text(json.dumps(as_json(found, "branching")))
    answer = api.plan(str(path), "parmesan-mesh:2x2", search="partition", settings={"n_stages": "4"})
    assert answer.plan is not None and len(answer.plan.stages) == 4


def test_unknown_levels_and_types_are_answered_with_those_there_are() -> None:
    with pytest.raises(UnknownNameError, match="layers, operator"):
        _of("two", level="layer")
    with pytest.raises(UnknownNameError, match="int64"):
        _of("two", shapes=("2,4:int65", "2,4"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "model", "product_teraflops", "n_parameters"),
    [
        ("llama_8b", "llama-3.1-8b", 61.478, 8_030_261_248),
        ("llama_70b", "llama-3.1-70b", 569.358, 70_553_706_496),
        ("llama_405b", "llama-3.1-405b", 3307.503, 405_853_388_800),
        ("mixtral_8x7b", "mixtral-8x7b", 0.0, 46_702_792_704),
        ("gpt2", "gpt2", 0.0, 124_439_808),
    ],
)
def test_full_size_models_equal_published_totals_and_our_own_reader(
    name: str, model: str, product_teraflops: float, n_parameters: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers", reason="needs the extra 'huggingface'")
    monkeypatch.syspath_prepend(str(pathlib.Path(__file__).resolve().parents[3]))
    found = capture(f"examples.capture_models:{name}")
    ours = models.read(model, sequence_length=found.graph.sequence_length).graph

    def total(graph: object, kinds: tuple[str, ...]) -> float:
        return sum(forward_flops(operator) for op in graph.ops for operator in op.body if operator.kind in kinds)  # type: ignore[attr-defined]

    assert found.graph.n_parameters == n_parameters == ours.n_parameters
    assert found.graph.n_active_parameters == ours.n_active_parameters
    kinds = ("matmul", "grouped_matmul")
    assert total(found.graph, kinds) == pytest.approx(total(ours, kinds), rel=1e-9)
    assert total(found.graph, ("causal_attention",)) == pytest.approx(total(ours, ("causal_attention",)), rel=1e-9)
    assert found.totals.forward_flops == pytest.approx(total(found.graph, (*kinds, "causal_attention")), rel=1e-9)
    if product_teraflops:
        assert total(found.graph, kinds) / 1e12 == pytest.approx(product_teraflops, abs=6e-4)
