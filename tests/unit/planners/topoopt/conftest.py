"""Small workloads, and the published ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import reference
from meshwright.clusters.wires import device
from meshwright.models import read as read_model
from meshwright.planners.topoopt.choices import Servers, SplitSpace, space
from meshwright.planners.topoopt.readers import flexflow_measures
from meshwright.planners.topoopt.step import Step

FILES = {"dlrm16": "dlrm16", "bert16": "transformer16", "candle16": "candle16", "vgg16_16node": "vgg16"}


@pytest.fixture
def small() -> Callable[..., Step]:
    """A workload from parameters on some servers of two devices each."""

    def make(
        spec: str = "topoopt:dlrm,tables=3,rows=1000,width=8,bottom=16-16,top=16-16-1,batch=64", n: int = 4, shard: bool = True
    ) -> Step:
        servers = Servers(n, 2, device("a100-sxm-40gb"), 25e9)
        return Step(space(read_model(spec).instance, servers, None, shard=shard))

    return make


@pytest.fixture
def published() -> Callable[[str], Step]:
    """A workload of the reference with its measurements on 16 servers of four devices."""

    def make(name: str) -> Step:
        workload = read_model(f"{reference.path('topoopt/workloads.json')}#{name}").instance
        measured = flexflow_measures.load(str(reference.path(f"topoopt/measures/{FILES[name]}.json")))
        servers = Servers(16, 4, device("a100-sxm-40gb"), 25e9)
        made: SplitSpace = space(workload, servers, measured, shard=False)
        return Step(made)

    return make
