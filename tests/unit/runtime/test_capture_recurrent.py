"""Recurrent modules against PyTorch's own counter of a real step: products forward and backward, whatever is trained."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an optional extra: pip install 'meshwright[torch]'")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")]

from torch import nn  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from meshwright.core.flops import model_flops  # noqa: E402
from meshwright.runtime.capture.layers import Captured  # noqa: E402
from meshwright.runtime.capture.session import of_maker  # noqa: E402

BATCH, STEPS, FEATURES, HIDDEN = 2, 8, 24, 16


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Thousands of small products: on busy cores threads that wait for each other take minutes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Recurrent(nn.Module):
    """A recurrent module, and before it a layer that gives what it reads a gradient, if asked for."""

    def __init__(self, cells: nn.Module, first: bool) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, FEATURES) if first else None
        self.cells = cells

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.cells(inputs if self.first is None else self.first(inputs))[0]


def _cells(kind: str, **options: object) -> nn.Module:
    return getattr(nn, kind)(FEATURES, HIDDEN, batch_first=True, **options)


def _counted(net: nn.Module, inputs: torch.Tensor) -> tuple[float, float]:
    """What PyTorch counts forward and backward, per sample."""
    with FlopCounterMode(display=False) as forward:
        out = net(inputs)
    with FlopCounterMode(display=False) as backward:
        out.sum().backward()
    return forward.get_total_flops() / BATCH, backward.get_total_flops() / BATCH


def _captured(net: nn.Module, inputs: torch.Tensor) -> Captured:
    return of_maker("net", lambda: (net, inputs), precision="fp32")


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("RNN", {}),
        ("GRU", {}),
        ("GRU", {"num_layers": 2}),
        ("GRU", {"num_layers": 3, "bidirectional": True}),
        ("LSTM", {"proj_size": 8, "num_layers": 2}),  # PyTorch's counter sees nothing of one without a projection here
    ],
)
def test_the_backward_pass_of_a_recurrence_is_what_pytorch_counts(kind: str, options: dict[str, object], first: bool) -> None:
    net, inputs = Recurrent(_cells(kind, **options), first), torch.zeros(BATCH, STEPS, FEATURES)
    forward, backward = _counted(net, inputs)
    totals = _captured(net, inputs).totals
    # PyTorch leaves out the gradient of the first state: one product of each layer and direction
    states = sum(2 * weight.numel() for name, weight in net.cells.named_parameters() if name.startswith("weight_hh"))
    assert (totals.forward_flops, totals.backward_flops) == (forward, backward + states)


@pytest.mark.parametrize("first", [False, True])
def test_the_graph_of_a_recurrence_counts_what_was_traced(first: bool) -> None:
    found = _captured(Recurrent(_cells("LSTM"), first), torch.zeros(BATCH, STEPS, FEATURES))
    assert model_flops(found.graph) == found.totals.forward_flops + found.totals.backward_flops


def test_a_recurrence_under_a_trained_layer_that_is_itself_frozen_passes_gradients_only() -> None:
    net, inputs = Recurrent(_cells("GRU"), first=True), torch.zeros(BATCH, STEPS, FEATURES)
    net.cells.requires_grad_(False)
    forward, backward = _counted(net, inputs)
    totals = _captured(net, inputs).totals
    assert (totals.forward_flops, totals.backward_flops) == (forward, backward + 2 * net.cells.weight_hh_l0.numel())


def test_a_single_cell_has_no_gradient_of_its_state() -> None:
    net, inputs = nn.GRUCell(FEATURES, HIDDEN), torch.zeros(BATCH, FEATURES)
    counted = _counted(net, inputs)
    totals = _captured(net, inputs).totals
    assert (totals.forward_flops, totals.backward_flops) == counted
