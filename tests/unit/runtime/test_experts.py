"""Experts divided over ranks: which are recognised, what is refused, and before anything starts."""

from __future__ import annotations

import pathlib
import sys

import pytest

torch = pytest.importorskip("torch", reason="running plans needs PyTorch: pip install 'meshwright[torch]'")
pytestmark = pytest.mark.torch

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import zoo  # noqa: E402

from meshwright.base.errors import InputError  # noqa: E402
from meshwright.core.plan import Plan, Stage  # noqa: E402
from meshwright.core.strategy import Strategy  # noqa: E402
from meshwright.runtime.job import preflight  # noqa: E402
from meshwright.runtime.parallel import experts, shard_equivalence  # noqa: E402
from meshwright.runtime.ranks import meshes  # noqa: E402
from meshwright.runtime.ranks.layout import layout  # noqa: E402

TOKENS = torch.zeros(1, 8, dtype=torch.long)
NAMES = ("embed", "layers.0", "layers.1", "layers.2", "layers.3", "head")


def plan(devices: tuple[int, ...], **degrees: object) -> Plan:
    return Plan((Stage(tuple(range(6)), devices, Strategy(**degrees)),), global_batch=len(devices))


class WeightsFirst(zoo.Experts):
    """Weighs what its experts take, so that results are not in proportion to the weights."""

    def forward(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        total = torch.zeros_like(x)
        for expert in range(self.num_experts):
            token, place = torch.where(chosen == expert)
            result = torch.tanh((x[token] * weights[token, place, None]) @ self.up[expert]) @ self.down[expert]
            total = total.index_add(0, token, result)
        return total


def test_stacked_experts_are_recognised_and_nothing_else_is() -> None:
    model = zoo.Mixture()
    assert list(experts.experts_of(model)) == ["layers.1.experts", "layers.2.experts"]
    assert not experts.experts_of(zoo.Plain()) and not experts.experts_of(torch.nn.MultiheadAttention(6, 2))


def test_each_rank_holds_its_part_of_the_experts_only() -> None:
    layer = zoo.Routed()
    up = layer.experts.up.detach().clone()
    experts.spread(layer, 1, 3, lambda rows, sent, received: rows)
    assert torch.equal(layer.experts.experts.up, up[2:4])
    assert layer.experts.experts.num_experts == 2


@pytest.mark.parametrize("degree", [2, 3, 6])
def test_experts_in_parts_compute_what_they_do_whole(degree: int) -> None:
    torch.manual_seed(0)
    shard_equivalence.check_experts(zoo.Routed(), [torch.randn(2, 5, zoo.WIDTH)], degree, "plan.json")


def test_experts_that_do_not_add_up_are_refused() -> None:
    torch.manual_seed(0)
    layer = zoo.Routed()
    layer.experts = WeightsFirst()
    with pytest.raises(InputError, match="compute something else in parts than whole"):
        shard_equivalence.check_experts(layer, [torch.randn(2, 5, zoo.WIDTH)], 2, "plan.json")


@pytest.mark.parametrize(
    ("model", "degrees", "told"),
    [
        (zoo.Mixture, {"data": 4, "expert": 4}, "layer 'layers.1': expert degree 4 does not divide its 6 experts"),
        (zoo.Plain, {"data": 2, "expert": 2}, "no experts were recognised in the model"),
    ],
)
def test_models_whose_experts_cannot_be_divided_are_refused(model: type, degrees: dict, told: str) -> None:
    devices = tuple(range(degrees["data"]))
    with pytest.raises(InputError, match=told):
        preflight.check_model(model(), NAMES, plan(devices, **degrees), (TOKENS,), "plan.json")


@pytest.mark.parametrize(
    "degrees", [{"data": 3, "expert": 2}, {"data": 2, "tensor": 2, "expert": 4}, {"data": 1, "tensor": 2, "expert": 2}]
)
def test_expert_degrees_that_do_not_divide_the_ranks_with_tokens_of_their_own_are_refused(degrees: dict) -> None:
    n_devices = degrees["data"] * degrees.get("tensor", 1)
    with pytest.raises(InputError, match="divides neither its"):
        layout(plan(tuple(range(n_devices)), **degrees))


def test_groups_that_interleave_are_refused_before_anything_starts() -> None:
    meshes.check(layout(plan((2, 3, 0, 1), data=4, expert=2)))
    with pytest.raises(InputError, match="interleave"):
        meshes.check(layout(plan((0, 3, 1, 2), data=4, expert=2)))
