"""Frozen dataclasses of ours do what those of the standard library do, whichever of their methods is asked for first."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import sys
from collections.abc import Callable, Mapping
from dataclasses import field
from functools import partial
from types import ModuleType
from typing import Any

import pytest

from meshwright.base import frozen

Decorator = Callable[..., Callable[[type], type]]
CLASSES = '''
from __future__ import annotations
from collections.abc import Mapping
from dataclasses import field
from functools import partial

@dataclass(frozen=True, slots=True)
class Plain:
    """A name and what it has."""
    name: str
    degrees: tuple[int, ...] = (1, 2)
    ratio: float = 0.5

@dataclass(frozen=True, slots=True)
class One:
    """A single field, whose hash is that of a tuple of one."""
    value: int

@dataclass(frozen=True, slots=True)
class Nothing:
    """No field at all."""

@dataclass(frozen=True, slots=True)
class Made:
    """Fields that a factory makes, that are not shown, compared or hashed, and that are looked at when all are there."""
    n: int = field(metadata={"minimum": 1})
    held: Mapping[str, int] = field(default_factory=dict, compare=False)
    hidden: int = field(default=3, repr=False)
    noted: str = field(default="", hash=False)

    def __post_init__(self):
        object.__setattr__(self, "hidden", self.hidden * 2)

    @property
    def twice(self):
        return self.n * 2

@dataclass(frozen=True, slots=True, eq=False)
class Apart:
    """Equal to itself only."""
    n: int = 0

@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Unshown:
    """Neither shown nor compared."""
    n: int = 0

@dataclass(frozen=True, slots=True, order=True)
class Ordered:
    """Made by the standard library."""
    n: int = 0

@dataclass(frozen=True, slots=True)
class Own:
    """Shows itself in its own way."""
    n: int = 0
    def __repr__(self):
        return "mine"

@dataclass(frozen=True, slots=True)
class Keyword:
    """Fields that are given by name, and one that nobody gives."""
    n: int = 0
    by_name: int = field(default=1, kw_only=True)
    ours: int = field(default=2, init=False)
'''
NAMES = ("Plain", "One", "Nothing", "Made", "Apart", "Unshown", "Ordered", "Own", "Keyword")
GIVEN: Mapping[str, tuple[Any, ...]] = {"Plain": ("a",), "One": (7,), "Made": (4,)}


def module(name: str, dataclass: Decorator) -> ModuleType:
    made = ModuleType(name)
    vars(made)["dataclass"] = dataclass
    sys.modules[name] = made  # where pickle looks
    exec(CLASSES, vars(made))
    return made


def tried(act: Callable[[], Any]) -> Any:
    """What comes of a call: what it returns, or the kind and the words of its error."""
    try:
        return act()
    except Exception as error:
        return type(error), str(error)


QUESTIONS: Mapping[str, Callable[[Any, tuple[Any, ...]], Any]] = {
    "shown": lambda kind, given: repr(kind(*given)).partition(" object at ")[0].rpartition(".")[2],
    "hash": lambda kind, given: hash(kind(*given)) if kind.__hash__ is not object.__hash__ else "of its own",
    "equal": lambda kind, given: (kind(*given) == kind(*given), kind(*given) != kind(*given), kind(*given) == 3),
    "signature": lambda kind, given: str(inspect.signature(kind)),
    "annotations": lambda kind, given: kind.__init__.__annotations__,
    "called": lambda kind, given: kind.__init__.__qualname__,
    "fields": lambda kind, given: [(f.name, f.type, f.init, f.repr, f.compare, f.kw_only) for f in dataclasses.fields(kind)],
    "dictionary": lambda kind, given: dataclasses.asdict(kind(*given)),
    "parameters": lambda kind, given: str(kind.__dataclass_params__),
    "matched": lambda kind, given: kind.__match_args__,
    "slots": lambda kind, given: (kind.__slots__, hasattr(kind(*given), "__dict__")),
    "replaced": lambda kind, given: tried(lambda: dataclasses.astuple(dataclasses.replace(kind(*given), n=9))),
    "pickled": lambda kind, given: dataclasses.astuple(pickle.loads(pickle.dumps(kind(*given)))),
    "copied": lambda kind, given: (
        dataclasses.astuple(copy.copy(kind(*given))), dataclasses.astuple(copy.deepcopy(kind(*given))),
    ),
    "too few": lambda kind, given: tried(lambda: kind()) if given else "",
    "too many": lambda kind, given: tried(lambda: kind(*range(9))),
    "unknown": lambda kind, given: tried(lambda: kind(*given, nosuch=1)),
    "set": lambda kind, given: [tried(partial(setattr, kind(*given), f.name, 2)) for f in dataclasses.fields(kind)],
    "added": lambda kind, given: issubclass(tried(lambda: setattr(kind(*given), "nosuch", 2))[0], (AttributeError, TypeError)),
    "deleted": lambda kind, given: [tried(partial(delattr, kind(*given), f.name)) for f in dataclasses.fields(kind)],
    "class": lambda kind, given: (kind.__name__, kind.__qualname__, kind.__doc__),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("question", QUESTIONS)
def test_what_is_asked_first_is_answered_as_the_standard_library_does(name: str, question: str) -> None:
    ask, given = QUESTIONS[question], GIVEN.get(name, ())
    answers = [ask(getattr(module("frozen_here", made), name), given) for made in (frozen.dataclass, dataclasses.dataclass)]
    assert answers[0] == answers[1]


def test_values_of_fields_are_compared_and_hashed_as_they_are() -> None:
    made = module("frozen_values", frozen.dataclass)
    assert made.Plain("a") == made.Plain("a", (1, 2)) != made.Plain("a", (1, 2), 0.25)
    assert hash(made.Plain("a")) == hash(("a", (1, 2), 0.5)) and hash(made.One(7)) == hash((7,))
    assert made.Made(1, {"a": 1}) == made.Made(1, {"a": 2}) and made.Made(1, noted="a") != made.Made(1)
    assert hash(made.Made(1, noted="a")) == hash(made.Made(1)) != hash(made.Made(2))
    assert made.Made(1).held == {} and made.Made(1).held is not made.Made(1).held
    assert made.Apart(1) != made.Apart(1) and len({made.Apart(1), made.Apart(1)}) == 2


def test_a_class_is_made_without_writing_a_method_and_writes_one_once() -> None:
    made = module("frozen_written", frozen.dataclass)
    assert not any(inspect.isfunction(vars(made.Plain)[name]) for name in ("__init__", "__eq__", "__hash__"))
    one = made.Plain("a")
    assert inspect.isfunction(vars(made.Plain)["__init__"]) and not inspect.isfunction(vars(made.Plain)["__hash__"])
    first = made.Plain.__init__
    assert made.Plain("b") != one and made.Plain.__init__ is first


@dataclasses.dataclass(frozen=True)
class Base:
    """What another class is made from."""

    n: int = 0


def test_a_class_with_a_base_is_made_by_the_standard_library() -> None:
    @frozen.dataclass(frozen=True, slots=True)
    class Derived(Base):
        """One field more."""

        held: list[int] = field(default_factory=list)

    assert (Derived(1).n, Derived(1).held, repr(Derived(2))[-16:]) == (1, [], "ed(n=2, held=[])")
