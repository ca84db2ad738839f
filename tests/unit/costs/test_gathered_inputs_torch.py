"""What PyTorch's tensor parallelism keeps for the backward pass: the whole input that sequence parallelism gathered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from meshwright.core.problem import Framework
from meshwright.core.strategy import Strategy

from .test_program import _row

pytestmark = pytest.mark.torch

TENSOR, HIDDEN, INNER, TOKENS, SAMPLES = 4, 32, 64, 16, 2


@pytest.fixture
def mesh() -> Iterator[Any]:
    """Lend a mesh of ranks of which only one is there."""
    pytest.importorskip("torch")
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", rank=0, world_size=TENSOR, store=FakeStore())
    try:
        yield init_device_mesh("cpu", (TENSOR,))
    finally:
        distributed.destroy_process_group()


def test_dtensor_keeps_the_input_that_it_gathered_as_torchtitan_sets_it_up(mesh: Any) -> None:
    import torch
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, parallelize_module

    class Mlp(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = torch.nn.Linear(HIDDEN, INNER, bias=False), torch.nn.Linear(INNER, HIDDEN, bias=False)

        def forward(self, x: Any) -> Any:
            return self.down(torch.nn.functional.silu(self.up(x)))

    block = torch.nn.Sequential(Mlp())
    whole = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    parallelize_module(block, mesh, {"0": whole, "0.up": ColwiseParallel(), "0.down": RowwiseParallel(output_layouts=Shard(1))})
    kept: dict[int, int] = {}

    def keep(tensor: Any) -> Any:
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        kept[local.untyped_storage().data_ptr()] = local.untyped_storage().nbytes()
        return tensor

    piece = torch.randn(SAMPLES, TOKENS // TENSOR, HIDDEN, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        block(piece)
    gathered, inner = SAMPLES * TOKENS * HIDDEN * 4, SAMPLES * TOKENS * INNER // TENSOR * 4
    weights = HIDDEN * INNER // TENSOR * 4
    assert sorted(kept.values()) == sorted([gathered, inner, inner, weights, weights])


def test_a_layer_keeps_both_of_its_gathered_inputs_only_where_the_framework_does() -> None:
    split = Strategy(tensor=2, sequence_parallel=True)
    plain, keeps = _row(split), _row(split, Framework(keeps_gathered_inputs=True))
    assert keeps.activation_bytes - plain.activation_bytes == pytest.approx(2 * (2 - 1) * plain.output_bytes)
    assert keeps.working_bytes <= plain.working_bytes and keeps.forward_seconds == plain.forward_seconds
    for strategy in (Strategy(tensor=2), Strategy(data=2)):
        assert _row(strategy) == _row(strategy, Framework(keeps_gathered_inputs=True))
