"""Fields of a model's configuration, typed and checked: every wrong one is answered with file, field,
value and what is allowed. What no reader asked for is told.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from meshwright.base import fields
from meshwright.base.errors import InputError
from meshwright.models.harmless import is_harmless

__all__ = ["ModelConfig"]

_LARGEST = 10**7
_SPELLING_RATIO = 0.92  # how alike two names are that one may be taken for the other


class ModelConfig:
    """The content of a ``config.json`` and where it stands; it remembers which fields were asked for.

    `place`: file or built-in name, for messages.
    `fields`: the JSON object.
    `asked`: names of fields that were asked for, shared with the configuration that this one is a change of.
    """

    def __init__(self, place: str, fields: Mapping[str, Any], asked: set[str] | None = None) -> None:
        self.place = place
        self.fields = fields
        self._asked: set[str] = set() if asked is None else asked

    def changed(self, **fields: Any) -> ModelConfig:
        """Return the same configuration with other values of some fields."""
        return ModelConfig(self.place, {**self.fields, **fields}, self._asked)

    def accounts_for(self, *names: str) -> None:
        """Count fields as asked for: what they say is told otherwise, or has no effect beside other fields."""
        self._asked.update(names)

    def unread(self) -> tuple[str, ...]:
        """Return the fields that may change the model and that nobody asked for, in the order of the file.

        Left out are fields without an effect on layers, their sizes and what they compute (`meshwright.models.harmless`), those
        with a value that says that something is off, and our own, whose names begin with an underscore.
        """
        left = (name for name in self.fields if name not in self._asked and not name.startswith("_"))
        return tuple(name for name in left if not is_harmless(name, self.fields[name]))

    def given(self, name: str) -> bool:
        """Return whether the field is there and not null."""
        return self._value(name) is not None

    def _value(self, name: str) -> Any:
        """Return a field as it is, None where it is absent."""
        self._asked.add(name)
        return self.fields.get(name)

    def integer(self, name: str, meaning: str, default: int | None = None, *, minimum: int = 1, maximum: int = _LARGEST) -> int:
        """Return a whole number.

        `name`: the field; names separated by ``|`` are spellings of the same field, the first one given counts.
        `default`: value where the field is absent or null; None where it must be given.
        `minimum`, `maximum`: smallest and largest value allowed.
        Raises `InputError` when it is missing, no whole number, or out of range.
        """
        found = self._found(name)
        if found is None:
            return self._absent(name, meaning, default)
        key, value = found
        place = f"{self.place}: {key}"
        return fields.whole(value, place, minimum=minimum, maximum=maximum, meaning=meaning, or_float=True)

    def ratio(self, name: str, meaning: str, default: float) -> float:
        """Return a number between 0 and 1 (a drop-out probability).

        Raises `InputError` when it is no number or out of range.
        """
        found = self._found(name)
        if found is None:
            return default
        key, value = found
        return fields.number(value, f"{self.place}: {key}", minimum=0, maximum=1, meaning=meaning)

    def flag(self, name: str, meaning: str, default: bool) -> bool:
        """Return true or false.

        Raises `InputError` when it is neither.
        """
        found = self._found(name)
        if found is None:
            return default
        key, value = found
        return fields.flag(value, f"{self.place}: {key}", meaning=meaning)

    def text(self, name: str, meaning: str, default: str) -> str:
        """Return a text.

        Raises `InputError` when it is none.
        """
        found = self._found(name)
        if found is None:
            return default
        key, value = found
        return fields.text(value, f"{self.place}: {key}", meaning=meaning)

    def words(self, name: str, meaning: str) -> tuple[str, ...]:
        """Return a list of texts, empty where absent.

        Raises `InputError` when it is something else.
        """
        value = self._value(name)
        if value is None:
            return ()
        place = f"{self.place}: {name}"
        return tuple(fields.text(word, place, meaning=meaning) for word in fields.items(value, place, of=f"texts ({meaning})"))

    def whole_numbers(self, name: str, meaning: str) -> tuple[int, ...]:
        """Return a list of whole numbers that are not negative, empty where absent.

        Raises `InputError` when it is something else.
        """
        value = self._value(name)
        if value is None:
            return ()
        place = f"{self.place}: {name}"
        held = fields.items(value, place, of=f"whole numbers ({meaning})")
        return tuple(fields.whole(item, place, minimum=0, meaning=meaning) for item in held)

    def part(self, name: str) -> ModelConfig:
        """Return the configuration nested in a field (``text_config``).

        Raises `InputError` when the field is no JSON object.
        """
        value = self._value(name)
        return ModelConfig(f"{self.place}: {name}", fields.entry(value, f"{self.place}: {name}"))

    def _found(self, name: str) -> tuple[str, Any] | None:
        """Spelling and value of the first spelling given.

        Raises `InputError` when none is given but a field is there that looks like a misspelling of one.
        """
        spellings = name.split("|")
        self._asked.update(spellings)
        for key in spellings:
            if self.fields.get(key) is not None:
                return key, self.fields[key]
        for key in spellings:
            close = _close(key, self.fields)
            if close and close[0] not in spellings:
                raise InputError(f"{self.place}: the field '{close[0]}' is not known; did you mean '{key}'?")
        return None

    def _absent(self, name: str, meaning: str, default: int | None) -> int:
        """The default, or the message that the field is missing."""
        if default is None:
            spellings = " or ".join(f"'{key}'" for key in name.split("|"))
            raise InputError(f"{self.place}: the field {spellings} is missing ({meaning}); add it")
        return default


@cache
def _letters(name: str) -> frozenset[str]:
    """Return the letters of a name, each once."""
    return frozenset(name)


def _close(name: str, names: Iterable[str]) -> list[str]:
    """Return the one of `names` that is spelt most alike, empty where none is alike enough.

    A letter that only one of two names has is one that cannot be matched: most names are left aside by that alone.
    """
    unlike = 1.0 - _SPELLING_RATIO + 1e-9
    near = [other for other in names if len(_letters(name) ^ _letters(other)) <= unlike * (len(name) + len(other))]
    return difflib.get_close_matches(name, near, n=1, cutoff=_SPELLING_RATIO)
