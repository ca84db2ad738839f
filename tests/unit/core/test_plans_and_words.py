"""Nouns and what is said of them: defaults that mean nothing special, plans by hand, the words of reports, pictures of graphs."""  # noqa: E501

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from meshwright.base.errors import InputError
from meshwright.core import drawing, formatting
from meshwright.core.cluster import Cluster, Device, Links
from meshwright.core.graph import Edge, Graph, Op, Operator
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Batch, Framework, MixedPrecision, ModelSpec, Problem, Stop
from meshwright.core.result import Answer, Bound, Objective, Result
from meshwright.core.stage_cost import StageCost
from meshwright.core.strategy import Strategy
from meshwright.core.timeline import PHASES, Timeline


def test_a_question_without_more_words_limits_nothing_and_trains_in_mixed_precision() -> None:
    assert Batch() == Batch(0, 0, 0) and Stop() == Stop(0, 0.0)
    assert MixedPrecision() == MixedPrecision("bf16", 2, 2, 4, 12, 2, 0.05)  # Adam: 18 bytes a weight
    plain = Framework()
    assert plain == Framework(
        issue_seconds=0.0, expert_issue_seconds=0.0, memory_passes_ratio=1.0, tensor_overlap_ratio=0.0, overlaps_scatter=True
    )
    assert Strategy() == Strategy(1, 1, 1, 1, False, 0, 0)
    assert Plan((Stage((0,), (0,)),)) == Plan((Stage((0,), (0,), Strategy(), (), ()),), 1, 1, "1f1b", 1)


def test_degrees_multiply_and_experts_fold_where_they_do_not_divide() -> None:
    strategy = Strategy(data=6, context=2, tensor=5, expert=4)
    assert strategy.n_devices == 60 and not strategy.folded
    assert Strategy(data=6, tensor=5, expert=5).folded and not Strategy(data=2, context=2, expert=4).folded


def two_ranks() -> Plan:
    """Four stages on two ranks, of three and of two replicas."""
    wide, narrow = Strategy(data=3), Strategy(data=2)
    return Plan(
        (
            Stage((0,), (0, 1, 2), wide, ("full",)), Stage((1, 2), (3, 4), narrow, ("none", "selective")),
            Stage((3,), (0, 1, 2), wide, ("none",)), Stage((4,), (3, 4), narrow, ("full",)),
        ),
        n_microbatches=6, micro_batch=4, schedule="interleaved_1f1b", global_batch=72,
    )  # fmt: skip


def test_a_plan_counts_devices_ranks_and_samples() -> None:
    plan = two_ranks()
    assert plan.n_devices == 5 and plan.recomputes
    assert plan.ranks() == ((0, 1, 2), (3, 4)) and plan.rank_of_stage() == (0, 1, 0, 1)
    assert plan.samples_of_replicas() == (4, 6, 4, 6)  # 12 samples of a micro-batch
    assert not Plan((Stage((0,), (0,), recompute=("none",)),)).recomputes
    uneven = Plan((Stage((0,), (0, 1), Strategy(data=2)), Stage((1,), (2, 3, 4), Strategy(data=3))), micro_batch=3)
    assert uneven.samples_of_replicas() == (5, 3)  # 9 samples over two: the fuller takes 5


def test_micro_batches_and_replicas_make_the_global_batch() -> None:
    plan = two_ranks()
    assert plan.contradiction() == ""
    assert replace(plan, n_microbatches=5).contradiction() == (
        "5 micro-batches of 4 x 3 replicas make 60 samples, but global_batch is 72: make it 60, or n_microbatches 6"
    )
    assert replace(plan, global_batch=70).contradiction().endswith("global_batch is 70: make it 72")
    assert replace(plan, global_batch=8).contradiction().endswith("make it 72")  # less than one micro-batch


def test_a_planner_that_shares_the_batch_out_may_round_by_less_than_a_sample() -> None:
    plan = two_ranks()
    for batch, right in ((73, True), (89, True), (90, False), (55, True), (54, False)):
        assert (replace(plan, global_batch=batch).contradiction(rounded=True) == "") is right, batch
        assert replace(plan, global_batch=batch).contradiction() != ""
    assert replace(plan, micro_batch=1, global_batch=6).contradiction(rounded=True) == ""  # at least one sample each


def test_replicas_stand_in_the_order_of_their_ring() -> None:
    stage = Stage((0,), (10, 11, 20, 21, 30, 31), Strategy(data=3, tensor=2), ring=(0, 2, 1))
    assert stage.ring_devices == (10, 11, 30, 31, 20, 21)
    assert Stage((0,), (4, 5)).ring_devices == (4, 5)


def test_a_gap_is_how_much_worse_than_the_bound() -> None:
    assert Bound(8.0, "x").gap_ratio(Objective("step_seconds", 10.0)) == pytest.approx(0.25)
    assert Bound(10.0, "x").gap_ratio(Objective("speedup", 8.0)) == pytest.approx(0.25)
    assert Bound(0.0, "x").gap_ratio(Objective("step_seconds", 10.0)) == 0.0


def test_a_plan_is_described_by_what_is_not_one() -> None:
    assert formatting.describe(two_ranks()) == (
        "data x tensor 3x1|2x1|3x1|2x1, pipeline 2 x 2 virtual, 1 layer recomputes selectively, 2 layers recompute all, "
        "interleaved_1f1b, 6 micro-batches of 4"
    )
    one = Plan((Stage((0,), tuple(range(8)), Strategy(data=2, tensor=4, shard=1, shard_degree=2)),), 3, 2)
    assert formatting.describe(one) == "data 2, tensor 4, optimizer sharded over 2, 3 micro-batches of 2"
    modules = Plan((Stage((0, 1, 2), (0,), recompute=("mlp", "none", "core_attn+mlp")),), 1, 1)
    assert formatting.describe(modules) == "1 layer recomputes core_attn+mlp, 1 layer recomputes mlp, 1 micro-batch of 1"
    sharded = Plan((Stage((0,), (0, 1), Strategy(context=2, shard=3)), Stage((1,), (2, 3), Strategy(context=2, shard=3))))
    assert formatting.describe(sharded) == "context 2, pipeline 2, fully sharded, 1f1b, 1 micro-batch of 1"


def test_ids_are_said_in_at_most_four_ranges() -> None:
    assert formatting.ranges_of([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"
    assert formatting.ranges_of([0, 2, 4, 6]) == "0,2,4,6"
    assert formatting.ranges_of([0, 2, 4, 6, 8, 9]) == "0,2,4,6,... (6)"
    assert formatting.ranges_of([]) == ""


def test_tables_show_the_axes_and_layers_that_there_are() -> None:
    graph = Graph("g", tuple(Op(f"l{i}", "mlp") for i in range(4)))
    assert [formatting.layers_of(graph, Stage(ops, (0,))) for ops in ((), (2,), (1, 2, 3))] == ["-", "l2", "l1 .. l3 (3)"]
    assert formatting.axes_of(two_ranks()) == ("data", "tensor")
    assert formatting.axes_of(Plan((Stage((0,), (0, 1), Strategy(context=2, expert=2)),))) == (
        "data",
        "context",
        "expert",
        "tensor",
    )


def cluster(*kinds: Device) -> Cluster:
    n = len(kinds)
    ids, switch = np.arange(n), np.full(n, n)
    links = Links(np.r_[ids, switch], np.r_[switch, ids], np.ones(2 * n), np.zeros(2 * n))
    return Cluster("c", kinds, np.arange(n), 1, links, np.zeros((1, n), dtype=np.int64))


def test_devices_are_named_where_there_are_several_kinds() -> None:
    a, b = Device("A", (("bf16", 100.0),), 1.0, 1.0), Device("B", (("bf16", 300.0),), 1.0, 1.0)
    assert formatting.devices_of(cluster(a, b), Stage((0,), (1, 0))) == "0-1 B A"
    assert formatting.devices_of(None, Stage((0,), (1, 0))) == "0-1"
    mixed = cluster(a, b)
    assert mixed.device(1).name == "B" and not mixed.homogeneous and mixed.n_devices == 2


def timeline(step_seconds: float, rows: list[tuple[int, int, str, int, float, float]], causes: dict[str, float]) -> Timeline:
    columns = list(zip(*rows, strict=True))
    return Timeline(
        step_seconds, np.array(columns[0]), np.array(columns[1]), np.array([PHASES.index(word) for word in columns[2]]),
        np.array(columns[3]), np.array(columns[4]), np.array(columns[5]), (1.0, 1.0), causes=tuple(causes.items()),
    )  # fmt: skip


def test_utilization_is_the_work_of_all_devices_over_the_peak_of_those_used() -> None:
    """100 FLOPs x 6 micro-batches x 2 devices and 50 x 6 x 1 in ten seconds, on devices of 100, 100 and 300 FLOP/s: 150 of 500."""  # noqa: E501
    a, b = Device("A", (("bf16", 100.0),), 1.0, 1.0), Device("B", (("bf16", 300.0),), 1.0, 1.0)
    plan = Plan((Stage((0,), (0, 1), Strategy(data=2)), Stage((1,), (2,))), 6)
    stage_costs = (StageCost(1.0, 1.0, model_flops=100.0), StageCost(1.0, 1.0, model_flops=50.0))
    played = timeline(10.0, [(0, 0, "forward", 0, 0.0, 10.0)], {})
    problem = Problem(ModelSpec("m", "t", "m", Graph("g", (Op("a", "mlp"), Op("b", "mlp")))), cluster(a, a, b))
    result = Result(problem, "s", 0, Answer(plan), stage_costs, played)
    assert formatting.utilization(result) == pytest.approx(150.0 / 500.0)
    assert formatting.utilization(Result(problem, "s", 0, Answer(plan), (StageCost(1.0, 1.0),) * 2, played)) is None
    assert formatting.utilization(Result(problem, "s", 0, Answer(plan), stage_costs, None)) is None


def test_it_is_said_from_which_rank_causes_are_seen_where_another_works_clearly_longer() -> None:
    """Rank 1 ends last, at 10, after 2 s of work; rank 0 works 6 s. Sends occupy links and are nobody's work or end."""
    plan = Plan((Stage((0,), (0,)), Stage((1,), (1,))))
    rows = [
        (0, 0, "forward", 0, 0.0, 6.0),
        (1, 0, "forward", 1, 6.0, 8.0),
        (1, -1, "optimizer", 1, 8.0, 10.0),
        (0, 0, "send", -1, 6.0, 12.0),
    ]

    def said(imbalance: float) -> str:
        played = timeline(10.0, rows, {"imbalance": imbalance})
        return formatting.seen_from(SimpleNamespace(timeline=played, plan=plan))  # type: ignore[arg-type]

    assert said(0.5) == "seen from rank 1, which ends last; rank 0 is the busiest"
    assert said(0.49) == ""


def test_graphs_order_their_layers_and_refuse_circles_and_strangers() -> None:
    ops = tuple(Op(name, "mlp", (Operator("o", "matmul", (), n_parameters=10),)) for name in "abcd")
    graph = Graph("g", ops, (Edge(3, 0), Edge(2, 1), Edge(0, 1)), n_shared_parameters=5)
    assert graph.topological_order() == (2, 3, 0, 1) and graph.id_of("c") == 2
    assert graph.n_parameters == 35 and ops[0].body[0].size("nothing") == 1
    for edge, word in (((4, 0), "no node 4"), ((0, -1), "no node -1"), ((1, 3), "form a cycle")):
        with pytest.raises(InputError, match=word):
            Graph("g", ops, (Edge(3, 0), Edge(0, 1), Edge(*edge)))
    with pytest.raises(InputError, match="'a' is given to nodes 0 and 4"):
        Graph("g", (*ops, ops[0]))


def test_links_have_ends_that_exist_and_figures_that_can_be() -> None:
    kind = Device("A", (("bf16", 1.0),), 1.0, 1.0)

    def made(source: int = 0, target: int = 1, rate: float = 1.0, latency: float = 0.0) -> Cluster:
        links = Links(np.array([source]), np.array([target]), np.array([rate]), np.array([latency]))
        return Cluster("c", (kind,), np.zeros(1, dtype=np.int64), 1, links, np.zeros((1, 1), dtype=np.int64))

    assert made().homogeneous
    for wrong in ({"source": -1}, {"source": 2}, {"target": -1}, {"target": 2}):
        with pytest.raises(InputError, match=r"ends must be 0\.\.1"):
            made(**wrong)  # type: ignore[arg-type]
    for rate in (0.0, -1.0, np.inf, np.nan):
        with pytest.raises(InputError, match="must be > 0"):
            made(rate=rate)
    for latency in (-1.0, 3601.0, 1e308, np.inf, np.nan):
        with pytest.raises(InputError, match="must be from 0 to 3600"):
            made(latency=latency)


def test_a_precision_that_has_no_share_of_its_own_runs_at_the_next_wider_ones() -> None:
    def shares(**own: float) -> list[float]:
        kind = Device("A", (("bf16", 1.0), ("fp8", 2.0)), 1.0, 1.0, matmul_ratio=0.7, **own)  # type: ignore[arg-type]
        return [kind.achieved(precision) for precision in ("bf16", "fp8", "mxfp8", "fp4")]

    assert shares() == [0.7] * 4
    assert shares(fp8_ratio=0.6) == [0.7, 0.6, 0.6, 0.6]
    assert shares(fp8_ratio=0.6, fp4_ratio=0.5) == [0.7, 0.6, 0.6, 0.5]


def test_a_picture_has_a_row_for_every_depth() -> None:
    """A diamond: one box above two above one, 190 wide and 60 high each."""
    graph = Graph("d & c", tuple(Op(name, "mlp") for name in "abcd"), (Edge(0, 1, 7), Edge(0, 2, 8), Edge(1, 3), Edge(2, 3)))
    picture = drawing.svg(graph, ("1", "2", "3", "4"))
    assert 'width="380" height="180"' in picture and "<title>d &amp; c</title>" in picture
    centres = {"a": (190, 30), "b": (95, 90), "c": (285, 90), "d": (190, 150)}
    for name, (x, y) in centres.items():
        assert f'<text x="{x}" y="{y - 3}">{name}</text>' in picture
        assert f'<rect x="{x - 85}" y="{y - 18}"' in picture
    assert '<line x1="190" y1="48" x2="95" y2="72"' in picture
    assert '<text x="285" y="101" fill="#446">3</text>' in picture
    text = drawing.dot(graph, ("1", "2", "3", "4"))
    assert '  n0 -> n2 [label="8"];' in text and '  n3 [label="d\\n4"];' in text.replace("\\\\n", "\\n")
    assert drawing.svg(Graph("none", ())).count("<rect") == 0


def test_a_result_has_the_figures_of_its_json_and_none_where_there_is_none() -> None:
    problem = Problem(ModelSpec("tiny", "test", "tiny", Graph("tiny", (Op("a", "mlp"),))))
    empty = Result(problem, "best", 0, Answer(None))
    assert (empty.step_seconds, empty.samples_per_second, empty.objective, empty.bound, empty.gap_ratio) == (None,) * 5
    with pytest.raises(AttributeError, match="nothing fits"):
        _ = empty.plan
    answer = Answer(Plan((Stage((0,), (0,)),), 4, 2, "1f1b", 8), Objective("step_seconds", 2.0), Bound(1.6, "exact"))
    unplayed = Result(problem, "best", 0, answer)
    assert (unplayed.step_seconds, unplayed.samples_per_second) == (None, None) and unplayed.gap_ratio == pytest.approx(0.25)
    played = replace(unplayed, timeline=SimpleNamespace(step_seconds=2.0))  # type: ignore[arg-type]
    assert (played.step_seconds, played.samples_per_second) == (2.0, 4.0)
    assert played.objective is answer.objective and played.bound is answer.bound
    assert replace(unplayed, answer=replace(answer, bound=None)).gap_ratio is None
