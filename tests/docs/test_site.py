"""The site shows every page, every public name, every room and every list, and its links lead from page to page."""

from __future__ import annotations

import importlib.util
import pathlib
import re
from types import ModuleType

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pages", ROOT / "docs" / "pages.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("docs/howto/a.md", "[x](../reference/b.md#c)", "[x](../reference/b.md#c)"),
        ("docs/howto/a.md", "[x](../README.md)", "[x](../index.md)"),
        ("docs/howto/a.md", "[x](../../ARCHITECTURE.md#y)", "[x](../project/ARCHITECTURE.md#y)"),
        ("docs/howto/a.md", "see [the solvers](../../src/meshwright/solvers).", "see the solvers."),
        ("docs/howto/a.md", "![x](../pictures/p.png)", "![x](../pictures/p.png)"),
        ("docs/README.md", "[x](../ARCHITECTURE.md), [y](howto/a.md)", "[x](project/ARCHITECTURE.md), [y](howto/a.md)"),
        ("ARCHITECTURE.md", "[x](docs/howto/a.md)", "[x](../howto/a.md)"),
        (
            "CONTRIBUTING.md",
            "[x](CHANGELOG.md) [y](https://z.org/a.md) [z](#here)",
            "[x](CHANGELOG.md) [y](https://z.org/a.md) [z](#here)",
        ),
        ("docs/a.md", "```text\n[x](../LICENSE)\n```\n[x](../LICENSE)", "```text\n[x](../LICENSE)\n```\nx"),
    ],
)
def test_links_between_files_become_links_between_pages(pages: ModuleType, name: str, text: str, expected: str) -> None:
    assert pages.relinked(text, name) == expected


def test_every_page_stands_once_in_the_contents_in_the_order_of_the_index(pages: ModuleType) -> None:
    contents = pages.contents((ROOT / "docs" / "README.md").read_text(), ["python"])
    assert re.findall(r":caption: (.*)", contents) == ["Tutorials", "How-to", "Reference", "Explanation", "Project"]
    listed = re.findall(r"<(.*)>$", contents, re.M)
    found = [page for pattern in ("*.md", "*.ipynb") for page in (ROOT / "docs").rglob(pattern)]
    files = [page.relative_to(ROOT / "docs").with_suffix("").as_posix() for page in found]
    root = [f"project/{name.removesuffix('.md')}" for name in pages.ROOT_PAGES]
    assert sorted(listed) == sorted([*(name for name in files if name != "README"), "reference/python", *root])


def test_every_public_name_has_its_place(pages: ModuleType) -> None:
    import meshwright

    assert sorted(re.findall(r"^\.\. auto\w+:: meshwright\.(\w+)$", pages.python(), re.M)) == sorted(meshwright.__all__)


def test_every_room_to_which_a_file_can_be_added_is_described(pages: ModuleType) -> None:
    asked = set(re.findall(r"`(\w+)/NAME\.py`", (ROOT / "ARCHITECTURE.md").read_text()))
    assert len(asked) >= 7 and asked <= set(re.findall(r"^## (\S+)$", pages.rooms(), re.M))


def test_every_list_is_shown_with_its_names(pages: ModuleType) -> None:
    from meshwright.api import listing

    shown = pages.lists()
    assert sorted(re.findall(r"^## (\w+)$", shown, re.M)) == sorted(word.capitalize() for word in listing.rooms())
    for word, entries in listing.rooms().items():
        for name, _ in entries():
            assert f"| `{name}` | " in shown, f"{word}: {name}"


def test_the_options_of_every_command_are_shown(pages: ModuleType) -> None:
    from meshwright.base import registry

    shown = pages.options()
    for name in registry.names("commands"):
        assert f"\n## {name}\n\n```text\nUsage: " in shown, name
    assert "--global-batch" in shown
