"""Captured modules with frozen parameters: gradients that are computed, weights that are trained, what is kept."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an optional extra: pip install 'meshwright[torch]'")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

from torch import nn  # noqa: E402

from meshwright import api  # noqa: E402
from meshwright.base.errors import InputError  # noqa: E402
from meshwright.core.flops import model_flops  # noqa: E402
from meshwright.core.problem import Batch  # noqa: E402
from meshwright.costs import analytic  # noqa: E402
from meshwright.runtime.capture import capture  # noqa: E402
from meshwright.runtime.capture.document import as_json  # noqa: E402
from meshwright.runtime.capture.layers import Captured  # noqa: E402

WIDTH, WORDS, TOKENS = 8, 50, 6
PRODUCT = 2.0 * TOKENS * WIDTH * WIDTH
Example = tuple[nn.Module, torch.Tensor]


@pytest.fixture(autouse=True)
def _importable() -> None:
    sys.modules.setdefault(__name__, sys.modules[__name__])


class Net(nn.Module):
    """An embedding, linear layers in a row, a head."""

    def __init__(self, n_layers: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU()) for _ in range(n_layers))
        self.head = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        stream = self.words(words)
        for block in self.blocks:
            stream = stream + block(stream)
        return self.head(stream)


class Stopped(Net):
    """The same, without a gradient below the head."""

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            stream = self.words(words)
            for block in self.blocks:
                stream = stream + block(stream)
        return self.head(stream)


def _with(net: nn.Module, *trained: str) -> Example:
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(name.startswith(trained))
    return net, torch.zeros((1, TOKENS), dtype=torch.long)


def whole() -> Example:
    return Net(5), torch.zeros((1, TOKENS), dtype=torch.long)


def last() -> Example:
    return _with(Net(5), "blocks.4", "head")


def middle() -> Example:
    return _with(Net(5), "blocks.2")


def tables() -> Example:
    return _with(Net(5), "words")


def stopped() -> Example:
    return Stopped(3), torch.zeros((1, TOKENS), dtype=torch.long)


def _of(name: str) -> Captured:
    return capture(f"{__name__}:{name}", precision="fp32")


@pytest.mark.parametrize(
    ("name", "n_gradients", "n_trained"),
    [
        ("whole", 12, WORDS * WIDTH + 6 * WIDTH * WIDTH),
        ("last", 3, 2 * WIDTH * WIDTH),  # the last block's weight; the head's input and weight
        ("middle", 4, WIDTH * WIDTH),  # its weight; the inputs of two blocks and the head
        ("tables", 6, WORDS * WIDTH),  # the inputs of all
        ("stopped", 1, WORDS * WIDTH + 4 * WIDTH * WIDTH),
    ],
)
def test_only_gradients_that_somebody_needs_are_computed(name: str, n_gradients: int, n_trained: int) -> None:
    found = _of(name)
    assert found.totals.backward_flops == n_gradients * PRODUCT
    if name != "stopped":  # there PyTorch computes no gradient for weights that are not frozen
        assert model_flops(found.graph) == found.totals.forward_flops + found.totals.backward_flops
    assert found.graph.n_trained_parameters == n_trained


def test_a_plan_of_a_module_trained_in_part_is_quicker_and_smaller(tmp_path: Path) -> None:
    loads = {}
    for name in ("whole", "last", "middle", "tables"):
        file = tmp_path / f"{name}.json"
        found = _of(name)
        file.write_text(json.dumps(as_json(found, name)))
        spec = api.read(str(file))
        assert spec.graph.n_trained_parameters == found.graph.n_trained_parameters
        problem = api.make_problem(spec, "dgx-h100:1", batch=Batch(1))
        result = api.plan(problem)
        assert result.feasible
        loads[name] = analytic.stage_costs(problem, result.plan)[0]
        trained = spec.graph.n_trained_parameters
        assert loads[name].optimizer_bytes == 12 * trained
        assert loads[name].gradient_bytes == 4 * trained + (2 * WORDS * WIDTH if name in ("whole", "tables") else 0)
        assert loads[name].weight_bytes == loads["whole"].weight_bytes
    assert (
        loads["last"].backward_total_seconds < loads["middle"].backward_total_seconds < loads["tables"].backward_total_seconds
    )
    assert loads["tables"].backward_total_seconds < loads["whole"].backward_total_seconds
    assert loads["last"].activation_bytes < loads["whole"].activation_bytes


def test_a_file_whose_frozen_weights_were_changed_is_refused(tmp_path: Path) -> None:
    entry = as_json(_of("last"), "last")
    file = tmp_path / "graph.json"
    file.write_text(json.dumps({**entry, "n_frozen_parameters": 1}))
    with pytest.raises(InputError, match="n_frozen_parameters is 1"):
        api.read(str(file))
