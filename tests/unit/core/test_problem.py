"""The one argument of a search."""

from __future__ import annotations

import dataclasses

import pytest

from meshwright import api
from meshwright.base.errors import InputError
from meshwright.core.problem import Batch


def test_who_needs_a_cluster_is_told_in_words_that_there_is_none() -> None:
    problem = api.make_problem("gpt2", "flat:4")
    assert problem.required_cluster is problem.cluster
    with pytest.raises(InputError, match="model gpt2: say where to train it: --cluster"):
        _ = dataclasses.replace(problem, cluster=None).required_cluster


def test_a_micro_batch_divides_the_global_batch() -> None:
    for whole in (Batch(), Batch(8, 2), Batch(0, 3), Batch(7)):
        whole.check()
    with pytest.raises(InputError, match="--micro-batch 3: does not divide the global batch of 8 samples; choose a divisor"):
        Batch(8, 3).check()
