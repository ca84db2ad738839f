"""A framework read from a TOML file: figures of how it runs things, limits, variants; every entry with its source.

A file has ``title``, ``version`` and the tables ``how`` and ``limits``, whose keys are the fields of `Framework` and
`FrameworkLimits`, and ``variants``, each with what is different there and ``when`` it applies. A value is
``{ value = ..., source = "..." }``, or the value alone in a file of one's own. Quantities carry units: ``"90 us"``.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from meshwright.base import fields, files, units
from meshwright.base.errors import InputError
from meshwright.core.framework import AXES, SCOPES, SHARES, Framework, FrameworkLimits
from meshwright.core.optimizers import OPTIMIZERS
from meshwright.core.strategy import CONTEXT_EXCHANGES, ON_HOST, is_recompute

__all__ = ["CIRCUMSTANCES", "Variant", "calibrated_on", "described", "of_content", "read", "unsaid"]

CIRCUMSTANCES: typing.Final = (
    "experts", "host", "drops_tokens", "release_before", "release_from", "precision", "async_tensor", "reference_copy",
)  # fmt: skip
"""What may decide a variant: whether a model has experts that are spread, the hosts' processors (``x86``, ``arm``), whether
tokens beyond a capacity are dropped, the release, the precision of products, asynchronous tensor parallelism, whether a frozen
copy of the model stands beside it as reference."""

_OWN = ("name", "variant", "version", "limits", "base")
_HANDS_OVER = ("copies_gathered",)  # says where collectives write, and nothing of how long operators take
_OF_A_MODEL = ("tensor_heads", "split_experts")  # limits that a framework's module finds of each model

_KEYS = ("title", "version", "base", "calibrated_on", "how", "limits", "variants")


@dataclass(frozen=True, slots=True)
class Variant:
    """A framework under circumstances of its own.

    Parameters
    ----------
    framework : Framework
        With its `variant` named.
    title : str
        What it is, in words.
    when : tuple of (str, str or bool)
        Which of `CIRCUMSTANCES` it asks for; empty where it is chosen by name only.
    beside : bool
        Whether it may stand beside another variant, whose figures hold where its own are the plain ones.
    """

    framework: Framework
    title: str = ""
    when: tuple[tuple[str, str | bool], ...] = ()
    beside: bool = False

    def applies(self, circumstances: Mapping[str, str | bool]) -> bool:
        """Return whether all that it asks for is so; a release that is not told is the newest."""
        return bool(self.when) and all(_holds(key, wanted, circumstances) for key, wanted in self.when)


def _holds(key: str, wanted: str | bool, circumstances: Mapping[str, str | bool]) -> bool:
    """Return whether one of the circumstances is as a variant asks."""
    if key in ("release_before", "release_from"):
        release = str(circumstances.get("release", ""))
        before = bool(release) and release < str(wanted)
        return before if key == "release_before" else not before
    return circumstances.get(key, False) == wanted


def read(path: Path) -> tuple[Framework, tuple[Variant, ...]]:
    """Return a framework of the room, called like its file, and its variants.

    Raises
    ------
    InputError
        When an entry is wrong.
    """
    return of_content(files.read_toml(path), path.stem, path.name, Framework())


def of_content(entry: Any, name: str, place: str, base: Framework) -> tuple[Framework, tuple[Variant, ...]]:
    """Return the framework that a file's content describes, and its variants.

    Parameters
    ----------
    entry : object
        What the parser gave.
    name : str
        How it is called.
    place : str
        The file, for messages.
    base : Framework
        What everything is that the file does not say.

    Raises
    ------
    InputError
        When a field is unknown or wrong.
    """
    fields.entry(entry, place, _KEYS)
    calibrated_on(entry, place)
    version = fields.text(entry.get("version", base.version), f"{place}: version")
    plain = _changed(replace(base, name=name, variant="", version=version), entry, place)
    variants = []
    for word, own in fields.entry(entry.get("variants", {}), f"{place}: variants").items():
        table = f"{place}: variants.{word}"
        fields.entry(own, table, ("title", "version", "when", "beside", "how", "limits"))
        changed = _changed(
            replace(plain, variant=word, version=fields.text(own.get("version", version), f"{table}: version")), own, table
        )
        when = fields.entry(own.get("when", {}), f"{table}: when", CIRCUMSTANCES)
        beside = fields.flag(own.get("beside", False), f"{table}: beside")
        variants.append(Variant(changed, fields.text(own.get("title", ""), f"{table}: title"), tuple(when.items()), beside))
    return plain, tuple(variants)


def calibrated_on(entry: Mapping[str, Any], place: str) -> tuple[str, ...]:
    """Return the kinds of device, by name, that a file's figures were fitted to runs on; none where it says none.

    `place`: the file, for messages. Raises `InputError` where they are no names.
    """
    where = f"{place}: calibrated_on"
    return tuple(fields.text(one, where) for one in fields.items(entry.get("calibrated_on", []), where))


def _changed(framework: Framework, entry: dict[str, Any], place: str) -> Framework:
    """Return the framework with the figures and limits of one table."""
    figures = [field for field in dataclasses.fields(Framework) if field.name not in _OWN]
    how = fields.entry(entry.get("how", {}), f"{place}: how", [field.name for field in figures])
    found = {name: _figure(_value(value, f"{place}: how.{name}"), name, f"{place}: how.{name}") for name, value in how.items()}
    known = {field.name: field for field in dataclasses.fields(FrameworkLimits) if field.name not in _OF_A_MODEL}
    table = fields.entry(entry.get("limits", {}), f"{place}: limits", known)
    limits = {
        name: _limit(_value(value, f"{place}: limits.{name}"), name, f"{place}: limits.{name}") for name, value in table.items()
    }
    told = replace(framework.limits, **limits)
    if told.any_order and not told.uneven_hosts:
        raise InputError(f"{place}: limits.uneven_hosts: is false, which needs any_order to be false too")
    return replace(framework, limits=told, **found)


def _value(entry: Any, place: str) -> Any:
    """Return a value that may stand beside its source."""
    if not isinstance(entry, dict):
        return entry
    fields.entry(entry, place, ("value", "source"), ("value",))
    return entry["value"]


def _figure(value: Any, name: str, place: str) -> Any:
    """Return a figure in base units; the end of its name says what it is."""
    if isinstance(getattr(Framework(), name), bool):
        return fields.flag(value, place)
    if isinstance(getattr(Framework(), name), str):
        return fields.text(value, place)
    for ending, dimension in (("_bytes_per_second", "bytes_per_second"), ("_seconds", "seconds"), ("_bytes", "bytes")):
        if name.endswith(ending):
            return units.parse(value, dimension, place=place)
    return fields.number(value, place, minimum=0.0, maximum=1.0 if name in SHARES else None)


def _limit(value: Any, name: str, place: str) -> Any:
    """Return one field of the limits."""
    default = getattr(FrameworkLimits(), name)
    if isinstance(default, bool):
        return fields.flag(value, place)
    if isinstance(default, str):
        if value not in SCOPES:
            raise InputError(f"{place}: is {fields.show(value)}; it must be one of {', '.join(SCOPES)}")
        return value
    listed = tuple(fields.items(value, place))
    for one in listed:
        if name in ("shards", "hybrid_shards", "context_shards", "offload_shards"):
            fields.whole(one, place, minimum=0, maximum=3)
        else:
            fields.text(one, place)
    if name == "degrees" and not set(listed) <= set(AXES):
        raise InputError(f"{place}: names {', '.join(sorted(set(listed) - set(AXES)))}; there are {', '.join(AXES)}")
    if name in ("context_exchanges", "latent_exchanges", "window_exchanges") and not set(listed) <= set(CONTEXT_EXCHANGES):
        strange = ", ".join(sorted(set(listed) - set(CONTEXT_EXCHANGES)))
        raise InputError(f"{place}: names {strange}; there are {', '.join(CONTEXT_EXCHANGES)}")
    if name == "offloads" and not {"none"} <= set(listed) <= set(ON_HOST):
        raise InputError(
            f"{place}: is {', '.join(listed) or 'empty'}; it has none, and may have others of {', '.join(ON_HOST)}"
        )
    unknown = [word for word in listed if name == "optimizers" and word not in OPTIMIZERS]
    if unknown:
        raise InputError(f"{place}: '{unknown[0]}' is no optimizer; there are {', '.join(OPTIMIZERS)}")
    wrong = [word for word in listed if name == "recompute" and not is_recompute(word)]
    if wrong:
        raise InputError(f"{place}: '{wrong[0]}' is no recomputation")
    return listed


def described(entry: Mapping[str, Any]) -> str:
    """Return title and version of a file's content, as a line about it."""
    version = entry.get("version", "")
    return f"{entry.get('title', '')}{f' ({version})' if version else ''}"


def unsaid(framework: Framework) -> str:
    """Return a sentence on what a framework leaves open of itself: how it runs plans, and which; empty where it says both.

    Notes
    -----
    Defaults do everything well: a framework that says nothing of itself is predicted to be the quickest, and to run every plan.
    """
    default = Framework()
    figures = [field.name for field in dataclasses.fields(Framework) if field.name not in (*_OWN, *_HANDS_OVER)]
    open_ = []
    if all(getattr(framework, name) == getattr(default, name) for name in figures):
        open_.append("how it runs ([how])")
    if framework.limits == default.limits:
        open_.append("what it can run ([limits])")
    if not open_:
        return ""
    return f"framework {framework.name} says nothing of {' and '.join(open_)}: defaults, which do everything well, are assumed"
