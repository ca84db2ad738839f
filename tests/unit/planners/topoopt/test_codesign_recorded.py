"""The parts of the co-design search as they were when this was written: moves, networks, walks, windows, on small workloads.

Shares of rings are even here, not those of the linear programme, whose corner depends on its solver; the machines are made up.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import pytest

from meshwright.core.cluster import Device
from meshwright.models import read
from meshwright.planners.topoopt import alternate, finder, moves, networks, optical, published, windows
from meshwright.planners.topoopt import fabric as fabric_module
from meshwright.planners.topoopt.alternate import NetworkParts, PlanOnNetwork
from meshwright.planners.topoopt.choices import OperatorSplit, Servers, SplitSpace, space
from meshwright.planners.topoopt.fabric import Fabric
from meshwright.planners.topoopt.jobs import PlacedJob, fitted, scattered, together
from meshwright.planners.topoopt.step import TRAFFIC, Placement, PlacementTraffic, Step, data_parallel
from meshwright.planners.topoopt.workloads.workload import DATA, Operation, Workload
from recorded import Recorded

SPECS = {
    "dlrm": "topoopt:dlrm,tables=3,rows=1000,width=8,bottom=16-16,top=16-16-1,batch=48",
    "bert": "topoopt:bert,layers=1,length=8,hidden=32,heads=2,batch=24",
    "moe": "topoopt:moe,batch=24,inputs=12,gate=6,experts=3",
    "candle": "topoopt:candle,batch=24,tower=64,top=64",
}


def machine(memory_bytes: float = 4e9) -> Device:
    """Return a device with round figures."""
    return Device(
        "made up", (("fp32", 1e10), ("bf16", 2e10)), memory_bytes, 1e11, launch_seconds=1e-8, reserved_bytes=0.0,
        matmul_ratio=0.5, attention_ratio=0.5, memory_ratio=0.5,
    )  # fmt: skip


def step_of(name: str, n: int = 4, *, memory_bytes: float = 4e9, **more: object) -> Step:
    """Return a workload on servers of two made-up devices; `more`: of `Step` and `Servers`."""
    inner = {key: more.pop(key) for key in ("gpu_latency_seconds", "gpus_contend") if key in more}
    servers = Servers(n, 2, machine(memory_bytes), 1e10, **inner)  # type: ignore[arg-type]
    return Step(space(read(SPECS[name]).instance, servers, None, shard=True), **more)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def even_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Share every group evenly among its rings: the corner that a linear programme returns is its solver's choice."""

    def even(busy: np.ndarray, item: np.ndarray, base: np.ndarray | None = None) -> np.ndarray:
        del busy, base
        return 1.0 / np.bincount(item)[item]

    monkeypatch.setattr(fabric_module, "even_out", even)


def short(plan: Placement) -> str:
    """Return a plan in a line: choice and servers of every operator, then who is last."""
    words = [f"{k}@{'.'.join(map(str, servers))}" for k, servers in zip(plan.choice, plan.servers, strict=True)]
    return f"{' '.join(words)} | {' '.join(map(str, plan.last))}"


def told(lines: Iterable[str]) -> dict[str, object]:
    """Return how many lines there are, how the first begins, and a sum over all."""
    found = list(lines)
    return {"n": len(found), "first": found[0][:40] if found else "", "crc32": zlib.crc32("\n".join(found).encode())}


def wired(fabric: Fabric) -> str:
    """Return links, rings and routes of a network in a line."""
    links = [f"{a}-{b}*{c:g}" for a, b, c in zip(fabric.source, fabric.target, fabric.count, strict=True)]
    return f"{links} {fabric.cycles} {fabric.pair_ways.tolist()} {fabric.pair_first.tolist()} {fabric.pair_link.tolist()}"


def ringed(fabric: Fabric) -> str:
    """Return the groups of a network with their flows in a line."""
    return "; ".join(
        f"{members}: {[(links, round(share, 6)) for links, share in fabric.flows(members)]}" for members in fabric.groups
    )


@pytest.mark.parametrize(("name", "n"), [("dlrm", 4), ("bert", 6), ("moe", 3), ("candle", 4)])
def test_the_moves_of_a_plan(name: str, n: int, recorded: Recorded) -> None:
    made = step_of(name, n).space
    plan = data_parallel(made)
    found: dict[str, object] = {"chains": moves.chains(made.workload), "streams": moves.streams(made.workload)}
    for way in ("contiguous", "strided", "either"):
        found[f"starts {way}"] = told(map(short, moves.starts(made, way)))
        found[f"beside {way}"] = told(map(short, moves.beside(made, way)))
    found["fewer"] = [short(one) for one in moves.fewer(made)]
    found["silent"], found["last"] = short(moves.silent_last(made, plan)), told(map(short, moves.last(made, plan)))
    late = replace(plan, last=(0,))
    found["last but one"] = told(map(short, moves.last(made, late)))
    found["near"] = [moves.near(made, plan, i) for i in range(len(plan.choice))]
    assert not list(moves.last(replace(made, control_edges=False), plan))
    recorded(found)


@pytest.mark.parametrize(("name", "n"), [("dlrm", 4), ("bert", 6), ("moe", 5), ("candle", 4)])
@pytest.mark.parametrize("way", ["contiguous", "strided", "either"])
def test_walks_of_proposals(name: str, n: int, way: str, recorded: Recorded) -> None:
    made = step_of(name, n).space
    groups = moves.chains(made.workload)
    for propose in ("ours", "published", "published alone"):
        rng, plan, seen = np.random.default_rng(11), data_parallel(made), []
        for _ in range(80):
            if propose == "ours":
                plan = moves.propose(made, groups, plan, rng, way)
            else:
                plan = moves.published_proposal(made, plan, rng, propagation=propose == "published", placement=way)
            seen.append(short(plan))
        recorded(told(seen), propose)


def traffic_of(n: int, seed: int) -> PlacementTraffic:
    """Return point-to-point bytes between some servers, and three groups."""
    rng = np.random.default_rng(seed)
    pair = np.round(rng.random((n, n)) * (rng.random((n, n)) < 0.4) * 2e7)
    np.fill_diagonal(pair, 0.0)
    groups = [tuple(range(n)), tuple(range(0, n, 2)), (0, n - 1)]
    return PlacementTraffic(
        pair, tuple((members, 1e6 * (3 - i)) for i, members in enumerate(dict.fromkeys(groups)) if len(members) > 1)
    )


@pytest.mark.parametrize(("n", "degree"), [(2, 1), (3, 2), (4, 3), (5, 2), (6, 4), (7, 5)])
def test_the_networks_that_the_finder_tries(n: int, degree: int, recorded: Recorded) -> None:
    rng = np.random.default_rng(1)
    drawn = finder.random_cycles(n, degree // 2, rng)
    traffic = traffic_of(n, n)
    made = list(finder.fabrics(traffic, n, degree, 1e9, 1e-6, drawn))
    lines = {"drawn": drawn, "networks": told(map(wired, made)), "rings": told(map(ringed, made))}
    lines["degrees"] = [int(np.bincount(one.source, one.count, n).max()) for one in made]
    lines["busiest"] = [windows._busiest_seconds(one, traffic) for one in made if one.pair_ways.max() == 1]
    recorded(lines)


@pytest.mark.parametrize("n", [3, 5, 6, 8])
def test_rings_and_links_of_every_split_of_the_degree(n: int, recorded: Recorded) -> None:
    traffic = traffic_of(n, 2)
    found = []
    for degree in range(1, 5):
        for n_full in range(min(degree // 2, 2) + 1):
            for n_matched in (0, 1, degree - 2 * n_full):
                count, cycles = finder.lay(traffic, n, degree, finder.hamiltonian(n, n_full), n_matched)
                found.append(f"{degree} {n_full} {n_matched}: {sorted(count.items())} {cycles}")
    recorded(told(found))
    rng = np.random.default_rng(n)
    laid = {frozenset(pair) for pair in ((0, 1), (1, 2), (0, 2))}
    recorded([finder._fresh(n, laid, rng) for _ in range(4)], "fresh")
    recorded([finder.random_cycles(n, k, np.random.default_rng(k)) for k in range(5)], "drawn")


@pytest.mark.parametrize("degree", [1, 2, 3, 4, 6])
def test_the_released_finder(degree: int, recorded: Recorded) -> None:
    found = []
    for n in (4, 6, 8, 12):
        for traffic in ({n: 1.0}, {n: 3.0, n // 2: 1.0}, {2: 5.0, n: 1.0, n // 2: 0.0}):
            for both in (True, False):
                rings = published.find(n, degree, traffic, bidirectional=both)
                found.append(f"{rings} {sorted(published.links(rings).items())}")
    recorded(told(found))


@pytest.mark.parametrize("name", [name for name in networks.NAMES if name not in ("topoopt", "optical", "random")])
def test_networks_to_compare_with(name: str, recorded: Recorded) -> None:
    found = []
    for n, degree in ((4, 4), (6, 4), (8, 6), (12, 5), (16, 2)):
        if name == "torus" and degree < 4:
            continue
        built = networks.build(name, n, degree, 1e9, 1e-6, 3)
        traffic = traffic_of(n, 5)
        fabric = built.fabric.refitted(traffic.pair_bytes, traffic.group_bytes)
        head = (built.n_links, built.n_switch_ports, built.degree, built.port_bytes_per_second, fabric.bytes_per_second)
        more = (
            fabric.mean_hops(),
            fabric.injection_bytes_per_second(),
            fabric.longest_route(np.arange(len(fabric.pair_first) - 1)),
            fabric.forwards,
        )
        found.append({"head": head, "more": more, "links": told([str(fabric.wires()), wired(fabric), ringed(fabric)])})
    recorded(found)


def test_routes_and_shares_of_a_network(recorded: Recorded) -> None:
    count = {(i, (i + way) % 6): 1.0 for i in range(6) for way in (1, 5)} | {(0, 3): 2.0, (3, 0): 2.0, (1, 4): 1.0, (4, 1): 1.0}
    whole = Fabric("made", 6, count, 1e9, 1e-6, cycles=[tuple(range(6)), (0, 1, 4, 3)])
    traffic = traffic_of(6, 9)
    for n_ways in (1, 2, 3):
        fabric = whole.refitted(traffic.pair_bytes, traffic.group_bytes, n_ways)
        found = {
            "wired": told([wired(fabric)]),
            "rings": told([ringed(fabric)]),
            "numbers": dict.fromkeys(map(str, fabric.groups)),
        }
        network = fabric.network()
        found["network"] = [np.asarray(one, dtype=np.float64) for one in network]
        found["lengths"] = [
            fabric.longest_route(np.arange(len(fabric.pair_first) - 1)),
            *(fabric.longest_flow([g]) for g in range(3)),
        ]
        for both in (True, False):
            spread = fabric.spread(traffic.pair_bytes, traffic.group_bytes, together=both)
            assert spread is not None
            ways = [f"{spread.ways(a, b)} {spread.way_shares(a, b)}" for a in range(6) for b in range(6) if a != b]
            found[f"spread {both}"] = {"ways": told(ways), "rings": told([ringed(spread)])}
        recorded(found, f"{n_ways} ways")
    assert whole.spread(np.zeros((6, 6)), ()) is None
    fabric = published.fabric(published.find(6, 2, {6: 1.0}), 1e9, 1e-6)
    assert fabric.spread(traffic.pair_bytes, traffic.group_bytes) is None
    recorded(told(f"{members} {fabric.flows(members)}" for members in ((0, 1, 2, 3, 4, 5), (0, 2, 4), (1, 4))), "published")


def test_what_is_evened_out(monkeypatch: pytest.MonkeyPatch, recorded: Recorded) -> None:
    """The programme is asked with the seconds that each ring keeps each link busy, beside what transfers do."""
    asked: list[object] = []

    def note(busy: np.ndarray, item: np.ndarray, base: np.ndarray | None = None) -> np.ndarray:
        asked.append([busy.sum(axis=1), busy.max(axis=0), item, base])
        return 1.0 / np.bincount(item)[item]

    monkeypatch.setattr(fabric_module, "even_out", note)
    count = {(i, (i + way) % 5): 1.0 + (i == 2) for i in range(5) for way in (1, 4)}
    whole = Fabric("made", 5, count, 1e9, 1e-6, cycles=[tuple(range(5))])
    traffic = traffic_of(5, 4)
    fabric = whole.refitted(traffic.pair_bytes, traffic.group_bytes, 2)
    for both in (True, False):
        fabric.spread(traffic.pair_bytes, traffic.group_bytes, together=both)
    whole.group((0, 2, 3))
    recorded(asked)
    one_way = Fabric("uneven", 3, {(0, 1): 1.0, (1, 0): 3.0, (1, 2): 2.5, (2, 1): 2.0, (2, 0): 1.0, (0, 2): 0.5}, 1e9, 0.0)
    recorded(one_way.wires(), "wires")


WIRES = NetworkParts(4, 3, 1e9, 1e-7)


def summary(found: PlanOnNetwork) -> dict[str, object]:
    """Return what a search found."""
    return {
        "plan": short(found.placement), "seconds": found.seconds, "start": found.start_seconds, "tried": found.n_proposals,
        "network": told([wired(found.fabric), ringed(found.fabric)]), "name": found.fabric.name,
    }  # fmt: skip


@pytest.mark.parametrize("name", ["dlrm", "bert", "candle"])
@pytest.mark.parametrize("way", ["strided", "either"])
def test_what_the_searches_find(name: str, way: str, recorded: Recorded) -> None:
    step = step_of(name)
    recorded(summary(alternate.improved(step, WIRES, np.random.default_rng(5), 24, placement=way)), "improved")
    more = {"propagation": way == "either", "placement": "strided", "alpha_ratio": 20.0}
    recorded(summary(alternate.released(step, WIRES, np.random.default_rng(2), 150, **more)), "released")
    fabric = networks.build("full-mesh", 4, 3, 1e9, 1e-7, 0).fabric
    recorded(summary(alternate.fixed(step, fabric, np.random.default_rng(2), 24, placement=way)), "fixed")


def test_a_search_of_little_memory_finds_a_plan_that_fits(recorded: Recorded) -> None:
    step = step_of("dlrm", memory_bytes=48e3)
    rng = np.random.default_rng(0)
    plan = alternate._fitting(step, rng, "either")
    recorded({"plan": short(plan), "held": step.memory_bytes(plan), "after": int(rng.integers(1000))}, "fitting")
    recorded(summary(alternate.improved(step, WIRES, np.random.default_rng(3), 12, placement="either")), "improved")
    recorded(
        summary(
            alternate.released(
                step, WIRES, np.random.default_rng(3), 60, propagation=True, placement="strided", alpha_ratio=5.0
            )
        ),
        "released",
    )


@pytest.mark.parametrize("n_coarse", [4, 5])
def test_large_networks_are_walked_with_coarse_segments(
    n_coarse: int, monkeypatch: pytest.MonkeyPatch, recorded: Recorded
) -> None:
    made: list[int] = []

    def noted(space: SplitSpace, segment_bytes: int, traffic: str, most_segments: int) -> Step:
        made.append(segment_bytes)
        return Step(space, segment_bytes, traffic, most_segments)

    monkeypatch.setattr(alternate, "Step", noted)
    monkeypatch.setattr(alternate, "SEGMENT_BYTES", 256)
    monkeypatch.setattr(alternate, "COARSE_SERVERS", n_coarse)
    step = step_of("bert", segment_bytes=256)
    found = alternate.improved(step, WIRES, np.random.default_rng(5), 40, placement="either")
    assert found.seconds == step.seconds(found.placement, found.fabric)
    recorded([made, summary(found)])
    made.clear()
    fair = step_of("bert", segment_bytes=256, traffic="closed")
    alternate.improved(fair, WIRES, np.random.default_rng(5), 4, placement="either")
    assert made == []


def test_where_much_is_sent_pairs_get_several_routes(monkeypatch: pytest.MonkeyPatch, recorded: Recorded) -> None:
    step = step_of("bert")
    fabric = networks.build("expander", 4, 2, 1e9, 1e-7, 0).fabric
    halves = list(moves.beside(step.space, "either"))
    for wide_bytes in (1e3, 2e4, 1e9):
        monkeypatch.setattr(finder, "WIDE_BYTES", wide_bytes)
        screened = [short(one) for one in alternate._screened(step, lambda _: [fabric], halves, 4)]
        found = [alternate.fixed(step, fabric, np.random.default_rng(2), 8, placement="strided")]
        found += [alternate.improved(step, WIRES, np.random.default_rng(2), 8, placement="strided")]
        recorded([screened, *map(summary, found)], f"{wide_bytes:g}")
    monkeypatch.setattr(finder, "LONGEST_MATCHING", 3)
    recorded(summary(alternate.fixed(step, fabric, np.random.default_rng(2), 8, placement="strided")), "too large")


def test_the_steps_of_a_search(recorded: Recorded) -> None:
    step = step_of("bert")
    fabric = networks.build("expander", 4, 2, 1e9, 1e-7, 0).fabric
    other = networks.build("full-mesh", 4, 3, 1e9, 1e-7, 0).fabric
    halves = list(moves.beside(step.space, "either"))
    plan, seconds, n = alternate._descend(step, halves[0], fabric, 40)
    recorded([short(plan), seconds, n], "descend")
    recorded([alternate._descend(step, halves[1], fabric, budget)[1:] for budget in (1, 2, 5)], "budgets")
    plan, seconds = alternate._anneal(step, halves[0], fabric, np.random.default_rng(4), 60, "either")
    recorded([short(plan), seconds], "anneal")
    recorded([short(one) for one in alternate._screened(step, lambda _: [fabric, other], halves, 4)], "screened")
    assert list(alternate._screened(step, lambda _: [fabric], [], 4)) == []
    found = [(step.seconds(one, net), k, one, net) for k, one in enumerate(halves[:8]) for net in (fabric, other)]
    found += [(found[0][0], 99, replace(halves[0], last=(0,)), other), (0.0, 100, halves[9], other)]
    recorded([(s, short(p), f.name) for s, p, f in alternate._distinct(found)], "distinct, one far ahead")
    recorded([(s, short(p), f.name) for s, p, f in alternate._distinct(found[:-1])], "distinct")
    recorded([alternate._faster(step, one, found[:-1]) for one in halves], "faster")
    for descend in (True, False):
        state = (step.seconds(halves[0], fabric), halves[0], fabric)
        rng = np.random.default_rng(1)
        s, p, f = alternate._round(step, step, lambda _: [fabric, other], state, rng, 12, "either", descend=descend)
        recorded([s, short(p), wired(f)[:60], ringed(f)], f"round {descend}")


@pytest.mark.parametrize("name", ["dlrm", "bert"])
@pytest.mark.parametrize("traffic", TRAFFIC)
def test_seconds_of_steps(name: str, traffic: str, recorded: Recorded) -> None:
    step = step_of(name, 4, segment_bytes=1 << 9, traffic=traffic, gpu_latency_seconds=1e-6, gpus_contend=name == "bert")
    nets = [networks.build(kind, 4, 3, 1e9, 1e-7, 0).fabric for kind in ("switch", "full-mesh", "rail-optimised")]
    rng, groups, plan = np.random.default_rng(3), moves.chains(step.space.workload), data_parallel(step.space)
    for _ in range(4):
        for _ in range(4):
            plan = moves.propose(step.space, groups, plan, rng, "either")
        sent = step.traffic(plan)
        nets[0] = nets[1].refitted(sent.pair_bytes, sent.group_bytes, 3)
        rows = [(step.seconds(plan, net), step.busy_seconds(plan, net)) for net in nets]
        for seconds, busy in rows:
            assert busy <= seconds * (1 + 1e-9)
        limits = [step.seconds(plan, nets[0], rows[0][0] * ratio) for ratio in (0.3, 0.999, 1.001)]
        held = step.memory_bytes(plan)
        recorded([rows, limits, sent.pair_bytes, sent.group_bytes, held, step.compute_seconds(plan)], short(plan)[:40])


def test_circuits_that_change(recorded: Recorded) -> None:
    step, drawn = step_of("candle", 6), finder.random_cycles(6, 1, np.random.default_rng(0))
    wires = NetworkParts(6, 2, 1e7, 1e-6)
    found = optical.search(step, wires, np.random.default_rng(1), 6, placement="either", reconfiguration_seconds=1e-7)
    recorded([summary(found), found.changing is None], "staying")
    plan = next(iter(moves.beside(step.space, "contiguous")))
    sent = step.traffic(plan)
    staying = next(iter(finder.fabrics(sent, 6, 2, 1e7, 1e-6, drawn)))
    changing = windows.choose(step, plan, staying, 2, 1e-9, drawn)
    assert changing is not None
    kept = [changing.seconds, changing.staying_seconds, changing.from_seconds, changing.dark_seconds]
    recorded([kept, told(map(wired, changing.fabrics)), told(map(ringed, changing.fabrics))], "changing")
    tasks, played = windows.again(step, plan, changing)
    assert played.seconds == changing.seconds
    for low, high in ((0.0, played.seconds / 3), (played.seconds / 3, np.inf)):
        part = windows._during(sent, plan, tasks, played, low, high)
        recorded([part.pair_bytes, part.group_bytes], f"during from {low > 0}")
        recorded(wired(windows._best(part, staying, 2, drawn))[:300], f"best from {low > 0}")
    assert windows.choose(step, plan, staying, 2, 1.0, drawn) is None
    skewed = np.zeros((6, 6))
    skewed[0, 3], skewed[1, 4], skewed[2, 0] = 9e6, 7e6, 1e6
    best = windows._best(PlacementTraffic(skewed, sent.group_bytes), staying, 3, drawn)
    assert best.pair_ways.max() == 1 and (0, 3) in best.link_of and (0, 3) not in staying.link_of
    recorded(told([wired(best), ringed(best)]), "skewed")
    large = networks.build("switch", 65, 1, 1e7, 1e-6, 0).fabric
    assert windows.choose(step, plan, large, 2, 1e-7, drawn) is None


def test_circuits_that_stay_or_take_turns_are_tried(monkeypatch: pytest.MonkeyPatch, recorded: Recorded) -> None:
    step = step_of("moe", 9)
    tried: list[Fabric] = []

    def once(step: Step, candidates: Callable[[Placement], list[Fabric]], *_: object) -> PlanOnNetwork:
        plan = data_parallel(step.space)
        tried.extend(candidates(plan))
        return PlanOnNetwork(plan, tried[0], 1.0, 1.0, 1)

    monkeypatch.setattr(optical.alternate, "alternate", once)
    for degree in (2, 4):
        tried.clear()
        wires = NetworkParts(9, degree, 1e9, 1e-7)
        optical.search(step, wires, np.random.default_rng(1), 6, placement="either", reconfiguration_seconds=1e-3)
        told_of = [(one.name, one.latency_seconds, float(one.count.sum()), len(one.cycles)) for one in tried]
        recorded([told_of, told(map(wired, tried))], f"{degree}")


def test_jobs_beside_each_other(recorded: Recorded) -> None:
    assert scattered(7, (2, 3)) == [(0, 1), (2, 3, 4)]
    recorded(scattered(9, (2, 3, 4), np.random.default_rng(2)), "scattered")
    step, other = step_of("dlrm", 3), step_of("bert", 2)
    jobs = [PlacedJob(step, data_parallel(step.space), (4, 1, 3)), PlacedJob(other, data_parallel(other.space), (0, 2))]
    fabric = fitted(jobs, networks.build("expander", 5, 2, 1e9, 1e-7, 0).fabric)
    recorded([ringed(fabric), wired(fabric)], "fitted")
    alone = [together([job], fitted([job], fabric)) for job in jobs]
    for kind in ("segments", "fair"):
        seconds = together(jobs, fabric, kind)
        assert all(both >= one * (1 - 1e-9) for (one,), both in zip(alone, seconds, strict=True))
        recorded([seconds, together(jobs[::-1], fabric, kind)], kind)


@pytest.mark.parametrize(("light", "is_tried"), [(1.9, False), (2.1, True)])
def test_a_second_stream_with_little_to_do_is_not_put_beside_the_first(light: float, is_tried: bool) -> None:
    operations = (Operation("a", "linear", "a", (DATA,), (4,), (12,)), Operation("b", "linear", "b", (DATA,), (4,), (12,)))
    choices = tuple(
        (OperatorSplit(1, 1, 1, seconds, seconds, 1.0), OperatorSplit(2, 1, 1, seconds, seconds, 1.0))
        for seconds in (10.0, light)
    )
    made = SplitSpace(Workload("two", 4, operations), Servers(4, 1, machine(), 1e9), choices)
    found = list(moves.beside(made, "either"))
    assert bool(found) is is_tried


def test_the_released_search_goes_back_to_its_best_after_a_hundredth_of_the_budget(recorded: Recorded) -> None:
    step = step_of("candle")
    more = {"propagation": False, "placement": "strided", "alpha_ratio": 2.0}
    for budget in (199, 250, 350):
        recorded(summary(alternate.released(step, WIRES, np.random.default_rng(4), budget, **more)), f"{budget}")
