"""What there is to name on the command line, read from the folders: the words behind ``meshwright list``."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from meshwright.base import registry
from meshwright.base.errors import PluginError
from meshwright.base.units import format_count

__all__ = ["rooms"]

Entries = list[tuple[str, str]]


def rooms() -> dict[str, Callable[[], Entries]]:
    """Return, for every list there is, the function that makes it: pairs of a name and a line about it."""
    return {
        "models": _models,
        "clusters": _clusters,
        "topologies": _topologies,
        "searches": lambda: _files("search", "search"),
        "costs": lambda: _files("costs", "cost model"),
        "schedules": _schedules,
        "frameworks": _frameworks,
        "launchers": lambda: _files("launchers", "launcher"),
        "formats": lambda: _files("readers", "format"),
        "exports": lambda: _files("writers", "export"),
        "measured": _measured,
    }


def _files(room: str, kind: str, known: tuple[str, ...] = ()) -> Entries:
    """Return the plug-ins of a room, each called a `kind`, with its first sentence.

    `known`: which; empty for all.
    All are imported: a broken one is left out with a warning, and so are those of other packages whose name is taken.
    """
    entries = []
    registry.tell_left_out(room)
    for name in known or registry.names(room):
        try:
            module = registry.load(room, name, kind)
        except PluginError as error:
            registry.warn(f"{error}; it is left out")
            continue
        brought_by = registry.package(room, name)
        text = inspect.cleandoc(module.__doc__ or "")
        entries.append((name, f"of package {brought_by}" if brought_by else " ".join(text.partition("\n\n")[0].split())))
    return entries


def _frameworks() -> Entries:
    """Return every framework and its variants; a broken one is left out with a warning."""
    from meshwright import frameworks

    entries = []
    for name, line in _files("frameworks", "framework"):
        try:
            version, variants = frameworks.plain(name).version, frameworks.variants(name)
        except PluginError as error:
            registry.warn(f"{error}; it is left out")
            continue
        entries.append((name, f"{line.rstrip('.')} ({version})" if version else line.rstrip(".")))
        for one in variants:
            keys = {key for key, _ in one.when}
            suits = bool(keys) and keys <= {"experts", "host", "precision"}  # what a model and a cluster can tell
            chosen = "chosen where the model and the cluster ask for it" if suits else "chosen by name"
            entries.append((one.framework.word, f"{one.title}; {chosen}"))
    return entries


def _schedules() -> Entries:
    from meshwright import schedules

    return sorted((schedules.word(name), line) for name, line in _files("schedules", "schedule", schedules.names()))


def _models() -> Entries:
    from meshwright.models.readers import huggingface

    entries = []
    for name in huggingface.names():
        model = huggingface.describe(name)
        entries.append((name, f"{format_count(model.n_parameters)} parameters, {model.sequence_length} tokens; {model.source}"))
    return entries


def _clusters() -> Entries:
    from meshwright import clusters

    entries = []
    for name in clusters.names():
        try:
            known = clusters.describe(name)
        except PluginError as error:
            registry.warn(f"{error}; it is left out")
            continue
        figures = [f"\n    {kind}: {value} ({source})" for kind, value, source in known.figures]
        entries.append((name, f"{known.title}; for example {known.example}" + "".join(figures)))
    return entries


def _measured() -> Entries:
    from meshwright import validation

    kinds, entries = dict(_files("validation", "measured set")), []
    for name in validation.set_names():
        known = validation.describe_set(name)
        entries.append(
            (name, f"{known.n_rows} rows of the kind {known.kind}; {kinds[known.kind]} ({', '.join(known.sources)})")
        )
    return entries


def _topologies() -> Entries:
    from meshwright import clusters

    known = tuple(name.replace("-", "_") for name in clusters.names())
    return [(name.replace("_", "-"), line) for name, line in _files("topologies", "topology") if name in known]
