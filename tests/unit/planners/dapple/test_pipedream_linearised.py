"""The linearised profile: read whole, refused with its line."""

from __future__ import annotations

import pathlib

import pytest

from meshwright import api
from meshwright.base.errors import InputError
from meshwright.core.plan import Plan, Stage
from meshwright.planners.dapple.costs import dapple
from meshwright.planners.dapple.profile import LinearisedProfile

STATES = "2\n0.5\t8\t8\t4\tfirst\n1.5\t24\t16\t12\tsecond\n"
TABLES = "0.5 1.5\n0.5 1.5\n-1 1.0\n" + "8 24\n8 24\n-1 16\n" + "4 12\n4 12\n-1 8\n"
GOOD = STATES + TABLES + "8 16\n\n0\n"


def test_states_tables_cuts_and_predecessors_are_read(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "two-pbs-4.imp"
    path.write_text(GOOD)
    model_spec = api.read(str(path))
    profile = model_spec.instance
    assert model_spec.format == "pipedream_linearised"
    assert isinstance(profile, LinearisedProfile)
    assert profile.profile_batch == 4
    assert profile.compute_seconds[2, 1] == 1.0 and profile.compute_seconds[2, 0] == -1.0
    assert profile.predecessors[1].tolist() == [0]
    assert [op.kind for op in model_spec.graph.ops] == ["first", "second"]


def test_what_crosses_a_cut_leaves_one_stage_and_enters_the_next(tmp_path: pathlib.Path) -> None:
    """8 bytes for 4 samples where states are cut, which is what the last stage keeps when it recomputes."""
    path = tmp_path / "two-pbs-4.imp"
    path.write_text(GOOD)
    problem = api.completed(api.make_problem(api.read(str(path))), "dapple", {"machines": "2", "global_batch": "4"})
    stages = tuple(Stage((i,), (i,), recompute=("full",)) for i in range(2))
    first, last = dapple.stage_costs(problem, Plan(stages, 1, 4, "1f1b", 4))
    assert (first.output_bytes, last.output_bytes) == (8.0, 0.0)
    assert (first.activation_bytes, last.activation_bytes) == (0.0, 8.0)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("1.5\t24\t16\t12\tsecond", "1.5\t24\t16\tsecond", "line 3: 4 fields"),
        ("-1 1.0\n", "-1 one\n", "line 6: '-1 one' is not a row of 2 numbers"),
        ("8 16\n\n0\n", "8 16 24\n\n0\n", "line 13: 3 numbers; expected 2"),
        ("8 16\n\n0\n", "8 16\n\n1\n", "line 15: predecessors of state 1"),
        ("8 16\n\n0\n", "8 16\n", "cut off"),
        ("0.5\t8", "-0.5\t8", "line 2: a number is negative"),
    ],
)
def test_a_wrong_line_is_answered_by_file_and_line(tmp_path: pathlib.Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "wrong.imp"
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(InputError) as error:
        api.read(str(path), file_format="pipedream_linearised")
    assert str(path) in str(error.value) and message in str(error.value)
