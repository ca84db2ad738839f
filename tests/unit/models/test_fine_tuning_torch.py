"""Models trained in part against PyTorch: what its own counter counts, and which gradients there are after a backward pass."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an optional extra: pip install 'meshwright[torch]'")
transformers = pytest.importorskip("transformers", reason="an optional extra: pip install 'meshwright[test]'")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

from torch import nn  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from meshwright import api  # noqa: E402
from meshwright.core.flops import forward_flops, passes  # noqa: E402

SEQUENCE = 64
FIELDS: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 256, "hidden_size": 32, "intermediate_size": 80, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": SEQUENCE,
    "tie_word_embeddings": False,
}  # fmt: skip


class _Adapted(nn.Module):
    """A linear layer, frozen, with a low-rank product beside it, as ``peft`` builds it."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base
        self.lora_a = nn.Linear(base.in_features, rank, bias=False)
        self.lora_b = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.lora_b(self.lora_a(x))


def _frozen(pattern: str) -> Callable[[nn.Module], None]:
    def change(model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not re.search(pattern, name))

    return change


def _adapted(rank: int, *targets: str) -> Callable[[nn.Module], None]:
    def change(model: nn.Module) -> None:
        model.requires_grad_(False)
        for parent in list(model.modules()):
            for name, child in list(parent.named_children()):
                if name in targets:
                    setattr(parent, name, _Adapted(child, rank))

    return change


@pytest.mark.parametrize(
    ("freeze", "lora", "change"),
    [
        ((), "", _frozen("^$")),
        (("embed", "layers.[01]"), "", _frozen(r"embed|layers\.[01]\.")),
        (("layers.*", "embed"), "", _frozen("layers|embed")),
        (("*.mlp", "head", "embed"), "", _frozen("mlp|post_attention|lm_head|model.norm|embed")),
        (("embed", "*.query_key_value", "*.output", "*.in", "*.out", "*.unembedding"), "", _frozen("proj|embed|lm_head")),
        ((), "r=4,targets=q_proj,v_proj", _adapted(4, "q_proj", "v_proj")),
        ((), "r=4,targets=o_proj", _adapted(4, "o_proj")),
        ((), "r=2,targets=down_proj,up_proj", _adapted(2, "down_proj", "up_proj")),
        ((), "r=8,targets=query,key,value,output,gate,up,down",
         _adapted(8, "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")),
    ],
)  # fmt: skip
def test_products_and_gradients_are_those_of_pytorch(
    tmp_path: Path, freeze: tuple[str, ...], lora: str, change: Callable[[nn.Module], None]
) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(FIELDS))
    graph = api.read(str(file), sequence_length=SEQUENCE, freeze=freeze, lora=lora).graph
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**FIELDS))
    change(model)
    words = torch.zeros((1, SEQUENCE), dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        model(input_ids=words, labels=words).loss.backward()
    counted = {str(name): flops for name, flops in counter.get_flop_counts()["Global"].items()}
    products = sum(passes(part) * forward_flops(part) for op in graph.ops for part in op.body if part.kind == "matmul")
    assert products == counted["aten.mm"]
    assert graph.n_parameters == sum(parameter.numel() for parameter in model.parameters())
    assert graph.n_trained_parameters == sum(p.grad.numel() for p in model.parameters() if p.grad is not None)
