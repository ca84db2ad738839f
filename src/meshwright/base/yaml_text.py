"""YAML as plain data with no key lost: one that is given twice in a mapping is refused."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from meshwright.base.errors import InputError

if TYPE_CHECKING:
    import yaml

__all__ = ["dump", "load"]


@cache
def _loader() -> type[yaml.SafeLoader]:
    """Return what loads plain data and refuses a key given twice; most commands read no YAML, and do not load it."""
    import yaml

    class _Loader(yaml.SafeLoader):
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            seen = set()
            for key, _ in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    continue
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"the key '{key.value}' is given twice", key.start_mark)
                seen.add(key.value)
            return super().construct_mapping(node, deep)

    return _Loader


def load(text: str, place: str) -> Any:
    """Return what YAML text holds.

    Raises `InputError` when it is no YAML, or a key stands twice in one mapping.
    """
    import yaml

    try:
        return yaml.load(text, Loader=_loader())  # a SafeLoader
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InputError(f"{place}: is no YAML: {' '.join(str(error).split())}") from None


def dump(content: object) -> str:
    """Return a content as YAML, entries in their order."""
    import yaml

    text: str = yaml.safe_dump(content, sort_keys=False)
    return text
