"""``--search ensemble``: several searches on one problem; the plan that simulates best is kept."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from meshwright import sim
from meshwright.base import options, registry
from meshwright.base.errors import InputError
from meshwright.core.problem import Problem, Stop
from meshwright.core.result import Answer, Objective

__all__ = ["STOPS_EARLY", "Params", "search"]

STOPS_EARLY = True


@dataclass(frozen=True, slots=True)
class Params:
    """Options.

    Parameters
    ----------
    searches : tuple of str
        Names of searches; where none are named, those of Parmesan that are there. One is tried with several options where it
        is named several times, each with a word of its own behind a colon: ``parmesan:narrow,parmesan:wide``.
    options : tuple of str
        Options of single searches, ``SEARCH.OPTION=VALUE`` or ``SEARCH:WORD.OPTION=VALUE``; all others keep their defaults.
        What has no ``=`` goes on with the value before it: ``stage_mapping.x=8,16``.
    """

    searches: tuple[str, ...] = field(
        default_factory=lambda: tuple(sorted({"parmesan", "stage_mapping"} & {*registry.names("search")}))
    )
    options: tuple[str, ...] = ()


def search(problem: Problem, params: Params, *, seed: int, stop: Stop) -> Answer:
    """Run the searches one after the other and keep the plan with the best simulated time per sample.

    Each search is given `problem`, `seed` and `stop`, with an equal share of its seconds. The answer is the winner's, with the
    simulated time per sample as objective and what each search reached in ``extra["searches"]``.
    Raises `InputError` when no search is named, one is named twice, or none of the answers can be simulated.
    Raises `UnknownNameError` when there is no such search.

    References
    ----------
    .. [1] L. Liu et al., Parmesan, IEEE TCAD 2024, section VIII-C: the best of several methods by simulation.
    """
    names = _names(params.searches)
    modules = [(name, registry.load("search", name.partition(":")[0], "search")) for name in names]
    told = _told(params.options, names)
    best: Answer | None = None
    value = float("inf")
    nothing: list[Answer] = []
    own = replace(stop, seconds=stop.seconds / len(modules))
    unheeded: tuple[str, ...] = ()
    reached: dict[str, float | None] = {}
    for name, module in modules:
        place = f"--set options={name}."
        mine = options.parse(module.Params, told[name], f"search {name}", prefix=place) if told[name] else module.Params()
        answer: Answer = module.search(problem, mine, seed=seed, stop=own)
        if not getattr(module, "STOPS_EARLY", False):
            unheeded += tuple(note for note in stop.unheeded(name.partition(":")[0]) if note not in unheeded)
        reached[name] = None
        if answer.plan is None:
            nothing.append(answer)
            continue
        asked = answer.problem or problem
        stage_costs = registry.load("costs", asked.costs, "cost model").stage_costs(asked, answer.plan)
        if not stage_costs:
            continue
        timeline = sim.simulate(asked, answer.plan, stage_costs)
        over = sim.excess_bytes(asked, answer.plan, timeline.peak_bytes)
        if over > 0.0:
            more = "more devices, or devices with more memory"
            nothing.append(Answer(None, missing_bytes=over, nearest=more, infeasible_proven=False))
            continue
        seconds = timeline.step_seconds / answer.plan.global_batch
        reached[name] = seconds
        if seconds < value:
            best, value = answer, seconds
    if best is None:
        nothing_fits = _nothing(names, nothing)
        return replace(nothing_fits, notes=nothing_fits.notes + unheeded)
    winner = min((name for name in names if reached[name] is not None), key=lambda name: (reached[name], names.index(name)))
    return replace(
        best, objective=Objective("simulated_seconds_per_sample", value), bound=None,
        notes=(*best.notes, *unheeded, f"the best of {', '.join(names)} is {winner}"),
        extra={**best.extra, "searches": reached},
    )  # fmt: skip


def _names(told: tuple[str, ...]) -> tuple[str, ...]:
    """Return the searches as they were named, each once, with the words behind them."""
    parts = [name.partition(":") for name in told]
    names = tuple(name.strip().replace("-", "_") + colon + word.strip() for name, colon, word in parts)
    if not names or len(set(names)) != len(names) or "ensemble" in {name.partition(":")[0] for name in names}:
        raise InputError(f"--set searches={','.join(told)}: name one or more different searches (not ensemble itself)")
    wrong = next(
        (text for text, (_, colon, word) in zip(told, parts, strict=True) if colon and not word.strip().isidentifier()), ""
    )
    if wrong:
        raise InputError(
            f"--set searches={wrong}: behind the colon stands a word of letters, digits and _, as in "
            f"{wrong.partition(':')[0]}:wide"
        )
    return names


def _told(texts: tuple[str, ...], names: tuple[str, ...]) -> dict[str, dict[str, str]]:
    """Return what is told of the options of each search."""
    found: dict[str, dict[str, str]] = {name: {} for name in names}
    joined: list[str] = []
    for text in texts:
        joined[-1:] = [f"{joined[-1]},{text}"] if joined and "=" not in text else [*joined[-1:], text]
    for text in joined:
        place, equals, value = text.partition("=")
        name, dot, option = place.partition(".")
        name, colon, word = name.strip().partition(":")
        name = name.replace("-", "_") + colon + word
        if not (equals and dot and option.strip()):
            raise InputError(f"--set options={text}: write SEARCH.OPTION=VALUE, as in options={names[0]}.OPTION=VALUE")
        if name not in found:
            raise InputError(f"--set options={text}: {name} is not among the searches: {', '.join(names)}")
        if option.strip() in found[name]:
            raise InputError(f"--set options={text}: {option.strip()} of {name} is told twice")
        found[name][option.strip()] = value.strip()
    return found


def _nothing(names: tuple[str, ...], answers: list[Answer]) -> Answer:
    """Return the answer that misses least of those that say how much is missing; proven where each search proves its own."""
    if not answers:
        raise InputError(
            f"none of the plans of {', '.join(names)} can be simulated: their cost models say nothing of this input"
        )
    proven = len(answers) == len(names) and all(answer.infeasible_proven for answer in answers)
    nearest = min(answers, key=lambda answer: answer.missing_bytes or float("inf"))
    return replace(nearest, infeasible_proven=proven)
