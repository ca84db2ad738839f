"""Options that tell another model's sizes than those of the model that is named are refused with the option and both sizes."""

from __future__ import annotations

import pytest

from meshwright import models
from meshwright.base.errors import InputError
from meshwright.frameworks.megatron import sizes

LLAMA = {
    "--hidden-size": ("4096",), "--num-attention-heads": ("32",), "--ffn-hidden-size": ("14336",),
    "--group-query-attention": (), "--num-query-groups": ("8",), "--kv-channels": ("128",), "--vocab-size": ("128000",),
    "--padded-vocab-size": ("128512",), "--moe-router-topk": ("2",), "--num-experts": ("1",),
}  # fmt: skip
MIXTRAL = LLAMA | {"--num-experts": ("8",), "--vocab-size": ("32000",), "--padded-vocab-size": ("32256",),
                   "--tensor-model-parallel-size": ("4",)}  # fmt: skip


@pytest.mark.parametrize(
    ("model", "options"),
    [("llama-3.1-8b", LLAMA), ("mixtral-8x7b", MIXTRAL), ("gpt2", {"--hidden-size": ("768",), "--num-query-groups": ("1",)}),
     ("deepseek-v3", {"--hidden-size": ("7168",), "--num-experts": ("256",), "--moe-ffn-hidden-size": ("2048",),
                      "--ffn-hidden-size": ("18432",), "--kv-channels": ("56",), "--multi-latent-attention": ()})],
)  # fmt: skip
def test_a_models_own_sizes_are_taken(model: str, options: dict[str, tuple[str, ...]]) -> None:
    sizes.check(options, "x.sh", models.read(model).graph)


@pytest.mark.parametrize(
    ("model", "changed", "said"),
    [
        ("llama-3.1-8b", {"--hidden-size": ("8192",)}, "--hidden-size: is 8192, but llama-3.1-8b has 4096"),
        ("llama-3.1-8b", {"--ffn-hidden-size": ("28672",)}, "--ffn-hidden-size: is 28672, but llama-3.1-8b has 14336"),
        ("llama-3.1-8b", {"--num-query-groups": ("32",)}, "--num-query-groups: is 32, but llama-3.1-8b has 8"),
        ("llama-3.1-8b", {"--num-attention-heads": ("64",)}, "--num-attention-heads: is 64, but llama-3.1-8b has 32"),
        ("llama-3.1-8b", {"--kv-channels": ("64",)}, "--kv-channels: is 64, but llama-3.1-8b has 128"),
        ("llama-3.1-8b", {"--vocab-size": ("32000",)}, "--vocab-size: is 32000, but llama-3.1-8b has 128256"),
        ("llama-3.1-8b", {"--padded-vocab-size": ("151936",)}, "--padded-vocab-size: is 151936, but llama-3.1-8b has 128256"),
        ("llama-3.1-8b", {"--num-experts": ("8",)}, "--num-experts: is 8, but llama-3.1-8b has none"),
        ("llama-3.1-8b", {"--multi-latent-attention": ()}, "--multi-latent-attention: llama-3.1-8b has none"),
        ("mixtral-8x7b", {"--num-experts": ("16",)}, "--num-experts: is 16, but mixtral-8x7b has 8"),
        ("mixtral-8x7b", {"--moe-router-topk": ("4",)}, "--moe-router-topk: is 4, but mixtral-8x7b has 2"),
        ("mixtral-8x7b", {"--num-experts": ("1",)}, "--num-experts: is not there, but mixtral-8x7b has experts"),
    ],
)
def test_another_models_sizes_are_refused(model: str, changed: dict[str, tuple[str, ...]], said: str) -> None:
    usual = MIXTRAL if model.startswith("mixtral") else LLAMA
    with pytest.raises(InputError) as error:
        sizes.check(usual | changed, "x.sh", models.read(model).graph)
    assert str(error.value) == f"x.sh: {said}: another model?"
