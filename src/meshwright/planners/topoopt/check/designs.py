"""Checks an answer of ``codesign``: its network, its plan, the step played again, its figures, and its bound."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from meshwright.core.problem import ModelSpec
from meshwright.core.result import AnswerVerdict
from meshwright.planners.topoopt import bounds, components, networks
from meshwright.planners.topoopt import design as room
from meshwright.planners.topoopt.alternate import NetworkParts, PlanOnNetwork
from meshwright.planners.topoopt.check.network import Refused, as_built, interfaces, of_file
from meshwright.planners.topoopt.choices import in_parts
from meshwright.planners.topoopt.fabric import Fabric
from meshwright.planners.topoopt.given.task_graph import GivenStep
from meshwright.planners.topoopt.params import Params, Sources
from meshwright.planners.topoopt.step import Placement, Step
from meshwright.planners.topoopt.writers import codesign_json

__all__ = ["check_design"]

_OWN = (
    "bound", "degree", "iteration_seconds", "link_bytes_per_second", "model", "plan", "samples_per_second", "servers",
)  # fmt: skip
"""Fields compared with what is found anew."""

_OF_SEARCH = ("start_seconds", "proposals", "changing")
"""What the search says of itself beside a topology."""

_NOT_CHECKED = (
    "what was asked of the search and what it says of itself: topologies, budget, seed, seconds of planning, start_seconds, "
    "proposals, notes",
    "circuits that change during a step (changing)",
    "the model of costs, which both search and check go by",
)


def check_design(entry: Mapping[str, Any], model_spec: ModelSpec) -> AnswerVerdict:
    """Check an answer of ``codesign``.

    Parameters
    ----------
    entry : mapping
        The answer as JSON, with its ``question``.
    model_spec : ModelSpec
        The model of the question, read again.

    Returns
    -------
    AnswerVerdict
        Whether the network can be cabled, all traffic has its way over it, the step takes what the answer says, and no plan
        takes less than the bound.

    Raises
    ------
    InputError
        When the question is wrong, or operators were measured on the spot.
    KeyError, TypeError, ValueError, IndexError
        When a field is missing or of the wrong kind.
    """
    question = entry["question"]
    params = room.parse({str(key): str(value) for key, value in question["settings"].items()})
    wires = NetworkParts(
        int(entry["servers"]), int(entry["degree"]), float(entry["link_bytes_per_second"]), float(entry["link_latency_seconds"])
    )
    sources = Sources(str(question["measures"]), "", lambda _text, _done: None, str(question["strategy"]))
    step = room.step_of(model_spec, wires, params, sources)
    try:
        if entry["feasible"] is False:
            return _nothing_fits(entry, step)
        design = _again(entry, step, wires, params)
        _same(codesign_json.as_json(design), entry, design.best)
    except Refused as error:
        return AnswerVerdict(False, math.nan, math.nan, str(error), not_checked=_NOT_CHECKED)
    others = [name for name in entry["topologies"] if name != design.best]
    left = [f"the steps and figures on the other topologies ({', '.join(others)}), of which the answer holds no routes"]
    left += ["that the links cost as much as those of the first topology"] * design.best.endswith("-equal-cost")
    value, is_given = design.entry.found.seconds, isinstance(step, GivenStep)
    claimed = "the plan does not take" if is_given else f"no plan with operators in {in_parts(step.space.parts)} takes"
    checked = (
        f"the step takes {value!r} seconds on {design.best}, played again over the routes and rings of the answer",
        "every cable has its interfaces, all that the plan sends has a way, every group's rings reach all of its members",
        "the plan is that of the task graph" if is_given else "no server holds more than it has",
        f"{claimed} less than {design.bound_seconds!r} seconds where servers send at most "
        f"{design.injection_bytes_per_second!r} bytes per second: the bound's programme was solved anew",
    )
    return AnswerVerdict(True, value, design.bound_seconds, "", checked, (*(left if others else ()), *_NOT_CHECKED))


def _nothing_fits(entry: Mapping[str, Any], step: Step) -> AnswerVerdict:
    """Return what is found of the answer that nothing fits: a proof where it claims one, else only what is missing at least."""
    least = room.missing_bytes(step.space)
    if entry["infeasible_proven"] and least <= 0:
        raise Refused("that no plan fits is not proven: what operators hold at least would fit")
    if float(entry["missing_bytes"]) < least * (1 - 1e-9):
        raise Refused(f"missing_bytes is {entry['missing_bytes']!r}, and {least!r} are missing in every plan")
    if not entry["infeasible_proven"]:
        left = ("that nothing fits: the answer says that no plan was found, not that there is none", *_NOT_CHECKED)
        return AnswerVerdict(True, math.nan, math.nan, "", ("no plan is claimed, and no proof",), left)
    said = f"nothing fits: the fullest server lacks {least!r} bytes at least in every plan"
    return AnswerVerdict(True, math.nan, math.nan, "", (said,), _NOT_CHECKED)


def _again(entry: Mapping[str, Any], step: Step, wires: NetworkParts, params: Params) -> room.Design:
    """Return the answer with all that can be found anew from its plan and its network."""
    name = str(entry["topology"])
    row, plain = entry["topologies"][name], name.removesuffix("-equal-cost")
    speed = float(row["link_bytes_per_second"])
    built = None
    if plain not in ("topoopt", "optical"):
        size = (plain, wires.n_servers, wires.degree)
        built = networks.build(*size, wires.bytes_per_second, wires.latency_seconds, int(entry["seed"]))
        if plain != name:
            ratio = speed / built.port_bytes_per_second
            built = networks.build(*size, wires.bytes_per_second * ratio, wires.latency_seconds, int(entry["seed"]))
    placement = _placement(entry, step)
    forwards = built is None or built.fabric.forwards
    fabric = of_file(entry, wires, plain, step.traffic(placement), forwards=forwards)
    if built is None:
        interfaces(fabric, wires.degree)
        if fabric.bytes_per_second != wires.bytes_per_second or fabric.latency_seconds < wires.latency_seconds:
            raise Refused("plan.link_bytes_per_second, link_latency_seconds: are not those that were asked for")
    else:
        as_built(fabric, built.fabric)
    cost = _cost(plain, fabric, wires, built).cost(components.prices(params.components))
    held = None if isinstance(step, GivenStep) else float(step.memory_bytes(placement).max())
    if held is not None and held > step.space.servers.memory_bytes:
        raise Refused(f"the fullest server would hold {held!r} of {step.space.servers.memory_bytes!r} bytes")
    found = PlanOnNetwork(placement, fabric, step.seconds(placement, fabric), 0.0, 0)
    return _design(entry, step, wires, params, name, room.Entry(found, cost, speed))


def _design(
    entry: Mapping[str, Any], step: Step, wires: NetworkParts, params: Params, name: str, one: room.Entry
) -> room.Design:
    """Return the answer on its fastest topology, with the bound computed anew for the fastest interfaces that it names."""
    asked = wires.degree * wires.bytes_per_second
    sends = max(asked, one.found.fabric.injection_bytes_per_second())
    injection = sends if entry["bound"] is None else float(entry["bound"]["injection_bytes_per_second"])
    if injection < sends * (1 - 1e-9):
        raise Refused(f"bound.injection_bytes_per_second is {injection!r}, but servers send {sends!r}")
    if isinstance(step, GivenStep):
        bound = step.bound_seconds(injection)
    else:
        bound = bounds.step_seconds(step.space, injection, params.traffic, apart=one.found.placement.apart)
    return room.Design(step.space.workload, step, wires, ((name, one),), name, injection, bound, 0.0, False, 0, 0.0, ())


def _placement(entry: Mapping[str, Any], step: Step) -> Placement:
    """Return the plan of an answer."""
    operations, rows = step.space.workload.operations, entry["plan"]["operators"]
    names = [operation.name for operation in operations]
    if [row["name"] for row in rows] != names:
        raise Refused("plan.operators: are not the operators of the model, in their order")
    chosen, servers = [], []
    for row, options in zip(rows, step.space.choices, strict=True):
        asked = (int(row["samples"]), int(row["columns"]), int(row["rows"]))
        known = {(choice.samples, choice.columns, choice.rows): k for k, choice in enumerate(options)}
        if asked not in known:
            raise Refused(f"plan.operators: {row['name']} cannot be split {' x '.join(map(str, asked))}")
        own = tuple(int(server) for server in row["servers"])
        if len(own) != math.prod(asked) or not all(0 <= server < step.space.servers.n_servers for server in own):
            raise Refused(
                f"plan.operators: {row['name']} has {len(own)} servers for {math.prod(asked)} parts, or one not there"
            )
        chosen.append(known[asked])
        servers.append(own)
    last = tuple(i for i, row in enumerate(rows) if row["backward_last"])
    made = Placement(tuple(chosen), tuple(servers), last)
    if step.given is not None and replace(made, last=step.given.last) != step.given:
        raise Refused("plan.operators: are not placed as in the plan that was given")
    return made


def _cost(name: str, fabric: Fabric, wires: NetworkParts, built: networks.Built | None) -> components.Bill:
    """Return the parts of the network."""
    if built is None:
        return components.bill(name, wires.n_servers, wires.degree, len(fabric.wires()), 0, wires.bytes_per_second)
    counts = built.degree, built.n_links, built.n_switch_ports, built.port_bytes_per_second
    return components.bill(name, wires.n_servers, *counts)


def _same(expected: Mapping[str, Any], entry: Mapping[str, Any], name: str) -> None:
    """Refuse a figure that is not what the plan gives on its network, and an answer that is not the fastest it names."""
    for key in _OWN:
        _compare(expected[key], entry[key], key)
    row = {key: value for key, value in entry["topologies"][name].items() if key not in _OF_SEARCH}
    _compare({key: expected["topologies"][name][key] for key in row}, row, f"topologies.{name}")
    for other, one in entry["topologies"].items():
        if one["iteration_seconds"] < entry["iteration_seconds"]:
            raise Refused(f"topology is {name}, but {other} takes {one['iteration_seconds']!r} seconds by the answer itself")


def _compare(expected: Any, found: Any, place: str) -> None:
    """Refuse a value that is not the one expected; numbers may differ by a billionth."""
    if isinstance(expected, Mapping) and isinstance(found, Mapping) and set(expected) == set(found):
        for key in expected:
            _compare(expected[key], found[key], f"{place}.{key}")
    elif isinstance(expected, (list, tuple)) and isinstance(found, list) and len(expected) == len(found):
        for i, pair in enumerate(zip(expected, found, strict=True)):
            _compare(*pair, f"{place}[{i}]")
    else:
        numbers = [one for one in (expected, found) if isinstance(one, (int, float)) and not isinstance(one, bool)]
        if expected != found and not (len(numbers) == 2 and math.isclose(*numbers, rel_tol=1e-9, abs_tol=1e-15)):
            raise Refused(f"{place} is {found!r} in the file, and {expected!r} by the plan in it")
