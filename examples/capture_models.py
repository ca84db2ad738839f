"""Modules to try ``meshwright capture`` on: language and vision models at full size, small plain networks.

meshwright capture examples.capture_models:llama_8b --out graph.json
"""

from __future__ import annotations

import torch
from torch import nn

__all__ = [
    "Branches",
    "bert_large",
    "branches",
    "gpt2",
    "llama_8b",
    "llama_70b",
    "llama_405b",
    "mixtral_8x7b",
    "plain",
    "recurrent",
    "resnet50",
    "vit_large",
]


def _llama(hidden: int, layers: int, heads: int, width: int) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=8, intermediate_size=width,
        vocab_size=128256, max_position_embeddings=8192, rope_theta=500000.0, rms_norm_eps=1e-5, tie_word_embeddings=False,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def llama_8b() -> nn.Module:
    """Llama-3.1-8B."""
    return _llama(4096, 32, 32, 14336)


def llama_70b() -> nn.Module:
    """Llama-3.1-70B."""
    return _llama(8192, 80, 64, 28672)


def llama_405b() -> nn.Module:
    """Llama-3.1-405B."""
    return _llama(16384, 126, 128, 53248)


def mixtral_8x7b() -> nn.Module:
    """Mixtral-8x7B: two of eight experts per token."""
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, intermediate_size=14336,
        vocab_size=32000, num_local_experts=8, num_experts_per_tok=2, sliding_window=None,
    )  # fmt: skip
    return MixtralForCausalLM(config)


def bert_large() -> nn.Module:
    """BERT-large with its masked-word head."""
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096))


def vit_large() -> nn.Module:
    """ViT-L/16 on 224 x 224 pixels."""
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(
        ViTConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096, num_labels=1000)
    )


def gpt2() -> nn.Module:
    """GPT-2 small; its head shares the word table."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config())


def resnet50() -> nn.Module:
    """ResNet-50 as in the ``transformers`` package."""
    from transformers import ResNetConfig, ResNetForImageClassification

    return ResNetForImageClassification(ResNetConfig(num_labels=1000))


def plain() -> tuple[nn.Module, torch.Tensor]:
    """A convolutional network of six layers, with an input for it."""
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16 * 16 * 16, 64), nn.Linear(64, 10)
    )  # fmt: skip
    return net, torch.empty(8, 3, 32, 32)


class Branches(nn.Module):
    """Equal branches side by side: they must not be taken for layers in a row."""

    def __init__(self, n_branches: int = 4, width: int = 32) -> None:
        super().__init__()
        self.stem = nn.Linear(width, width)
        self.branches = nn.ModuleList(nn.Linear(width, width) for _ in range(n_branches))
        self.head = nn.Linear(width, 10)
        self.example_inputs = torch.empty(4, width)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Add up what the branches make of one stem."""
        stem = self.stem(inputs)
        total = self.branches[0](stem)
        for branch in list(self.branches)[1:]:
            total = total + branch(stem)
        return self.head(total)


def branches() -> nn.Module:
    """Four branches."""
    return Branches()


def recurrent() -> tuple[nn.Module, torch.Tensor]:
    """An LSTM between two products; recurrent modules are captured as one operator."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Linear(16, 32)
            self.cells = nn.LSTM(32, 64, num_layers=2, batch_first=True)
            self.head = nn.Linear(64, 5)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.head(self.cells(self.embed(inputs))[0])

    return Net(), torch.empty(4, 12, 16)
