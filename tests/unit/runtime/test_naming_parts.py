"""Names of layers that mean no part of a model: only before and after the repeated ones, or in a plan of two layers."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an optional extra: pip install 'meshwright[torch]'")
pytestmark = pytest.mark.torch

from torch import nn  # noqa: E402

from meshwright.base.errors import InputError  # noqa: E402
from meshwright.runtime.model import naming  # noqa: E402


def model() -> nn.Module:
    return nn.ModuleDict({"stem": nn.Linear(2, 2), "tail": nn.ModuleDict({"out": nn.Linear(2, 2)})})


def test_two_layers_may_both_mean_what_lies_around() -> None:
    assert naming.resolve(model(), ["before", "after"]) == ["", ""]
    assert naming.resolve(model(), ["stem", "after"]) == ["stem", ""] and naming.resolve(model(), ["whole"]) == [""]
    assert naming.resolve(model(), ["stem"]) == ["stem"]


def test_of_more_layers_none_may_mean_nothing_where_nothing_repeats() -> None:
    for names in (["before", "stem", "tail.out"], ["stem", "nothing", "tail.out"], ["stem", "tail.out", "after"]):
        with pytest.raises(InputError, match="has no layer"):
            naming.resolve(model(), names)
    assert naming.resolve(model(), ["stem", "tail.out", "tail"]) == ["stem", "tail.out", "tail"]


def test_the_beginning_that_captured_graphs_leave_out_is_the_shortest_that_all_share() -> None:
    known = dict.fromkeys(["a.b.c", "a.x.b.c", "a.d.e", "x.d.e"], nn.Linear(1, 1))
    assert naming._beginning(known, ["b.c", "d.e"]) == "a" and naming._beginning(known, ["b.c", "q"]) == ""
    assert naming._beginning(known, []) == ""
