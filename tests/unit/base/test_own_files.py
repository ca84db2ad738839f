"""A broken file in a room of ours is one warning with its name, and one error where it is named; all else works."""

from __future__ import annotations

import pathlib
import signal
import sys
from collections.abc import Callable, Iterator
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from meshwright import models
from meshwright.api import listing
from meshwright.base import promises, registry
from meshwright.base.errors import InputError, PluginError, PluginWarning
from meshwright.commands._early import limited

PARAMS = "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass Params:\n    n: int = 1\n"
SEARCH = PARAMS + "def search(problem, params, *, seed, stop):\n    return 1\n"
TOPOLOGY = PARAMS + "def build(params, name):\n    return 1\n"
READ = "def read(source):\n    raise {}\n"
CACHES = (registry._homes, registry._loaded, registry.warn)
Put = Callable[..., None]


@pytest.fixture
def put(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Put]:
    """Return what puts files into a room, as if they lay in the package: ``put("search", name=code)``."""
    homes: dict[str, dict[str, str]] = {}
    usual = registry._homes
    for cache in CACHES:
        cache.cache_clear()

    def file(room: str, **files: str) -> None:
        for name, code in files.items():
            module = f"own_file_{room}_{name}"
            (tmp_path / f"{module}.py").write_text(code)
            sys.modules.pop(module, None)
            homes.setdefault(room, {})[name] = module

    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(registry, "_homes", lambda room: MappingProxyType({**usual(room), **homes.get(room, {})}))
    yield file
    for cache in CACHES:
        cache.cache_clear()


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("raise RuntimeError('two\\nlines')\n", "RuntimeError: two lines"),
        ("import sys\nsys.exit(3)\n", "SystemExit: 3"),
        ("raise KeyboardInterrupt\n", "KeyboardInterrupt"),
        ("def (\n", "SyntaxError"),
        ("import a_package_that_nobody_has\n", "ModuleNotFoundError"),
        (PARAMS, "has no search"),
        (SEARCH + "STOPS_EARLY = 1\n", "has STOPS_EARLY = 1; it must be True or False"),
        (SEARCH + "BASELINES = 'best'\n", "has BASELINES = 'best'; it must be a tuple of names"),
        (SEARCH + "BASELINES = (1,)\n", "it must be a tuple of names"),
        (SEARCH + "GIVEN = 'batch'\n", "has GIVEN = 'batch'; it must be a tuple of names"),
    ],
)
def test_a_broken_search_is_one_warning_in_its_list_and_an_error_where_it_is_named(put: Put, code: str, told: str) -> None:
    before = listing.rooms()["searches"]()
    put("search", mine=code)
    with pytest.warns(PluginWarning) as said:
        assert listing.rooms()["searches"]() == before
    assert [told in str(one.message) and "search mine " in str(one.message) for one in said] == [True]
    with pytest.raises(PluginError, match="search mine "):
        registry.load("search", "mine", "search")


def test_an_example_that_is_no_text_leaves_its_topology_out_of_the_clusters(put: Put) -> None:
    put("topologies", mine=TOPOLOGY + "EXAMPLE = 5\n")
    with pytest.warns(PluginWarning, match="topology mine has EXAMPLE = 5; it must be a text") as said:
        words = [name for name, _ in listing.rooms()["clusters"]()]
    assert len(said) == 1 and "mine" not in words and "torus" in words


@pytest.mark.parametrize("name", ["BUILT_IN", "CHOICES", "FRAMEWORKS", "FROZEN", "OTHER_FIELDS", "RINGS", "ROUNDS", "STATES"])
def test_what_a_plug_in_says_of_itself_is_true_or_false(name: str) -> None:
    said = promises.broken(SimpleNamespace(**{name: "yes"}), (), needs_defaults=True)  # type: ignore[arg-type]
    assert said == f"has {name} = 'yes'; it must be True or False"


def test_constants_of_the_right_types_are_taken() -> None:
    right = {"EXAMPLE": "4", "STOPS_EARLY": True, "BASELINES": ("best",), "COLUMNS": (), "SUFFIX": ".sh"}
    assert promises.broken(SimpleNamespace(**right), ("EXAMPLE",), needs_defaults=True) == ""  # type: ignore[arg-type]


def test_a_users_interrupt_while_a_plug_in_is_imported_is_the_users(put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    put("search", mine="import signal\nsignal.raise_signal(signal.SIGINT)\n" + SEARCH)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job in the background ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            registry.load("search", "mine", "search")
    finally:
        signal.signal(signal.SIGINT, before)


def test_of_two_files_of_one_name_the_first_is_taken_and_both_are_told(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("search", "planners/other/search"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "twin.py").write_text(SEARCH)
    monkeypatch.setattr(registry, "_PACKAGE", tmp_path)
    for cache in CACHES:
        cache.cache_clear()
    with pytest.warns(PluginWarning) as said:
        assert registry.home("search", "twin") == "meshwright.search.twin"
        registry.names("search")
    (told,) = said
    assert "search twin stands twice: meshwright.search.twin " in str(told.message)
    assert "meshwright.planners.other.search.twin is left out" in str(told.message)
    for cache in CACHES:
        cache.cache_clear()


SAMPLE = str(pathlib.Path(__file__).resolve().parents[2] / "data" / "readers" / "huggingface.json")


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("def recognises(source):\n    return True\n" + READ.format("ValueError('x')"), "recognises whatever it is shown"),
        ("def recognises(source):\n    raise KeyError('x')\n" + READ.format("ValueError('x')"), "fails at recognising"),
        (
            "def recognises(source):\n    return source.text is not None\n" + READ.format("ValueError('x')"),
            "huggingface can: Val",
        ),
        (
            "from meshwright.base.errors import InputError\ndef recognises(source):\n    return source.text is not None\n"
            + READ.format("InputError('line 1: no')"),
            "huggingface can: InputError: line 1: no",
        ),
        ("raise RuntimeError('x')\n", "cannot be loaded"),
    ],
)
def test_a_reader_that_takes_or_breaks_everything_is_one_warning_and_others_read(put: Put, code: str, told: str) -> None:
    usual = models.read(SAMPLE)
    put("readers", aa_mine=code)
    with pytest.warns(PluginWarning) as said:
        assert models.read(SAMPLE) == usual
    assert [told in str(one.message) and "format aa_mine " in str(one.message) for one in said] == [True]


def test_what_no_other_reader_knows_is_the_error_of_the_one_that_took_it(put: Put, tmp_path: pathlib.Path) -> None:
    head = "from meshwright.base.errors import InputError\ndef recognises(source):\n    return source.text == 'mine'\n"
    put(
        "readers",
        aa_mine=head + READ.format("InputError('line 1: no')"),
        ab_mine=head + READ.format("InputError('line 2: no')"),
    )
    (tmp_path / "one").write_text("mine")
    with pytest.raises(InputError, match="line 1: no"):
        models.read(str(tmp_path / "one"))


def test_none_of_our_readers_takes_what_is_nothing() -> None:
    readers: Any = registry.each("readers", "format")
    for name, module in readers:
        assert not models._takes_everything(name, module)


def test_a_limit_of_time_that_ends_while_a_plug_in_is_imported_ends_the_command(put: Put) -> None:
    put("search", mine="import time\ntime.sleep(20)\n" + SEARCH)
    with pytest.raises(InputError, match="time was up"), limited("0.05"):
        registry.load("search", "mine", "search")
