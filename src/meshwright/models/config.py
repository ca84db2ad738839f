"""Fields of a model's configuration, typed and checked: every wrong one is answered with file, field,
value and what is allowed.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshwright.base import fields
from meshwright.base.errors import InputError

__all__ = ["ModelConfig"]

_LARGEST = 10**7
_SPELLING_RATIO = 0.92  # how alike two names are that one may be taken for the other


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The content of a ``config.json`` and where it stands.

    `place`: file or built-in name, for messages.
    `fields`: the JSON object.
    """

    place: str
    fields: Mapping[str, Any]

    def given(self, name: str) -> bool:
        """Return whether the field is there and not null."""
        return self.fields.get(name) is not None

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
        value = self.fields.get(name)
        if value is None:
            return ()
        place = f"{self.place}: {name}"
        return tuple(fields.text(word, place, meaning=meaning) for word in fields.items(value, place, of=f"texts ({meaning})"))

    def whole_numbers(self, name: str, meaning: str) -> tuple[int, ...]:
        """Return a list of whole numbers that are not negative, empty where absent.

        Raises `InputError` when it is something else.
        """
        value = self.fields.get(name)
        if value is None:
            return ()
        place = f"{self.place}: {name}"
        held = fields.items(value, place, of=f"whole numbers ({meaning})")
        return tuple(fields.whole(item, place, minimum=0, meaning=meaning) for item in held)

    def part(self, name: str) -> ModelConfig:
        """Return the configuration nested in a field (``text_config``).

        Raises `InputError` when the field is no JSON object.
        """
        value = self.fields.get(name)
        return ModelConfig(f"{self.place}: {name}", fields.entry(value, f"{self.place}: {name}"))

    def _found(self, name: str) -> tuple[str, Any] | None:
        """Spelling and value of the first spelling given.

        Raises `InputError` when none is given but a field is there that looks like a misspelling of one.
        """
        spellings = name.split("|")
        for key in spellings:
            if self.fields.get(key) is not None:
                return key, self.fields[key]
        for key in spellings:
            close = difflib.get_close_matches(key, self.fields, n=1, cutoff=_SPELLING_RATIO)
            if close and close[0] not in spellings:
                raise InputError(f"{self.place}: the field '{close[0]}' is not known; did you mean '{key}'?")
        return None

    def _absent(self, name: str, meaning: str, default: int | None) -> int:
        """The default, or the message that the field is missing."""
        if default is None:
            spellings = " or ".join(f"'{key}'" for key in name.split("|"))
            raise InputError(f"{self.place}: the field {spellings} is missing ({meaning}); add it")
        return default
