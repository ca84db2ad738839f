"""Parts of DAPPLE's planner, each alone: states of a profile, numbers of replicas, placements, published times; by hand."""

from __future__ import annotations

import itertools
import pathlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from meshwright import clusters, models
from meshwright.base.errors import InputError
from meshwright.planners.dapple import arrays, evaluate, exact, machines, states

DIAMOND = """\
n0 -- a -- forward_compute_time=10.0, backward_compute_time=20.0, activation_size=400.0, parameter_size=7.0
n1 -- b -- forward_compute_time=30.0, backward_compute_time=50.0, activation_size=1000.0, parameter_size=11.0
n2 -- c -- forward_compute_time=0.0, backward_compute_time=0.0, activation_size=60.0, parameter_size=0.0
n3 -- d -- forward_compute_time=5.0, backward_compute_time=6.0, activation_size=9.0, parameter_size=1.0
\tn0 -- n1
\tn0 -- n2
\tn1 -- n3
\tn2 -- n3
"""


@pytest.fixture
def spec(tmp_path: pathlib.Path) -> Any:
    path = tmp_path / "diamond.txt"
    path.write_text(DIAMOND)
    return models.read(str(path))


def test_states_of_a_diamond_by_hand(spec: Any) -> None:
    found = states.states_of(spec, fold=False)
    by_layers = {tuple(np.flatnonzero(row).tolist()): i for i, row in enumerate(found.inside)}
    assert set(by_layers) == {(0,), (0, 1), (0, 2), (0, 1, 2), (0, 1, 2, 3)} and found.n_folded == 0
    at = [by_layers[layers] for layers in ((0,), (0, 1), (0, 2), (0, 1, 2), (0, 1, 2, 3))]
    assert found.forward_seconds[at].tolist() == pytest.approx([0.01, 0.04, 0.01, 0.04, 0.045])
    assert found.compute_seconds[at].tolist() == pytest.approx([0.03, 0.11, 0.03, 0.11, 0.121])
    assert found.activation_bytes[at].tolist() == [400.0, 1400.0, 460.0, 1460.0, 1469.0]
    assert found.parameter_bytes[at].tolist() == [7.0, 18.0, 7.0, 18.0, 19.0]
    assert found.needed_bytes[at].tolist() == [400.0, 1400.0, 460.0, 1060.0, 0.0]
    first = found.before_first
    before = {
        layers: {tuple(np.flatnonzero(found.inside[j]).tolist()) for j in found.before[first[i] : first[i + 1]]}
        for layers, i in by_layers.items()
    }  # fmt: skip
    assert before[0, 1, 2] == {(0,), (0, 1), (0, 2)} and before[0, 1] == {(0,)} and before[0,] == set()
    assert found.ops_of_stages([at[0], at[3], at[4]]) == ((0,), (1, 2), (3,))
    folded = states.states_of(spec)
    assert folded.n_folded == 1 and folded.n_states == 3
    assert (
        folded.activation_bytes.tolist() == [460.0, 1460.0, 1469.0]
        and folded.cut_bytes.tolist() == folded.needed_bytes.tolist()
    )


def test_too_many_states_keep_those_of_least_traffic_in_equal_parts_of_time() -> None:
    seconds = np.array([1.0, 2.0, 3.0, 5.0, 6.0, 9.0, 10.0])
    needed = np.array([5.0, 4.0, 6.0, 2.0, 2.0, 7.0, 0.0])
    some: Any = SimpleNamespace(n_states=7, compute_seconds=seconds, needed_bytes=needed)
    assert arrays.kept_states(some, 7) == list(range(7))
    # halves of ten seconds: before five, and from there on
    assert arrays.kept_states(some, 2) == [1, 3, 6]
    assert arrays.kept_states(some, 5) == [0, 1, 3, 4, 5, 6]


def test_stages_may_end_at_states_that_follow_or_at_the_end() -> None:
    some: Any = SimpleNamespace(before_first=np.array([0, 0, 1, 2, 5]), before=np.array([0, 0, 0, 1, 2]))
    first, ends = arrays._following(some, [0, 1, 2, 3])
    rows = [ends[first[k] : first[k + 1]].tolist() for k in range(5)]
    assert rows == [[1, 2, 3, 4], [2, 3, 4], [4], [4], []]


def test_samples_of_the_fullest_replica() -> None:
    space: Any = SimpleNamespace(n_replicas=np.array([1, 2, 3, 4, 8]))
    even = arrays.PlanLimits(1, 0, "never", False, 0, 0)
    uneven = arrays.PlanLimits(1, 0, "never", True, 0, 0)
    assert arrays.samples(space, 6, even).tolist() == [6, 3, 2, 0, 0]
    assert arrays.samples(space, 6, uneven).tolist() == [6, 3, 2, 2, 0]


@pytest.mark.parametrize(("used", "sizes", "n"), [((0, 0), (2, 2), 2), ((1, 0, 0), (2, 2, 3), 3), ((0, 0, 0), (2, 2, 2), 4)])
def test_devices_are_taken_in_every_way_but_exchanged_unused_machines(
    used: tuple[int, ...], sizes: tuple[int, ...], n: int
) -> None:
    found = list(exact.placements(used, sizes, n))
    every = [
        taken for taken in itertools.product(*(range(size - one + 1) for size, one in zip(sizes, used, strict=True)))
        if sum(taken) == n
    ]  # fmt: skip
    fresh = [(i, j) for i in range(len(sizes)) for j in range(i) if used[i] == used[j] == 0 and sizes[i] == sizes[j]]
    assert len(found) == len(set(found))
    assert set(found) == {taken for taken in every if all(taken[i] <= taken[j] for i, j in fresh)}


def test_machines_and_their_published_times() -> None:
    assert machines.sizes_of((8, 12), "here") == (8, 4) and machines.sizes_of((1,), "here") == (1,)
    for ends in ((), (0,), (8, 8), (8, 4)):
        with pytest.raises(InputError):
            machines.sizes_of(ends, "here")
    pair = machines.machines_cluster((2, 4))
    assert machines.all_reduce_seconds(pair, (0,), 1e9) == 0.0
    assert machines.all_reduce_seconds(pair, (2, 3, 4, 5), 25e9) == pytest.approx(2 * 0.75 / 2)
    assert machines.all_reduce_seconds(pair, (2, 3, 4), 25e9) == pytest.approx(2 * 2 / 3 / 1)
    assert machines.all_reduce_seconds(pair, (1, 2), 3e9) == pytest.approx(1.0)
    seconds = machines.send_seconds_per_byte
    assert seconds(pair, (0,), (1,)) == pytest.approx(1 / 25e9) and seconds(pair, (0, 1), (2, 3)) == pytest.approx(1 / 1e9)
    assert seconds(pair, (2, 3), (4, 5)) == pytest.approx(0.5 / 25e9) and seconds(pair, (2,), (3, 4)) == pytest.approx(1 / 25e9)
    # of three parts from two devices, the second and half of the first stay on the machine
    assert seconds(pair, (1, 2), (3, 4, 5)) == pytest.approx(0.5 / 1e9)
    assert seconds(pair, (0, 2), (1, 3)) == pytest.approx(0.5 / 25e9)
    assert machines.machines_cluster((3,)).n_switches == 1 and pair.n_switches == 3


def posed(n_devices: int, batch: int, n_states: int = 4) -> tuple[Any, Any, Any, Any]:
    """Return a chain of equal states on servers of eight, for which only numbers of devices and of samples matter."""
    chain = np.arange(1.0, n_states + 1.0)
    some = SimpleNamespace(
        n_states=n_states, before_first=np.cumsum([0, 0] + [1] * (n_states - 1)), before=np.arange(n_states - 1),
        forward_seconds=chain, backward_seconds=2.0 * chain, activation_bytes=chain, parameter_bytes=chain, needed_bytes=chain,
    )  # fmt: skip
    place = clusters.cluster(f"dgx-v100:{n_devices}")
    problem = SimpleNamespace(batch=SimpleNamespace(global_batch=batch), required_cluster=place)
    return problem, SimpleNamespace(profile_batch=2, activation_ratio=1.0), some, list(range(n_states))


@pytest.mark.parametrize("uneven", [False, True])
@pytest.mark.parametrize(("n_devices", "batch", "smallest"), [(4, 6, 1), (4, 6, 3), (16, 12, 1), (128, 96, 1), (256, 192, 4)])
def test_replicas_divide_a_micro_batch_or_are_few_or_round_numbers(
    n_devices: int, batch: int, smallest: int, uneven: bool
) -> None:
    """Whatever the arrays say, by divisors alone. With samples dealt unevenly any number is possible; beyond 16 multiples of
    eight are tried, beyond 64 powers of two, and all that divide the batch or take all devices.
    """
    space = arrays.space_of(*posed(n_devices, batch), arrays.PlanLimits(smallest, 0, "never", uneven, 0, 0))
    sizes = [size for size in range(smallest, batch + 1) if batch % size == 0]
    assert space.n_microbatches == tuple(batch // size for size in sizes)
    widest = min(n_devices, batch)
    widths = {width for size in sizes for width in range(1, widest + 1) if size % width == 0}
    if uneven:
        powers, divisors = {2**i for i in range(10)}, {width for width in range(1, batch + 1) if batch % width == 0}
        some = set(range(1, 65)) if widest <= 64 else set(range(1, 17)) | set(range(24, 65, 8))
        widths |= {width for width in some | powers | divisors | {widest} if width <= widest and (width <= 64 or widest > 64)}
        if widest > 64:
            widths = {w for w in widths if w <= 16 or w % 8 == 0 or w in divisors}
    assert set(space.n_replicas.tolist()) == widths and sorted(space.n_replicas.tolist()) == space.n_replicas.tolist()
    assert 1 <= space.max_stages <= min(4, n_devices)


def test_sizes_of_micro_batches_that_no_batch_has_are_refused() -> None:
    for limits in (arrays.PlanLimits(7, 0, "never", False, 0, 0), arrays.PlanLimits(1, 4, "never", False, 0, 0)):
        with pytest.raises(InputError, match="global batch 6 has no divisor that is a micro-batch"):
            arrays.space_of(*posed(4, 6), limits)
    space = arrays.space_of(*posed(4, 6), arrays.PlanLimits(1, 3, "never", False, 2, 0))
    assert space.n_microbatches == (2,) and space.max_stages == 2


@pytest.mark.parametrize("n_stages", [1, 2, 3, 4, 6])
def test_stages_of_about_equal_weight_end_at_states_that_follow_each_other(spec: Any, n_stages: int) -> None:
    """Every chain of cuts on a diamond is legal, from no layer to all, with fewer stages where no more states precede."""
    found = states.states_of(spec, fold=False)
    some = SimpleNamespace(states=found, n_states=found.n_states)
    shape = evaluate.Evaluator.even_shape(some, 2, tuple(range(12)), 2, n_stages)  # type: ignore[arg-type]
    ends = [cut.state for cut in shape.cuts]
    assert ends[-1] == found.n_states - 1 and len(ends) <= n_stages and (len(ends) == n_stages or n_stages > 2)
    for before, after in itertools.pairwise(ends):
        assert np.all(found.inside[after][found.inside[before]]) and not np.array_equal(
            found.inside[after], found.inside[before]
        )
    assert [cut.devices for cut in shape.cuts] == [(2 * i, 2 * i + 1) for i in range(len(ends))]
