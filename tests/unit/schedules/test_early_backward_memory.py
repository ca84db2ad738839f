"""What DAPPLE's early-backward schedule is for: memory that does not grow with the number of micro-batches, against GPipe's."""

from __future__ import annotations

import pathlib

import pytest

from meshwright import api
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Problem
from meshwright.core.timeline import Timeline

WEIGHTS, ACTIVATIONS, N_STAGES = 1e6, 3e6, 4


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Four equal layers, 10 ms forward and 20 ms backward for one sample, whose outputs are all that is kept."""
    path = tmp_path_factory.mktemp("chain") / "four.txt"
    lines = [
        f"n{i} -- L{i} -- forward_compute_time=10, backward_compute_time=20, activation_size={ACTIVATIONS}, "
        f"parameter_size={WEIGHTS}"
        for i in range(N_STAGES)
    ]
    pathlib.Path(path).write_text("\n".join(lines + [f"\tn{i} -- n{i + 1}" for i in range(N_STAGES - 1)]) + "\n")
    return str(path)


def played(chain: str, schedule: str, n_microbatches: int) -> Timeline:
    settings = {"profile_batch": "1", "machines": str(N_STAGES), "global_batch": str(n_microbatches)}
    problem: Problem = api.completed(api.make_problem(chain), "dapple", settings)
    stages = tuple(Stage((i,), (i,), recompute=("none",)) for i in range(N_STAGES))
    _, timeline = api.evaluate(problem, Plan(stages, n_microbatches, 1, schedule, n_microbatches))
    assert timeline is not None
    return timeline


def held(timeline: Timeline) -> list[float]:
    """Return the micro-batches whose activations each stage holds at its peak; weights and optimizer take 4 bytes per byte."""
    return [(peak - 4.0 * WEIGHTS) / ACTIVATIONS for peak in timeline.peak_bytes]


@pytest.mark.parametrize("n_microbatches", [2, 5, 24])
def test_gpipe_holds_every_micro_batch_and_the_policies_only_their_depth(chain: str, n_microbatches: int) -> None:
    left = [N_STAGES - i for i in range(N_STAGES)]
    assert held(played(chain, "gpipe", n_microbatches)) == [n_microbatches] * N_STAGES
    assert held(played(chain, "early_backward_a", n_microbatches)) == [min(n, n_microbatches) for n in left]
    assert held(played(chain, "early_backward_b", n_microbatches)) == [min(2 * n - 1, n_microbatches) for n in left]


def test_policy_a_takes_no_longer_than_gpipe_where_transfers_are_short(chain: str) -> None:
    """By hand, transfers aside: 4 - 1 + 24 micro-batches of 30 ms whatever the order."""
    times = {schedule: played(chain, schedule, 24).step_seconds for schedule in ("gpipe", "early_backward_a", "1f1b")}
    assert times["gpipe"] == pytest.approx(0.81, rel=0.01)
    assert times["early_backward_a"] == pytest.approx(0.81, rel=0.02)
    assert times["1f1b"] == times["early_backward_a"]
