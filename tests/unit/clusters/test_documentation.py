"""The page about clusters says what is true: its example is read, its names exist, and none is missing."""

from __future__ import annotations

import dataclasses
import pathlib
import re

import pytest

from meshwright import clusters
from meshwright.clusters.file_fields import ClusterFile
from meshwright.network.collectives import ALGORITHMS

PAGE = (pathlib.Path(__file__).resolve().parents[3] / "docs" / "reference" / "clusters.md").read_text()


def test_the_example_of_a_cluster_file_is_read(tmp_path: pathlib.Path) -> None:
    text = re.search(r"```yaml\n(.*?)```", PAGE, re.S)
    assert text is not None
    path = tmp_path / "lab.yaml"
    path.write_text(text[1])
    cluster = clusters.cluster(str(path))
    assert (cluster.n_devices, cluster.n_switches) == (10, 4)


@pytest.mark.parametrize("word", [*clusters.names(), *ALGORITHMS, *(field.name for field in dataclasses.fields(ClusterFile))])
def test_every_name_is_on_the_page(word: str) -> None:
    assert f"`{word}`" in PAGE or f"`{word}.NAME`" in PAGE, word


@pytest.mark.parametrize("spec", sorted(set(re.findall(r"`([a-z0-9-]+:[^`]+)`", PAGE))))
def test_every_example_of_a_cluster_is_one(spec: str) -> None:
    if spec.startswith("builtin"):
        return
    assert clusters.cluster(spec).n_devices >= 8
