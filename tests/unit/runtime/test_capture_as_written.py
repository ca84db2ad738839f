"""What captured code computes that a training program would not is said: all experts on every token, scans in steps."""

from __future__ import annotations

import sys

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an optional extra: pip install 'meshwright[torch]'")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

from torch import nn  # noqa: E402

from meshwright.runtime.capture import capture  # noqa: E402

EXPERTS, WIDTH, ROWS = 4, 8, 6


@pytest.fixture(autouse=True)
def _importable() -> None:
    sys.modules.setdefault(__name__, sys.modules[__name__])


class Experts(nn.Module):
    """All experts on every token, weighted by a router afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(WIDTH, WIDTH, bias=False)
        self.weights = nn.Parameter(torch.empty(EXPERTS, WIDTH, 3 * WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.bmm(self.into(x).reshape(1, ROWS, WIDTH).repeat(EXPERTS, 1, 1), self.weights)


class ToyMamba(nn.Module):
    """A recurrence in steps."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state, step = torch.zeros_like(x), self.into(x)
        for _ in range(3):
            state = torch.tanh(state * step)
        return state


class Net(nn.Module):
    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part
        self.head = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(self.head(x))


def experts() -> tuple[nn.Module, torch.Tensor]:
    return Net(Experts()), torch.zeros(1, ROWS, WIDTH)


def scans() -> tuple[nn.Module, torch.Tensor]:
    return Net(ToyMamba()), torch.zeros(1, ROWS, WIDTH)


def plain() -> tuple[nn.Module, torch.Tensor]:
    return Net(nn.Linear(WIDTH, WIDTH)), torch.zeros(1, ROWS, WIDTH)


def _notes(name: str) -> str:
    return " ".join(capture(f"{__name__}:{name}", precision="fp32").notes)


def test_products_with_all_experts_are_said() -> None:
    """Twelve of the fourteen products of a token are those of experts: 4 x 3 beside one in and one before."""
    assert "part multiplies every token with all 4 experts" in _notes("experts") and "86% of the forward FLOPs" in _notes(
        "experts"
    )


def test_scans_in_steps_are_said_with_what_they_keep() -> None:
    assert "state-space layers (ToyMamba) are captured operator by operator: they keep" in _notes("scans")


def test_nothing_is_said_of_plain_layers() -> None:
    assert "experts" not in _notes("plain") and "state-space" not in _notes("plain")
