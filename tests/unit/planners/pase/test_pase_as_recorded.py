"""PaSE on its own graphs and on a mesh: graphs, tables, answers and checks of every function, as recorded."""

from __future__ import annotations

import copy
import json
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from meshwright import api
from meshwright.base.errors import MeshwrightError
from meshwright.core.problem import Batch, Stop
from meshwright.core.source import Source
from meshwright.planners.pase import layer_costs, networks, our_answer, our_models
from meshwright.planners.pase.check import check_certificate
from meshwright.planners.pase.operators import NetworkBuilder, Tensor
from meshwright.planners.pase.readers import pase_graph
from meshwright.planners.pase.search import pase
from recorded import Recorded
from returned import Returned, refusal
from small_clusters import boxes, device, mesh
from small_models import question

ROOM = "planners/pase/"
TIMED = tuple(
    f"planners/pase/{name}"
    for name in (
        "search/pase:search",
        "search/pase:_on_pase_graph",
        "search/pase:_solved",
        "our_models:on_mesh",
        "our_models:_answer",
        "our_models:_extra",
    )
)


@pytest.mark.parametrize("name", networks.NAMES)
def test_graphs_of_every_width_are_as_recorded(name: str, recorded: Recorded) -> None:
    with Returned(ROOM) as found:
        built = [networks.build(name, batch, model) for batch, model in ((128, 128), (3, 50), (1, 1))]
        spec = pase_graph.read(Source(f"pase:{name}"))
    graph = spec.graph
    recorded(
        [
            len(built[0].operators),
            graph.n_ops if hasattr(graph, "n_ops") else len(graph.ops),
            len(graph.edges),
            spec.search,
            spec.costs,
        ],
        "size",
    )
    recorded(found.lines(), "functions")


def test_every_kind_of_operator_is_split_and_priced_as_recorded(recorded: Recorded) -> None:
    """One operator of each kind, of odd sizes, on 6 processors: its dimensions, the splits allowed, and their cost."""
    net = NetworkBuilder(cutoff=1)
    image, words = Tensor(-1, (6, 4, 9, 7)), Tensor(-1, (4, 6, 12))
    net.convolution(image, 8, (3, 5), 2, (1, 2), pointwise=2)
    net.convolution(image, 6, (1, 1))
    net.pooling(image, 3, 2, 1)
    net.norm(image, 0)
    net.norm(words, 2)
    net.mean(image, (2, 3))
    net.reshape(image, (6, 252))
    net.fully_connected(Tensor(-1, (6, 20)), 12, pointwise=1)
    net.cross_entropy(Tensor(-1, (6, 20)))
    net.cross_entropy(words)
    net.elementwise(words, words, pointwise=3)
    net.concatenation((image, image))
    net.embedding(4, 6, 30, 8)
    net.lstm(words, 8, 2)
    net.softmax(words, 2)
    net.stack((words, words))
    net.unstack(Tensor(-1, (3, 4, 6, 12)))
    net.einsum("ble,ef->blf", words, Tensor(-1, (12, 18)), pointwise=2)
    net.einsum("bhlk,bhmk->bhlm", Tensor(-1, (2, 4, 6, 8)), Tensor(-1, (2, 4, 10, 8)))
    found = []
    with Returned(ROOM) as said:
        for operator in net.operators:
            splits = layer_costs.configurations(operator, 6)
            cost = layer_costs.layer_cost(operator, splits, 2.5)
            found.append([operator.kind, len(splits), float(cost.sum()), layer_costs.data_parallel_splits(operator, 6)])
        produced, consumed = np.array([[1, 1], [2, 1], [2, 3], [6, 1]]), np.array([[1, 6], [2, 1], [3, 2]])
        edges = layer_costs.edge_cost((12, 18), produced, consumed, 0.5)
        allowed = [layer_costs.allowed_splits(size, cutoff, n) for size in (1, 12, 17) for cutoff in (1, 4) for n in (1, 6, 16)]
    recorded([found, edges, allowed], "costs")
    recorded(said.lines(), "functions")


ASKED: dict[str, tuple[str, str, dict[str, str]]] = {
    "alexnet": ("alexnet", "pase", {"n_processors": "6", "batch": "12"}),
    "rnnlm": ("rnnlm", "pase", {"n_processors": "8", "flops": "20", "bandwidth": "8"}),
    "limited": ("rnnlm", "pase", {"n_processors": "4", "memory": "4 GB", "model": "64"}),
    "too_large": ("rnnlm", "pase", {"n_processors": "2", "memory": "1 GB"}),
    "naive": ("alexnet", "pase_naive", {"n_processors": "4"}),
    "trick": ("alexnet", "one_weird_trick", {"n_processors": "8"}),
    "data_parallel": ("alexnet", "data_parallel", {"n_processors": "8", "batch": "16"}),
}


@pytest.mark.parametrize("name", ASKED)
def test_every_step_of_a_search_is_as_recorded(name: str, recorded: Recorded, tmp_path: pathlib.Path) -> None:
    graph, search, settings = ASKED[name]
    more = {"certificate": str(tmp_path / "c.json"), "dump": str(tmp_path / "g.dot")} if search == "pase" else {}
    with Returned(ROOM, without=TIMED) as found:
        answer = api.plan(f"pase:{graph}", search=search, settings=settings | more).answer
        checked = (
            check_certificate(json.loads((tmp_path / "c.json").read_text()), "c")
            if "certificate" in more and answer.plan
            else None
        )
    extra = {key: value for key, value in answer.extra.items() if key not in ("phases_seconds", "operators", "shardings")}
    recorded([answer.objective, answer.bound, answer.missing_bytes, answer.nearest, answer.notes, extra, checked], "answer")
    recorded(found.lines(), "functions")


MESHES: dict[str, tuple[str, Callable, dict[str, Any]]] = {
    "dense": ("dense", lambda: boxes([2, 2]), {}),
    "experts": ("experts", lambda: mesh(2, 2), {"mesh": (4,), "recompute": "selective"}),
    "limited": ("dense", lambda: boxes([2, 2], kinds=[device(memory_bytes=0.3e9)]), {"mesh": (2, 2)}),
    "too_large": ("dense", lambda: boxes([2]), {"memory": 1e7}),
}


@pytest.mark.parametrize("name", MESHES)
def test_every_step_on_a_mesh_is_as_recorded(name: str, recorded: Recorded, tmp_path: pathlib.Path) -> None:
    kind, cluster, params = MESHES[name]
    posed = question(kind, cluster(), tmp_path, Batch(4))
    with Returned(ROOM, without=(*TIMED, "planners/pase/our_models:_certificate")) as found:
        answer = pase.search(posed, pase.Params(**params, certificate=str(tmp_path / "c.json")), seed=0, stop=Stop())
        checked = answer.plan and check_certificate(json.loads((tmp_path / "c.json").read_text()), "c", posed)
    extra = {key: answer.extra[key] for key in ("device_mesh", "recompute", "shardings", "held_bytes") if key in answer.extra}
    plan = answer.plan and [answer.plan.stages[0].strategy, answer.plan.stages[0].devices, answer.plan.micro_batch]
    recorded(
        [answer.objective, answer.bound, answer.missing_bytes, answer.nearest, answer.notes, extra, plan, checked], "answer"
    )
    recorded(found.lines(), "functions")


@pytest.mark.parametrize("kind", ["dense", "experts"])
def test_any_sharding_is_told_as_recorded(kind: str, recorded: Recorded, tmp_path: pathlib.Path) -> None:
    """Rows, placements and nearest uniform degrees of shardings drawn at random, and of each way taken wherever it can be."""
    posed, found = question(kind, boxes([2, 2]), tmp_path, Batch(8)), []
    dice = np.random.default_rng(7)
    with Returned(ROOM) as said:
        for shape, recompute in (((2, 2), "none" if kind == "dense" else "full"),):
            sharding = our_models.sharding_problem(posed, shape, recompute)
            counts = np.diff(sharding.problem.first)
            names = sorted({choice.name for made in sharding.menus for way in made.choices for choice in way})
            drawn = [dice.integers(0, counts) for _ in range(3)]
            for name, axis in ((name, axis) for name in names for axis in range(len(shape))):
                ways = [[i for i, way in enumerate(made.choices) if way[axis].name == name] for made in sharding.menus]
                drawn.append(np.array([way[int(dice.integers(len(way)))] if way else 0 for way in ways]))
                if axis:
                    continue
                every = [
                    [i for i, way in enumerate(made.choices) if {choice.name for choice in way} == {name}]
                    for made in sharding.menus
                ]
                drawn.append(np.array([way[0] if way else 0 for way in every]))
            for i, labels in enumerate(drawn):
                if i < 6:
                    our_answer.operator_rows(sharding, labels)
                    our_answer.placements(sharding, labels)
                plan, fits = our_answer.nearest_plan(posed, sharding, labels)
                found.append(f"{plan.stages[0].strategy} {len(plan.stages[0].devices)} {fits}".replace("Strategy", ""))
    recorded([found, said.lines()])


def test_what_fits_no_device_is_answered_by_the_recorded_degrees(recorded: Recorded, tmp_path: pathlib.Path) -> None:
    found = []
    for memory in (1e7, 3e7, 6e7, 1.2e8, 80e9):
        posed = question("dense", boxes([2, 2], kinds=[device(memory_bytes=memory)]), tmp_path, Batch(8))
        sharding = our_models.sharding_problem(posed, (2, 2), "none")
        plan, fits = our_answer.nearest_plan(posed, sharding, np.zeros(sharding.problem.n_nodes, np.int64))
        found.append([str(plan.stages[0].strategy), len(plan.stages[0].devices), fits])
    recorded(found)


def test_refusals_are_as_recorded(recorded: Recorded, tmp_path: pathlib.Path) -> None:
    def asked(
        graph: str = "pase:alexnet", search: str = "pase", cluster: Any = None, samples: Batch | None = None, **settings: str
    ) -> Callable:
        return lambda: api.plan(graph, cluster, search=search, batch=samples, settings=settings)

    def on_mesh(cluster: Any, batch: Batch | None = None, costs: str = "", **params: Any) -> Callable:
        return lambda: pase.search(
            question("dense", cluster, tmp_path, batch or Batch(4), costs=costs), pase.Params(**params), seed=0, stop=Stop()
        )

    calls = {
        "batches": asked(samples=Batch(16), batch="8"),
        "same": asked(samples=Batch(8), batch="8"),
        "micro": asked(samples=Batch(8, 2)),
        "mesh": asked(mesh="2,2"),
        "recompute": asked(recompute="full"),
        "flops": asked(flops="0"),
        "bandwidth": asked(bandwidth="0"),
        "costs": lambda: api.plan("pase:alexnet", costs="analytic"),
        "naive": asked("pase:inception3", "pase_naive", n_processors="64"),
        "naive model": asked("gpt2", "pase_naive", boxes([2])),
        "trick": asked("pase:rnnlm", "one_weird_trick"),
        "batch 0": lambda: networks.build("rnnlm", 0),
        "model 0": lambda: networks.build("rnnlm", 1, 0),
        "name": lambda: networks.build("rnn"),
        "folder": asked(certificate="/no/such/c.json"),
        "kinds": on_mesh(boxes([2, 2], kinds=[device("a"), device("b")])),
        "shape": on_mesh(boxes([2]), mesh=(3,)),
        "option": on_mesh(boxes([2]), model=64),
        "micro on a mesh": on_mesh(boxes([2]), Batch(4, 2)),
        "on a mesh": on_mesh(boxes([2])),
        "sharded": on_mesh(boxes([2]), costs="sharded"),
    }
    recorded({name: refusal(call, tmp_path) for name, call in calls.items()}, "refused")
    path = tmp_path / "c.json"
    api.plan("pase:rnnlm", settings={"n_processors": "4", "certificate": str(path), "memory": "12 GB"})
    entry = json.loads(path.read_text())

    def claimed(change: Callable[[dict], object]) -> object:
        other = copy.deepcopy(entry)
        change(other)
        try:
            verdict = check_certificate(other, "c")
        except MeshwrightError as error:
            return str(error)[:120]
        return [verdict.valid, verdict.reason[:60]]

    changes: dict[str, Callable[[dict], object]] = {
        "as it is": lambda c: None,
        "kind": lambda c: c.update(kind="x"),
        "no value": lambda c: c.pop("value"),
        "no question": lambda c: c.pop("question"),
        "word": lambda c: c.update(value="x"),
        "cheaper": lambda c: c.update(value=c["value"] * 0.999),
        "bound": lambda c: c.update(bound=c["bound"] * 1.001),
        "lower bound": lambda c: c.update(bound=c["bound"] * 0.5),
        "split": lambda c: c["shardings"].__setitem__(1, [1] * len(c["shardings"][1])),
        "short": lambda c: c["shardings"].pop(),
        "odd split": lambda c: c["shardings"].__setitem__(1, [3] * len(c["shardings"][1])),
        "processors": lambda c: c["question"].update(n_processors=8),
        "memory": lambda c: c["question"].update(memory_bytes=1e8),
        "bool": lambda c: c.update(shardings=True),
    }
    recorded({name: claimed(change) for name, change in changes.items()}, "checked")
