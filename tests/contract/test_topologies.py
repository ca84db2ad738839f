"""Promises of every topology and built-in kind: connected, symmetric, sourced, whatever the number of devices."""

from __future__ import annotations

import dataclasses
import typing

import numpy as np
import pytest

from meshwright import clusters
from meshwright.base import options, registry
from meshwright.base.errors import InputError
from meshwright.clusters import built_in
from meshwright.clusters.wires import device, device_names
from meshwright.core.cluster import Cluster

GENERATED = registry.names("topologies")
KINDS = sorted(set(built_in.stems().values()))


def _example(name: str) -> str:
    return f"{name.replace('_', '-')}:{registry.load('topologies', name, 'topology').EXAMPLE}"


def _wires(cluster: Cluster) -> list[tuple[int, int, float, float]]:
    links = cluster.links
    columns = (links.source, links.target, links.bytes_per_second, links.latency_seconds)
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


def _check(cluster: Cluster) -> None:
    assert _wires(cluster) == sorted((b, a, rate, latency) for a, b, rate, latency in _wires(cluster))
    assert (cluster.links.source != cluster.links.target).all()
    assert cluster.source
    assert all(kind.source for kind in cluster.kinds)
    assert cluster.groups.shape[1] == cluster.n_devices
    used = np.concatenate([cluster.links.source, cluster.links.target, np.arange(cluster.n_devices)])
    assert len(np.unique(used)) == cluster.n_devices + cluster.n_switches, "a switch without a link"


@pytest.mark.parametrize("name", GENERATED)
def test_the_example_of_a_generated_topology_is_connected_symmetric_and_sourced(name: str) -> None:
    _check(clusters.cluster(_example(name)))


@pytest.mark.parametrize("stem", KINDS)
@pytest.mark.parametrize("n", [1, 2, 5, 8, 9, 27, 130])
def test_a_built_in_kind_may_have_any_number_of_devices(stem: str, n: int) -> None:
    cluster = clusters.cluster(f"{stem.replace('_', '-')}:{n}")
    assert cluster.n_devices == n
    _check(cluster)


@pytest.mark.parametrize("name", GENERATED)
def test_a_generated_topology_may_have_any_number_of_devices_from_its_smallest_on(name: str) -> None:
    first = dataclasses.fields(registry.load("topologies", name, "topology").Params)[0]
    if first.name == "shape":  # several numbers, each of one dimension
        return
    accepted: list[int] = []
    for n in (1, 2, 3, 7, 16, 33):
        try:
            cluster = clusters.cluster(f"{name.replace('_', '-')}:{n}")
        except InputError as error:
            assert "\n" not in str(error) and not accepted, f"{n} devices are refused, {accepted} are not"
            continue
        assert cluster.n_devices == n
        _check(cluster)
        accepted.append(n)
    assert len(accepted) >= 3


@pytest.mark.parametrize("name", GENERATED)
def test_parameters_are_a_frozen_dataclass_each_explained(name: str) -> None:
    module = registry.load("topologies", name, "topology")
    assert isinstance(module.EXAMPLE, str) and module.EXAMPLE
    assert module.Params.__dataclass_params__.frozen
    meanings = clusters.describe(name).figures
    assert len(meanings) == len(dataclasses.fields(module.Params)) and all(meaning for _, _, meaning in meanings)


def _content(cluster: Cluster) -> list[object]:
    """Return all that a cluster says but its name and where its figures are from."""
    fields = {field.name: getattr(cluster, field.name) for field in dataclasses.fields(cluster)}
    links = fields.pop("links")
    columns = [getattr(links, field.name) for field in dataclasses.fields(links)]
    kept = [value for name, value in fields.items() if name not in ("name", "source")]
    return [value.tolist() if isinstance(value, np.ndarray) else value for value in (*columns, *kept)]


def _other_values(value: object) -> list[object]:
    """Return values that a parameter may have instead of its own, of which one is allowed and means something else."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, *(n for n in (1, 2, 4, 8, 16) if n != value)]
    if isinstance(value, float):
        return [2.0 * value, 4.0 * value] if value else [1e-5]
    return [name for name in ("a100-sxm-80gb", "h100-sxm-80gb") if name != value] if isinstance(value, str) else []


@pytest.mark.parametrize("name", GENERATED)
def test_every_parameter_of_a_topology_changes_what_is_built(name: str) -> None:
    module = registry.load("topologies", name, "topology")
    first, _, more = module.EXAMPLE.partition(",")
    hints, fields = typing.get_type_hints(module.Params), dataclasses.fields(module.Params)
    settings = dict(part.split("=") for part in more.split(",") if part)
    words = {field.metadata.get("word", field.name): field.name for field in fields}
    settings = {words.get(word, word): value for word, value in settings.items()}
    size = first.replace("x", ",") if typing.get_origin(hints[fields[0].name]) is tuple else first
    usual = options.parse(module.Params, {fields[0].name: size, **settings}, name, prefix="")
    asked = [usual]
    if "," in size:  # what is asked of shapes may need unlike sizes
        shape = getattr(usual, fields[0].name)
        asked.append(dataclasses.replace(usual, **{fields[0].name: (*shape[:-1], 2 * shape[-1])}))
    for field in fields[1:]:
        heeded = []
        for params, value in ((one, value) for one in asked for value in _other_values(getattr(one, field.name))):
            try:
                changed = module.build(dataclasses.replace(params, **{field.name: value}), name)
            except InputError:
                continue
            heeded.append(_content(changed) != _content(module.build(params, name)))
        assert any(heeded), f"{field.name} is ignored"


@pytest.mark.parametrize("name", GENERATED)
@pytest.mark.parametrize(
    "text", ["", "0", "-1", "nan", "1e3", "2000000", "x", "4,nonsense=1", "4,bandwidth=-1", "4,bandwidth=1 ms"]
)
def test_a_wrong_parameter_is_answered_by_one_sentence(name: str, text: str) -> None:
    with pytest.raises(InputError) as caught:
        clusters.cluster(f"{name}:{text}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", device_names())
def test_a_device_has_positive_figures_and_their_sources(name: str) -> None:
    kind = device(name)
    assert kind.memory_bytes > 4e9
    assert kind.memory_bytes_per_second > 1e11
    assert all(1e12 < flops < 2e16 for _, flops in kind.flops_per_second)
    assert kind.source


@pytest.mark.parametrize("word", clusters.names())
def test_every_word_listed_is_described_with_figures_and_sources(word: str) -> None:
    described = clusters.describe(word)
    assert described.title
    assert described.example.startswith(f"{word}:")
    assert described.figures
    for name, value, source in described.figures:
        assert name and value and source
    clusters.cluster(described.example)
