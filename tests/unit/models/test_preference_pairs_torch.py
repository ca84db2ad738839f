"""DPO on a small model against PyTorch: products by its counter, gradients, and what autograd keeps."""

from __future__ import annotations

import copy
import json
from contextlib import contextmanager, nullcontext
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
from torch.nn import functional as F  # noqa: E402
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
    """A frozen linear layer with a low-rank product beside it that can be left out, as ``peft`` has it."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base, self.on = base, True
        self.lora_a = nn.Linear(base.in_features, rank, bias=False)
        self.lora_b = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.lora_b(self.lora_a(x)) if self.on else self.base(x)


def _model(targets: tuple[str, ...], rank: int) -> nn.Module:
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**FIELDS))
    if targets:
        model.requires_grad_(False)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if name in targets:
                setattr(parent, name, _Adapted(child, rank))
    return model


def _log_probabilities(model: nn.Module, words: torch.Tensor) -> torch.Tensor:
    logits = model(input_ids=words).logits.float()
    return torch.gather(F.log_softmax(logits, -1), 2, words[..., None]).squeeze(-1).sum(-1)


@contextmanager
def _without_adapters(model: nn.Module) -> Any:
    own = [module for module in model.modules() if isinstance(module, _Adapted)]
    for module in own:
        module.on = False
    yield
    for module in own:
        module.on = True


def _step(model: nn.Module, reference: nn.Module | None, words: torch.Tensor) -> torch.Tensor:
    """The loss of DPO: eq. 7 of arXiv 2305.18290."""
    own = _log_probabilities(model, words)
    against = torch.zeros_like(own)
    if reference is not None:
        with torch.no_grad(), _without_adapters(model) if reference is model else nullcontext():
            against = _log_probabilities(reference, words)
    chosen, rejected = (own - against).chunk(2)
    return -F.logsigmoid(0.1 * (chosen - rejected)).mean()


def _kept_bytes(model: nn.Module, reference: nn.Module | None, words: torch.Tensor) -> int:
    weights = {parameter.untyped_storage().data_ptr() for one in (model, reference) if one for parameter in one.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights and storage.nbytes() >= 1024:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = _step(model, reference, words)
    total = sum(kept.values())
    del loss
    return total


@pytest.mark.parametrize(
    ("objective", "lora", "targets"),
    [
        ("dpo", "", ()),
        ("dpo,reference=precomputed", "", ()),
        ("dpo", "r=4,targets=q_proj,v_proj", ("q_proj", "v_proj")),
        ("dpo", "r=4,targets=q_proj,down_proj", ("q_proj", "down_proj")),
        ("dpo,reference=copy", "r=4,targets=o_proj", ("o_proj",)),
    ],
)
def test_products_gradients_and_weights_are_those_of_pytorch(
    tmp_path: Path, objective: str, lora: str, targets: tuple[str, ...]
) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(FIELDS))
    graph = api.read(str(file), sequence_length=SEQUENCE, lora=lora, objective=objective).graph
    model = _model(targets, 4)
    copied = objective.endswith("copy") or (objective == "dpo" and not lora)
    base = copy.deepcopy(_model((), 4)).requires_grad_(False) if copied else None
    reference = base if copied else None if objective.endswith("precomputed") else model
    words = torch.randint(0, 256, (2, SEQUENCE))
    with FlopCounterMode(display=False) as counter:
        _step(model, reference, words).backward()
    counted = {str(name): flops for name, flops in counter.get_flop_counts()["Global"].items()}
    products = sum(passes(part) * forward_flops(part) for op in graph.ops for part in op.body if part.kind == "matmul")
    assert products == counted["aten.mm"]
    held = [parameter for one in (model, base) if one is not None for parameter in one.parameters()]
    assert graph.n_parameters == sum(parameter.numel() for parameter in held)
    assert graph.n_trained_parameters == sum(p.grad.numel() for p in held if p.grad is not None)


def test_what_is_kept_is_that_of_two_sequences_and_none_of_the_reference() -> None:
    model, base = _model((), 4), copy.deepcopy(_model((), 4)).requires_grad_(False)
    words = torch.randint(0, 256, (4, SEQUENCE))
    alone, beside = _kept_bytes(model, None, words), _kept_bytes(model, base, words)
    assert beside == alone > 0
    plain = api.read("llama-3.2-1b", sequence_length=SEQUENCE).graph
    pairs = api.read("llama-3.2-1b", sequence_length=SEQUENCE, objective="dpo").graph
    kept = [sum(part.saved_elements for op in one.ops for part in op.body) for one in (plain, pairs)]
    assert kept[1] == 2 * kept[0]
