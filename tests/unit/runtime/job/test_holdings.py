"""The model's own names, and the boxes that parts of flattened weights are made of."""

from __future__ import annotations

import math
import random

import pytest

torch = pytest.importorskip("torch", reason="running plans needs PyTorch: pip install 'meshwright[torch]'")
pytestmark = pytest.mark.torch

from torch import nn  # noqa: E402

from meshwright.runtime.job.holdings import boxes, names_of, owners_of  # noqa: E402


def test_boxes_hold_the_elements_of_a_range_once_each_in_order() -> None:
    drawn = random.Random(0)
    for _ in range(600):
        sizes = [drawn.randint(1, 4) for _ in range(drawn.randint(0, 4))]
        start = drawn.randint(0, math.prod(sizes))
        stop = drawn.randint(start, math.prod(sizes))
        whole, found = torch.arange(math.prod(sizes)).view(sizes), []
        made = boxes(sizes, start, stop)
        for offset, box in made:
            part = whole
            for axis, (first, length) in enumerate(zip(offset, box, strict=True)):
                part = part.narrow(axis, first, length)
            found += part.reshape(-1).tolist()
        assert found == list(range(start, stop)), (sizes, start, stop)
        assert len(made) <= max(1, 2 * len(sizes) - 1), "no more boxes than a range needs"


def test_a_tensor_with_several_names_has_the_first_and_buffers_that_do_not_last_have_none() -> None:
    model = nn.ModuleDict({"table": nn.Embedding(5, 3), "norm": nn.BatchNorm1d(3), "head": nn.Linear(3, 5, bias=False)})
    model["head"].weight = model["table"].weight
    model.register_buffer("passing", torch.zeros(2), persistent=False)
    names = names_of(model)
    assert names.shapes == {
        "table.weight": (5, 3), "norm.weight": (3,), "norm.bias": (3,), "norm.running_mean": (3,), "norm.running_var": (3,),
        "norm.num_batches_tracked": (),
    }  # fmt: skip
    assert names.aliases == {"head.weight": "table.weight"}
    assert {*names.shapes, *names.aliases} == {*model.state_dict()}
    owners = owners_of(nn.Sequential(model["head"], model["norm"]), names)
    assert [owner.name for owner in owners] == ["table.weight", *[name for name in names.shapes if name.startswith("norm.")]]
    assert all(getattr(owner.module, owner.attribute) is not None for owner in owners)
