"""Splits of PaSE's graphs in seconds on a cluster: where parts lie, who fetches what from whom, what is reduced."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest

from meshwright import api, clusters
from meshwright.base.errors import InputError
from meshwright.core.problem import Problem, Stop
from meshwright.network import Network
from meshwright.planners.pase import on_cluster
from meshwright.planners.pase.answer import expert_splits
from meshwright.planners.pase.layer_costs import data_parallel_splits
from meshwright.planners.pase.networks import build
from meshwright.planners.pase.operators import NetworkBuilder, PaseGraph, Tensor


def splits(*rows: tuple[int, ...]) -> list[np.ndarray]:
    return [np.array(row, dtype=np.int64) for row in rows]


def two_layers() -> PaseGraph:
    """Two fully connected layers, 64 samples of 32, 48 and 16 numbers."""
    net = NetworkBuilder(cutoff=1)
    net.fully_connected(net.fully_connected(Tensor(-1, (64, 32)), 48), 16)
    return PaseGraph("two", tuple(net.operators))


def test_data_parallelism_reduces_every_weight_and_moves_nothing() -> None:
    place = clusters.cluster("gtx-1080-ti:8")
    network = build("alexnet", 128)
    rows = [data_parallel_splits(operator, 8)[0] for operator in network.operators]
    found = on_cluster.step_seconds(network, rows, place)
    axis = Network.of(place).axis(np.arange(8)[None, :])
    weights = [operator.weight_elements for operator in network.operators if operator.weight_elements]
    assert found.gradient_seconds == pytest.approx(sum(axis.seconds("all_reduce", 4.0 * n) for n in weights))
    assert (found.reduction_seconds, found.resharding_seconds) == (0.0, 0.0)
    device = place.device(0)
    products = sum(math.prod(operator.gemm.sizes) for operator in network.operators if operator.gemm is not None)
    least = 6.0 * products / 8 / (11.3e12 * device.matmul_ratio)
    assert least < found.compute_seconds < 1.5 * least + 3 * len(network.operators) * device.launch_seconds
    assert found.step_seconds == pytest.approx(found.compute_seconds + found.gradient_seconds)
    beside = on_cluster.step_seconds(network, rows, place, overlap=True)
    assert beside.exposed_seconds == pytest.approx(max(0.0, found.gradient_seconds - found.compute_seconds * 2 / 3))


def test_one_device_sends_nothing() -> None:
    network = build("transformer", 4)
    rows = [np.ones(len(operator.sizes), dtype=np.int64) for operator in network.operators]
    found = on_cluster.step_seconds(network, rows, clusters.cluster("gtx-1080-ti:1"))
    assert found.step_seconds == found.compute_seconds > 0.0


def test_outputs_split_then_inputs_split_is_one_reduction() -> None:
    """Columns, then rows: nothing is moved between the two, partial sums of the second are added, no weight is reduced."""
    place = clusters.cluster("gtx-1080-ti:4")
    found = on_cluster.step_seconds(two_layers(), splits((1, 4, 1), (1, 1, 4)), place)
    axis = Network.of(place).axis(np.arange(4)[None, :])
    assert found.reduction_seconds == pytest.approx(axis.seconds("all_reduce", 64 * 16 * 4.0))
    assert (found.gradient_seconds, found.resharding_seconds) == (0.0, 0.0)


def test_a_layer_that_is_whole_is_copied_to_all_and_read_without_sending() -> None:
    place = clusters.cluster("gtx-1080-ti:4")
    found = on_cluster.step_seconds(two_layers(), splits((1, 1, 1), (4, 1, 1)), place)
    assert found.resharding_seconds == 0.0 and found.gradient_seconds > 0.0  # the weights of the second, over the samples
    back = on_cluster.step_seconds(two_layers(), splits((4, 1, 1), (1, 1, 1)), place)
    assert back.resharding_seconds > 0.0  # all devices fetch three quarters


@pytest.mark.parametrize("seed", range(12))
def test_what_is_fetched_is_what_is_read_and_not_held(seed: int) -> None:
    """Against a count of single elements; every reader gets what it lacks, once."""
    random = np.random.default_rng(seed)
    shape = (int(random.integers(1, 4)) * 4, int(random.integers(1, 3)) * 4)
    ways = [way for way in itertools.product((1, 2, 4), repeat=3) if math.prod(way) <= 8]
    (first, second) = (np.array(ways[random.integers(len(ways))], dtype=np.int64) for _ in range(2))
    held, read = (
        on_cluster._Layout(way, tuple(random.permutation(np.flatnonzero(way > 1)).tolist())).regions(((0,), (1,)), shape)
        for way in (first, second)
    )

    def elements(region: np.ndarray) -> set[tuple[int, ...]]:
        return set(itertools.product(*(range(round(low), round(high)) for low, high in region)))

    found = on_cluster._fetched(held, read)
    assert found.shape == (len(read), len(held))
    for reader, region in enumerate(read):
        wanted = elements(region)
        own = elements(held[reader]) if reader < len(held) else set()
        assert found[reader].sum() == pytest.approx(len(wanted - own))
        for writer, other in enumerate(held):
            if elements(other) != own:
                copies = sum(elements(one) == elements(other) for one in held)
                assert found[reader, writer] == pytest.approx(len(wanted & elements(other)) / copies)
            else:
                assert found[reader, writer] == 0.0


def test_groups_differ_in_the_axes_reduced_over_only() -> None:
    layout = on_cluster._Layout(np.array([2, 3, 4], dtype=np.int64), (2, 0, 1))
    index = np.stack(np.unravel_index(np.arange(24), (4, 2, 3)), axis=1)  # parts of axes 2, 0 and 1 of every device
    for axes, columns in (((0,), [1]), ((1, 2), [2, 0]), ((0, 1, 2), [1, 2, 0])):
        groups = layout.groups(axes)
        assert sorted(groups.ravel().tolist()) == list(range(24))
        for group in groups:
            others = [column for column in range(3) if column not in columns]
            assert len({tuple(index[device, others]) for device in group}) == 1
            assert len({tuple(index[device, columns]) for device in group}) == len(group)


def test_a_slower_network_takes_longer_and_cards_without_peer_access_too() -> None:
    network = build("rnnlm", 64)
    rows = [data_parallel_splits(operator, 8)[0] for operator in network.operators]
    places = (clusters.cluster(f"{name}:8") for name in ("gtx-1080-ti", "rtx-2080-ti"))
    ours, theirs = (on_cluster.step_seconds(network, rows, place) for place in places)
    assert theirs.gradient_seconds == pytest.approx(2.0 * ours.gradient_seconds, rel=0.05)  # half the bandwidth
    assert theirs.compute_seconds < ours.compute_seconds


def test_splits_that_no_cluster_has_devices_for_are_refused() -> None:
    with pytest.raises(InputError, match="fc0 has 8 parts; cluster gtx-1080-ti:4 has 4"):
        on_cluster.step_seconds(two_layers(), splits((8, 1, 1), (1, 1, 1)), clusters.cluster("gtx-1080-ti:4"))


def test_experts_split_as_the_released_benchmarks() -> None:
    network = build("transformer", 64)
    by_name = dict(zip((operator.name for operator in network.operators), expert_splits(network, 16), strict=True))
    assert by_name["embedding0"].tolist() == [4, 1, 1, 4] and by_name["einsum2"].tolist() == [1, 4, 4, 1, 1, 1]
    assert by_name["einsum10"].tolist() == [4, 1, 4, 1] and by_name["softmaxcrossentropy203"].tolist() == [4, 1, 4]
    assert expert_splits(build("rnnlm", 64), 8)[1].tolist() == [2, 1, 4, 1, 1]
    assert expert_splits(build("alexnet", 128), 8)[-2].tolist() == [1, 8, 1]


def test_an_answer_on_a_cluster_says_the_seconds_there() -> None:
    answer = api.plan("pase:alexnet", "gtx-1080-ti:8", search="pase").answer
    held = answer.extra["on_cluster"]
    assert isinstance(held, dict) and 0.0 < held["step_seconds"] < held["data_parallel_step_seconds"]
    assert any("gtx-1080-ti:8 these splits take" in note for note in answer.notes)
    rows = [np.array(parts, dtype=np.int64) for parts in answer.extra["shardings"].values()]  # type: ignore[union-attr]
    again = on_cluster.step_seconds(build("alexnet", 128), rows, clusters.cluster("gtx-1080-ti:8"))
    assert held["step_seconds"] == pytest.approx(again.step_seconds)
    other = api.plan("pase:alexnet", "torus:2x2,device=tpu-v4-32gb,bandwidth=50 GB/s", search="pase").answer
    assert other.extra["on_cluster"]["step_seconds"] is None  # type: ignore[index]
    assert not any("these splits take" in note for note in other.notes)  # it has no peak in single precision


def test_a_search_that_is_asked_to_stop_answers_with_a_bound_that_holds() -> None:
    """Under a memory limit that takes branching: asked at once, it answers after the first multiplier."""
    from meshwright.planners.pase.search import pase

    def asked(stop: Stop) -> object:
        problem: Problem = api.make_problem("pase:inception3")
        return pase.search(problem, pase.Params(n_processors=8, memory=1.693e9), seed=0, stop=stop)

    calls: list[int] = []
    stopped = asked(Stop(asked=lambda: calls.append(1) is None))
    assert calls and stopped.bound.method == "lagrangian"  # type: ignore[attr-defined]
    assert stopped.bound.value <= 2.4e12 and stopped.objective.value >= stopped.bound.value  # type: ignore[attr-defined]
    assert stopped.extra["held_bytes"] <= 1.693e9  # type: ignore[attr-defined]


@pytest.mark.parametrize("ways", list(itertools.product((1, 2), repeat=4)))
def test_partial_sums_of_a_product_of_two_activations_are_of_the_side_without_the_axis(ways: tuple[int, ...]) -> None:
    """A batch of products m k by k n, both activations: the result is summed over k, gradients of m k over n, of k n over m."""
    b, m, n, k = 3, 16, 32, 64
    use = SimpleNamespace()
    axes, sizes = ((0,), (1,), (2,), (3,)), (b * 2.0, float(m), float(n), float(k))
    product = SimpleNamespace(
        gemm=SimpleNamespace(sizes=sizes, axes=axes), uses=(use,), weight_elements=0, kind="Product", axis=0
    )
    cuts = np.array(ways, dtype=np.int64)
    each = {"b": 2.0 * b / ways[0], "m": m / ways[1], "n": n / ways[2], "k": k / ways[3]}
    words = {3: each["b"] * each["m"] * each["n"], 2: each["b"] * each["m"] * each["k"], 1: each["b"] * each["n"] * each["k"]}
    assert on_cluster._reductions(product, cuts) == [((axis,), words[axis], False) for axis in (3, 2, 1) if ways[axis] > 1]
