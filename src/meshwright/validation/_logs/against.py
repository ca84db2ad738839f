"""What a log or configuration says against the model, the cluster and the work of its row: a contradiction is an error."""

from __future__ import annotations

import math
from collections.abc import Mapping

from meshwright.base.errors import InputError
from meshwright.core.cluster import Cluster
from meshwright.core.flops import model_flops
from meshwright.core.graph import Graph
from meshwright.core.run_config import RunConfig
from meshwright.validation._logs import MeasuredRun
from meshwright.validation._logs.beside import kind_word
from meshwright.validation._points import CellError

__all__ = ["check_log", "check_seconds", "check_trained", "check_variant", "check_work"]

MOST_WORK = 2.0
"""FLOPs of a step as a log's rate has them, over the model's own: what formulas differ by (recomputation, attention, the
head), with room. More is another model, batch or number of devices."""

WEIGHTS_RATIO = 1.03
"""Weights that a log tells may be so many times the model's: vocabularies are padded, counts rounded."""

MEMORY_RATIO = 1.09
"""Memory that a log tells may be so many times the kind's: 80 GB are told in either unit, less what drivers keep."""


def check_log(log: MeasuredRun, graph: Graph, cluster: Cluster) -> None:
    """Refuse a log that tells other sizes or another number of weights than the model has, or names another kind of device than
    the cluster has; devices of unknown names may be any.

    Parameters
    ----------
    log : MeasuredRun
        The log.
    graph : Graph
        The model.
    cluster : Cluster
        Where it ran.

    Raises
    ------
    InputError
        When it does.
    """
    from meshwright.frameworks.megatron import sizes

    sizes.check(log.options, log.file, graph, log.denied)
    if log.n_weights and not 1.0 / WEIGHTS_RATIO < log.n_weights / graph.n_parameters < WEIGHTS_RATIO:
        raise InputError(
            f"{log.file}: is of a model with {log.n_weights / 1e9:.4g} billion weights, but {graph.name} has "
            f"{graph.n_parameters / 1e9:.4g}: another model?"
        )
    row, told = log.device
    kind, _, form = told.partition(" ")
    known = [one for one in cluster.kinds if kind_word(one.name)]
    alike = [one for one in known if kind_word(one.name) == kind and _same_form(form, one.name)]
    if kind and len(known) == len(cluster.kinds) and not alike:
        raise _other_cluster(f"{log.file}: line {row}: ran on {told}", cluster)
    ratios = [log.device_bytes / one.memory_bytes for one in alike]
    if ratios and log.device_bytes and not any(1.0 / MEMORY_RATIO < ratio < MEMORY_RATIO for ratio in ratios):
        raise _other_cluster(f"{log.file}: line {row}: ran on {told} with {log.device_bytes / 2.0**30:.4g} GiB", cluster)


def _same_form(form: str, name: str) -> bool:
    """Tell whether a device may be of a kind by what its name says of its board."""
    boards = {part.upper().removesuffix("2") for part in name.split("-")} & {"PCIE", "SXM", "NVL"}
    return not form or not boards or form in boards


def _other_cluster(what: str, cluster: Cluster) -> InputError:
    """Return the error of a log of another kind of device than a cluster has."""
    return InputError(f"{what}, but {cluster.name} has {', '.join(one.name for one in cluster.kinds)}: another cluster?")


def check_variant(word: str, found: RunConfig, fields: Mapping[str, str]) -> None:
    """Refuse a variant in a cell that says otherwise of what runs beside computing than options of Megatron-LM do.

    Parameters
    ----------
    word : str
        The framework of the row, as after ``--for``.
    found : RunConfig
        What a configuration or the options in a log say.
    fields : mapping of str to str
        Cells by column.

    Raises
    ------
    CellError
        When it does.
    """
    one, own = found.plan.stages[0].strategy, set(word.partition(":")[2].split("+"))
    counts = {"plain": one.tensor > 1 and one.sequence_parallel, "late_reduce": one.data * one.context > 1 and one.shard < 2}
    if not word.startswith(("megatron:", "megatron_bridge:")) or not own & set(counts) or found.framework:
        return
    told = set(found.variant.split("+"))
    if any((name in own) != (name in told) for name, matters in counts.items() if matters):
        where = fields.get("config", "").strip() or fields.get("log", "").strip()
        said = "+".join(sorted(told & set(counts))) or "neither plain nor late_reduce"
        raise CellError("framework", f"framework is {word}, but {where} says {said}; correct one of them")


def check_trained(log: MeasuredRun | None, graph: Graph, n_ranks: int) -> None:
    """Refuse a log that trains another number of weights than the row does: adapters, or another model.

    Parameters
    ----------
    log : MeasuredRun or None
        The log; None for a row without one.
    graph : Graph
        The model, frozen as the row's configuration says.
    n_ranks : int
        Ranks that weights may be sharded over: PyTorch's first FSDP counts those of one of them.

    Raises
    ------
    InputError
        When it does.
    """
    row, told = log.trained if log else (0, 0.0)
    n_trained = float(graph.n_parameters - graph.n_frozen_parameters)
    if log and told and not any(1.0 / WEIGHTS_RATIO < told / own < WEIGHTS_RATIO for own in (n_trained, n_trained / n_ranks)):
        said = f"{told:,.0f} weights are trained, but {n_trained:,.0f} of {graph.name} by the row"
        raise InputError(
            f"{log.file}: line {row}: {said}: the program's configuration (column config) says adapters; or another model?"
        )


def check_work(log: MeasuredRun, graph: Graph, global_batch: int, n_devices: int) -> float:
    """Return the seconds of a step, their figures checked against the work of the run's model.

    Raises
    ------
    InputError
        When the log's rates or FLOPs make another amount of work, or it tells no time.
    """
    seconds = log.seconds_of(global_batch, graph.sequence_length, n_devices)
    if not 0.0 < seconds < math.inf:
        raise InputError(f"{log.file}: tells no seconds of a step, and no rate to find them from")
    told = log.device_flops_per_second * seconds * n_devices
    needed = model_flops(graph) * global_batch
    if told and needed and not 1.0 / MOST_WORK < told / needed < MOST_WORK:
        raise InputError(
            f"{log.file}: {log.device_flops_per_second / 1e12:.4g} TFLOP/s a device make {told:.3g} FLOP a step of "
            f"{seconds:.4g} s on {n_devices} devices; {graph.name} needs {needed:.3g} for {global_batch} samples: another "
            "model, batch or number?"
        )
    return seconds


def check_seconds(seconds: float, graph: Graph, run: tuple[int, int, str], cluster: Cluster, log: MeasuredRun | None) -> float:
    """Refuse a step shorter than the peak of its devices allows: their products alone take longer.

    Parameters
    ----------
    seconds : float
        Of the step.
    graph : Graph
        The model.
    run : tuple of (int, int, str)
        Samples of a step, devices, and the precision of products.
    cluster : Cluster
        Where it ran: the quickest of its kinds counts.
    log : MeasuredRun or None
        Where the seconds stand; None for the row's own.

    Returns
    -------
    float
        The seconds; infinite where by the log the run ended out of memory.

    Raises
    ------
    InputError
        When it is shorter.
    """
    (global_batch, n_devices, precision), place = run, log.file if log else "column step_seconds"
    peak = max(one.peak(precision) for one in cluster.kinds)
    least = model_flops(graph, halve_causal=True) * global_batch / (peak * n_devices)
    if seconds < least:
        raise InputError(
            f"{place}: a step of {seconds:.4g} s is shorter than the {least:.4g} s that the products of {global_batch} samples "
            f"of {graph.name} take at the {precision} peak of {n_devices} devices of {cluster.name}: another unit, model, "
            "batch or cluster?"
        )
    return math.inf if log and log.out_of_memory else seconds
