"""Every command on the pages is run, every link leads somewhere, every plug-in shown works as shown.

A ``console`` or ``bash`` block is run line by line where a line starts with ``meshwright`` (after ``$``, if any), in a folder
of its page's own; ``# exit code N`` at the end of a line says how it ends. A comment ``<!-- not run: reason -->`` before a
block leaves it out. A block opened with ``file=NAME`` is written to that file first. A block without a language
that follows one is what its commands print: each of its lines but ``...`` is compared, but for what a search took.
"""

from __future__ import annotations

import importlib.util
import pathlib
import re
import shlex
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
BLOCK = re.compile(r"(?P<skip><!-- not run: [^\n]+ -->\n)?^```(?P<head>[^\n]*)\n(?P<body>.*?)^```$", re.M | re.S)


def _name(page: pathlib.Path) -> str:
    return page.relative_to(ROOT).as_posix()


def _commands(body: str) -> list[tuple[list[str], int]]:
    """Return the words of every command of ours in a block, and the exit code it is said to have."""
    found = []
    for line in body.splitlines():
        match = re.match(r"^(?:\$ )?(meshwright .*?)(?:\s+# exit code (\d))?$", line)
        if match:
            found.append((shlex.split(match[1], comments=True)[1:], int(match[2] or 0)))
    return found


def _plain(text: str) -> str:
    """Return words alone, and no seconds of planning."""
    return re.sub(r"[\d.]+ m?s of planning", "", " ".join(text.split()))


def _run_blocks(page: pathlib.Path) -> list[tuple[str, str]]:
    return [
        (match["head"], match["body"])
        for match in BLOCK.finditer(page.read_text())
        if not match["skip"] and (match["head"].split(" ")[0] in ("console", "bash", "") or "file=" in match["head"])
    ]


WITH_COMMANDS = [page for page in PAGES if any(_commands(body) for _, body in _run_blocks(page))]


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=_name)
def test_the_commands_on_a_page_do_what_it_says(
    page: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from meshwright import cli

    monkeypatch.chdir(tmp_path)
    said_before = ""
    for head, body in _run_blocks(page):
        if not head:
            lines = [line for line in body.splitlines() if said_before and line.strip() not in ("", "...")]
            assert [line for line in lines if _plain(line) not in said_before] == [], _name(page)
            said_before = ""
            continue
        if "file=" in head:
            target = tmp_path / head.partition("file=")[2]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(body)
            continue
        said_before = ""
        for words, code in _commands(body):
            monkeypatch.setattr(sys, "argv", ["meshwright", *words])
            with pytest.raises(SystemExit) as stopped:
                cli.main()
            said = capsys.readouterr()
            assert int(stopped.value.code or 0) == code, f"{_name(page)}: meshwright {shlex.join(words)}: {said.err}"
            said_before += _plain(said.out)


def test_the_pages_hold_commands_to_run() -> None:
    assert len(WITH_COMMANDS) >= 5


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_every_link_between_pages_leads_somewhere(page: pathlib.Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{_name(page)}: {target}"
        if anchor:
            titles = [title.strip().lower() for title in re.findall(r"^#+ (.*)$", linked.read_text(), re.M)]
            assert anchor in [re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles], f"{_name(page)}: {target}"


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    for page in PAGES:
        if page.is_relative_to(ROOT / "docs") and page.name != "README.md":
            assert page.relative_to(ROOT / "docs").as_posix() in index, f"docs/README.md does not name {_name(page)}"


def test_the_search_on_the_page_is_a_search(tmp_path: pathlib.Path) -> None:
    page = ROOT / "docs" / "howto" / "add_a_search.md"
    body = next(match["body"] for match in BLOCK.finditer(page.read_text()) if "file=halves.py" in match["head"])
    (tmp_path / "halves.py").write_text(body)
    spec = importlib.util.spec_from_file_location("halves", tmp_path / "halves.py")
    assert spec is not None and spec.loader is not None
    halves = importlib.util.module_from_spec(spec)
    sys.modules["halves"] = halves
    try:
        spec.loader.exec_module(halves)
    finally:
        del sys.modules["halves"]

    from meshwright import api
    from meshwright.core.problem import Batch, Stop

    problem = api.make_problem(str(ROOT / "tests" / "data" / "tiny_llama.json"), "flat:2", batch=Batch(8))
    plan = halves.search(problem, halves.Params(), seed=0, stop=Stop()).plan
    assert sorted(op for stage in plan.stages for op in stage.ops) == list(range(len(problem.graph.ops)))
    _, timeline = api.evaluate(problem, plan)
    assert timeline is not None and timeline.step_seconds > 0


def test_the_command_page_names_every_command_and_the_glossary_every_noun() -> None:
    import meshwright
    from meshwright.base import registry

    commands = (ROOT / "docs" / "reference" / "command_line.md").read_text()
    for name in registry.names("commands"):
        assert f"## {name}\n" in commands, name
    glossary = (ROOT / "docs" / "reference" / "glossary.md").read_text()
    for name in ("Batch", "Cluster", "Graph", "Plan", "Problem", "ModelSpec", "Result", "Stop", "Timeline", "MixedPrecision"):
        assert name in meshwright.__all__ and f"`{name}`" in glossary, name


def test_the_plan_page_names_every_field_that_is_printed() -> None:
    from meshwright import api
    from meshwright.core.problem import Batch
    from meshwright.writers import plan_json

    page = (ROOT / "docs" / "reference" / "plan_json.md").read_text()
    entry = plan_json.as_json(api.plan(str(ROOT / "tests" / "data" / "tiny_llama.json"), "flat:4", batch=Batch(16)))
    for field in (*entry, *entry["stages"][0], *entry["schedule"], *entry["bound"], *entry["alternatives"][0]):
        assert f"`{field}`" in page, field


def test_the_codesign_page_names_every_field_every_option_and_every_topology() -> None:
    import dataclasses

    from meshwright import api
    from meshwright.planners.topoopt import design, networks
    from meshwright.planners.topoopt.workloads import families
    from meshwright.planners.topoopt.writers import codesign_json, wiring_csv

    page = (ROOT / "docs" / "reference" / "codesign_json.md").read_text()
    model = "topoopt:bert,layers=1,batch=512"
    answer = codesign_json.as_json(api.codesign(model, servers=4, degree=2, link_bandwidth="100 Gbit/s", budget=2))
    plan, network = answer["plan"], answer["topologies"]["topoopt"]
    fields = [
        *answer,
        *network,
        *network["seconds_by_traffic"],
        *answer["bound"],
        *answer["model"],
        *plan,
        *plan["operators"][0],
    ]
    options = [entry.metadata.get("word", entry.name) for entry in dataclasses.fields(design.Params)]
    for word in (*fields, *options, *plan["rings"][0], *networks.NAMES, *families._families(), *wiring_csv.HEADER):
        assert f"`{word}`" in page, word
