"""The contract tests of the other rooms catch: each plug-in here breaks one promise of its room, and a test says so."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import itertools
import pathlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import samples

from meshwright.base import registry
from meshwright.base.errors import ExportError, InputError
from meshwright.clusters.wires import Wires
from meshwright.core.cluster import Cluster
from meshwright.core.strategy import Strategy
from meshwright.schedules import BACKWARD, FORWARD, slots

Change = Callable[[Any], dict[str, Any]]
"""What a wrong plug-in has instead of what the right one has."""
CALLS = itertools.count()


def _answers(name: str, change: Callable[[Any], Any]) -> Change:
    """A function of the plug-in returns something else."""

    def changed(right: Any) -> dict[str, Any]:
        function = getattr(right, name)

        @functools.wraps(function)
        def wrong(*args: Any, **kwargs: Any) -> Any:
            return change(function(*args, **kwargs))

        return {name: wrong}

    return changed


def _has(**values: Any) -> Change:
    return lambda right: values


# Topologies: the right one is a ring of devices that forward


def _laid(cluster: Cluster, a: Any, b: Any) -> Cluster:
    wires = Wires()
    wires.join(a, b, 1e9, 1e-6)
    return dataclasses.replace(cluster, links=wires.links())


def _one_way(cluster: Cluster) -> Cluster:
    half = len(cluster.links) // 2
    columns = {
        field.name: getattr(cluster.links, field.name)[: half + 1] for field in dataclasses.fields(cluster.links) if field.init
    }
    return dataclasses.replace(cluster, links=type(cluster.links)(**columns))


def _two_islands(cluster: Cluster) -> Cluster:
    n = cluster.n_devices
    if n < 4:
        return cluster
    ids = np.arange(n)
    ends = np.where(ids < n // 2, (ids + 1) % (n // 2), n // 2 + (ids + 1) % max(n - n // 2, 1))
    return _laid(cluster, ids[ends != ids], ends[ends != ids])


def _with_kinds_without_source(cluster: Cluster) -> Cluster:
    return dataclasses.replace(cluster, kinds=tuple(dataclasses.replace(kind, source="") for kind in cluster.kinds))


def _even_only(right: Any) -> dict[str, Any]:
    def build(params: Any, name: str) -> Cluster:
        if params.n_devices % 2 and params.n_devices > 1:
            raise InputError(f"cluster {name}: {params.n_devices} devices are odd")
        cluster: Cluster = right.build(params, name)
        return cluster

    return {"build": build}


def _deaf_to_bandwidth(right: Any) -> dict[str, Any]:
    return {"build": lambda params, name: right.build(dataclasses.replace(params, bytes_per_second=1e9), name)}


def _never_too_large(right: Any) -> dict[str, Any]:
    return {"build": lambda params, name: right.build(dataclasses.replace(params, n_devices=min(params.n_devices, 40)), name)}


@dataclasses.dataclass(frozen=True)
class Unexplained:
    """Parameters, of which the docstring says nothing."""

    n_devices: int
    device: str = "h100-sxm-80gb"
    bytes_per_second: float = 50e9
    latency_seconds: float = 1e-6
    launch_seconds: float = 0.0


# Schedules: the right one is 1F1B


def _rows(actions: Any) -> list[list[tuple[int, int, int]]]:
    flat = list(zip(actions.stage.tolist(), actions.microbatch.tolist(), actions.phase.tolist(), strict=True))
    return [flat[a:b] for a, b in itertools.pairwise(actions.first.tolist())]


def _reordered(change: Callable[[list[tuple[int, int, int]]], list[tuple[int, int, int]]]) -> Change:
    return _answers("order", lambda actions: slots([change(row) for row in _rows(actions)], actions.rank_of_stage))


def _backward_first(row: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    return sorted(row, key=lambda task: (task[1], task[2] != BACKWARD))


def _in_any_order(row: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    forward = [task for task in row if task[2] == FORWARD]
    turn = next(CALLS) % 2
    return (forward[::-1] if turn else forward) + [task for task in row if task[2] != FORWARD]


def _chunks_ignored(right: Any) -> dict[str, Any]:
    def order(n_ranks: int, n_chunks: int, n_microbatches: int, times: Any = None) -> Any:
        return right.order(n_ranks, 1, n_microbatches, times)

    return {"order": order}


# Cost models: the right one is ours


def _first_stage(**changes: Any) -> Change:
    def changed(stage_costs: tuple[Any, ...]) -> tuple[Any, ...]:
        return (dataclasses.replace(stage_costs[0], **changes), *stage_costs[1:]) if stage_costs else ()

    return _answers("stage_costs", changed)


def _asked_otherwise(question: Callable[[Any, Any], tuple[Any, Any]], **claims: bool) -> Change:
    return lambda right: {"stage_costs": lambda problem, plan: right.stage_costs(*question(problem, plan)), **claims}


def _whatever_the_strategy(problem: Any, plan: Any) -> tuple[Any, Any]:
    stages = tuple(
        dataclasses.replace(
            stage, strategy=Strategy(data=len(stage.devices), sequence_parallel=stage.strategy.sequence_parallel)
        )
        for stage in plan.stages
    )
    return problem, dataclasses.replace(plan, stages=stages)


# Readers: the right one is Piper's


def _by_the_ending(right: Any) -> dict[str, Any]:
    return {"recognises": lambda source: source.spec.endswith("piper_json.json") or source.spec.endswith("piper.json")}


def _reads_anything(right: Any) -> dict[str, Any]:
    return {"recognises": lambda source: source.path is not None}


def _raises_of_binary(right: Any) -> dict[str, Any]:
    return {"recognises": lambda source: source.text.startswith("{") and right.recognises(source)}


def _careless(right: Any) -> dict[str, Any]:
    def read(source: Any) -> Any:
        try:
            return right.read(source)
        except InputError as error:
            raise KeyError(str(error)) from None

    return {"read": read}


def _lenient(right: Any) -> dict[str, Any]:
    def read(source: Any) -> Any:
        try:
            return right.read(source)
        except InputError as error:
            if "not_a_field" not in str(error):
                raise
            return samples.read(samples.of_reader("piper_json")[0])

    return {"read": read}


def _two_lines(name: str) -> Change:
    def changed(right: Any) -> dict[str, Any]:
        function = getattr(right, name)

        @functools.wraps(function)
        def wrong(*args: Any) -> Any:
            try:
                return function(*args)
            except (InputError, ExportError) as error:
                raise type(error)(f"{error}\nand so on") from None

        return {name: wrong}

    return changed


# Writers: the right one is Chrome's trace


def _writes_first(right: Any) -> dict[str, Any]:
    def write(result: Any, path: str) -> None:
        pathlib.Path(path).write_text("digraph {")
        right.write(result, path)

    return {"write": write}


def _appends(text: Callable[[], str]) -> Change:
    def changed(right: Any) -> dict[str, Any]:
        def write(result: Any, path: str) -> None:
            right.write(result, path)
            with open(path, "a") as file:
                file.write(text())

        return {"write": write}

    return changed


def _makes_folders(right: Any) -> dict[str, Any]:
    def write(result: Any, path: str) -> None:
        pathlib.Path(path).parent.mkdir(exist_ok=True)
        right.write(result, path)

    return {"write": write}


def _infinite_json(right: Any) -> dict[str, Any]:
    return {"write": lambda result, path: pathlib.Path(path).write_text('{"seconds": NaN}') and None}


# Launchers: the right one is torchrun's


def _without(text: str) -> Change:
    return _answers("text", lambda script: script.replace(text, ""))


# Frameworks: the right one is DeepSpeed's


def _refuses(change: Callable[[tuple[str, ...]], tuple[str, ...]]) -> Change:
    return _answers("refusals", change)


def _another_plan(said: Any) -> Any:
    return dataclasses.replace(said, plan=dataclasses.replace(said.plan, micro_batch=said.plan.micro_batch + 1))


def _file_before_the_refusal(right: Any) -> dict[str, Any]:
    def write(result: Any, path: str) -> Any:
        pathlib.Path(path).write_text("{}")
        return right.write(result, path)

    return {"write": write}


# Measured sets: the right one is Sailor's


def _shuffled(entries: list[Any]) -> list[Any]:
    return entries[::-1] if len(entries) > 1 else entries


# Commands: the right one is `show`


def _second_word(right: Any) -> dict[str, Any]:
    def register(app: Any) -> None:
        right.register(app)
        app.command("another")(lambda: None)

    return {"register": register}


def _unexplained_option(right: Any) -> dict[str, Any]:
    def register(app: Any) -> None:
        @app.command()
        def show(model: str) -> None:
            """Show."""

    return {"register": register}


def _without_help(right: Any) -> dict[str, Any]:
    def register(app: Any) -> None:
        @app.command()
        def show() -> None:
            pass

    return {"register": register}


RIGHT = {
    "topologies": "ring", "schedules": "1f1b", "costs": "planted", "readers": "piper_json", "writers": "chrome_trace",
    "launchers": "torchrun", "frameworks": "deepspeed", "validation": "sailor", "commands": "show",
}  # fmt: skip
"""The plug-in in whose place wrong ones are put."""

WRONG: tuple[tuple[str, str, Change, str], ...] = (
    ("topologies", "links that go one way", _answers("build", _one_way), "test_topologies.symmetric"),
    ("topologies", "devices that do not reach each other", _answers("build", _two_islands),
     "test_topologies.from_its_smallest"),
    ("topologies", "no source", _answers("build", lambda cluster: dataclasses.replace(cluster, source="")),
     "test_topologies.symmetric"),
    ("topologies", "a device without a source", _answers("build", _with_kinds_without_source), "test_topologies.symmetric"),
    ("topologies", "even numbers only", _even_only, "test_topologies.from_its_smallest"),
    ("topologies", "a parameter without effect", _deaf_to_bandwidth, "test_topologies.every_parameter"),
    ("topologies", "other numbers than asked", _never_too_large, "test_topologies.wrong_parameter"),
    ("topologies", "a parameter that nobody explains", _has(Params=Unexplained), "test_topologies.explained"),
    ("topologies", "an error of two lines", _two_lines("build"), "test_topologies.wrong_parameter"),
    ("schedules", "a micro-batch left out", _reordered(lambda row: row[:-2]), "test_schedules.passes_every_stage"),
    ("schedules", "a task done twice", _reordered(lambda row: [*row, row[-1]]), "test_schedules.passes_every_stage"),
    ("schedules", "a deadlock", _reordered(_backward_first), "test_schedules.passes_every_stage"),
    ("schedules", "another order each time", _reordered(_in_any_order), "test_schedules.same_each_time"),
    ("schedules", "more held than stated", _answers("in_flight", lambda held: np.maximum(held - 1, 0)),
     "test_schedules.than_stated"),
    ("schedules", "more stated than held", _answers("in_flight", lambda held: held + 1), "test_schedules.at_most_sizes"),
    ("schedules", "stages elsewhere than said", _answers("placement", lambda ranks: ranks[::-1]),
     "test_schedules.passes_every_stage"),
    ("schedules", "stages per rank that it does not have", _chunks_ignored, "test_schedules.passes_every_stage"),
    ("costs", "negative seconds", _first_stage(forward_seconds=-1.0), "test_costs.every_stage"),
    ("costs", "bytes of infinity", _first_stage(weight_bytes=float("inf")), "test_costs.every_stage"),
    ("costs", "a stage left out", _answers("stage_costs", lambda stage_costs: (*stage_costs, *stage_costs[:1])),
     "test_costs.every_stage"),
    ("costs", "other costs each time",
     _answers("stage_costs", lambda all_: tuple(dataclasses.replace(one, reduce_seconds=next(CALLS) + 1.0) for one in all_)),
     "test_costs.every_stage"),
    ("costs", "the micro-batch ignored", _asked_otherwise(lambda problem, plan: (problem, dataclasses.replace(
        plan, n_microbatches=2, micro_batch=1))), "test_costs.other_micro_batches"),
    ("costs", "frozen weights claimed", _asked_otherwise(lambda problem, plan: (dataclasses.replace(
        problem, model_spec=dataclasses.replace(problem.model_spec, graph=_plain_graph())), plan), FROZEN=True),
     "test_costs.says_that_it_heeds"),
    ("costs", "optimizers claimed", _asked_otherwise(lambda problem, plan: (dataclasses.replace(
        problem, training=type(problem.training)(problem.training.precision)), plan), STATES=True),
     "test_costs.says_that_it_heeds"),
    ("costs", "frameworks claimed", _asked_otherwise(lambda problem, plan: (dataclasses.replace(
        problem, framework=type(problem.framework)()), plan), FRAMEWORKS=True), "test_costs.says_that_it_heeds"),
    ("costs", "choices claimed", _has(CHOICES=True), "test_costs.reads_choices"),
    ("costs", "a strategy that cannot run the model", _asked_otherwise(_whatever_the_strategy),
     "test_costs.cannot_run_the_model"),
    ("readers", "the ending alone", _by_the_ending, "test_readers.under_another_name"),
    ("readers", "whatever it is shown", _reads_anything, "test_readers.recognised_by_its_own*"),
    ("readers", "an error where it recognises", _raises_of_binary, "test_readers.never_raises"),
    ("readers", "another model each time",
     _answers("read", lambda spec: dataclasses.replace(spec, notes=(f"call {next(CALLS)}",))), "test_readers.alike_each_time"),
    ("readers", "errors that are none of ours", _careless, "test_readers.wrong_value"),
    ("readers", "errors of two lines", _two_lines("read"), "test_readers.wrong_value"),
    ("readers", "unknown fields", _lenient, "test_readers.unknown_field"),
    ("readers", "files cut off", _careless, "test_readers.cut_off"),
    ("writers", "a part left where it refuses", _writes_first, "test_writers.or_nothing"),
    ("writers", "other bytes each time", _appends(lambda: f"// {next(CALLS)}\n"), "test_writers.or_nothing"),
    ("writers", "errors of two lines", _two_lines("write"), "test_writers.or_nothing"),
    ("writers", "folders of its own", _makes_folders, "test_writers.folder_that_is_not_there"),
    ("writers", "where our package lies", _appends(lambda: str(pathlib.Path(registry.__file__).parents[1])),
     "test_writers.keeps_its_package"),
    ("writers", "JSON that only Python reads", _infinite_json, "test_writers.json_that_others_read"),
    ("launchers", "no ranks of hosts", _without("NODE_RANK"), "test_launchers.same_shell"),
    ("launchers", "no address", _without("MASTER_ADDR"), "test_launchers.same_shell"),
    ("launchers", "nothing that is started", _without('run "$NODE_RANK" "$@"'), "test_launchers.same_shell"),
    ("launchers", "a script that does not parse", _without("fi\n"), "test_launchers.same_shell"),
    ("launchers", "another text each time", _answers("text", lambda script: f"{script}# {next(CALLS)}\n"),
     "test_launchers.same_shell"),
    ("launchers", "an ending that another has", _has(SUFFIX=".sbatch"), "test_launchers.endings"),
    ("frameworks", "nothing refused", _refuses(lambda said: ()), "test_frameworks.refused_by_none"),
    ("frameworks", "everything refused", _refuses(lambda said: (*said, "the moon is full")), "test_frameworks.refused_by_none"),
    ("frameworks", "another plan read than written", _answers("read", _another_plan), "test_frameworks.read_again"),
    ("frameworks", "a file where it refuses", _file_before_the_refusal, "test_frameworks.read_again"),
    ("frameworks", "whatever text it is shown", _has(recognises=lambda text: True), "test_frameworks.framework_alone"),
    ("frameworks", "the file of another",
     lambda right: {"recognises": registry.load("frameworks", "megatron", "framework").recognises},
     "test_frameworks.framework_alone"),
    ("frameworks", "a start without its file",
     _answers("program", lambda program: dataclasses.replace(program, command="python train.py")),
     "test_frameworks.names_its_file"),
    ("frameworks", "an error of two lines", _two_lines("write"), "test_frameworks.read_again"),
    ("validation", "a row left out", _answers("points", lambda entries: entries[1:]), "test_measured_sets.one_entry"),
    ("validation", "rows in another order", _answers("points", _shuffled), "test_measured_sets.one_entry"),
    ("commands", "two words", _second_word, "test_commands.own_word"),
    ("commands", "an option that nobody explains", _unexplained_option, "test_commands.help_says"),
    ("commands", "no help", _without_help, "test_commands.help_says"),
)  # fmt: skip


def _plain_graph() -> Any:
    (spec,) = samples.of_reader("huggingface")
    return samples.read(spec).graph


def _right(room: str) -> Any:
    if room == "costs":
        return registry.load(room, "analytic", "cost model")
    return registry.load(room, "one_f_one_b" if room == "schedules" else RIGHT[room], "plug-in")


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Change], None]:
    """Put a plug-in in the place of another, for the length of one test."""

    def planted(room: str, change: Change) -> None:
        right, name = _right(room), RIGHT[room]
        place = "one_f_one_b" if room == "schedules" else name
        held = {key: value for key, value in vars(right).items() if not key.startswith("__")}
        if room == "costs":  # what others ask of it besides is another matter
            held = {"stage_costs": right.stage_costs, "ROUNDS": getattr(right, "ROUNDS", False)}
        module = SimpleNamespace(**{**held, **change(right)}, __doc__=right.__doc__, __name__=right.__name__)
        places = ((room, place), (room, registry.home(room, place)))
        for function in ("load", "_loaded"):
            known = getattr(registry, function)

            def found(asked: str, wanted: str, kind: str, known: Any = known) -> Any:
                return module if (asked, registry.home(asked, wanted) or wanted) in places else known(asked, wanted, kind)

            monkeypatch.setattr(registry, function, found)

    return planted


def _cases(test: Callable[..., Any], name: str, whoever: bool) -> list[dict[str, Any]]:
    """Return the arguments that pytest would give a contract test: those that name the plug-in, or all where `whoever`."""
    found: list[dict[str, Any]] = [{}]
    for mark in getattr(test, "pytestmark", ()):
        words, values = mark.args[:2]
        names = [word.strip() for word in words.split(",")]
        rows = [value if len(names) > 1 else (value,) for value in values]
        found = [{**one, **dict(zip(names, row, strict=True))} for one in found for row in rows]
    if whoever or not found[0]:
        return found
    like = "analytic" if name == "planted" else name  # beside the others, not in the place of one
    own = [
        one
        for one in found
        if like in one.values() or any(value[0] == like for value in one.values() if isinstance(value, tuple))
    ]
    assert own, f"{name} is not among those that {test.__name__} runs for"
    return [{word: name if value == "analytic" else value for word, value in one.items()} for one in own]


def _run(contract: str, name: str, request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> int:
    """Run the test of a promise on one plug-in, on whatever it is run for; return how many times it ran."""
    module_name, _, part = contract.partition(".")
    module = importlib.import_module(module_name)
    (test,) = [function for word, function in vars(module).items() if word.startswith("test_") and part.rstrip("*") in word]
    cases = _cases(test, name, part.endswith("*"))
    for i, arguments in enumerate(cases):
        for word in inspect.signature(test).parameters:
            if word == "tmp_path":
                (tmp_path / str(i)).mkdir()
                arguments[word] = tmp_path / str(i)
            elif word not in arguments:
                arguments[word] = request.getfixturevalue(word)
        test(**arguments)
    return len(cases)


@pytest.mark.parametrize(
    ("room", "what", "change", "contract"), WRONG, ids=[f"{room}: {what}" for room, what, _, _ in WRONG]
)  # fmt: skip
def test_a_wrong_plug_in_fails_the_test_of_the_promise_that_it_breaks(
    room: str, what: str, change: Change, contract: str, plant: Callable[[str, Change], None],
    request: pytest.FixtureRequest, tmp_path: pathlib.Path,
) -> None:  # fmt: skip
    plant(room, change)
    with pytest.raises((Exception, pytest.fail.Exception)) as caught:
        _run(contract, RIGHT[room], request, tmp_path)
    assert "is not among those" not in str(caught.value)


@pytest.mark.parametrize("room", RIGHT)
def test_the_right_plug_in_passes_all_of_these(
    room: str, plant: Callable[[str, Change], None], request: pytest.FixtureRequest, tmp_path: pathlib.Path
) -> None:
    plant(room, lambda right: {})
    for i, contract in enumerate(sorted({contract for asked, _, _, contract in WRONG if asked == room})):
        folder = tmp_path / str(i)
        folder.mkdir()
        assert _run(contract, RIGHT[room], request, folder)
