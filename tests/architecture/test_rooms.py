"""Every file of the package has tests of its own room, every test belongs to a room, and planted bugs are such as could be made."""  # noqa: E501

from __future__ import annotations

import ast
import pathlib

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
