"""Composition only: read, search, evaluate. What the command line does, as functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from meshwright.api import training_states
from meshwright.api.designing import codesign
from meshwright.api.evaluation import evaluate, simulate
from meshwright.base import fields, options, registry
from meshwright.base.errors import InputError, UnknownNameError
from meshwright.core import peaks
from meshwright.core.cluster import Cluster
from meshwright.core.interval import MEASURED_COSTS
from meshwright.core.problem import Batch, MixedPrecision, ModelSpec, Problem, Stop
from meshwright.core.result import Result

_LARGEST_BATCH = 10**9

__all__ = ["codesign", "completed", "evaluate", "make_problem", "plan", "read", "simulate", "training"]


def read(
    spec: str,
    *,
    file_format: str = "",
    sequence_length: int = 0,
    freeze: Sequence[str] = (),
    lora: str = "",
    objective: str = "",
) -> ModelSpec:
    """Read a model, trained as a whole or in part: a name, a file or a generator; see `meshwright.models.read`.

    A ``config.json`` of a family that no reader knows is captured where transformers is there, see `meshwright.api.reading`.
    """
    from meshwright.api import reading

    return reading.model(
        spec, file_format=file_format, sequence_length=sequence_length, freeze=freeze, lora=lora, objective=objective
    )


def make_problem(  # noqa: PLR0913  all that a question holds
    model: str | ModelSpec,
    cluster: str | Cluster | None = None,
    *,
    costs: str = "",
    batch: Batch | None = None,
    training: MixedPrecision | str | None = None,
    file_format: str = "",
    framework: str = "",
    memory_risk: float | str = peaks.RISK,
    freeze: Sequence[str] = (),
    lora: str = "",
    optimizer: str = "",
    state_precision: str = "",
    objective: str = "",
) -> Problem:
    """Pose the question: a model, a cluster, a cost model and a batch.

    Parameters
    ----------
    model : str or ModelSpec
        As on the command line, or already read.
    cluster : str or Cluster or None
        As on the command line, or already built; None for the one the model's file holds.
    costs : str
        Cost model; empty for the one the content asks for.
    batch : Batch or None
        How much at once; zeros are left to the search.
    training : MixedPrecision or str or None
        Precision and optimizer, or the precision alone (`training`); None for mixed-precision Adam in bf16, or in fp16 (else
        fp32) where a device has no bf16.
    file_format : str
        Format of the model's file where it should not be recognised.
    framework : str
        The framework that will run the plan, as after ``--for``; empty for the one that is assumed.
    memory_risk : float or str
        Chance that the plan may have of needing more memory than there is: 0.01 or ``"1%"``; 0.5 takes predictions as they are.
    freeze, lora
        Which part of a model given by name or file is trained: see `meshwright.models.read`.
    optimizer, state_precision : str
        As after ``--optimizer`` and ``--state-precision``, see `meshwright.api.training_states`; empty for those of `training`.
    objective : str
        What a model given by name or file is trained for: ``"dpo"``; see `meshwright.models.read`.

    Returns
    -------
    Problem
        The question.

    Raises
    ------
    InputError
        When a name is unknown, a file is wrong, or there is no cluster.
    """
    fields.of_kind("batch", batch, Batch, "Batch(global_batch=64)")
    fields.of_kind("training", training, (MixedPrecision, str), '"bf16"')
    batch = batch or Batch()
    for name in Batch.__dataclass_fields__:
        if not 0 <= getattr(batch, name) <= _LARGEST_BATCH:
            option = "--" + name.replace("_", "-")
            raise InputError(f"{option} {getattr(batch, name)}: must be between 0 and {_LARGEST_BATCH} (0: left open)")
    if isinstance(model, str):
        length = batch.sequence_length
        model_spec = read(model, file_format=file_format, sequence_length=length, freeze=freeze, lora=lora, objective=objective)
    elif freeze or lora or objective:
        raise InputError("freeze, lora and objective: this model is read already; give them to read() instead")
    else:
        model_spec = model
    length = model_spec.graph.sequence_length
    if batch.sequence_length not in (0, length):  # a string is read at this length
        raise InputError(
            f"sequence length {batch.sequence_length}: model {model_spec.name} was read at {length} tokens a sample; give its "
            f"name, or read it with sequence_length={batch.sequence_length}"
        )
    if isinstance(cluster, str):
        from meshwright import clusters as topologies

        cluster = topologies.cluster(cluster)
    if model_spec.format in ("flexflow_measures", "taskgraph_fbuf"):
        raise InputError(
            f"model {model_spec.spec}: format {model_spec.format} holds times, not what the layers compute, so there is "
            "nothing to plan; "
            "'meshwright codesign MODEL --measures FILE' uses measured times"
        )
    name = costs or model_spec.costs
    from meshwright.api import targets

    targets.whole_only(model_spec.graph, registry.load("costs", name, "cost model"), f"costs {name}")
    place = cluster if cluster is not None else model_spec.cluster
    if place is None and model_spec.instance is None:
        raise InputError(
            f"model {model_spec.name}: say where to train it: --cluster dgx-h100:64 (see 'meshwright list clusters')"
        )
    if not training and (note := _common_only(_held(training, place).precision, place)):
        model_spec = replace(model_spec, notes=(*model_spec.notes, note))
    held = training_states.with_states(_held(training, place), optimizer, state_precision)
    chance = _risk(memory_risk, name)
    run_by = targets.framework_of(framework, model_spec, place, name, held)
    return targets.trainable(Problem(model_spec, place, name, batch, held, run_by, framework, chance))


def _risk(memory_risk: float | str, costs: str) -> float:
    """Return the chance of running out of memory that a plan may have: of other costs than were measured, as peaks are."""
    chance = peaks.risk(memory_risk)
    if costs in MEASURED_COSTS or chance == peaks.PLAIN_RISK:
        return chance
    if memory_risk != peaks.RISK:  # said, and not the default
        raise InputError(
            f"--memory-risk {memory_risk}: how far peaks of {costs} costs may be off was not measured; leave it out, or use "
            "the search's option memory_ratio where it has one"
        )
    return peaks.PLAIN_RISK


def _held(told: MixedPrecision | str | None, cluster: Cluster | None) -> MixedPrecision:
    """Return how numbers are held: as told, or as usual on a cluster, in bf16 where every device has it."""
    if isinstance(told, MixedPrecision):
        return told
    if told:
        return training(told)
    kinds = cluster.kinds if cluster is not None else ()
    has = [{name for name, _ in kind.flops_per_second} for kind in kinds]
    usual = next((name for name in ("bf16", "fp16", "fp32") if all(name in names for names in has)), "bf16")
    return training(usual)


def _common_only(precision: str, cluster: Cluster | None) -> str:
    """Return which kinds of device leave fp32 alone to all of them although others have more; empty where that is not so."""
    halves = ("bf16", "fp16")
    lacks = {
        kind.name: [half for half in halves if half not in dict(kind.flops_per_second)]
        for kind in (cluster.kinds if cluster is not None else ())
    }
    if precision != "fp32" or all(own == list(halves) for own in lacks.values()):
        return ""
    which = ", ".join(f"{name} has no {' or '.join(own)}" for name, own in lacks.items() if own)
    return f"products in fp32, all that every device has: {which}; a cluster without one of these kinds has more"


def plan(  # noqa: PLR0913  a question, how it is searched, and what is preferred
    model: str | ModelSpec | Problem,
    cluster: str | Cluster | None = None,
    *,
    search: str = "",
    costs: str = "",
    batch: Batch | None = None,
    training: MixedPrecision | str | None = None,
    settings: Mapping[str, str] | None = None,
    seed: int = 0,
    stop: Stop | None = None,
    framework: str = "",
    within: float = 0.0,
    memory_risk: float | str = peaks.RISK,
    global_batch: int = 0,
    micro_batch: int = 0,
    sequence_length: int | str = 0,
    fix: str | Mapping[str, object] | None = None,
    freeze: Sequence[str] = (),
    lora: str = "",
    optimizer: str = "",
    state_precision: str = "",
    lengths: str = "",
    batching: str = "",
    objective: str = "",
    why_not: Mapping[str, object] | None = None,
    mtbf: str = "",
) -> Result:
    """Return the best plan a search finds, judged by the simulator.

    Parameters
    ----------
    model, cluster, costs, batch, training
        The question, see `make_problem`; or a posed `Problem` as the only one.
    search : str
        A file of `meshwright.search`; empty for the one that suits the content (`best`).
    settings : mapping of str to str or None
        The search's own options, as after ``--set``.
    seed : int
        Seed of everything random.
    stop : Stop or None
        When to stop a search that could go on.
    framework : str
        The framework that will run the plan, see `make_problem`.
    within : float
        How much longer than the quickest plan found the answer may take, as a share, in order to be simpler; only for searches
        with the option `within_ratio` (`best`). The command line's default is 0.01.
    memory_risk : float or str
        As of `make_problem`.
    global_batch, micro_batch, sequence_length : int or str
        The batch in plain words, in the place of `batch`; 0 for what the search or the model chooses. Text as people type it:
        ``"32k"``.
    fix : str or mapping or None
        Parts of the plan that are given: ``{"tensor": 2, "pipeline": 4}``; see `meshwright.api.fixing`. The answer is compared
        with the best of all plans in its field ``fixed``.
    freeze, lora, optimizer, state_precision
        What is trained and how, as of `make_problem`: ``lora="r=16,targets=query,base=4bit"``, ``optimizer="sgd"``.
    lengths, batching : str
        Lengths of documents that vary, and how they become samples: ``lengths="lognormal:2k,1", batching="mask"``; see
        `meshwright.api.sizes.unlike`. The answer holds the field ``lengths``.
    objective : str
        What is trained for, as of `make_problem`: ``objective="dpo"``.
    why_not : mapping or None
        Degrees to compare the answer with: ``{"tensor": 8}``; the answer's field ``why_not``, see `meshwright.api.why_not`.
    mtbf : str
        Time between failures of a device (``"50000h"``) or of parts; the answer's field ``goodput``, see
        `meshwright.api.sizes.effective`.

    Returns
    -------
    Result
        The answer; `Result.feasible` says whether anything fits.

    Raises
    ------
    InputError
        When anything in the question is wrong, or the search's answer is no plan of the model on the cluster.
    PluginError
        When the search answers another question, or claims what cannot be true.
    """
    from meshwright.api import arguments, searching

    arguments.check(
        model, cluster, settings, freeze, search=search, costs=costs, framework=framework, lora=lora, optimizer=optimizer,
        state_precision=state_precision, lengths=lengths, batching=batching, objective=objective,
        mtbf=mtbf,
    )  # fmt: skip
    degrees = arguments.besides(why_not, mtbf)
    batch = arguments.batch_of(batch, global_batch, micro_batch, sequence_length)
    if isinstance(model, Problem):
        problem = model
        given = {
            "cluster": cluster, "costs": costs, "batch": batch, "training": training, "framework": framework, "lora": lora,
            "freeze": freeze or None, "optimizer": optimizer, "state_precision": state_precision, "objective": objective,
            "memory_risk": None if memory_risk == peaks.RISK else memory_risk,
        }  # fmt: skip
        extra = [name for name, value in given.items() if value is not None and value != ""]
        if extra:
            raise InputError(f"{extra[0]}: a Problem that is posed already has its own; give it to make_problem instead")
    else:
        problem = make_problem(
            model, cluster, costs=costs, batch=batch, training=training, framework=framework, memory_risk=memory_risk,
            freeze=freeze, lora=lora, optimizer=optimizer, state_precision=state_precision, objective=objective,
        )  # fmt: skip
    plain = problem
    if lengths or batching:
        from meshwright.api.sizes import unlike

        problem = unlike.posed(problem, lengths, batching)
    if fix is not None:
        if search not in ("", "best") or problem.model_spec.search != "best":
            raise InputError(f"fix: only search best completes a plan of which a part is given, not {search or 'this file'}")
        from meshwright.api import fixing

        problem.batch.check()
        parts = fixing.parse(fix, problem)
        found = fixing.plan(problem, parts, settings=settings, seed=seed, stop=stop, within=within)
    else:
        found = searching.searched(problem, search=search, settings=settings, seed=seed, stop=stop, within=within)
    found = unlike.with_lengths(found, plain, lengths, batching, seed) if lengths else found
    if degrees and found.feasible:
        from meshwright.api.why_not import with_why_not

        found = with_why_not(found, degrees, stop=stop)
    if not mtbf:
        return found
    from meshwright.api.sizes import effective

    return effective.with_goodput(found, mtbf)


def completed(problem: Problem, search: str, settings: Mapping[str, str]) -> Problem:
    """Return the question as a search's options complete it, without searching.

    Parameters
    ----------
    problem : Problem
        As asked.
    search : str
        A file of `meshwright.search`.
    settings : mapping of str to str
        Its options, as after ``--set``.

    Returns
    -------
    Problem
        The same, where the search has no ``completed(problem, params)``: its options say nothing about the question.

    Raises
    ------
    InputError
        When an option is unknown or wrong, or they contradict the problem.
    """
    if not settings:
        return problem
    module = registry.load("search", search, "search")
    if not hasattr(module, "completed"):
        return problem
    question: Problem = module.completed(problem, options.parse(module.Params, dict(settings), f"search {search}"))
    from meshwright.api import answers

    return answers.same_question(problem, question, search)


def training(precision: str) -> MixedPrecision:
    """Return how numbers are held for a matrix precision, with mixed-precision Adam.

    Parameters
    ----------
    precision : str
        ``bf16``, ``fp16``, ``fp8`` (products only; weights and activations stay in bf16) or ``fp32``.

    Returns
    -------
    MixedPrecision
        The settings.

    Raises
    ------
    UnknownNameError
        When the precision is none of these.
    """
    if precision not in ("bf16", "fp16", "fp8", "fp32"):
        raise UnknownNameError("precision", precision, ("bf16", "fp16", "fp8", "fp32"))
    return MixedPrecision.of(precision)
