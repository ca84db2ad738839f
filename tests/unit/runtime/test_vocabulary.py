"""Which tables and heads are split by words, which stay whole and why; that they train alike is tested with plans."""

from __future__ import annotations

from typing import Any

import pytest
from runtime_processes import plan_of

torch = pytest.importorskip("torch", reason="running plans needs PyTorch: pip install 'meshwright[torch]'")
pytestmark = pytest.mark.torch

import zoo  # noqa: E402
from torch import nn  # noqa: E402

from meshwright.base.errors import InputError  # noqa: E402
from meshwright.runtime.model.cut import cut  # noqa: E402
from meshwright.runtime.parallel.vocabulary import check_classes, left_whole, of_own_loss, vocabulary_split  # noqa: E402
from meshwright.runtime.ranks.plan_file import plan_file_of  # noqa: E402

WHOLE = [(6, [0, 1], {"tensor": 2})]
PIPELINE = [(3, [0, 1], {"tensor": 2}), (3, [2, 3], {"tensor": 2})]


class Untied(zoo.Direct):
    """Table and head of weights of their own."""

    def __init__(self, words: int = 50) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(words, zoo.WIDTH), nn.Linear(zoo.WIDTH, words)


class Wrapped(nn.Linear):
    """An adapted head, or one of another precision."""


def asked(model: nn.Module, stages: list[Any], tp_plan: dict[str, str] | None = None) -> tuple[list[Any], Any, dict[str, str]]:
    read = plan_file_of(plan_of(stages), "p")
    return cut(model, read.names, (torch.zeros(1, 8, dtype=torch.long),)), read.plan, tp_plan or {}


def wrapped() -> nn.Module:
    model = Untied()
    model.head = Wrapped(zoo.WIDTH, 50)
    return model


@pytest.mark.parametrize(
    ("model", "stages", "told", "table", "head", "why"),
    [
        (Untied, WHOLE, {}, True, True, ""),
        (zoo.Direct, WHOLE, {}, True, True, ""),
        (zoo.Direct, PIPELINE, {}, False, False, "its weights are those of a layer that is not split, or of another stage"),
        (zoo.Direct, WHOLE, {"head": "whole"}, False, False, "the model wishes it whole"),
        (Untied, WHOLE, {"head": "whole"}, True, False, "the model wishes it whole"),
        (lambda: Untied(51), WHOLE, {}, False, False, "its 51 words do not divide by 2"),
        (Untied, [(6, [0, 1, 2, 3], {"tensor": 2, "shard": 3})], {}, False, False, "its 50 words do not divide by 4"),
        (Untied, [(6, [0, 1, 2, 3], {"tensor": 2, "shard": 1})], {}, True, True, ""),
        (wrapped, WHOLE, {}, True, False, "it is a Wrapped, no nn.Linear or nn.Embedding"),
        (Untied, [(6, [0, 1], {})], {}, False, False, ""),
    ],
)
def test_what_is_split_by_words_and_why_the_rest_is_not(
    model: Any, stages: list[Any], told: dict[str, str], table: bool, head: bool, why: str
) -> None:
    question = asked(model(), stages, told)
    units, plan, wishes = question
    found = [vocabulary_split(units, plan, stage, wishes) for stage in range(len(plan.stages))]
    assert (found[0].table, found[-1].head) == ("parts.embed" * table, "parts.head" * head)
    sentences, degree = left_whole(*question), plan.stages[0].strategy.tensor
    assert len(sentences) == (2 - table - head) * (degree > 1)
    assert not why or any(why in sentence for sentence in sentences)
    assert len(of_own_loss(*question)) == head


class Mixes(nn.Module):
    """A head whose logits hang on one another."""

    def __init__(self, after: Any) -> None:
        super().__init__()
        self.head, self.after = nn.Linear(4, 6), after

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (self.after(self.head(x)),)


def test_a_head_that_mixes_classes_is_refused_and_one_that_scales_them_is_not() -> None:
    given = [torch.randn(2, 3, 4)]
    check_classes(Mixes(lambda logits: 30.0 * torch.tanh(logits / 30.0)), "head", given, 3, "p")
    with pytest.raises(InputError, match="p: split by classes over 3 ranks, it computes something else than whole; say in the"):
        check_classes(Mixes(lambda logits: logits.log_softmax(-1)), "head", given, 3, "p")
    with pytest.raises(InputError, match=r"it cannot run: .*; say in the model that it stays whole: .*'head': 'whole'"):
        check_classes(Mixes(lambda logits: logits.view(2, 3, 6)), "head", given, 3, "p")
