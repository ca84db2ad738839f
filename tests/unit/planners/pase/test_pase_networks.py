"""PaSE's networks have the weights that their papers' implementations have, counted layer by layer."""

from __future__ import annotations

from collections import Counter

import pytest

from meshwright.planners.pase.networks import NAMES, build


def weights(name: str, **options: int) -> Counter[str]:
    """Return the weights by kind of operator."""
    found: Counter[str] = Counter()
    for operator in build(name, **options).operators:
        found[operator.kind] += operator.weight_elements
    return +found


def test_alexnet_has_five_convolutions_and_three_products() -> None:
    convolutions = 96 * 3 * 11**2 + 256 * 96 * 5**2 + (384 * 256 + 384 * 384 + 256 * 384) * 3**2
    assert weights("alexnet") == {"Conv": convolutions, "FC": 6 * 6 * 256 * 4096 + 4096 * 4096 + 4096 * 1024}
    wider = 192 * 3 * 11**2 + 512 * 192 * 5**2 + (768 * 512 + 768 * 768 + 512 * 768) * 3**2
    assert weights("alexnet", model=256) == {"Conv": wider, "FC": 6 * 6 * 512 * 8192 + 8192 * 8192 + 8192 * 1024}


@pytest.mark.parametrize(("name", "n_weights"), [("resnet101", 44_549_160), ("inception3", 23_834_568)])
def test_image_models_have_torchvisions_weights_but_for_the_bias_of_the_last_layer(name: str, n_weights: int) -> None:
    """Inception without its auxiliary classifier."""
    assert sum(weights(name).values()) == n_weights - 1000


def test_language_models_have_the_weights_of_their_layers() -> None:
    assert weights("rnnlm") == {"Embedding": 2048 * 100_000, "LSTM": 2 * 4 * 2 * 2048**2, "FC": 2048 * 100_000}
    encoder, decoder = 4 * 512**2 + 2 * 512 * 2048, 8 * 512**2 + 2 * 512 * 2048
    assert weights("transformer") == {
        "Embedding": 2 * 512 * 50_000, "Einsum": 6 * (encoder + decoder) + 512 * 50_000, "Norm": 6 * (2 + 3) * 2 * 512,
    }  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_the_narrowest_model_keeps_every_layer_and_the_batch_changes_no_weight(name: str) -> None:
    usual, narrow = build(name), build(name, model=1)
    assert [operator.kind for operator in narrow.operators] == [operator.kind for operator in usual.operators]
    assert all(min(operator.sizes) >= 1 for operator in narrow.operators)
    for before, after in zip(usual.operators, narrow.operators, strict=True):
        assert (after.weight_elements > 0) == (before.weight_elements > 0)
    assert weights(name, batch=32) == weights(name)
