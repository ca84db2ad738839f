"""One's own cluster as a YAML file: kinds of device, nodes, switches and links by name."""

from __future__ import annotations

from pathlib import Path

from meshwright.base import fields, files, yaml_text
from meshwright.base.errors import InputError
from meshwright.clusters import assemble
from meshwright.clusters.file_fields import FORMAT, ClusterFile
from meshwright.core.cluster import Cluster

__all__ = ["from_data", "read"]


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
    return from_data(yaml_text.load(files.read_text(path), str(path)), str(path))


def from_data(data: object, place: str) -> Cluster:
    """Return the cluster that the parsed content of a file describes.

    `place`: the file, for messages; the cluster's name where the content gives none.
    Raises `InputError` as for `read`.
    """
    file = fields.record(ClusterFile, data, place)
    if file.format != FORMAT:
        raise InputError(f"{place}: format is '{file.format}'; it must be {FORMAT}")
    return assemble.assemble(file, place)
