"""Layers divided over ranks: which products are split, who holds and adds up what, and each refusal in its words."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import math
import pathlib
import re
import sys
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="running plans needs PyTorch: pip install 'meshwright[torch]'")
pytestmark = pytest.mark.torch

from torch import nn  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import zoo  # noqa: E402

from meshwright.base.errors import InputError  # noqa: E402
from meshwright.core.graph import Graph, Op, Operator  # noqa: E402
from meshwright.core.plan import Plan, Stage  # noqa: E402
from meshwright.core.strategy import Strategy  # noqa: E402
from meshwright.runtime.job import preflight  # noqa: E402
from meshwright.runtime.parallel import axes, experts, pools, products, shard_equivalence, sharding, tensor_parallel  # noqa: E402
from meshwright.runtime.parallel.context_parallel import spans_context  # noqa: E402
from meshwright.runtime.parallel.tensor_row import TensorRow  # noqa: E402
from meshwright.runtime.parallel.threaded_autograd import Gather, Scatter, SumBackward, SumForward  # noqa: E402
from meshwright.runtime.parallel.threaded_collectives import cause, together  # noqa: E402
from meshwright.runtime.ranks.layout import layout  # noqa: E402
from meshwright.runtime.ranks.meshes import Replicas, StageGroups  # noqa: E402
from meshwright.runtime.step import autocast  # noqa: E402
from meshwright.runtime.step.clock import Clock  # noqa: E402
from meshwright.runtime.step.loss_scale import LossScale  # noqa: E402
from meshwright.runtime.step.split_backward import DeferredWeightGrad, delay_weight_gradients  # noqa: E402
from meshwright.runtime.step.stage import StageModule  # noqa: E402


class Holds(nn.Module):
    """Holds parts by name."""

    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)


def attention() -> nn.Module:
    """Return attention and products as many models name them, with norms of heads and numbers of its own."""
    line = lambda rows, columns: nn.Linear(columns, rows, bias=False)  # noqa: E731
    made = Holds(
        norm=nn.LayerNorm(8),
        attn=Holds(q_proj=line(8, 8), k_proj=line(4, 8), v_proj=line(4, 8), o_proj=line(8, 8), q_norm=nn.LayerNorm(2)),
        mlp=Holds(gate_proj=line(16, 8), up_proj=line(16, 8), down_proj=line(8, 16), router=line(3, 8)),
    )
    made.attn.n_heads, made.attn.num_key_value_heads, made.attn.width, made.attn.is_heads = 4, 2, 8, True  # type: ignore[union-attr]
    made.attn.n_layers, made.attn.n_odd_heads, made.mlp.features = 4, 3, 16  # type: ignore[union-attr]
    return made


def test_products_are_split_by_their_names_or_as_told() -> None:
    layer = attention()
    usual = {f"attn.{name}_proj": "column" for name in "qkv"} | {"attn.o_proj": "row"}
    usual |= {"mlp.gate_proj": "column", "mlp.up_proj": "column", "mlp.down_proj": "row"}
    assert tensor_parallel.styles(layer, {}) == usual
    told = {"mlp.gate_proj": "whole", "router": "colwise", "*norm": "between", "attn.o_proj": "rowwise"}
    expected = {**usual, "mlp.router": "column"}
    del expected["mlp.gate_proj"]
    assert tensor_parallel.styles(layer, told) == expected
    assert tensor_parallel.styles(layer.mlp, {"layers.0.mlp.down_proj": "whole"}, "layers.0.mlp") == {}, (
        "columns alone are no pair"
    )
    assert tensor_parallel.styles(Holds(o_proj=nn.Linear(2, 2)), {}) == {}
    assert tensor_parallel.between(layer, {}) == {"attn.q_norm"}
    assert tensor_parallel.between(layer, {"mlp.router": "between"}) == {"attn.q_norm", "mlp.router"}
    assert tensor_parallel.gathers(layer, {}) == (
        {"attn"}, {"mlp.gate_proj", "mlp.up_proj"},
    )  # fmt: skip
    assert tensor_parallel.gathers(layer, {"router": "between"}) == ({"attn", "mlp"}, set())


def test_weights_of_each_head_are_used_in_parts_and_stay_whole() -> None:
    class Sunk(Holds):
        seen: torch.Tensor

        def forward(self, *, stops: bool) -> None:
            self.seen = self.sinks  # type: ignore[assignment]
            if stops:
                raise ZeroDivisionError

    layer = Holds(attn=Sunk(q_proj=nn.Linear(8, 8), o_proj=nn.Linear(8, 8)))
    attn: Any = layer.attn
    attn.sinks = nn.Parameter(torch.arange(4.0))
    assert tensor_parallel.head_weights(layer, {}) == {"attn": "sinks"} and tensor_parallel.between(layer, {}) == {"attn"}
    tensor_parallel.own_heads(layer, 1, 2, {})
    for stops in (False, True):
        with contextlib.suppress(ZeroDivisionError):
            attn(stops=stops)
        assert attn.seen.tolist() == [2.0, 3.0] and attn.sinks.tolist() == [0.0, 1.0, 2.0, 3.0], "also after an exception"
        assert isinstance(attn.sinks, nn.Parameter)
    attn.seen.sum().backward()
    assert attn.sinks.grad.tolist() == [0.0, 0.0, 1.0, 1.0]
    attn.scale = nn.Parameter(torch.ones(4))
    assert not tensor_parallel.head_weights(layer, {}), "what other weights there are is not known"


def test_numbers_of_heads_and_features_are_shared() -> None:
    layer = attention()
    tensor_parallel.share_sizes(layer, 2, {})
    held = vars(layer.attn)
    assert [held[name] for name in ("n_heads", "num_key_value_heads", "width", "n_layers", "n_odd_heads")] == [2, 1, 4, 2, 3]
    assert held["is_heads"] is True and layer.mlp.features == 8


@pytest.mark.parametrize(
    ("changes", "degree", "told"),
    [
        ({}, 3, "layer 'layers.0': tensor degree 3 does not divide the 8 features of attn.q_proj"),
        ({"attn.k_proj": "whole", "attn.v_proj": "whole"}, 16, "does not divide the 8 features of attn.q_proj"),
        ({}, 8, "layer 'layers.0': tensor degree 8 does not divide the 4 features of attn.k_proj"),
    ],
)
def test_products_that_do_not_divide_are_refused(changes: dict, degree: int, told: str) -> None:
    with pytest.raises(InputError, match=re.escape(told)):
        tensor_parallel.check(attention(), "layers.0", degree, changes)


def test_heads_of_a_configuration_must_divide() -> None:
    for place in ("config", "layer", "self_attn"):
        layer = attention()
        config = SimpleNamespace(num_key_value_heads=None, num_attention_heads=6)
        inner = {"config": layer, "layer": nn.Module(), "self_attn": nn.Module()}[place]
        if place != "config":
            layer.add_module(place, inner)
        inner.config = config
        with pytest.raises(InputError, match="layer 'l': tensor degree 4 does not divide its 6 heads"):
            tensor_parallel.check(layer, "l", 4, {})
        tensor_parallel.check(layer, "l", 2, {})
        config.num_key_value_heads = 3
        with pytest.raises(InputError, match="does not divide its 3 key-value heads"):
            tensor_parallel.check(layer, "l", 2, {})


def test_outputs_that_are_several_parts_are_split_part_by_part() -> None:
    layer = zoo.InOne()
    assert tensor_parallel.column_parts(layer, {}) == {"attn.c_attn": (16, 8, 8), "mlp.gate_up_proj": (24, 24)}
    told = {"c_attn": "column", "gate_up_proj": "column 1:2:1", "*": ""}
    assert tensor_parallel.column_parts(layer, told) == {"attn.c_attn": (32,), "mlp.gate_up_proj": (12, 24, 12)}
    layer.attn.config = None  # type: ignore[assignment]
    assert tensor_parallel.column_parts(layer, {})["attn.c_attn"] == (32,), "32 are no three"
    order = products.RankOrder(1, (4, 2, 2), 2)
    assert order.index().tolist() == [0, 1, 4, 6, 2, 3, 5, 7] and order.runs()[1:3] == [(2, 1, 4), (3, 1, 6)]
    whole = torch.arange(16.0).view(2, 8)
    assert torch.equal(order.restored(whole[:, order.index()]), whole)


@pytest.mark.parametrize(
    ("wishes", "degree", "told"),
    [
        ({}, 4, "layer 'l': tensor degree 4 does not divide its 2 key-value heads"),
        ({}, 3, "layer 'l': tensor degree 3 does not divide the 16 features of part 1 of 3 of attn.c_attn"),
        ({"mlp.*": "whole"}, 3, "layer 'l': tensor degree 3 does not divide the 16 features of part 1 of 3 of attn.c_attn"),
        ({"attn.*": "whole"}, 16, "layer 'l': tensor degree 16 does not divide the 24 features of part 1 of 2 of mlp.gate_up"),
        (
            {"gate_up_proj": "column 3:2"},
            2,
            "'column 3:2' of mlp.gate_up_proj: its 48 outputs are no parts of 3:2; say 'column 4:1",
        ),
        ({"gate_up_proj": "column halves"}, 2, "'column halves' of mlp.gate_up_proj: its 48 outputs are no parts of halves"),
        ({"gate_up_proj": "column 0:1"}, 2, "'column 0:1' of mlp.gate_up_proj"),
    ],
)
def test_parts_that_do_not_divide_are_refused(wishes: dict, degree: int, told: str) -> None:
    with pytest.raises(InputError, match=re.escape(told)):
        tensor_parallel.check(zoo.InOne(), "l", degree, wishes)


@pytest.mark.parametrize("wishes", [{"c_attn": "column"}, {"gate_up_proj": "column 2:1"}])
def test_parts_that_are_none_compute_something_else(wishes: dict) -> None:
    torch.manual_seed(0)
    layer = StageModule([zoo.InOne()], ["none"], {})
    entering = [torch.randn(2, 6, zoo.WIDTH)]
    shard_equivalence.check_sum(layer, entering, 2, {}, "p")
    with pytest.raises(InputError, match=r"it computes something else than whole|it cannot run"):
        shard_equivalence.check_sum(layer, entering, 2, wishes, "p")


def test_what_a_model_wishes_is_read_off_it() -> None:
    model = nn.Module()
    assert tensor_parallel.wishes_of(model) == {}
    plan = {
        "layers.*.self_attn.q_proj": "colwise",
        "layers.*.mlp.down_proj": "rowwise",
        "layers.*.norm": "sequence",
        "lm": "rowwise",
    }
    model.config = SimpleNamespace(base_model_tp_plan=plan)
    assert tensor_parallel.wishes_of(model) == {"self_attn.q_proj": "colwise", "mlp.down_proj": "rowwise", "lm": "rowwise"}
    model.tensor_parallel = {"a": "column"}
    assert tensor_parallel.wishes_of(model) == {"a": "column"}


def test_the_hook_gathers_the_first_hidden_state_it_finds() -> None:
    hook = tensor_parallel.gather_hook(lambda value: value * 2)
    x, ids = torch.ones(1, 2, 3), torch.ones(1, 2, 3, dtype=torch.long)
    flat = torch.ones(2, 3)
    assert torch.equal(hook(nn.ReLU(), (x, 5), {"a": x})[0][0], 2 * x) and hook(nn.ReLU(), (x, 5), {"a": x})[0][1] == 5
    arguments, named = hook(nn.ReLU(), (), {"ids": ids, "flat": flat, "x": x, "y": x})
    assert arguments == () and [named[key] is given for key, given in (("ids", ids), ("flat", flat), ("y", x))] == [True] * 3
    assert torch.equal(named["x"], 2 * x) and list(named) == ["ids", "flat", "x", "y"]
    assert hook(nn.ReLU(), (None,), {"ids": ids}) == ((None,), {"ids": ids})


def test_layers_of_a_stage_are_split_as_its_degrees_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """What DTensor does is left out: which layers, in which order, with which ends."""
    done: list[Any] = []
    for name in ("enter_context", "leave_context"):
        monkeypatch.setattr(axes, name, lambda mesh, degree, name=name: (name, mesh, degree))
    monkeypatch.setattr(axes, "gathered", lambda mesh: "whole")
    monkeypatch.setattr(axes, "spread", lambda unit, index, degree, swap: done.append((units.index(unit), index, degree)))
    monkeypatch.setattr(axes, "over_group", lambda group: group)
    for name in ("enter_sequence", "leave_sequence"):
        monkeypatch.setattr(tensor_parallel, name, lambda mesh, name=name: (name, mesh))
    monkeypatch.setattr(
        tensor_parallel, "parallelize", lambda unit, mesh, plan, sequence: ([(unit, f"split {sequence}")], {(unit, "w"): 7})
    )
    units: list[Any] = [nn.Embedding(2, 2), attention(), attention(), nn.LayerNorm(2)]
    for unit in units:
        unit.n_parts = 1
    groups = StageGroups(context_mesh="c", tensor_mesh="t", context_index=1, tensor_index=1, expert_index=3)
    places = [(i, 4) for i in range(4)]
    strategy = Strategy(data=2, tensor=2, context=2, expert=2, sequence_parallel=True)
    found = axes.split_layers(units, places, strategy, groups, {})
    assert [type(layer).__name__ for layer in found.layers] == ["Embedding", "InContext", "InContext", "LayerNorm"]
    assert found.layers[1].told == ("whole", 1, 2) and done == [(i, 3, 2) for i in range(4)]
    assert found.before == {
        1: [("enter_context", "c", 2), ("enter_sequence", "t")], 3: [("leave_sequence", "t"), ("leave_context", "c", 2)],
    }  # fmt: skip
    assert [unit.n_parts for unit in units] == [1, 4, 4, 1] and found.parts == [0, 3, 3, 0]
    assert [name for _, name in found.partial["tensor"]] == ["split True"] * 2 and len(found.partial["context"]) == 2 * 12
    assert found.orders == {(units[1], "w"): 7, (units[2], "w"): 7}
    for unit in units:
        unit.n_parts = 1
    plain = axes.split_layers(units, places, Strategy(tensor=2), groups, {})
    assert plain.parts == [0] * 4
    assert plain.before == {} and [unit.n_parts for unit in units] == [1] * 4 and len(plain.partial["tensor"]) == 2
    only = axes.split_layers(units[:1] + units[3:], [(0, 2), (1, 2)], Strategy(context=2), groups, {})
    assert [type(layer).__name__ for layer in only.layers] == ["InContext"] * 2 and list(only.before) == [0, 2]
    one = axes.split_layers(units, places, Strategy(data=4), groups, {})
    assert one.layers == units and one.before == {} and one.partial == {"tensor": [], "context": []}
    assert (
        [spans_context(4, op) for op in range(4)] == [False, True, True, False]
        and spans_context(2, 0)
        and not spans_context(3, 2)
    )


def test_threads_meet_and_gradients_pass_through() -> None:
    values = [torch.arange(4.0).view(1, 4, 1) * (rank + 1) for rank in range(2)]

    def run(rank: int, meeting: Any) -> Any:
        x = values[rank].clone().requires_grad_()
        weights = torch.tensor([1.0, 2.0, 3.0, 4.0]).view(1, 4, 1) * (rank + 1)
        found = []
        for made, count in (
            (SumForward.apply(x, meeting, rank), weights), (SumBackward.apply(x, meeting, rank), weights),
            (Gather.apply(x, meeting, rank, 1), torch.cat([weights, 2 * weights], 1)),
            (Scatter.apply(x, meeting, rank), weights[:, :2]),
        ):  # fmt: skip
            x.grad = None
            made.backward(count)
            found.append([made.detach().flatten().tolist(), x.grad.flatten().tolist()])
        found.append(meeting.swap(rank, values[rank][0], [1, 3]).flatten().tolist())
        return found

    one, two = together(2, run)
    assert one[0] == [[0.0, 3.0, 6.0, 9.0], [1.0, 2.0, 3.0, 4.0]] and two[0] == [[0.0, 3.0, 6.0, 9.0], [2.0, 4.0, 6.0, 8.0]]
    assert one[1] == [[0.0, 1.0, 2.0, 3.0], [3.0, 6.0, 9.0, 12.0]] and two[1][1] == one[1][1]
    both = [0.0, 1.0, 2.0, 3.0, 0.0, 2.0, 4.0, 6.0]
    assert one[2] == [both, [3.0, 6.0, 9.0, 12.0]] and two[2] == [both, [6.0, 12.0, 18.0, 24.0]]
    assert one[3] == [[0.0, 3.0], [1.0, 2.0, 2.0, 4.0]] and two[3] == [[6.0, 9.0], [1.0, 2.0, 2.0, 4.0]]
    assert one[4] == [0.0, 0.0] and two[4] == [1.0, 2.0, 3.0, 2.0, 4.0, 6.0]

    def fails(rank: int, meeting: Any) -> Any:
        if rank == 1:
            raise ValueError("one")
        return meeting.total(rank, values[0])

    found = together(2, fails)
    assert str(cause(found)) == "one" and cause([1, 2]) is None and cause([found[0]]) is found[0]


def held(parameters: list[nn.Parameter]) -> list[list[float]]:
    return [parameter.detach().flatten().tolist() for parameter in parameters]


class Wire:
    """Stands for `torch.distributed` as one of two ranks that hold the same."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.rank = 0

    def all_reduce(self, value: torch.Tensor, group: Any = None, async_op: bool = False, **_: Any) -> Any:
        self.done.append(("sum", group, value.numel()))
        value.mul_(2.0)
        return SimpleNamespace(wait=lambda: self.done.append("waited"))

    def reduce(self, value: torch.Tensor, group: Any = None, group_dst: int = 0, async_op: bool = False) -> Any:
        self.done.append((f"sum at {group_dst}", group, value.numel()))
        value.mul_(2.0 if group_dst == self.rank else math.nan)
        return SimpleNamespace(wait=lambda: self.done.append("waited"))

    def reduce_scatter(self, part: torch.Tensor, whole: torch.Tensor, group: Any = None) -> None:
        self.done.append(("scatter", group, whole.numel()))
        part.copy_(2.0 * whole.chunk(2)[self.rank])

    def all_gather(self, whole: torch.Tensor, part: torch.Tensor, group: Any = None) -> None:
        self.done.append(("gather", group, whole.numel()))
        whole.copy_(torch.cat([part, part + 100.0]))

    @staticmethod
    def get_world_size(group: Any) -> int:
        return len(group)


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    made = Wire()
    monkeypatch.setattr(sharding, "dist", made)
    monkeypatch.setattr(pools, "dist", made)
    monkeypatch.setattr(pools, "_reduce_scatter", made.reduce_scatter)
    monkeypatch.setattr(pools, "_all_gather", made.all_gather)
    return made


def weights_of(shard: int, rank: int, replicate: Any = None, **told: Any) -> tuple[Any, nn.Module]:
    """Return the weights of a stage of two products, on one of two ranks, each gradient its number."""
    module = nn.Sequential(nn.Linear(2, 1, bias=False), nn.Linear(3, 1, bias=False))
    with torch.no_grad():
        for parameter, start in zip(module.parameters(), (1.0, 10.0), strict=True):
            parameter.copy_(torch.arange(start, start + parameter.numel()).view_as(parameter))
            parameter.grad = torch.full_like(parameter, start)
    replicas = Replicas(everyone="all", shard="shard", replicate=replicate, n_ranks=2 if replicate is None else 4, n_shards=2,
                        shard_index=rank)  # fmt: skip
    groups = StageGroups(data=replicas, context=told.get("context"), tensor=told.get("tensor"))
    return sharding.StageWeights(module, shard, groups, told.get("partial", {}), set(), []), module


@pytest.mark.parametrize(
    ("limits", "sums"),
    [
        ({}, [5]), ({"_BUCKET_ELEMENTS": 5}, [5]), ({"_BUCKET_ELEMENTS": 4}, [3, 2]), ({"_BUCKET_ELEMENTS": 2}, [3, 2]),
    ],
)  # fmt: skip
def test_replicas_add_up_their_gradients_in_buckets(
    limits: dict[str, int], sums: list[int], wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in limits.items():
        monkeypatch.setattr(pools, name, value)
    weights, module = weights_of(0, 0)
    assert (
        weights.parts() == [] and [p is q for p, q in zip(weights.optimized(), module.parameters(), strict=True)] == [True] * 2
    )
    weights.start_reduction()
    assert wire.done == [("sum", "all", n) for n in sums], "the last weights first"
    weights.finish_reduction()
    assert wire.done[-1] == "waited" and [p.grad.flatten().tolist() for p in module.parameters()] == [[2.0, 2.0], [20.0] * 3]
    assert [ratio for _, ratio in weights.held()] == [0.5, 0.5]
    weights.zero()
    assert all(parameter.grad is None for parameter in module.parameters())


@pytest.mark.parametrize("shard", [0, 1])
def test_sums_over_replicas_begin_while_gradients_are_computed(shard: int, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "_BUCKET_ELEMENTS", 3)
    weights, module = weights_of(shard, 0)
    first, last = module.parameters()
    sums = [("sum at 0", "shard", 1), ("sum at 1", "shard", 2)] if shard else [("sum", "all", 3)]
    rest = ("sum at 0", "shard", 2) if shard else ("sum", "all", 2)
    for completes in (False, True):  # of two micro-batches
        weights.before_backward(is_last=completes, completes=completes)
        (last * 2.0).sum().backward()
        assert wire.done == (sums if completes else []), "the first weight is not there yet"
    (first * 3.0).sum().backward()
    assert wire.done == [*sums, rest]
    weights.start_reduction()
    weights.finish_reduction()
    if shard:
        assert weights.parts()[0].grad.tolist() == [2 * (1.0 + 3.0)] * 2 + [2 * (10.0 + 2 * 2.0)]
    else:
        assert (first.grad.tolist(), last.grad.tolist()) == ([[8.0] * 2], [[28.0] * 3])
    weights.zero()
    wire.done.clear()
    weights.before_backward(is_last=True, completes=True)
    (first * 3.0).sum().backward()
    assert wire.done == [], "buckets go in one order on all replicas, also where one does not use a weight"
    weights.start_reduction()
    assert wire.done == [*sums, rest]


def test_gradients_that_ranks_hold_in_parts_wait_for_the_sum_of_these(wire: Wire) -> None:
    module = nn.Sequential(nn.Linear(2, 1, bias=False), nn.Linear(3, 1, bias=False))
    groups = StageGroups(data=Replicas(everyone="all", n_ranks=2), tensor="row")
    weights = sharding.StageWeights(module, 0, groups, {"tensor": [(module[1], "weight")]}, set(), [])
    weights.before_backward(is_last=True, completes=True)
    sum((p * 1.0).sum() for p in module.parameters()).backward()
    assert wire.done == [("sum", "all", 2)]
    weights.start_reduction()
    assert wire.done == [("sum", "all", 2), ("sum", "row", 3), ("sum", "all", 3)]


def test_a_gradient_that_comes_twice_in_one_pass_is_told(wire: Wire) -> None:
    weights, module = weights_of(0, 0)
    weights.before_backward(is_last=True, completes=True)
    (module[1].weight * 1.0).sum().backward()
    (module[1].weight * 1.0).sum().backward()
    assert not wire.done, "it adds up while its bucket is not complete"
    (module[0].weight * 1.0).sum().backward()
    assert wire.done == [("sum", "all", 5)]
    with pytest.raises(RuntimeError, match="use_reentrant=False"):
        (module[1].weight * 1.0).sum().backward()


@pytest.mark.parametrize("shard", [1, 2])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_updates_its_part_of_flattened_weights(shard: int, rank: int, wire: Wire) -> None:
    wire.rank = rank
    weights, module = weights_of(shard, rank)
    (part,) = weights.parts()
    assert part.tolist() == [[1.0, 2.0, 10.0], [11.0, 12.0, 0.0]][rank] and weights.optimized() == [part]
    weights.after_backward()
    assert wire.done == ([("scatter", "shard", 6)] if shard == 2 else [])
    weights.start_reduction()
    weights.finish_reduction()
    sums = [("sum at 0", "shard", 3), ("sum at 1", "shard", 2)]
    assert [one for one in wire.done if one != "waited"] == (sums if shard == 1 else [("scatter", "shard", 6)])
    assert part.grad.tolist() == [[2.0, 2.0, 20.0], [20.0, 20.0, 0.0]][rank]
    assert all(parameter.grad is None for parameter in module.parameters())
    pieces = [(piece.tolist(), ratio) for piece, ratio in weights.held()]
    assert pieces == [[([2.0, 2.0], 1.0), ([20.0], 1.0)], [([], 1.0), ([20.0, 20.0], 1.0)]][rank]
    with torch.no_grad():
        part.copy_(torch.tensor([7.0, 8.0, 9.0]))
    weights.after_update()
    assert wire.done[-1] == ("gather", "shard", 6) and held(list(module.parameters())) == [[7.0, 8.0], [9.0, 107.0, 108.0]]
    if shard == 2:
        for parameter in module.parameters():
            parameter.grad = torch.ones_like(parameter)
        weights.after_backward()
        assert part.grad.tolist() == [[4.0, 4.0, 22.0], [22.0, 22.0, 0.0]][rank], "micro-batches add up"


@pytest.mark.parametrize("rank", [0, 1])
def test_gradients_and_weights_are_exchanged_in_pieces_so_that_no_copy_of_all_is_held(
    rank: int, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "_BUCKET_ELEMENTS", 4)
    wire.rank = rank
    weights, module = weights_of(2, rank)
    (part,) = weights.parts()
    for expected in ([[2.0, 2.0, 20.0], [20.0, 20.0, 0.0]][rank], [[4.0, 4.0, 22.0], [22.0, 22.0, 0.0]][rank]):
        weights.after_backward()
        assert part.grad.tolist() == expected
        assert wire.done[-2:] == [("scatter", "shard", 4), ("scatter", "shard", 2)], "two elements of each rank, then one"
        for parameter in module.parameters():
            parameter.grad = torch.ones_like(parameter)
    with torch.no_grad():
        part.copy_(torch.tensor([7.0, 8.0, 9.0]))
    weights.after_update()
    assert wire.done[-2:] == [("gather", "shard", 4), ("gather", "shard", 2)]
    assert held(list(module.parameters())) == [[7.0, 8.0], [9.0, 107.0, 108.0]]


def test_a_few_buckets_of_gradients_are_under_way_at_once(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "_BUCKET_ELEMENTS", 2)
    module = nn.ModuleList(nn.Linear(1, 1, bias=False) for _ in range(8))
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    groups = StageGroups(data=Replicas(everyone="all", n_ranks=2))
    weights = sharding.StageWeights(module, 0, groups, {}, set(), [])
    weights.start_reduction()
    assert [one if one == "waited" else "sum" for one in wire.done] == ["sum", "sum", "waited", "sum", "waited", "sum"]
    weights.finish_reduction()
    assert [float(parameter.grad) for parameter in module.parameters()] == [2.0] * 8


def test_weights_of_unlike_types_are_flattened_apart(wire: Wire) -> None:
    module = nn.Sequential(nn.Linear(2, 1, bias=False).bfloat16(), nn.Linear(3, 1, bias=False))
    groups = StageGroups(data=Replicas(everyone="all", shard="shard", n_ranks=2, n_shards=2))
    weights = sharding.StageWeights(module, 1, groups, {}, set(), [])
    assert [part.dtype for part in weights.parts()] == [torch.bfloat16, torch.float32]


def test_a_row_of_tensors_is_read_and_written_where_they_lie() -> None:
    tensors = [torch.arange(4.0).view(2, 2).t(), torch.zeros(0), torch.arange(10.0, 13.0)]
    row = TensorRow(tensors)
    assert [piece.tolist() for piece in row.between(1, 6)] == [[2.0, 1.0, 3.0], [10.0, 11.0]]
    assert [piece.tolist() for piece in row.between(6, 9)] == [[12.0], [0.0, 0.0]] and row.between(7, 7) == []
    row.fill(1, 6, torch.tensor([-1.0, -2.0, -3.0, -4.0, -5.0]))
    row.fill(6, 9, torch.tensor([-6.0, 99.0, 99.0]))
    assert tensors[0].tolist() == [[0.0, -1.0], [-2.0, -3.0]] and tensors[2].tolist() == [-4.0, -5.0, -6.0]


def test_groups_of_shards_are_added_up_among_them(wire: Wire) -> None:
    weights, _ = weights_of(1, 0, replicate="replicas")
    weights.start_reduction()
    sums = ["sum at 0", "sum at 1"]
    assert [one[0] for one in wire.done] == [*sums, *"ww", "sum"] and wire.done[-1] == ("sum", "replicas", 3)
    weights.finish_reduction()
    assert wire.done[-1] == "waited" and weights.parts()[0].grad.tolist() == [4.0, 4.0, 40.0]
    assert [ratio for _, ratio in weights.held()] == [0.5, 0.5]


def test_gradients_of_an_axis_that_ranks_hold_in_parts_are_added_up_once(wire: Wire) -> None:
    module = nn.Linear(2, 1)
    owners = [(module, "weight"), (module, "weight"), (module, "bias")]
    module.weight.grad = torch.tensor([[1.0, 2.0]])
    groups = StageGroups(tensor=("a", "b"), context=("a", "b", "c"))
    tie = sharding.Tie(module.bias, (0, 1, 2), counts=False)
    weights = sharding.StageWeights(module, 0, groups, {"tensor": owners, "context": owners[:1]}, {module.bias}, [tie])
    module.bias.grad = torch.tensor([5.0])
    weights.start_reduction()
    assert wire.done == [("sum", ("a", "b"), 1), ("sum", ("a", "b"), 2), ("sum", ("a", "b", "c"), 2)]
    assert module.weight.grad.tolist() == [[4.0, 8.0]] and module.bias.grad.tolist() == [10.0]
    weights.finish_reduction()
    assert module.bias.grad.tolist() == [0.0] and wire.done[-1] == ("sum", (0, 1, 2), 1), "of copies one counts"
    assert [ratio for _, ratio in weights.held()] == pytest.approx([1.0 / 6, 1.0 / 3])
    assert [p is q for p, q in zip(weights.optimized(), (module.weight, module.bias), strict=True)] == [True, True]
    alone = sharding.StageWeights(module, 0, StageGroups(), {}, {module.bias}, [sharding.Tie(module.bias, None, counts=True)])
    module.bias.grad = None
    alone.finish_reduction()
    assert module.bias.grad.tolist() == [0.0] and [ratio for _, ratio in alone.held()] == [1.0, 1.0]


def test_flat_tensors_are_taken_apart_again() -> None:
    parts = [torch.ones(2, 2), torch.full((3,), 2.0)]
    flat = pools.flatten(parts)
    assert flat.tolist() == [1.0] * 4 + [2.0] * 3
    pools.spread(flat * 3, parts)
    assert parts[0].tolist() == [[3.0, 3.0], [3.0, 3.0]] and parts[1].tolist() == [6.0] * 3


def test_an_optimizer_updates_what_several_stages_hold_once_and_may_have_nothing() -> None:
    one, two = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.ones(2))
    stages: Any = [SimpleNamespace(optimized=lambda: [one, two]), SimpleNamespace(optimized=lambda: [two])]
    assert [p is q for p, q in zip(sharding.optimizer_of(stages, list), [one, two], strict=True)] == [True, True]
    (nothing,) = sharding.optimizer_of([], list)
    assert nothing.tolist() == [0.0]


def test_experts_are_recognised_by_their_stacks_and_what_they_take() -> None:
    def stacked(*shapes: tuple[int, ...], **numbers: int) -> nn.Module:
        made = zoo.Experts()
        del made.up, made.down
        made.num_experts = 0
        for i, shape in enumerate(shapes):
            made.register_parameter(f"w{i}", nn.Parameter(torch.zeros(shape)))
        for name, number in numbers.items():
            setattr(made, name, number)
        return made

    cases = [
        (stacked((4, 2, 3), (4, 3), num_experts=4), 4), (stacked((4, 2), (3, 2), num_experts=4), 0),
        (stacked((4, 2), (4,), num_experts=4), 0), (stacked((4, 2), num_experts=3), 0),
        (stacked((4, 2), n_routed_experts=4), 4),
        (stacked((4, 2), experts=4), 0), (stacked((1, 2), num_experts=1), 1), (stacked(), 0),
    ]  # fmt: skip
    assert [experts._n_experts(module) for module, _ in cases] == [n for _, n in cases]
    assert list(experts.experts_of(Holds(a=cases[0][0], b=cases[6][0]))) == ["a"]
    holding = stacked((4, 2), num_experts=4)
    holding.add_module("inner", nn.Linear(1, 1))
    assert experts._n_experts(holding) == 0
    other = stacked((4, 2), num_experts=4)
    other.forward = lambda tokens, choices: tokens  # type: ignore[method-assign]
    assert experts._n_experts(other) == 0


def test_experts_in_parts_are_weighted_where_their_tokens_came_from() -> None:
    """One rank that holds all, and a rank without tokens, which runs on a row of zeros."""
    torch.manual_seed(0)
    whole = zoo.Experts()
    hidden, chosen = torch.randn(5, zoo.WIDTH), torch.tensor([[0, 5], [3, 3], [1, 2], [5, 4], [2, 0]])
    weights = torch.rand(5, 2)
    spread = experts.ExpertParallel(copy.deepcopy(whole), 0, 1, lambda rows, sent, received: rows)
    assert torch.allclose(spread(hidden, chosen, weights), whole(hidden, chosen, weights), atol=1e-6)
    assert spread(hidden.view(1, 5, -1), chosen, weights).shape == (1, 5, zoo.WIDTH)
    assert spread._run(torch.zeros(0, zoo.WIDTH), torch.zeros(0, dtype=torch.long), torch.float32).shape == (0, zoo.WIDTH)
    frozen = copy.deepcopy(whole).requires_grad_(False)
    part = experts.ExpertParallel(frozen, 2, 3, lambda rows, sent, received: rows)
    assert part.n_held == 2 and torch.equal(part.experts.up, whole.up[4:]) and not part.experts.up.requires_grad


def test_a_loss_scale_is_halved_by_an_overflow_and_doubled_after_many_good_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    from meshwright.runtime.step import loss_scale

    reduced: list[Any] = []
    monkeypatch.setattr(loss_scale.dist, "all_reduce", lambda value, op: reduced.append((float(value), op)))
    weight, idle = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1))
    scale, cpu = LossScale(), torch.device("cpu")
    assert (scale.value, scale.n_good_steps, scale.skipped) == (65536.0, 0, False)
    weight.grad = torch.tensor([65536.0, 131072.0])
    assert scale.unscale([weight, idle], cpu) and weight.grad.tolist() == [1.0, 2.0] and scale.n_good_steps == 1
    weight.grad = torch.tensor([1.0, float("inf")])
    assert not scale.unscale([weight, idle], cpu) and scale.skipped and scale.state() == {"value": 32768.0, "n_good_steps": 0}
    assert [value for value, _ in reduced] == [0.0, 1.0] and str(reduced[0][1]).endswith("MAX")
    scale.restore({"value": 8, "n_good_steps": 1998})
    for good, value in ((1999, 8.0), (0, 16.0), (1, 16.0)):
        weight.grad = torch.ones(2)
        assert scale.unscale([weight], cpu) and (scale.n_good_steps, scale.value) == (good, value)
    scale.restore({"value": 2.0, "n_good_steps": 0})
    weight.grad = torch.tensor([float("nan"), 0.0])
    assert not scale.unscale([weight], cpu) and scale.value == 1.0
    weight.grad = torch.tensor([float("nan"), 0.0])
    with pytest.raises(FloatingPointError, match="although the loss is not scaled: training diverged"):
        scale.unscale([weight], cpu)
    weight.grad = torch.ones(2)
    assert scale.unscale([weight], cpu) and scale.n_good_steps == 1


def test_weight_gradients_wait_in_every_type_and_add_up() -> None:
    for dtype, close in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
        torch.manual_seed(0)
        layer, x = nn.Linear(3, 2), torch.randn(2, 4, 3)
        later = DeferredWeightGrad()
        split = copy.deepcopy(layer)
        frozen = nn.Linear(3, 2).requires_grad_(False)
        assert delay_weight_gradients(nn.Sequential(split, frozen, nn.ReLU()), later) == 1 and later.collecting is None
        for collecting in ([], [], None):
            later.collecting = collecting
            for one in (layer, split):
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype != torch.float32):
                    one(x).square().sum().backward()
            for run, own in later.collecting or []:
                assert own == (split.weight, split.bias)
                run()
        for one, other in zip(layer.parameters(), split.parameters(), strict=True):
            assert torch.allclose(one.grad, other.grad, rtol=close)


def test_weight_gradients_of_products_inside_vmap_do_not_wait() -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(3, 2), torch.randn(2, 4, 3)
    split, later = copy.deepcopy(layer), DeferredWeightGrad()
    delay_weight_gradients(split, later)
    later.collecting = []
    for one in (layer, split):
        torch.vmap(one)(x).square().sum().backward()
    assert not later.collecting
    for one, other in zip(layer.parameters(), split.parameters(), strict=True):
        assert torch.allclose(one.grad, other.grad)


def test_a_stage_changes_hidden_states_before_its_layers_and_after_the_last() -> None:
    done: list[str] = []

    def change(word: str) -> Any:
        return lambda carried: done.append(word) or tuple(value + 1 for value in carried)

    class Notes(nn.Module):
        def __init__(self, word: str) -> None:
            super().__init__()
            self.word, self.line = word, nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
            done.append(self.word)
            return (self.line(x),)

    stage = StageModule(
        [Notes("a"), Notes("b"), Notes("c")],
        ["none", "full", "selective"],
        {0: [change("0")], 2: [change("2")], 3: [change("3"), change("4")]},
    )
    (result,) = stage(torch.zeros(1, 2))
    assert done == ["0", "a", "b", "2", "c", "3", "4"]
    done.clear()
    result.sum().backward()
    assert sorted(done) == ["b", "c"], "what is recomputed runs again"
    assert [type(layer).__name__ for layer in StageModule([nn.ReLU()] * 2, (), {}).layers] == ["ReLU", "ReLU"]
    with pytest.raises(ValueError, match="zip"):
        StageModule([nn.ReLU()], ["none", "none"], {})


def test_seconds_go_from_one_mark_to_another() -> None:
    clock = Clock(torch.device("cpu"))
    assert clock.seconds(3.0, 5.5) == 2.5 and clock.mark() <= clock.mark() and not clock.on_gpu


def test_precisions_are_told_apart() -> None:
    assert [autocast.dtype_of(word) for word in ("", "fp32", "bf16", "fp16")] == [None, None, torch.bfloat16, torch.float16]
    with pytest.raises(
        InputError, match="--precision fp8: must be bf16, fp16 or fp32, or left out for the type of the model's"
    ):
        autocast.dtype_of("fp8")
    with pytest.raises(
        InputError, match=r"p: weight '1\.weight' is float16, in which updates are rounded away; keep weights in"
    ):
        autocast.check_weights(nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1).half()), "p")
    with autocast.autocast(torch.device("cpu"), torch.bfloat16):
        assert nn.Linear(1, 1)(torch.zeros(1, 1)).dtype == torch.bfloat16
    with autocast.autocast(torch.device("cpu"), None):
        assert nn.Linear(1, 1)(torch.zeros(1, 1)).dtype == torch.float32

    def told(training: Any, model: nn.Module, word: str) -> list[str]:
        read: Any = SimpleNamespace(entry={"training": training} if training is not None else {})
        return autocast.difference(read, model, word)

    plain, half = nn.Linear(1, 1), nn.Linear(1, 1).bfloat16()
    assert (
        told(None, plain, "") == told({}, plain, "bf16") == told({"precision": "fp32"}, plain, "") == told([], plain, "") == []
    )
    assert (
        told({"precision": "bf16"}, plain, "bf16")
        == told({"precision": "bf16"}, half, "")
        == told({"precision": "x"}, nn.ReLU(), "")
        == []
    )
    profiled: Any = SimpleNamespace(entry={"training": {"precision": "bf16"}, "costs": "profiled"})
    assert autocast.difference(profiled, plain, "") == [], "its layers were measured as they are"
    assert told({"precision": "bf16"}, plain, "") == [
        "the plan was made for bf16, but products run in fp32; give --precision bf16 for the plan's"
    ]
    assert told({"precision": "fp8"}, half, "") == [
        "the plan was made for fp8, but products run in bf16; plan with --precision bf16"
    ]
    assert told({"precision": "bf16"}, plain.double(), "")[0].startswith(
        "the plan was made for bf16, but products run in torch.float64"
    )


def one_stage(n_layers: int, **degrees: Any) -> Plan:
    strategy = Strategy(**degrees)
    return Plan((Stage(tuple(range(n_layers)), tuple(range(strategy.n_devices)), strategy),), global_batch=8)


@pytest.mark.parametrize(
    ("cores", "processes", "fits"), [(2, 0, True), (12, 0, True), (2, 9, True), (2, 7, False), (12, 4, False), (None, 0, True)]
)
def test_processes_must_fit_the_machine(cores: int | None, processes: int, fits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight.os, "cpu_count", lambda: cores)
    places = layout(one_stage(1, data=8))
    if fits:
        preflight.check_machine(places, "gloo", processes, "p")
        with pytest.raises(InputError, match=f"p: the plan needs {max(8, cores or 1, processes) + 1} processes"):
            more = dataclasses.replace(one_stage(1, data=max(8, cores or 1, processes) + 1), global_batch=99)
            preflight.check_machine(layout(more), "gloo", processes, "p")
        return
    told = (
        f"p: the plan needs 8 processes, but this machine has {cores} cores and at most {processes} are started; plan for "
        "fewer devices, start it with torchrun on more machines, or allow more with --processes"
    )
    with pytest.raises(InputError, match=re.escape(told) + "$"):
        preflight.check_machine(places, "gloo", processes, "p")


class Chain(nn.Module):
    """A table, layers, a head."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.embed, self.layers, self.head = nn.Embedding(7, 8), nn.ModuleList(layers), nn.Linear(8, 7)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Fails(nn.Module):
    """Takes states of another width."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(9, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.line(x)


class Pair(nn.Module):
    """Two products that a tensor axis splits."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.up_proj, self.down_proj = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(torch.relu(self.up_proj(x)))


@pytest.mark.parametrize(
    ("layers", "degrees", "length", "told"),
    [
        ([Pair, Fails], {}, 4, "p: layer 'layers.1' cannot run on (2, 4, 8): RuntimeError: "),
        ([Pair, Pair], {"tensor": 2, "sequence_parallel": True}, 5,
         "p: stage 0: sequence parallelism of degree 2 does not divide the 5 tokens of a sample"),
        ([Pair, Pair], {"context": 2}, 5,
         "p: stage 0: context parallelism of degree 2 does not divide the 5 tokens of a sample"),
        ([Pair, lambda: nn.Linear(8, 8)], {"tensor": 2}, 4,
         "p: stage 0: tensor degree 2, but in layer 'layers.1' no pair of linear layers to split was recognised; name them in "
         "the model: tensor_parallel = {'attention.wq': 'column', 'attention.wo': 'row', ...}"),
        ([Pair, Pair], {"tensor": 3}, 4,
         "layer 'layers.0': tensor degree 3 does not divide the 16 features of parts.layers.0.up_proj"),
        ([Pair, Pair], {"expert": 2, "data": 2}, 4,
         "p: stage 0: expert degree 2, but no experts were recognised in the model: a module of stacked weights, one entry for "
         "each of its num_experts, called with tokens, the experts chosen and their weights; plan again with --set expert=1"),
    ],
)  # fmt: skip
def test_a_plan_that_does_not_fit_the_model_is_refused(layers: list, degrees: dict, length: int, told: str) -> None:
    model = Chain(*(made() for made in layers))
    names = ["embed", "layers.0", "layers.1", "head"]
    with pytest.raises(InputError, match=re.escape(told)):
        preflight.check_model(model, names, one_stage(4, **degrees), (torch.zeros(1, length, dtype=torch.long),), "p")


def test_a_plan_that_fits_gives_its_layers_untouched() -> None:
    model = Chain(Pair(), Pair())
    state = torch.get_rng_state()
    names = ["embed", "layers.0", "layers.1", "head"]
    for degrees in ({"tensor": 2, "sequence_parallel": True}, {"context": 2}, {"data": 2}, {"tensor": 2, "context": 2}):
        units = preflight.check_model(model, names, one_stage(4, **degrees), (torch.zeros(1, 4, dtype=torch.long),), "p")
        assert len(units) == 4 and all(p.grad is None for p in model.parameters())
    assert all(unit.training for unit in units) and torch.equal(torch.get_rng_state(), state)


def test_what_crosses_stages_is_looked_at_where_they_begin() -> None:
    rows, weight = torch.zeros(3, 2), nn.Parameter(torch.zeros(3, 2))
    preflight._check_crossing((rows, weight, torch.zeros(())), 3, "k")
    for value, shape in ((nn.Parameter(torch.zeros(2, 3)), "(2, 3)"), (nn.Parameter(torch.zeros(())), "()")):
        told = f"k: a tensor of shape {shape} is handed on there that is trained and has no rows of the batch; cut elsewhere"
        with pytest.raises(InputError, match=re.escape(told)):
            preflight._check_crossing((rows, value), 3, "k")
    with pytest.raises(
        InputError, match="k: a int is handed on there, and only tensors can be sent; cut elsewhere, or compute it"
    ):
        preflight._check_crossing((rows, 3), 3, "k")
    made = weight * 2
    fresh, copied = preflight._received(made, True), preflight._received(made, False)
    assert fresh.requires_grad and fresh.is_leaf and fresh.data_ptr() == made.data_ptr() != copied.data_ptr()
    assert preflight._received("word", True) == "word" and not preflight._received(rows, True).requires_grad
    assert preflight._shapes([rows, 3, "a"]) == "(3, 2), int, str"


def test_a_model_of_other_sizes_than_planned_is_told() -> None:
    units = [nn.Linear(9, 10, bias=False), nn.Linear(10, 10, bias=False), nn.Linear(12, 10, bias=False), nn.ReLU()]
    names = ["a", "b", "c", "d"]

    def planned(*sizes: int) -> Graph:
        ops = tuple(
            Op(name, "matmul", (Operator("o", "matmul", (), n_parameters=size),), i)
            for i, (name, size) in enumerate(zip(names, sizes, strict=False))
        )
        return Graph("m", ops, (), 1)

    assert preflight.check_same_model(units, names, planned(90, 100, 120), "p") == []
    assert preflight.check_same_model(units, names, planned(100, 100, 100), "p") == [
        "layers that differ a little from the model planned: a (90 instead of 100 weights), c (120 instead of 100 weights)"
    ]
    told = "p: layer 'c' of the model given has 120 weights, but 99 were planned for; is this the plan of another model?"
    with pytest.raises(InputError, match=re.escape(told)):
        preflight.check_same_model(units, names, planned(90, 100, 99), "p")
    with pytest.raises(InputError, match="layer 'a' of the model given has 90 weights, but 113 were"):
        preflight.check_same_model(units, names, planned(113, 100, 120), "p")
    many = [nn.Linear(11, 1, bias=False)] * 7
    graph = Graph(
        "m", tuple(Op(f"l{i}", "matmul", (Operator("o", "matmul", (), n_parameters=10),), 0) for i in range(7)), (), 1
    )
    (note,) = preflight.check_same_model(many, [f"l{i}" for i in range(7)], graph, "p")
    assert note.count("instead of") == 5


def test_checks_of_equal_layers_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    for name in ("check_sum", "check_sequence", "check_context"):
        monkeypatch.setattr(shard_equivalence, name, lambda *told, name=name: seen.append(f"{name} {told[-1]}"))
    model = Chain(Pair(), Pair(), Pair())
    names = ["embed", "layers.0", "layers.1", "layers.2", "head"]
    tokens = (torch.zeros(1, 8, dtype=torch.long),)
    preflight.check_model(model, names, one_stage(5, tensor=2, context=2, sequence_parallel=True), tokens, "p")
    assert seen == [f"{check} p: stage 0: layer 'layers.0'" for check in ("check_sum", "check_sequence", "check_context")]
    assert shard_equivalence.structure(Pair(), tokens) == shard_equivalence.structure(Pair(), tokens)
    assert shard_equivalence.structure(Pair(), tokens) != shard_equivalence.structure(Pair(4), tokens)
    assert json.dumps(seen)
