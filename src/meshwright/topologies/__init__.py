"""Topologies: from parameters to a `Cluster`. One file per topology; the word before the colon in ``torus:4x4x4``.

Promises of a topology module, checked by ``tests/contract/test_topologies.py``:

* ``Params`` is a frozen dataclass; its first field is what stands after the colon, the others are ``key=value`` after commas;
* ``build(params, name) -> Cluster``: all devices reach each other, every link has its opposite, figures carry their source.

The built-in kinds of bought nodes (``dgx-h100:64``) are data files of ``meshwright/data/clusters``, built by `_nodes`.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from meshwright import _params, _plugins
from meshwright.cluster import Cluster
from meshwright.errors import InputError, UnknownNameError
from meshwright.topologies import _nodes
from meshwright.topologies._wires import count

__all__ = ["cluster", "names"]


def names() -> tuple[str, ...]:
    """Return every word that may stand before the colon: built-in kinds first, then generated topologies."""
    return (*_nodes.kinds(), *(name.replace("_", "-") for name in _plugins.names("topologies")))


def cluster(spec: str) -> Cluster:
    """Return the cluster a user names.

    Parameters
    ----------
    spec : str
        A built-in kind with its number of devices (``dgx-h100:64``), a generated topology with its parameters
        (``torus:4x4x4,device=tpu-v4-32gb,bandwidth=50 GB/s``), or the path of a YAML file.

    Returns
    -------
    Cluster
        The cluster.

    Raises
    ------
    InputError
        When nothing is called so, a parameter is wrong, or the file is.
    """
    word, colon, rest = spec.partition(":")
    path = Path(spec)
    if path.is_file() or spec.endswith((".yaml", ".yml")) or "/" in word:
        from meshwright.topologies import _yaml

        return _yaml.read(path)
    known = names()
    wanted = word.strip().lower().replace("_", "-")
    if wanted not in known:
        raise UnknownNameError("cluster", word, known)
    kinds = _nodes.kinds()
    if wanted in kinds:
        if not colon or not rest.strip():
            raise InputError(f"cluster {spec}: say how many devices: {wanted}:64")
        return _nodes.build(kinds[wanted], count(rest.strip(), f"cluster {spec}"), spec)
    return _generated(wanted, rest, spec)


def _generated(word: str, rest: str, spec: str) -> Cluster:
    """Build a generated topology from the text after the colon."""
    module = _plugins.load("topologies", word, "topology")
    first = dataclasses.fields(module.Params)[0].name
    settings: dict[str, str] = {}
    for i, part in enumerate(part.strip() for part in rest.split(",")):
        key, equals, value = part.partition("=")
        key = key.strip().replace("-", "_")
        if i == 0 and not equals:
            key, value = first, part
        elif not equals:
            raise InputError(f"cluster {spec}: '{part}' is not KEY=VALUE")
        if key in settings:
            raise InputError(f"cluster {spec}: {key} is given twice")
        settings[key] = value.strip()
    if not settings.get(first):
        raise InputError(f"cluster {spec}: say its {first.replace('_', ' ')}: {module.EXAMPLE}")
    settings[first] = settings[first].replace("x", ",")
    params = _params.parse(module.Params, settings, f"cluster {spec}", prefix="")
    built: Cluster = module.build(params, spec)
    return built
