"""Clusters that do not start or answer are told in a line."""

from __future__ import annotations

import pytest

from meshwright.api.executors import _started
from meshwright.base.errors import InputError


def _fails() -> None:
    raise OSError("Timed out trying to connect\nto tcp://nowhere:1")


@pytest.mark.parametrize(
    ("scheduler", "said"),
    [("nowhere:1", "--scheduler nowhere:1: no dask cluster answers there"), ("", "--backend dask: it does not start")],
)
def test_a_cluster_that_does_not_answer_is_one_line(scheduler: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        _started("dask", scheduler, _fails)
    told = str(caught.value)
    assert told.startswith(said) and "Timed out trying to connect" in told and "\n" not in told and "--backend loky" in told
    assert _started("dask", scheduler, lambda: 3) == 3
