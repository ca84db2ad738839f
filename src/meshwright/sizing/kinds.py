"""Which built-in cluster kind a short word means: ``h100`` is ``dgx-h100``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshwright.base.errors import InputError, UnknownNameError
from meshwright.clusters import built_in

__all__ = ["ClusterKind", "kind", "kinds"]


@dataclass(frozen=True, slots=True)
class ClusterKind:
    """A built-in kind of cluster: its name, the stem of its data file, and the devices of a node."""

    name: str
    stem: str
    devices_per_node: int


def kind(word: str, option: str) -> ClusterKind:
    """Return the kind that a word means: its name or alias, the DGX of that name, or the only name that ends so.

    Parameters
    ----------
    word : str
        As typed: ``dgx-h100``, ``h100``, ``gb200``, ``l4``.
    option : str
        Where it was typed, for messages.

    Raises
    ------
    UnknownNameError
        When nothing is called so.
    InputError
        When several names end so.
    """
    known = built_in.stems()
    wanted = word.strip().lower().replace("_", "-").partition(":")[0]
    ending = [name for name in known if name.endswith(f"-{wanted}") and wanted]
    if wanted in known:
        name = wanted
    elif f"dgx-{wanted}" in known:
        name = f"dgx-{wanted}"
    elif len({known[name] for name in ending}) == 1:
        name = ending[0]
    elif ending:
        raise InputError(f"{option} {word}: is short for several kinds; name one of {', '.join(ending)}")
    else:
        raise UnknownNameError(f"kind of cluster ({option})", word, known)
    stem = known[name]
    return ClusterKind(stem.replace("_", "-"), stem, int(built_in.figures(stem)["devices_per_node"]))


def kinds(words: Sequence[str], option: str = "--kinds") -> tuple[ClusterKind, ...]:
    """Return the kinds that words mean, each once, in their order; none for no words.

    Raises
    ------
    InputError
        When a word means nothing, several kinds, or one that is there already.
    """
    found: list[ClusterKind] = []
    for word in words:
        one = kind(word, option)
        if one in found:
            raise InputError(f"{option} {word}: {one.name} is named twice")
        found.append(one)
    return tuple(found)
