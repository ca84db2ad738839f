"""Algorithms that a cluster file names are those there are; a misspelt one is one line."""

from __future__ import annotations

import pathlib

import pytest

from meshwright import clusters
from meshwright.base.errors import InputError
from meshwright.clusters import assemble
from meshwright.network import collectives

PAIR = """format: meshwright/cluster/1
nodes:
  - {name: a, devices: [h100-sxm-80gb, h100-sxm-80gb], switch: {bandwidth: 360 GB/s, latency: 2 us}}
algorithms: [tree]
"""


def test_names_are_those_of_the_network() -> None:
    assert set(assemble.ALGORITHMS) == {*collectives.ALGORITHMS, "in_switch"}


def test_a_misspelt_algorithm_is_one_line(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(PAIR)
    assert clusters.cluster(str(path)).algorithms == ("tree",)
    path.write_text(PAIR.replace("tree", "ringg"))
    with pytest.raises(InputError, match="ringg") as error:
        clusters.cluster(str(path))
    assert "\n" not in str(error.value)
