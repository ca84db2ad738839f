"""Clusters: from a word, parameters or a file to a `Cluster`. Built-in kinds are data, generated ones files of `topologies`."""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass
from pathlib import Path

from meshwright.base import options, registry
from meshwright.base.errors import InputError, PluginError, UnknownNameError
from meshwright.clusters import built_in
from meshwright.clusters.wires import count
from meshwright.core.cluster import Cluster

__all__ = ["Description", "cluster", "describe", "names"]


@dataclass(frozen=True, slots=True)
class Description:
    """What a word before the colon stands for.

    `word`: ``"dgx-h100"``, ``"torus"``.
    `title`: one sentence.
    `example`: a spec that `cluster` accepts.
    `figures` (tuple of (str, str, str)): name, value with unit, and source (for a generated topology: what the parameter means)
    of every figure.
    """

    word: str
    title: str
    example: str
    figures: tuple[tuple[str, str, str], ...]


def describe(word: str) -> Description:
    """Return what a word before the colon stands for, with the figures behind it and their sources.

    `word`: one of `names`.
    Returns: for lists and documentation.
    Raises `UnknownNameError` when there is no such word.
    """
    from meshwright.clusters import figures

    wanted = word.strip().lower().replace("_", "-")
    if wanted not in names():
        raise UnknownNameError("cluster", word, names())
    stems = built_in.stems()
    if wanted in stems:
        title, example, found = figures.kind(stems[wanted])
    else:
        module = registry.load("topologies", wanted, "topology")
        with registry.blamed("topologies", wanted, "topology"):
            title, example, found = figures.generated(module)
    return Description(wanted, title, f"{wanted}:{example}", found)


def names() -> tuple[str, ...]:
    """Return every word that may stand before the colon: built-in kinds first, then generated topologies."""
    stems = built_in.stems()
    generated = registry.names("topologies", {kind.replace("-", "_") for kind in stems})
    return (*stems, *(name.replace("_", "-") for name in generated))


def cluster(spec: str) -> Cluster:
    """Return the cluster a user names.

    `spec`: a built-in kind with its number of devices (``dgx-h100:64``), a generated topology with its parameters
    (``torus:4x4x4,device=tpu-v4-32gb,bandwidth=50 GB/s``), or the path of a file: our YAML, ASTRA-sim's network YAML, the
    output of ``nvidia-smi topo -m``, NCCL's topology XML.
    Raises `InputError` when nothing is called so, a parameter is wrong, or the file is.
    """
    word, colon, rest = spec.partition(":")
    path = Path(spec)
    try:
        is_file = path.exists() and not path.is_dir()
    except OSError as error:
        raise InputError(f"cluster {spec[:80]}: cannot be read: {error.strerror}") from None
    if is_file or spec.endswith((".yaml", ".yml")) or "/" in word:
        from meshwright.clusters import cluster_yaml, other_formats

        foreign = other_formats.read(path, spec) if is_file else None
        return cluster_yaml.read(path) if foreign is None else foreign
    known = names()
    wanted = word.strip().lower().replace("_", "-")
    if wanted not in known:
        raise UnknownNameError("cluster", word, known)
    stems = built_in.stems()
    if wanted in stems:
        if not colon or not rest.strip():
            raise InputError(f"cluster {spec}: say how many devices: {wanted}:64")
        n_devices = count(rest.strip(), f"cluster {spec}")
        from meshwright.clusters import nodes

        return nodes.build(stems[wanted], n_devices, spec)
    return _generated(wanted, rest, spec)


def _generated(word: str, rest: str, spec: str) -> Cluster:
    """Build a generated topology from the text after the colon."""
    module = registry.load("topologies", word, "topology")
    fields = dataclasses.fields(module.Params)
    words = {field.metadata.get("word", field.name): field.name for field in fields}
    first = fields[0].name
    settings: dict[str, str] = {}
    for i, part in enumerate(part.strip() for part in rest.split(",")):
        key, equals, value = part.partition("=")
        key = key.strip().replace("-", "_")
        if i == 0 and not equals:
            key, value = first, part
        elif not equals:
            raise InputError(f"cluster {spec}: '{part}' is not KEY=VALUE")
        if key not in words and key != first:
            raise UnknownNameError(f"parameter of {word}", key, words)
        key = words.get(key, key)
        if key in settings:
            raise InputError(f"cluster {spec}: {part.partition('=')[0]} is given twice")
        settings[key] = value.strip()
    if not settings.get(first):
        raise InputError(f"cluster {spec}: say its {first.replace('_', ' ')}: {word}:{module.EXAMPLE}")
    if typing.get_origin(typing.get_type_hints(module.Params)[first]) is tuple:
        if not all(size.strip() for size in settings[first].split("x")):
            raise InputError(f"cluster {spec}: '{settings[first]}' lacks a size; write it like {word}:{module.EXAMPLE}")
        settings[first] = settings[first].replace("x", ",")
    params = options.parse(module.Params, settings, f"cluster {spec}", prefix="")
    built: Cluster = module.build(params, spec)
    registry.checked(built, Cluster, "topologies", word)
    if built.name != spec:
        raise PluginError(f"topology {word}: built a cluster called '{built.name}' for {spec}; it must have that name")
    return built
