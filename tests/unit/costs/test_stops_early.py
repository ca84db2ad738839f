"""Recomputation that stops early repeats what PyTorch's checkpoint repeats, as its own counter of products counts it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright import clusters, models
from meshwright.core.framework import Framework
from meshwright.core.graph import Operator
from meshwright.core.problem import MixedPrecision
from meshwright.costs.analytic.layer import LayerWork, layer_work
from meshwright.costs.analytic.recomputation import n_rerun
from meshwright.costs.analytic.roofline import Shape


def body(model: str) -> tuple[Operator, ...]:
    """Return the operators of a layer in the middle."""
    graph = models.read(model).graph
    return graph.ops[len(graph.ops) // 2].body


def names(operators: tuple[Operator, ...]) -> list[str]:
    return [operator.name for operator in operators]


def test_without_it_everything_runs_again() -> None:
    for model in ("llama-3.1-8b", "gpt2", "mixtral-8x7b", "bert-large"):
        assert n_rerun(body(model), stops_early=False) == len(body(model))


@pytest.mark.parametrize(("model", "left_out"), [
    ("llama-3.1-8b", ["mlp.out", "mlp.residual"]),
    ("gpt2", []),  # it drops elements out
    ("deepseek-v3", ["mlp.shared.out", "mlp.residual"]),
    ("mixtral-8x7b", ["mlp.residual"]),  # weights of the router multiply what the experts put out
    ("gemma-2-9b", ["mlp.residual"]),  # a norm after the product reads its output
    ("bert-large", []),
])  # fmt: skip
def test_what_the_backward_pass_does_not_read_is_left_out(model: str, left_out: list[str]) -> None:
    of = body(model)
    assert names(of[n_rerun(of, stops_early=True) :]) == left_out


def test_a_mask_of_dropped_elements_is_made_again() -> None:
    *first, residual = body("llama-3.1-8b")
    dropping = (*first, replace(residual, saved_extra_bytes=8))
    assert n_rerun(dropping, stops_early=True) == len(dropping)


def test_an_empty_layer_runs_nothing_again() -> None:
    assert n_rerun((), stops_early=True) == 0


@pytest.mark.parametrize("norm_comes_last", [False, True])
def test_pytorch_repeats_as_much(norm_comes_last: bool) -> None:
    torch = pytest.importorskip("torch")
    from torch import nn
    from torch.utils.checkpoint import checkpoint
    from torch.utils.flop_counter import FlopCounterMode

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 64), nn.Linear(64, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if norm_comes_last:
                return self.norm(x + self.down(nn.functional.gelu(self.up(x))))
            return x + self.down(nn.functional.gelu(self.up(self.norm(x))))

    x = torch.randn(4, 16, requires_grad=True)
    with FlopCounterMode(display=False) as forward:
        y = checkpoint(Block(), x, use_reentrant=False)
    with FlopCounterMode(display=False) as backward:
        y.sum().backward()
    counted = backward.get_total_flops() - 2 * forward.get_total_flops()
    of = body("bert-large" if norm_comes_last else "llama-3.1-8b")
    again = names(of[: n_rerun(of, stops_early=True)])
    assert counted == 2 * 4 * 16 * 64 * (("mlp.in" in again) + ("mlp.out" in again))


def test_the_last_product_and_its_collective_are_taken_off() -> None:
    of, cluster = body("llama-3.1-8b"), clusters.cluster("dgx-h100:8")
    shape = Shape(micro_batch=1, tensor=2, sequence_parallel=True)

    def work(framework: Framework) -> LayerWork:
        return layer_work(of, shape, cluster.kinds[0], MixedPrecision("bf16"), framework, input_elements=1, output_elements=1)

    whole, early = work(Framework()), work(Framework(stops_early=True))
    assert (whole.rerun_seconds, whole.rerun) == (whole.forward_seconds, whole.forward)
    assert [one.kind for one in whole.forward] == ["all_gather", "reduce_scatter"] * 2
    assert early.rerun == whole.forward[:-1]  # what enters the block is gathered, its partial sums are not needed
    *first, _, residual = of
    without = layer_work(
        tuple(first), shape, cluster.kinds[0], MixedPrecision("bf16"), Framework(), input_elements=1, output_elements=1
    )
    assert residual.name == "mlp.residual" and early.rerun_seconds == pytest.approx(without.forward_seconds, rel=1e-12)
    assert 0.7 * whole.forward_seconds < early.rerun_seconds < 0.8 * whole.forward_seconds  # 59 of 218 M weights, and attention
    same = replace(early, rerun_seconds=whole.rerun_seconds, rerun=whole.rerun)
    assert same == whole  # the forward and backward passes are as they were
