"""State of optimizers as PyTorch's own keep it, on a small model: counted tensor by tensor after a step."""

from __future__ import annotations

import json
import pathlib

import pytest

from meshwright import api
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Batch, MixedPrecision
from meshwright.core.strategy import Strategy
from meshwright.costs import analytic

pytestmark = pytest.mark.torch

CONFIG = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 301, "max_position_embeddings": 64, "tie_word_embeddings": False,
}  # fmt: skip


def _held(model, make) -> int:  # type: ignore[no-untyped-def]
    """Return the bytes of state after a step, counters of steps left out."""
    import torch

    tokens = torch.arange(16)[None] % 301
    model(input_ids=tokens, labels=tokens).loss.backward()
    made = make(model)
    n_bytes = 0
    for optimizer in made:
        optimizer.step()
        for state in optimizer.state.values():
            n_bytes += sum(t.numel() * t.element_size() for t in state.values() if torch.is_tensor(t) and t.dim() > 0)
    return n_bytes


def _muon(model):  # type: ignore[no-untyped-def]
    import torch

    hidden = [p for name, p in model.named_parameters() if p.dim() == 2 and "layers" in name]
    others = [p for name, p in model.named_parameters() if not (p.dim() == 2 and "layers" in name)]
    return [torch.optim.Muon(hidden), torch.optim.AdamW(others)]


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd", "sgd-momentum", "adafactor", "muon"])
def test_state_is_what_torch_holds(name: str, tmp_path: pathlib.Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    if name in ("muon", "adafactor") and not hasattr(torch.optim, name.capitalize()):
        pytest.skip(f"this PyTorch has no {name}")
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**CONFIG))
    make = {
        "adamw": lambda m: [torch.optim.AdamW(m.parameters())], "adam": lambda m: [torch.optim.Adam(m.parameters())],
        "sgd": lambda m: [torch.optim.SGD(m.parameters(), lr=0.1)],
        "sgd-momentum": lambda m: [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)],
        "adafactor": lambda m: [torch.optim.Adafactor(m.parameters())], "muon": _muon,
    }[name]  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    problem = api.make_problem(str(path), "dgx-h100:1", batch=Batch(1), training=MixedPrecision.of("fp32").updated_by(name))
    plan = Plan((Stage(tuple(range(len(problem.graph.ops))), (0,), Strategy()),), 1, 1, global_batch=1)
    assert analytic.stage_costs(problem, plan)[0].optimizer_bytes == _held(model, make)
