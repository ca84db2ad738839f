"""DAPPLE's and PipeDream's searches on profiles of a few layers: what every function of the room said, as recorded."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import numpy as np
import pytest

from meshwright import api
from meshwright.core.problem import Batch
from meshwright.core.source import Source
from meshwright.planners.dapple import device_orders, machines, placement, states
from meshwright.planners.dapple.readers import pipedream_linearised, pipedream_txt
from meshwright.planners.dapple.writers import pipedream_txt as writer
from recorded import Recorded
from returned import Returned, refusal
from small_clusters import boxes

Layer = tuple[float, float, float, float]
ROOM = "planners/dapple/"
LINE = [(float(4 + i % 3), float(9 + 2 * i), 1e6 * (1 + i % 4), 3e8 * (i % 3)) for i in range(7)]
HEAVY = [(5.0 + i, 12.0 + i, 6e8 * (1 + i % 2), 5e8) for i in range(5)]
BRANCHES = [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (3, 5), (4, 6), (5, 6)]


def write(
    path: pathlib.Path, layers: list[Layer], edges: list[tuple[int, int]] | None = None, names: tuple[str, ...] = ()
) -> str:
    lines = [
        f"n{i} -- {names[i] if names else f'L{i}'} -- forward_compute_time={f}, backward_compute_time={b}, "
        f"activation_size={a}, parameter_size={p}"
        for i, (f, b, a, p) in enumerate(layers)
    ]
    edges = [(i, i + 1) for i in range(len(layers) - 1)] if edges is None else edges
    path.write_text("\n".join(lines + [f"\tn{a} -- n{b}" for a, b in edges]) + "\n")
    return str(path)


ASKED: dict[str, tuple[list[Layer], list[tuple[int, int]] | None, dict[str, str], Callable | None]] = {
    "even": (LINE[:5], None, {"machines": "2,4"}, None),
    "uneven": (LINE[:4], None, {"machines": "1,3", "uneven": "true", "global_batch": "6"}, None),
    "branches": (LINE, BRANCHES, {"machines": "2,3", "max_stages": "3", "global_batch": "4"}, None),
    "recomputed": (HEAVY, None, {"machines": "2,3", "recompute": "choose", "global_batch": "4"}, None),
    "always": (HEAVY, None, {"machines": "2", "recompute": "always", "peak_activation_per_sample": "2e8"}, None),
    "too_large": ([(1.0, 2.0, 9e9, 3e9)] * 3, None, {"machines": "2,3", "recompute": "never", "global_batch": "6"}, None),
    "boxes": (LINE, None, {"proof_steps": "0", "min_micro_batch": "2"}, lambda: boxes([2, 1, 2])),
    "published": (LINE, None, {"machines": "2,4,6", "mode": "published"}, None),
    "published_branches": (LINE, BRANCHES, {"machines": "4,6", "mode": "published", "min_micro_batch": "2"}, None),
    "published_small": (LINE[:2], None, {"machines": "4", "mode": "published", "peak_activation_per_sample": "4e9"}, None),
    "published_links": (HEAVY, None, {"mode": "published", "optimizer_memory_scaling": "6"}, lambda: boxes([2, 2])),
    "pipedream": (LINE, None, {"machines": "2,4,6"}, None),
    "pipedream_branches": (LINE, BRANCHES, {"recompute": "always"}, lambda: boxes([2, 2])),
    "pipedream_too_large": ([(1.0, 2.0, 9e9, 3e9)] * 3, None, {"machines": "2", "recompute": "never"}, None),
}


@pytest.mark.parametrize("name", ASKED)
def test_every_step_of_a_search_is_as_recorded(tmp_path: pathlib.Path, name: str, recorded: Recorded) -> None:
    layers, edges, settings, cluster = ASKED[name]
    path = write(tmp_path / "p-pbs-2.txt", layers, edges)
    search = "pipedream" if name.startswith("pipedream") else "dapple"
    with Returned(ROOM) as found:
        result = api.plan(path, cluster and cluster(), search=search, settings={"global_batch": "8"} | settings)
    answer = result.answer
    recorded([answer.objective, answer.bound, answer.missing_bytes, answer.extra], "answer")
    recorded(
        [answer.notes, [it.why for it in answer.alternatives], answer.plan and [it.devices for it in answer.plan.stages]],
        "said",
    )
    recorded(found.lines(), "functions")


TEXT = """\
n0 -- Input -- forward_compute_time=0.0, backward_compute_time=0.0, activation_size=8.0, parameter_size=0.0
n1 -- a(1) -- forward_compute_time=1.5, backward_compute_time=2.5, activation_size=[8; 16; 6], parameter_size=4.0 -- stage_id=2

n2 -- b -- forward_compute_time=0, backward_compute_time=0, activation_size=[], parameter_size=0 -- stage_id=None
n4 -- __getitem__(0) -- forward_compute_time=0, backward_compute_time=0, activation_size=10, parameter_size=0 -- stage_id=0
n3 -- c -- forward_compute_time=1e1, backward_compute_time=4, activation_size=[5], parameter_size=2
\tn0 -- n1
\tn1 -- n4
\tn1 -- n3
\tn4 -- n2
\tn2 -- n3
"""
LINEAR = (
    "3\n0.5\t8\t8\t4\tfirst\n1.5\t24\t16\t12\tsecond\tlayer\n3\t30\t0\t13\tlast\n0.5 1.5 3\n0.5 1.5 3\n-1 1.0 2.5\n-1 -1 1.5\n"
    "8 24 30\n8 24 30\n-1 16 22\n-1 -1 6\n4 12 13\n4 12 13\n-1 8 9\n-1 -1 1\n8 16 0\n\n0\n0 1\n"
)


def test_texts_are_read_into_states_and_written_as_recorded(recorded: Recorded, tmp_path: pathlib.Path) -> None:
    found = {}
    for name, text, reader in (("a-pbs-4.txt", TEXT, pipedream_txt), ("b-pbs-16.imp", LINEAR, pipedream_linearised)):
        path = tmp_path / name
        path.write_text(text)
        assert reader.recognises(Source(str(path))) and not reader.recognises(Source("gpt2"))
        model = reader.read(Source(str(path)))
        graph = (
            [[op.name, op.kind] for op in model.graph.ops],
            [(edge.source, edge.target, edge.n_elements) for edge in model.graph.edges],
        )
        tables = [
            states.interval_tables(model, each) for each in (states.states_of(model), states.states_of(model, fold=False))
        ]
        of_states = [states.states_of(model), states.states_of(model, fold=False)]
        words = (model.name, model.format, model.costs, model.search, model.graph.tokens_name)
        found[name] = [words, graph, model.instance, of_states, tables]
        if reader is pipedream_txt:
            found["written"] = [writer.render(model.instance, stages) for stages in (None, {"n2": 0, "n3": 1}, {"n1": -1})]
    one = "1\n0.5\t8\t8\t4\tfirst\n0.5\n0.5\n8\n8\n4\n4\n8\n"
    (tmp_path / "one.imp").write_text(one)
    model = pipedream_linearised.read(Source(str(tmp_path / "one.imp")))
    found["one"] = [model.instance, states.states_of(model)]
    recorded(found)


def test_few_states_allowed_make_prefixes_or_folded_states(
    recorded: Recorded, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.txt"
    path.write_text(TEXT)
    model = pipedream_txt.read(Source(str(path)))
    found = []
    for most in (1, 2, 3, 4):
        monkeypatch.setattr(states, "LARGEST_ANTICHAIN_GRAPH", most)
        found.append([states.states_of(model), states.states_of(model, fold=False)])
    recorded(found)


def test_refusals_are_as_recorded(recorded: Recorded, tmp_path: pathlib.Path) -> None:
    chain = write(tmp_path / "p.txt", LINE[:3])

    def asked(
        cluster: object = None, *, batch: Batch | None = None, search: str = "dapple", **settings: str
    ) -> Callable[[], object]:
        given = {"profile_batch": "1", "global_batch": "8", "machines": "2,4"} | settings
        return lambda: api.plan(
            chain,
            cluster,
            search=search,
            settings={key: it for key, it in given.items() if it},
            **({"batch": batch} if batch else {}),
        )

    def read(text: str, reader: object) -> Callable[[], object]:
        def call() -> object:
            (tmp_path / "t").write_text(text)
            return reader.read(Source(str(tmp_path / "t")))  # type: ignore[attr-defined]

        return call

    calls = {
        "no batch": asked(global_batch=""),
        "two batches": asked(batch=Batch(4)),
        "same batches": asked(batch=Batch(8)),
        "no profile batch": asked(profile_batch=""),
        "too small": asked(min_micro_batch="9"),
        "just right": asked(min_micro_batch="8"),
        "two clusters": asked(boxes([2])),
        "nowhere": asked(machines=""),
        "no divisor": asked(batch=Batch(8, 3)),
        "pipedream no divisor": asked(batch=Batch(8, 3), search="pipedream"),
        "unequal": asked(machines="2,3", search="pipedream"),
        "uneven published": asked(mode="published", uneven="true"),
        "stages published": asked(mode="published", max_stages="2"),
        "recompute published": asked(mode="published", recompute="never"),
        "order": asked(machines="4,4"),
        "none": lambda: machines.sizes_of((), "there"),
    }
    for name, old, new in (
        ("count", "3\n", "x\n"),
        ("zero", "3\n0.5", "0\n0.5"),
        ("more", "0 1\n", "0 1\n0\n"),
        ("blank lines", "0 1\n", "0 1\n\n \n"),
        ("fields", "\tlast", ""),
        ("inf", "8 16 0", "8 inf 0"),
        ("minus", "8 16 0", "8 -16 0"),
        ("table minus", "-1 16 22", "-3 16 22"),
        ("states", "0 1\n", "0 a\n"),
        ("same", "0 1\n", "0 0\n"),
        ("itself", "0 1\n", "0 2\n"),
        ("empty", LINEAR, ""),
    ):
        calls[name] = read(LINEAR.replace(old, new, 1), pipedream_linearised)
    for name, old, new in (
        ("colon", " -- a(1)", ": a"),
        ("five", "stage_id=2", "stage_id=2 -- more"),
        ("edge of three", "n2 -- n3\n", "n2 -- n3 -- n1\n"),
        ("loop", "n2 -- n3\n", "n2 -- n3\n\tn3 -- n4\n"),
        ("self", "n2 -- n3\n", "n3 -- n3\n"),
        ("unknown", "n2 -- n3\n", "n9 -- n3\n"),
        ("twice", "n2 -- b", "n1 -- b"),
        ("word", "time=1.5", "time=fast"),
        ("size", "[8; 16; 6]", "[8; x]"),
        ("negative", "time=1.5", "time=-1.5"),
        ("endless", "time=1.5", "time=inf"),
        ("stage", "stage_id=2", "stage_id=two"),
        ("order", "forward_compute_time=1.5, backward_compute_time=2.5", "backward_compute_time=2.5, forward_compute_time=1.5"),
    ):
        calls[f"text {name}"] = read(TEXT.replace(old, new, 1), pipedream_txt)
    recorded({name: refusal(call, tmp_path) for name, call in calls.items()})


def test_devices_are_taken_and_priced_as_recorded(recorded: Recorded) -> None:
    taken = {}
    for sizes, used in (((2, 3), (0, 0)), ((2, 3), (1, 0)), ((3, 1, 2), (0, 1, 1)), ((2, 2), (2, 2))):
        for n in range(1, 5):
            taken[str((sizes, used, n))] = [
                placement.fresh_first(used, sizes, n),
                placement.append_first(used, sizes, n),
                placement.scatter_first(used, sizes, n),
                placement.next_cards(used, sizes, n),
                placement.reachable([used], sizes, min(n, sum(sizes) - sum(used))),
            ]
    recorded(taken, "taken")
    found = {}
    said = Returned(ROOM)
    for name, cluster in (("own", machines.machines_cluster((2, 3))), ("boxes", boxes([2, 2])), ("mixed", boxes([3, 1]))):
        published = name == "own"
        orders = device_orders.orders(cluster)
        widths = np.array([1, 2, 3])
        with said:
            for order in orders:
                device_orders.tables(cluster, order, widths, 1, published_links=published, memory_ratio=0.9)
            if cluster.n_devices % 2 == 0:
                device_orders.tables(cluster, orders[0], np.array([1, 2]), 2, published_links=published)
        free = device_orders.free_reductions(cluster, np.array([1, 2, 3, 5]), published_links=published)
        found[name] = [orders, free]
    recorded([found, said.lines()], "priced")
