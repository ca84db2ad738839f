"""One's own cluster as a YAML file: kinds of device, nodes, switches and links by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from meshwright.base import fields, files
from meshwright.base.errors import InputError
from meshwright.clusters import assemble
from meshwright.clusters.file_fields import FORMAT, ClusterFile
from meshwright.core.cluster import Cluster

__all__ = ["from_data", "read"]


class _Loader(yaml.SafeLoader):
    """Loads plain data, and refuses a key given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return a mapping; `yaml.YAMLError` where a key is given twice."""
        seen = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"the key '{key.value}' is given twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def read(path: Path) -> Cluster:
    """Return the cluster of a YAML file; the format is described in ``docs/reference/clusters.md``.

    Parameters
    ----------
    path : Path
        The file.

    Returns
    -------
    Cluster
        The cluster.

    Raises
    ------
    InputError
        When the file cannot be read, is no YAML, has an unknown, missing or wrong field, names something that is not there, or
        describes devices that cannot reach each other.
    """
    text = files.read_text(path)
    try:
        data = yaml.load(text, Loader=_Loader)  # a SafeLoader
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InputError(f"{path}: is not valid YAML: {' '.join(str(error).split())}") from None
    return from_data(data, str(path))


def from_data(data: object, place: str) -> Cluster:
    """Return the cluster that the parsed content of a file describes.

    `place`: the file, for messages; the cluster's name where the content gives none.
    Raises `InputError` as for `read`.
    """
    file = fields.record(ClusterFile, data, place)
    if file.format != FORMAT:
        raise InputError(f"{place}: format is '{file.format}'; it must be {FORMAT}")
    return assemble.assemble(file, place)
