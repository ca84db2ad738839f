"""Which share of a device a predicted peak may fill: quantiles of measured peaks by framework; chances as users write them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright import api, sim
from meshwright.base.errors import InputError
from meshwright.core import peaks
from meshwright.core.peaks import ALL, SHARES, PeakRoom
from meshwright.core.problem import Batch

FOUND = PeakRoom(0.9, 1.2, (0.98, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6), 40, 3, "some")


def test_the_multiple_grows_as_the_chance_shrinks_and_is_interpolated_between_the_shares() -> None:
    assert [FOUND.most_ratio(1.0 - share) for share in SHARES[1:-1]] == pytest.approx([1.1, 1.2, 1.3, 1.4, 1.5])
    assert FOUND.most_ratio(0.07) == pytest.approx(1.26) and FOUND.most_ratio(0.005) == pytest.approx(1.55)
    assert FOUND.share(0.01) == pytest.approx(1.0 / 1.5)


def test_predictions_count_where_they_are_asked_for_and_where_measured_runs_hold_less() -> None:
    assert FOUND.most_ratio(peaks.PLAIN_RISK) == FOUND.share(0.5) == 1.0
    assert FOUND.most_ratio(0.45) == pytest.approx(1.0)  # the median run holds less than predicted
    assert replace(FOUND, below_ratio=(0.9,) * 7).share(0.01) == 1.0


def test_every_entry_of_the_file_rises_and_a_framework_of_few_runs_is_judged_by_all() -> None:
    known = peaks.known_peaks()
    assert ALL in known
    for name, entry in known.items():
        assert len(entry.below_ratio) == len(SHARES) and list(entry.below_ratio) == sorted(entry.below_ratio), name
        assert entry.low_ratio <= entry.high_ratio <= entry.below_ratio[-1] and entry.n_runs >= entry.n_sets >= 0
        assert entry.n_runs >= peaks.FEWEST_RUNS or entry.n_ran >= peaks.FEWEST_RAN
        assert peaks.peaks(name).basis == name
    assert peaks.peaks("no such framework").basis == ALL


def test_a_chance_is_a_number_or_a_percentage_and_anything_else_is_refused_with_its_value() -> None:
    assert peaks.risk("1%") == peaks.risk("0.01") == peaks.risk(0.01) == 0.01
    for word in ("0", "60%", "0.6", "-1%", "nan", "much", "%"):
        with pytest.raises(InputError, match=r"--memory-risk .*: must be a chance above 0 and at most 0.5"):
            peaks.risk(word)


def test_a_plan_keeps_the_room_that_its_question_asks_for() -> None:
    free = api.make_problem("gpt3-2.7b", "dgx-a100:8", batch=Batch(global_batch=64), memory_risk=0.5)
    roomy = replace(free, memory_risk=0.01)
    ratio_kept = roomy.memory_ratio
    assert ratio_kept == api.make_problem("gpt3-2.7b", "dgx-a100:8", memory_risk=0.01).memory_ratio < 0.9
    limit = free.required_cluster.device(0).memory_bytes
    for problem, ratio in ((free, 1.0), (roomy, ratio_kept)):
        found = api.plan(problem)
        assert found.timeline is not None and max(found.timeline.peak_bytes) <= ratio * limit
        assert sim.excess_bytes(problem, found.plan, found.timeline.peak_bytes) <= 0.0
    fullest = api.plan(free)
    beyond = (ratio_kept + 0.05) * limit
    assert fullest.timeline is not None and sim.excess_bytes(free, fullest.plan, (beyond,)) < 0.0
    assert sim.excess_bytes(roomy, fullest.plan, (beyond,) * len(fullest.timeline.peak_bytes)) == pytest.approx(0.05 * limit)
