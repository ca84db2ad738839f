"""Two layers of Llama 3.1 8B with a smaller vocabulary, in bf16, to measure on a GPU."""

from __future__ import annotations

import json
import pathlib

import torch
from torch import nn


def model() -> nn.Module:
    """Return the layers as Hugging Face builds them, from `layer.json`."""
    import transformers

    fields = json.loads((pathlib.Path(__file__).parent / "layer.json").read_text(encoding="utf-8"))
    config = transformers.LlamaConfig(**{key: value for key, value in fields.items() if not key.startswith("_")})
    return transformers.LlamaForCausalLM(config).to(torch.bfloat16)
