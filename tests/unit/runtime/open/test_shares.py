"""The samples of a step are dealt out once over the data ranks, and are those that the executor takes."""

from __future__ import annotations

import pathlib
import sys
from typing import Any

import pytest

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1])]

from runtime_processes import plan_of  # noqa: E402

from meshwright.base.errors import InputError  # noqa: E402
from meshwright.runtime.open.shares import DataShare, StepSampler, share_of  # noqa: E402
from meshwright.runtime.ranks.layout import Layout, layout  # noqa: E402
from meshwright.runtime.ranks.plan_file import plan_file_of  # noqa: E402


def places(stages: list[Any], **told: Any) -> Layout:
    return layout(plan_file_of(plan_of(stages, **told), "plan").plan)


ALIKE = {
    "replicas": ([(5, [0, 1, 2], {})], {"global_batch": 19, "n_microbatches": 4}),
    "tensor inside replicas": ([(5, [0, 1, 2, 3], {"tensor": 2})], {"global_batch": 7, "n_microbatches": 3}),
    "stages, more replicas between": ([(1, [0, 1], {}), (2, [2, 3, 4], {}), (2, [5, 6], {})], {"global_batch": 14}),
    "a V": ([(1, [0, 1], {}), (1, [2, 3], {}), (2, [2, 3], {}), (1, [0, 1], {})], {"schedule": "zb_v", "global_batch": 9}),
}  # fmt: skip
UNLIKE = {
    "more replicas first": ([(2, [0, 1, 2], {}), (3, [3], {})], "have 3 and 1 replicas"),
    "more replicas last": ([(2, [0], {}), (1, [3], {}), (2, [2, 1], {})], "have 1 and 2 replicas"),
}


def taken(found: Layout, stage: int, rank: int) -> list[list[int]]:
    """Return the samples of every micro-batch that a rank works on, worked out from the layout alone."""
    rows = []
    for start, stop in map(found.microbatch_rows, range(found.plan.n_microbatches)):
        low, high = found.rows(stage, found.seat(rank, stage).data, stop - start)
        rows.append(list(range(start + low, start + high)))
    return rows


@pytest.mark.parametrize("name", ALIKE)
def test_every_sample_belongs_to_one_data_rank_and_goes_where_the_executor_wants_it(name: str) -> None:
    stages, told = ALIKE[name]
    found = places(stages, **told)
    shares = [share_of(found, rank) for rank in range(found.n_ranks)]
    of_rank = {share.rank: share.rows for share in shares if share.first or share.last}
    assert sorted(row for rows in of_rank.values() for row in rows) == list(range(told["global_batch"]))
    assert len(of_rank) == shares[0].n_ranks == found.plan.stages[0].strategy.data and not any(one.note for one in shares)
    for rank, share in enumerate(shares):
        assert share.rank < share.n_ranks and share.rows == of_rank[share.rank]
        for stage, pieces in ((0, share.first), (found.n_stages - 1, share.last)):
            if stage in found.stages_of(rank):
                assert [list(share.rows[low:high]) for low, high in pieces] == taken(found, stage, rank)
            else:
                assert pieces == ()


@pytest.mark.parametrize("name", UNLIKE)
def test_where_the_ends_deal_samples_out_unlike_every_process_gives_all(name: str) -> None:
    stages, why = UNLIKE[name]
    found = places(stages)
    for rank in range(found.n_ranks):
        share = share_of(found, rank)
        assert (share.rank, share.n_ranks, share.rows) == (0, 1, tuple(range(16))) and why in share.note
        for stage, pieces in ((0, share.first), (found.n_stages - 1, share.last)):
            wanted = taken(found, stage, rank) if stage in found.stages_of(rank) else []
            assert [list(range(*piece)) for piece in pieces] == wanted


def test_a_sampler_deals_out_every_step_in_one_order_and_another_one_in_every_pass() -> None:
    shares = [DataShare(rank, 2, rows, (), ()) for rank, rows in enumerate([(0, 1, 4), (2, 3)])]
    samplers = [StepSampler(share, 13, 5, shuffle=True, seed=3) for share in shares]
    passes = [[list(sampler) for sampler in samplers] for _ in range(2)]
    for first, second in passes:
        assert len(first) == len(second) == len(samplers[0]) == 2
        assert [len(part) for part in first] == [3, 3] and [len(part) for part in second] == [2, 2]
        indices = [i for part in (*first, *second) for i in part]
        assert len(set(indices)) == 10 and set(indices) <= set(range(13))
    assert passes[0] != passes[1] and samplers[0].step == 4
    again = StepSampler(shares[0], 13, 5, shuffle=True, seed=3)
    again.step = 3
    assert (
        list(again) == passes[1][0][1:]
        and again.step == 4
        and list(StepSampler(shares[0], 13, 5, shuffle=True, seed=4)) != passes[0][0]
    )
    assert list(StepSampler(shares[1], 11, 5, shuffle=False, seed=0)) == [[2, 3], [7, 8]]
    assert len(StepSampler(shares[1], 5, 5, shuffle=False, seed=0)) == 1
    with pytest.raises(InputError, match="has 4 samples, but one step of the plan takes 5"):
        StepSampler(shares[0], 4, 5, shuffle=False, seed=0)
