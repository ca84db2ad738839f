"""A plan of which a part is given: checked, completed by search, and compared with what would be best were nothing given."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from meshwright.api import searching, shaping, why_not
from meshwright.base.errors import InputError, UnknownNameError
from meshwright.core.formatting import describe
from meshwright.core.problem import Problem, Stop
from meshwright.core.result import Result
from meshwright.core.strategy import CONTEXT_EXCHANGES, ON_HOST, RECOMPUTE

__all__ = ["KEYS", "GivenParts", "parse", "plan"]

_DEGREES = ("tensor", "context", "expert", "pipeline", "data", "micro_batch")
_SHARDED = (("optimizer", 1), ("gradients", 2), ("weights", 3))
KEYS = (
    *_DEGREES, "virtual", "split", "schedule", "shard", "recompute", "context_exchange", "offload",
    *(name for name, _ in _SHARDED),
)  # fmt: skip
"""What can be fixed of a plan."""

_CANDIDATES = 12


@dataclass(frozen=True, slots=True)
class GivenParts:
    """What is fixed of a plan.

    Parameters
    ----------
    given : tuple of (str, str)
        Keys of `KEYS` and values as typed, for people.
    settings : tuple of (str, str)
        The same as options of search `best`, apart from what follows.
    virtual : int
        Virtual stages of each pipeline rank; 0 where open.
    split : tuple of int
        Layers of each stage, in pipeline order; empty where open.
    """

    given: tuple[tuple[str, str], ...]
    settings: tuple[tuple[str, str], ...]
    virtual: int = 0
    split: tuple[int, ...] = ()


def parse(fix: str | Mapping[str, object], problem: Problem) -> GivenParts:
    """Return what is fixed, after checking it against model, devices and batch.

    Parameters
    ----------
    fix : str or mapping
        ``"tensor=8,pipeline=8,virtual=5,recompute=full"``, or the same as a mapping; several values of one key, where
        that makes sense (``split=10,11,11``), follow each other.
    problem : Problem
        The question.

    Returns
    -------
    GivenParts
        Never empty.

    Raises
    ------
    InputError
        When a key is unknown, a value is no such thing, or they contradict each other or the question: the reason is named.
    """
    told = (_text(fix) if fix.strip() else {}) if isinstance(fix, str) else _mapping(fix)
    if not told:
        raise InputError("--fix: is empty; write for example --fix tensor=8,pipeline=4")
    for key in told:
        if key not in KEYS:
            raise UnknownNameError("part of a plan (of --fix)", key, KEYS)
    numbers = {key: _whole(key, told[key]) for key in (*_DEGREES, "virtual") if key in told}
    split = tuple(_whole("split", part, least=0) for part in told["split"].split(",")) if "split" in told else ()
    virtual = numbers.get("virtual", 0)
    if split:
        ranks = numbers.get("pipeline", len(split) // (virtual or 1))
        if len(split) % ranks or len(split) // ranks != (virtual or len(split) // ranks):
            stages = f"{ranks} pipeline ranks" + (f" x {virtual} virtual stages" if virtual else "")
            raise InputError(f"--fix split={told['split']}: names {len(split)} stages, which are not those of {stages}")
        numbers["pipeline"], virtual = ranks, len(split) // ranks
    _check(problem, numbers, virtual, split)
    settings = {key: str(value) for key, value in numbers.items() if key != "virtual"}
    settings |= _schedules(told.get("schedule", ""), virtual, numbers.get("pipeline", 0)) | _shards(told)
    if "recompute" in told:
        settings["recompute"] = _recompute(told["recompute"])
    if "context_exchange" in told:
        settings |= _exchange(told["context_exchange"], numbers, problem)
    if "offload" in told:
        if told["offload"] not in ON_HOST:
            raise UnknownNameError("offload (of --fix)", told["offload"], ON_HOST)
        settings["offload"] = told["offload"]
    return GivenParts(tuple(told.items()), tuple(settings.items()), virtual, split)


def plan(
    problem: Problem,
    fixed: GivenParts,
    *,
    settings: Mapping[str, str] | None = None,
    seed: int = 0,
    stop: Stop | None = None,
    within: float = 0.0,
) -> Result:
    """Return the best plan with a part of it given, compared with the best of all.

    Parameters
    ----------
    problem : Problem
        The question, for search `best`.
    fixed : GivenParts
        What is given.
    settings, seed, stop, within
        As of `meshwright.plan`; options of search `best` that say the same as `fixed` are refused.

    Returns
    -------
    Result
        ``extra["fixed"]`` holds ``values`` as given and ``free_optimum``: its ``plan`` in words, ``step_seconds``, the answer's
        ``slower_ratio`` to it, and ``causes`` with the seconds of both; null where nothing fits at all.

    Raises
    ------
    InputError
        When the question is wrong, or no plan with this is legal: the reason is named.
    """  # fmt: skip
    told = dict(settings or {})
    twice = [key for key, _ in fixed.settings if key in told]
    if twice:
        raise InputError(f"--fix {twice[0]} and --set {twice[0]}={told[twice[0]]}: say it once")
    own = {**told, **dict(fixed.settings)}
    shaped = fixed.split or fixed.virtual > 1
    if shaped:
        own["alternatives"] = str(max(_CANDIDATES, _number(told.get("alternatives", ""))))
    answered = searching.searched(problem, search="best", settings=own, seed=seed, stop=stop, within=0.0 if shaped else within)
    if shaped:
        answered = shaping.shaped(answered, fixed.virtual, fixed.split)
    answered = replace(answered, settings={**told, **dict(fixed.settings)})
    free = searching.searched(
        problem, search="best", settings={**told, "alternatives": "1"}, seed=seed, stop=stop, within=within
    )  # fmt: skip
    entry: dict[str, object] = {"values": dict(fixed.given), "free_optimum": None}
    if free.feasible and free.timeline is not None:
        optimum: dict[str, object] = {"plan": describe(free.plan), "step_seconds": free.timeline.step_seconds}
        gap = free.gap_ratio
        optimum |= {"gap_ratio": gap, "slower_ratio": None, "causes": []}
        if answered.timeline is not None:
            optimum["slower_ratio"] = answered.timeline.step_seconds / free.timeline.step_seconds - 1.0
            optimum["causes"] = why_not.by_cause(answered.timeline, free.timeline)
        entry["free_optimum"] = optimum
    return replace(answered, answer=replace(answered.answer, extra={**answered.answer.extra, "fixed": entry}))


def _text(fix: str) -> dict[str, str]:
    """Read ``tensor=8,split=10,11``: what has no ``=`` is one more value of the key before."""
    told: dict[str, str] = {}
    key = ""
    for part in fix.split(","):
        name, equals, value = part.partition("=")
        if equals:
            key = name.strip()
            if key in told:
                raise InputError(f"--fix {key}: given twice")
            told[key] = value.strip()
        elif not key or not part.strip():
            raise InputError(f"--fix {fix}: write KEY=VALUE,..., for example tensor=8,pipeline=4")
        else:
            told[key] += f",{part.strip()}"
    return told


def _mapping(fix: Mapping[str, object]) -> dict[str, str]:
    """Return the values of a mapping as they would be typed."""
    if not isinstance(fix, Mapping):
        raise InputError(f"fix {fix!r}: must be a mapping, as in fix={{'tensor': 2}}, or text, as in fix='tensor=2'")
    return {
        str(key): ",".join(map(str, value)) if isinstance(value, Sequence) and not isinstance(value, str) else str(value)
        for key, value in fix.items()
    }


def _whole(key: str, text: str, least: int = 1) -> int:
    if not text.isdecimal() or not least <= int(text) <= 10**7:
        raise InputError(f"--fix {key}={text}: must be a whole number of at least {least} and at most {10**7}" + (
            ", or several: split=10,11,11" if key == "split" else ""))  # fmt: skip
    return int(text)


def _number(text: str) -> int:
    """Return a whole number; 0 for anything else, which the search refuses."""
    return int(text) if text.isdecimal() else 0


def _check(problem: Problem, numbers: Mapping[str, int], virtual: int, split: tuple[int, ...]) -> None:
    """Refuse what heads, experts, devices, layers or the batch do not allow, in this order."""
    from meshwright.planners.best.layer_sums import chain_of
    from meshwright.planners.best.limits import largest_degrees

    graph, n_devices = problem.graph, problem.required_cluster.n_devices
    largest, n_layers = largest_degrees(graph), len(chain_of(graph).layers)
    name = problem.model_spec.name
    for key, what in (("tensor", "attention heads"), ("expert", "experts")):
        if key in numbers and largest[key] % numbers[key]:
            if largest[key] == 1:
                raise InputError(f"--fix {key}={numbers[key]}: {name} has no {what} to split; only {key}=1 is possible")
            raise InputError(f"--fix {key}={numbers[key]}: does not divide the {largest[key]} {what} of {name}")
    axes = [key for key in ("tensor", "context", "pipeline", "data") if key in numbers]
    needed = math.prod(numbers[key] for key in axes)
    if needed > n_devices:
        words = " x ".join(f"{key} {numbers[key]}" for key in axes)
        raise InputError(f"--fix {words}: takes {needed} devices; {problem.required_cluster.name} has {n_devices}")
    stages = numbers.get("pipeline", 1) * max(virtual, 1)
    if stages > n_layers:
        raise InputError(f"--fix: {stages} stages (pipeline x virtual) need as many layers; {name} has {n_layers}")
    if split and sum(split) != n_layers:
        raise InputError(f"--fix split={','.join(map(str, split))}: places {sum(split)} layers; {name} has {n_layers}")
    if 0 in split[1:-1]:
        raise InputError(
            f"--fix split={','.join(map(str, split))}: every stage but the first and the last, which hold the ends of the "
            "model, needs a layer"
        )
    if virtual > 1 and numbers.get("pipeline") == 1:
        raise InputError(f"--fix virtual={virtual}: virtual stages need a pipeline of at least 2 ranks; pipeline is 1")
    data, micro = numbers.get("data", 1), numbers.get("micro_batch", 1)
    share = data * micro
    if problem.batch.global_batch and problem.batch.global_batch % share:
        raise InputError(
            f"--fix: {share} samples (data {data} x micro_batch {micro}) do not divide the global batch of "
            f"{problem.batch.global_batch}"
        )


def _schedules(word: str, virtual: int, pipeline: int) -> dict[str, str]:
    """Return the schedules that are left open."""
    from meshwright.planners.best.limits import SCHEDULES, Limits
    from meshwright.planners.best.space import VIRTUAL

    known = SCHEDULES if virtual == 0 else tuple(one for one in SCHEDULES if (one in VIRTUAL) == (virtual > 1))
    if word:
        chosen = word.replace("-", "_")
        if chosen not in SCHEDULES:
            raise UnknownNameError("schedule (of --fix)", word, SCHEDULES)
        if chosen not in known:
            has = "one stage" if virtual > 1 else "several stages"
            raise InputError(f"--fix schedule={word},virtual={virtual}: {word} has {has} for each rank")
        return {"schedules": chosen}
    if not virtual or pipeline == 1:
        return {}
    usual = [one for one in Limits().schedules if one in known and (virtual == 2 or one != "zb_v")]
    return {"schedules": ",".join(usual)}


def _shards(told: Mapping[str, str]) -> dict[str, str]:
    """Return the sharding levels that are left open."""
    levels = {0, 1, 2, 3}
    if "shard" in told:
        if told["shard"] not in ("0", "1", "2", "3"):
            raise InputError(f"--fix shard={told['shard']}: must be 0 (none), 1 (optimizer), 2 (+ gradients) or 3 (+ weights)")
        levels = {int(told["shard"])}
    for key, first in _SHARDED:
        if key in told:
            if told[key] not in ("sharded", "whole"):
                raise InputError(f"--fix {key}={told[key]}: must be sharded or whole (over the data axis)")
            levels &= {level for level in range(4) if (level >= first) == (told[key] == "sharded")}
    if not levels:
        said = ", ".join(f"{key}={told[key]}" for key in ("shard", *dict(_SHARDED)) if key in told)
        raise InputError(f"--fix {said}: contradict: gradients are sharded only with the optimizer, weights with both")
    return {} if len(levels) == 4 else {"shard": ",".join(map(str, sorted(levels)))}


def _exchange(text: str, numbers: Mapping[str, int], problem: Problem) -> dict[str, str]:
    """Return how keys and values are exchanged, and context degrees with which they are: those given, or all above 1."""
    from meshwright.planners.best.limits import largest_degrees

    for word in text.split(","):
        if word not in CONTEXT_EXCHANGES:
            raise UnknownNameError("context exchange (of --fix)", word, CONTEXT_EXCHANGES)
    if "context" in numbers:
        if numbers["context"] == 1:
            raise InputError(f"--fix context_exchange={text}: with a context degree of 1 nothing is exchanged; leave one out")
        return {"context_exchange": text}
    most = min(largest_degrees(problem.graph)["context"], problem.required_cluster.n_devices)
    degrees = [str(2**i) for i in range(1, 11) if 2**i <= most]
    if not degrees:
        raise InputError(
            f"--fix context_exchange={text}: a context degree of 2 needs 2,048 tokens and two devices; there are "
            f"{problem.graph.sequence_length} tokens and {problem.required_cluster.n_devices} devices"
        )
    return {"context_exchange": text, "context": ",".join(degrees)}


def _recompute(text: str) -> str:
    for word in text.split(","):
        if word not in RECOMPUTE:
            raise UnknownNameError("recomputation (of --fix)", word, RECOMPUTE)
    return text
