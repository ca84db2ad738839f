"""YAML as plain data with no key lost: one that is given twice in a mapping is refused."""

from __future__ import annotations

from typing import Any

import yaml

from meshwright.base.errors import InputError

__all__ = ["load"]


class _Loader(yaml.SafeLoader):
    """Loads plain data, and refuses a key given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return a mapping; `yaml.YAMLError` where a key is given twice."""
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"the key '{key.value}' is given twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def load(text: str, place: str) -> Any:
    """Return what YAML text holds.

    Raises `InputError` when it is no YAML, or a key stands twice in one mapping.
    """
    try:
        return yaml.load(text, Loader=_Loader)  # a SafeLoader
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InputError(f"{place}: is no YAML: {' '.join(str(error).split())}") from None
