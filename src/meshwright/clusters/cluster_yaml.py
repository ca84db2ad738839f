"""One's own cluster as a YAML file: kinds of device, nodes, switches and links by name."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from meshwright.base.errors import InputError, UnknownNameError
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
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a folder; name a YAML file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as text: {error}") from None
    try:
        data = yaml.load(text, Loader=_Loader)  # a SafeLoader
    except (yaml.YAMLError, RecursionError) as error:
        raise InputError(f"{path}: is not valid YAML: {' '.join(str(error).split())}") from None
    return from_data(data, str(path))


def from_data(data: object, where: str) -> Cluster:
    """Return the cluster that the parsed content of a file describes.

    `where`: the file, for messages; the cluster's name where the content gives none.
    Raises `InputError` as for `read`.
    """
    if not isinstance(data, dict):
        raise InputError(f"{where}: holds no cluster; it must have the fields {', '.join(ClusterFile.model_fields)}")
    try:
        file = ClusterFile.model_validate(data)
    except ValidationError as error:
        raise _translated(where, error) from None
    if file.format != FORMAT:
        raise InputError(f"{where}: format is '{file.format}'; must be {FORMAT}")
    return assemble.assemble(file, where)


def _translated(path: str, error: ValidationError) -> InputError:
    """Return the first complaint of the validation as our one sentence."""
    first = error.errors()[0]
    # pydantic adds the name of the type it tried to a union's place; it means nothing to the user
    where = [part for part in first["loc"] if part not in ("str", "float", "int")]
    place = ".".join(str(part) for part in where)
    if first["type"] == "extra_forbidden":
        model = _model_at(where[:-1])
        known = [field.alias or name for name, field in model.model_fields.items()]
        inside = ".".join(str(part) for part in where[:-1])
        return UnknownNameError(f"field in {path}{': ' + inside if inside else ''}", str(where[-1]), known)
    if first["type"] == "missing":
        return InputError(f"{path}: {place} is missing")
    return InputError(f"{path}: {place} is {first['input']!r}: {first['msg'][0].lower()}{first['msg'][1:]}")


def _model_at(where: Sequence[Any]) -> type[BaseModel]:
    """Return the part of the format that a place in the file belongs to."""
    model: type[BaseModel] = ClusterFile
    for part in where:
        by_name = {field.alias or name: field for name, field in model.model_fields.items()}
        if isinstance(part, str) and part in by_name:
            model = _model_in(by_name[part].annotation) or model
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the model inside an annotation like ``list[LinkEntry]``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in typing.get_args(annotation):
        found = _model_in(inner)
        if found is not None:
            return found
    return None
