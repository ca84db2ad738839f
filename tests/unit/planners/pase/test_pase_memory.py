"""What PaSE's splits hold on a device, and what is missing when nothing fits: exactly that, and no more."""

from __future__ import annotations

import re

import numpy as np
import pytest

from meshwright import api
from meshwright.planners.pase.memory import held_bytes
from meshwright.planners.pase.networks import build
from meshwright.planners.pase.tables import tables


def test_one_processor_holds_sixteen_bytes_a_weight_and_four_an_output() -> None:
    network = build("alexnet")
    costs = tables(network, 1, 100.0)
    expected = [16 * operator.weight_elements + 4 * operator.output_elements for operator in network.operators]
    assert held_bytes(costs).tolist() == pytest.approx(expected)
    assert sum(operator.weight_elements for operator in network.operators) > 5e7  # AlexNet has about 60 million


def test_what_is_split_is_held_in_parts_and_what_is_not_stands_on_every_device() -> None:
    network = build("alexnet", batch=128)
    costs = tables(network, 8, 100.0)
    held = np.split(held_bytes(costs), costs.problem.first[1:-1])
    checked = 0
    for operator, splits, own in zip(network.operators, costs.splits, held, strict=True):
        for row, n_bytes in zip(splits.tolist(), own.tolist(), strict=True):
            if row[0] == 8 and max(row[1:]) == 1 and operator.weight_elements:  # the batch only: weights stand whole
                assert n_bytes == pytest.approx(16 * operator.weight_elements + 4 * operator.output_elements / 8)
                checked += 1
    assert checked >= 5


def test_what_is_missing_is_what_has_to_be_added_and_the_number_named_is_the_first_that_fits() -> None:
    def asked(n: int, n_bytes: float) -> api.Result:
        return api.plan("pase:rnnlm", settings={"n_processors": str(n), "memory": repr(n_bytes)})

    answer = asked(4, 2e9).answer
    assert answer.plan is None and answer.missing_bytes > 0
    assert asked(4, 2e9 + answer.missing_bytes * (1 + 1e-9)).answer.plan is not None
    assert asked(4, 2e9 + answer.missing_bytes * 0.999).answer.plan is None
    n = int(re.match(r"(\d+) processors", answer.nearest)[1])  # type: ignore[index]
    assert n > 4 and np.log2(n / 4) == int(np.log2(n / 4))
    assert asked(n, 2e9).answer.plan is not None and asked(n // 2, 2e9).answer.plan is None
