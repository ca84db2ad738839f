"""Gather the pages of the site in one folder: this folder's, those of the repository's root, and those made from the package.

``python docs/pages.py build/pages``, then ``sphinx-build -c docs build/pages build/site``: what `make docs` runs. Nothing here
names a module of the package: the public names come from ``meshwright.__all__``, the rooms from the folders, lists and options
from the command line, the order of the pages from README.md.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import posixpath
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
ROOT_PAGES = ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
_CODE = re.compile(r"(^```.*?^```$)", re.M | re.S)
_LINK = re.compile(r"(!?)\[([^\]]+)\]\((?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?\)")


def gather(target: Path) -> None:
    """Write every page of the site below an empty folder.

    Parameters
    ----------
    target : Path
        The folder; what it holds is removed first.
    """
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(DOCS, target, ignore=shutil.ignore_patterns("*.py", "*.md", "static", "__pycache__"))
    pages = {page.relative_to(ROOT).as_posix(): page.read_text() for page in DOCS.rglob("*.md")}
    pages |= {name: (ROOT / name).read_text() for name in ROOT_PAGES}
    made = {"python": python(), "rooms": rooms(), "lists": lists(), "options": options()}
    pages |= {f"docs/reference/{name}.md": text for name, text in made.items()}
    for name, text in pages.items():
        page = target / _on_site(name)
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(relinked(text, name) + (contents(text, list(made)) if name == "docs/README.md" else ""))


def relinked(text: str, name: str) -> str:
    """Return a page with links between files of the repository as links between pages of the site.

    Parameters
    ----------
    text : str
        The page.
    name : str
        Its file, from the repository's root.

    Returns
    -------
    str
        The same; links to files that are no page (sources, the licence) are their words only.
    """

    def link(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(name), match[3]))
        if not (target.startswith("docs/") or target in ROOT_PAGES):
            return match[2]
        place = posixpath.relpath(_on_site(target), posixpath.dirname(_on_site(name)) or ".")
        return f"{match[1]}[{match[2]}]({place}{match[4] or ''})"

    return "".join(part if part.startswith("```") else _LINK.sub(link, part) for part in _CODE.split(text))


def contents(index: str, made: list[str]) -> str:
    """Return the tables of contents of the site: the sections of README.md, with the pages they name.

    Parameters
    ----------
    index : str
        README.md.
    made : list of str
        Pages of the reference that are made from the package.

    Returns
    -------
    str
        One hidden ``toctree`` per section, and one for the pages of the repository's root.
    """
    sections = {
        section.splitlines()[0].partition(":")[0]: re.findall(r"\[([^\]]+)\]\(([a-z_]+/[^)]+)\.(?:md|ipynb)\)", section)
        for section in re.split(r"^## ", index, flags=re.M)[1:]
    }
    sections["Reference"] += [(name.capitalize(), f"reference/{name}") for name in made]
    sections["Project"] = [
        (name.removesuffix(".md").capitalize(), f"project/{name.removesuffix('.md')}") for name in ROOT_PAGES
    ]
    text = ""
    for title, pages in sections.items():
        entries = "\n".join(f"{label[0].upper()}{label[1:].replace('`', '')} <{page}>" for label, page in pages)
        text += f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n{entries}\n```\n"
    return text


def python() -> str:
    """Return the page of the public names, each with the docstring of what it stands for."""
    import meshwright

    text = "# Python\n\nAll that `import meshwright` promises; see [what is stable](stability.md).\n"
    for title, kind, wanted in (("Functions", "autofunction", False), ("Classes", "autoclass", True)):
        text += f"\n## {title}\n"
        for name in meshwright.__all__:
            if isinstance(getattr(meshwright, name), type) is wanted:
                text += _described(kind, f"meshwright.{name}")
    return text


def rooms() -> str:
    """Return the page of the rooms: what each asks of its plug-ins, and the public names of the room's own file."""
    text = (
        "# Rooms\n\nA plug-in is one file in a room. What each room asks of its files; see [add a "
        "search](../howto/add_a_search.md).\n"
    )
    for file in sorted((ROOT / "src" / "meshwright").rglob("__init__.py")):
        if "one file per" in (ast.get_docstring(ast.parse(file.read_text())) or "").lower():
            module = ".".join(file.parent.relative_to(ROOT / "src").parts)
            text += f"\n## {file.parent.name}\n" + _described("automodule", module)
    return text


def lists() -> str:
    """Return the page of all that ``meshwright list`` knows."""
    words = re.search(r"`meshwright list ([a-z]+[|][a-z|]+)`", (DOCS / "reference" / "command_line.md").read_text())
    assert words, "docs/reference/command_line.md says which lists there are: `meshwright list a|b|c`"
    text = "# Lists\n\nWhat `meshwright list` prints, without the figures of clusters.\n"
    for word in words[1].split("|"):
        text += f"\n## {word.capitalize()}\n\n| name | is |\n|---|---|\n"
        for name, line in json.loads(_said("list", word, "--json"))[word].items():
            text += f"| `{name}` | {_cell(line.splitlines()[0])} |\n"
    return text


def options() -> str:
    """Return the page of every command's options, as ``--help`` prints them."""
    text = (
        "# Options\n\nWhat `meshwright COMMAND --help` prints; see [command line](command_line.md) for what the commands do.\n"
    )
    for name in re.findall(r"^## (\w+)$", (DOCS / "reference" / "command_line.md").read_text(), re.M):
        text += f"\n## {name}\n\n```text\n{_said(name, '--help').strip()}\n```\n"
    return text


def _on_site(name: str) -> str:
    """Return where a file of the repository lies on the site."""
    if name == "docs/README.md":
        return "index.md"
    return name.removeprefix("docs/") if name.startswith("docs/") else f"project/{name}"


def _described(kind: str, name: str) -> str:
    """Return what Sphinx replaces by the docstrings of a name."""
    members = "" if kind == "autofunction" else "\n   :members:\n   :special-members: __call__"
    return f"\n```{{eval-rst}}\n.. {kind}:: {name}{members}\n```\n"


def _cell(text: str) -> str:
    """Return a line of a docstring as a cell of a Markdown table."""
    return text.replace("``", "`").replace("|", "\\|").replace("<", "&lt;")


def _said(*words: str) -> str:
    """Return what a command prints."""
    from meshwright import cli

    said, before = io.StringIO(), sys.argv
    sys.argv = ["meshwright", *words]
    try:
        with contextlib.redirect_stdout(said):
            cli.main()
    except SystemExit as end:
        assert not end.code, f"meshwright {' '.join(words)}: exit code {end.code}"
    finally:
        sys.argv = before
    return said.getvalue()


if __name__ == "__main__":
    gather(Path(sys.argv[1]))
