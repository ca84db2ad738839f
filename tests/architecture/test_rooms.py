"""Every file of the package has tests of its own room, every test belongs to a room, and planted bugs are such as could be made."""  # noqa: E501

from __future__ import annotations

import ast
import pathlib

import pytest

import mutant_runs
import mutants
import mutations

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "meshwright"


def test_every_file_belongs_to_a_room_whose_tests_are_there() -> None:
    rooms = mutants.room_tests()
    for path in SOURCE.rglob("*.py"):
        if not path.name.startswith("__") and mutants.room_of(path, list(mutants.settings()["without"])) is None:
            assert mutants.room_of(path, list(rooms)) is not None, path
    for room, tests in rooms.items():
        assert (SOURCE / room).exists(), f"tests/mutants.toml names room {room}, which is gone"
        assert tests, f"room {room} has no tests"


def test_every_test_of_the_package_is_that_of_a_room() -> None:
    named = {test.partition("::")[0] for tests in mutants.room_tests().values() for test in tests}
    for folder in ("unit", "contract", "oracle", "property"):
        for path in (ROOT / "tests" / folder).rglob("test_*.py"):
            assert str(path.relative_to(ROOT)) in named or path.name == "test_benchmark_tables.py", path


def test_processes_that_tests_start_run_the_package_that_is_tested() -> None:
    """Named by where it was imported from: beside the tests may lie another copy than the one with the planted bug."""
    for path in {ROOT / test.partition("::")[0] for tests in mutants.room_tests().values() for test in tests}:
        for helper in (path, *path.parent.glob("*.py")):
            assert '/ "src"' not in helper.read_text(), helper


def test_bugs_are_planted_where_a_bug_could_be_and_nowhere_else(tmp_path: pathlib.Path) -> None:
    text = '''"""Not 1 here."""
def share(a: int = 3, b: float = 0.5) -> float:
    if a < 0 and b:
        raise ValueError(f"a is {a - 1}")
    a += 1
    return max(a, b) - a * b
'''
    path = tmp_path / "share.py"
    path.write_text(text)
    found = mutations.mutants("", path, tmp_path)
    changed = [text[: one.start] + one.after + text[one.end :] for one in found]
    assert len(set(changed)) == len(changed) and text not in changed
    for other in changed:
        ast.parse(other)
        assert '"""Not 1 here."""' in other and "a is {a - 1}" in other and "a: int" in other
    said = {(one.before, one.after) for one in found}
    assert {
        ("3", "4"), ("0.5", "1.0"), ("a < 0", "(a <= 0)"), ("a < 0 and b", "(a < 0 or b)"), ("a < 0 and b", "(not (a < 0 and b))"),  # noqa: E501
        ("a += 1", "pass"), ("max(a, b)", "min(a, b)"), ("max(a, b)", "(b)"), ("a * b", "(a / b)"),
        ("max(a, b) - a * b", "(max(a, b) + a * b)"), ("max(a, b) - a * b", "(max(a, b))"),
    } <= said  # fmt: skip


def test_what_only_asserts_or_compiles_to_the_same_is_no_bug(tmp_path: pathlib.Path) -> None:
    text = "def f(a, b):\n    logger.debug('1', 2)\n    for one in zip(a, b, strict=True):\n        return one + 1\n"
    path = tmp_path / "f.py"
    path.write_text(text)
    found = mutations.mutants("", path, tmp_path)
    assert {one.before for one in found} == {"one + 1", "1"} and all(mutations.changes_code(one, tmp_path) for one in found)
    path.write_text('def f():\n    """Say 1."""\n    assert True\n    return 2 * 3\n')
    start = {word: path.read_text().index(word) for word in ("Say 1", "True", "2 * 3")}
    bugs = (("Say 1", "Say 2", False), ("True", "False", False), ("2 * 3", "6", False), ("2 * 3", "7", True))
    for word, after, changes in bugs:
        one = mutations.Mutant("", "f.py", 1, start[word], start[word] + len(word), word, after)
        assert mutations.changes_code(one, tmp_path) == changes, word


def test_the_lines_of_a_bug_are_those_of_its_statement_and_of_nothing_inside_it() -> None:
    text = "def f(\n    a=1,\n):\n    if a and (\n        a > 2\n    ):\n        return (\n            3\n        )\n"
    text += "    return 4\n"
    lines = {line: list(mutant_runs.statement(text, line)) for line in range(1, 11)}
    assert lines[2] == [1, 2, 3] and lines[5] == [4, 5, 6] and lines[8] == [7, 8, 9] and lines[10] == [10]


def test_tests_that_run_the_line_come_first_and_the_cheapest_of_them_before() -> None:
    lines = {"one.py": {"slow": ["02"], "quick": ["06"], "other": ["01", "08"]}}
    room = mutant_runs.Room({"slow": 2.0, "quick": 1.0, "other": 0.5, "none": 0.1}, lines)
    mutant = mutations.Mutant("", "one.py", 1, 0, 1, "1", "2")
    assert mutant_runs.nearest(mutant, "a = 1\nb = 2\n", room) == ["quick", "slow"]


def test_bugs_planted_by_hand_are_still_in_the_text() -> None:
    assert all(mutant.before != mutant.after for mutant in mutants.planted((), ()))


def test_the_share_has_wilsons_interval() -> None:
    assert mutants.interval(0, 10)[0] == pytest.approx(0.0) and mutants.interval(10, 10)[1] == pytest.approx(1.0)
    assert mutants.interval(81, 100) == pytest.approx((0.7374, 0.8660), abs=1e-3)
    assert mutants.interval(50, 100) == pytest.approx((0.419, 0.581), abs=1e-3)


def test_a_section_of_the_page_is_put_in_place_of_the_last_of_its_title() -> None:
    page = mutants.put(mutants.put("# Page\n\nText.\n", "## Seed 1\n\nold\n"), "## Seed 2\n\nother\n")
    assert mutants.put(page, "## Seed 1\n\nnew\n") == "# Page\n\nText.\n\n## Seed 1\n\nnew\n\n## Seed 2\n\nother\n"
