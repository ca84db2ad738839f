"""Which field is taken for a misspelt one: as `difflib` says, whatever is left aside before it is asked."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from meshwright.models import config
from meshwright.models.readers import huggingface


def misspelt(name: str) -> Iterator[str]:
    """Ways to misspell a name: a letter left out, doubled, changed or added, two letters exchanged, words the other way."""
    middle = len(name) // 2
    yield from (name[:middle] + name[middle + 1 :], name[: middle + 1] + name[middle:], name + "s", "n_" + name, name[:-1])
    yield name[:middle] + "q" + name[middle + 1 :]
    yield name[: middle - 1] + name[middle] + name[middle - 1] + name[middle + 1 :]
    yield "_".join(reversed(name.split("_")))


def test_the_nearest_field_is_the_one_that_all_names_together_give() -> None:
    names = sorted({key for name in huggingface.names() for key in huggingface.configuration(name)})
    found = 0
    for name in names:
        for wrong in misspelt(name):
            near = config._close(wrong, names)
            assert near == difflib.get_close_matches(wrong, names, n=1, cutoff=config._SPELLING_RATIO)
            found += bool(near)
    assert len(names) > 50 and found > len(names)
