"""``meshwright run``: execute a plan with PyTorch and compare what happened with what was said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from meshwright.commands import _options, _scripts, _several
from meshwright.commands._elastic import order_of

if TYPE_CHECKING:
    from meshwright.commands._elastic import Leg, Outcome
    from meshwright.core.result import Result
    from meshwright.runtime.job.job import Job
    from meshwright.runtime.job.launch import Failure
    from meshwright.runtime.ranks.plan_file import PlanFile

__all__ = ["register"]

Measured = dict[str, Any]
"""What rank 0 tells of a run."""


def prepare(job: Job, read: PlanFile, predicted: Result | None) -> list[str]:
    """Check plan against model and options before any process trains; return sentences the user should read.

    Raises `InputError` when something is wrong.
    """
    from meshwright.runtime.job import checkpoints, preflight, weight_files
    from meshwright.runtime.job.holdings import names_of
    from meshwright.runtime.model import source
    from meshwright.runtime.model.data import example_of
    from meshwright.runtime.parallel import optimizer_probe, tensor_parallel, vocabulary
    from meshwright.runtime.ranks import meshes, message_order
    from meshwright.runtime.ranks.layout import layout
    from meshwright.runtime.step import autocast
    from meshwright.runtime.step.effects import effects_of

    places = layout(read.plan, job.order)
    meshes.check(places)
    message_order.check(places, job.plan)
    for word in ("data", "loss", "optimizer", "lr_schedule", "monitor"):
        if getattr(job, word):
            source.load(getattr(job, word), "--" + word.replace("_", "-"))
    preflight.check_optimizer(read.entry, job.optimizer, job.plan)
    if job.optimizer:
        optimizer_probe.check(source.load(job.optimizer, "--optimizer"), read.plan, f"--optimizer {job.optimizer}")
    model, examples = source.build(job.model, job.seed, empty=bool(job.weights))
    if job.weights:
        weight_files.check(names_of(model), job.weights)
    if job.resume == "last":
        checkpoints.check(job.save, names_of(model))
    sample = example_of(model, examples, read.sequence_length)
    units = preflight.check_model(model, read.names, read.plan, sample, job.plan)
    differing = [] if predicted is None else preflight.check_same_model(units, read.names, predicted.problem.graph, job.plan)
    tp_plan = tensor_parallel.wishes_of(model)
    priced = [] if predicted is None else preflight.priced_otherwise(read.entry, read.plan, units, tp_plan)
    return [*places.notes(), *read.notes(), *autocast.difference(read, model, job.precision), *differing,
            *effects_of(model, units, read.names, read.plan, sample, job.plan),
            *priced, *(vocabulary.of_own_loss(units, read.plan, tp_plan) if job.loss else [])]  # fmt: skip


def predict(read: PlanFile, path: str, profile: str) -> tuple[Result | None, str]:
    """Return the plan's simulated step, or None and why there is none.

    `profile`: a profile to predict from; empty for the plan's own model, cluster and costs.
    Raises `InputError` when the profile is wrong or of another model; a plan's own missing sources are no error.
    """
    from meshwright import api
    from meshwright.api.plan_files import resimulate
    from meshwright.base.errors import InputError, MeshwrightError
    from meshwright.core.result import Answer, Result
    from meshwright.writers import plan_json

    if not profile:
        try:
            return resimulate(path), ""
        except MeshwrightError as error:
            return None, f"no prediction: {error}"
    model_spec = api.read(profile)
    if model_spec.costs != "profiled":
        raise InputError(f"--profile {profile}: is no profile; measure one with 'meshwright profile'")
    problem = api.make_problem(
        model_spec, None if model_spec.cluster is not None else plan_json.cluster_from_json(dict(read.entry), path)
    )
    names = {op.name: i for i, op in enumerate(problem.graph.ops)}
    plan = plan_json.plan_from_json(dict(read.entry), names, path)
    stage_costs, timeline = api.evaluate(problem, plan)
    return Result(problem, "", 0, Answer(plan=plan), stage_costs, timeline), ""


def launched(leg: Leg, timeout_seconds: float, emulate: bool) -> dict[str, Any] | Failure:
    """Start the processes, on the machine's own network or on an emulation of the plan's cluster; return what happened.

    Raises `InputError` when the cluster is not known or cannot be emulated here.
    """
    from meshwright.base.errors import InputError
    from meshwright.runtime.job import launch, namespaces
    from meshwright.runtime.ranks.layout import layout

    n_ranks, devices = leg.read.plan.n_devices, layout(leg.read.plan).device_of_rank
    if not emulate:
        return launch.run(leg.job, n_ranks, timeout_seconds=timeout_seconds, gpus=leg.visible)
    cluster = None if leg.predicted is None else leg.predicted.problem.cluster
    if cluster is None:
        raise InputError(f"--emulate: the cluster of {leg.job.plan} is not known; plan on a cluster, or give --profile too")
    with namespaces.emulated(cluster) as prefixes:
        return launch.run(leg.job, n_ranks, timeout_seconds=timeout_seconds, prefixes=[prefixes[i] for i in devices])


def tell(notes: list[str]) -> None:
    """Print what the user should read on stderr."""
    for note in notes:
        typer.echo(f"note: {note}", err=True)


def print_torchrun(job: Job, read: PlanFile, predicted: Result | None, how: Comparison, n_machines: int) -> int:
    """Print the torchrun command of each machine; return the exit status."""
    from meshwright.runtime.job import launch

    tell(prepare(job, read, predicted))
    named = (("--trace", how.trace), ("--calibrate", how.calibrate))
    more = [word for option, value in named if value for word in (option, value)]
    more += [*(["--reference"] if how.reference else []), *(["--json"] if how.json else [])]
    print("\n".join(launch.torchrun_lines(job, how.profile, read.plan.n_devices, n_machines, job.plan, more)))
    return 0


def joined(leg: Leg, emulate: bool) -> tuple[Leg, Measured | int]:
    """Train as one of the processes that torchrun started; return what was trained under which plan, and what was measured, or
    the exit status of other ranks than 0.

    Raises `InputError` when torchrun started another number of processes than the plan has devices, or links should be
    emulated.
    """
    import signal

    from meshwright.base.errors import InputError
    from meshwright.commands import _elastic
    from meshwright.runtime.job import launch, worker

    if emulate:
        raise InputError("--emulate starts the processes itself; run it without torchrun")
    n_ranks, rank = worker.world_size(), worker.rank()
    if leg.job.elastic and n_ranks < leg.read.plan.n_devices:
        found = _elastic.fitted(leg, n_ranks, rank, lambda other: prepare(other.job, other.read, other.predicted))
        if found is None:
            return leg, 3
        leg = found
    n_used = leg.read.plan.n_devices
    if leg.job.elastic and n_used <= rank:
        tell([f"rank {rank} has nothing to do: the plan has {n_used} devices"])
        return leg, 0
    if not leg.job.elastic:
        launch.check_ranks(n_ranks, n_used, leg.job.plan)
    if rank == 0:
        tell([*prepare(leg.job, leg.read, leg.predicted), *(launch.shared_store() if leg.job.elastic else ())])
    measured = worker.join(leg.job, n_used)
    if measured is not None and "stopped_after" in measured:
        return leg, told_to_stop(leg.job, measured, signal.SIGTERM)
    return leg, 0 if measured is None else measured


def told_to_stop(job: Job, measured: Measured, number: int) -> int:
    """Say after which step a signal ended the run, and what is left; return the exit status."""
    import sys

    from meshwright.runtime.job import checkpoints

    print(
        f"meshwright: ended after step {measured['stopped_after']} of {job.n_steps}; {checkpoints.left_in(job.save)}",
        file=sys.stderr,
    )
    return 128 + number


def attempt(leg: Leg, limits: tuple[int, float], emulate: bool) -> Outcome:
    """Start the processes and train; return what was measured, which process failed, or the exit status after Ctrl-C.

    `limits`: ``--processes`` and ``--timeout``.
    """
    import signal
    import sys

    from meshwright.runtime.job import checkpoints, preflight
    from meshwright.runtime.ranks.layout import layout

    preflight.check_machine(layout(leg.read.plan), leg.job.backend, limits[0], leg.job.plan)
    tell([*prepare(leg.job, leg.read, leg.predicted), *([leg.why] if leg.why else [])])
    try:
        return launched(leg, limits[1], emulate)
    except KeyboardInterrupt:
        print(f"meshwright: ended at once; {checkpoints.left_in(leg.job.save)}", file=sys.stderr)
        return 128 + signal.SIGINT


def ended(leg: Leg, outcome: Outcome) -> Measured | int:
    """Say how a run ended where it did before its time; return what was measured, or the exit status."""
    import signal
    import sys

    from meshwright.runtime.job import checkpoints, launch

    if isinstance(outcome, launch.Failure):
        print(f"meshwright: {launch.describe(outcome, leg.read.plan)}", file=sys.stderr)
        if not outcome.wrong_input:
            print(f"meshwright: {checkpoints.left_in(leg.job.save)}", file=sys.stderr)
        return outcome.status
    if isinstance(outcome, dict) and "stopped_after" in outcome:
        return told_to_stop(leg.job, outcome, int(outcome.get("signal", signal.SIGTERM)))
    return outcome


@dataclass(frozen=True, slots=True)
class Comparison:
    """How measured and predicted are compared: files (empty for none), the profile to correct, one process too, as JSON.

    `trace`: a file; or a folder, where the processes have left what PyTorch's profiler recorded.
    `told`: what takes the figures; none to print them.
    """

    trace: str
    calibrate: str
    profile: str
    reference: bool
    json: bool
    told: Callable[[Measured], None] | None = None


def compare(job: Job, read: PlanFile, measured: Measured, predicted: Result | None, how: Comparison) -> None:
    """Print what was measured beside what was predicted, and write the files asked for."""
    import json

    from meshwright.runtime.job import reference
    from meshwright.runtime.profile import calibration, comparison, kineto
    from meshwright.runtime.ranks.layout import layout

    losses = reference.losses_of(job, read) if how.reference else None
    entry = comparison.as_json(read.plan, measured, predicted, losses)
    entry |= {"restarts": measured["restarts"]} if "restarts" in measured else {}
    if job.profiled:
        written = kineto.merge(job.profiled, layout(read.plan, job.order), predicted)
        tell([f"the last step as PyTorch's profiler recorded it, with the prediction: {', '.join(written)}"])
    elif how.trace:
        comparison.write_trace(how.trace, measured, predicted)
    if how.calibrate and predicted is not None:
        calibration.write(how.profile, how.calibrate, predicted, entry)
    tell(comparison.for_other_devices(predicted, job.backend))
    if how.told is not None:
        how.told(entry)
    elif how.json:
        print(json.dumps(entry))
    elif measured["step_seconds"]:  # else all steps had been trained before
        print(comparison.lines(entry))


def execute(job: Job, n_machines: int, limits: tuple[int, float], emulate: bool, how: Comparison) -> int:
    """Predict, train and compare, or print what starts that with torchrun; return the exit status.

    Parameters
    ----------
    job : Job
        What to train; the order of work that is predicted is added to it.
    n_machines : int
        ``--torchrun``; 0 to train.
    limits : tuple
        ``--processes`` and ``--timeout``.
    emulate : bool
        ``--emulate``.
    how : Comparison
        How measured and predicted are compared.
    """
    from meshwright.commands import _elastic
    from meshwright.runtime.job import launch, preflight
    from meshwright.runtime.ranks.plan_file import read_plan
    from meshwright.runtime.step import autocast

    autocast.dtype_of(job.precision)
    if any(limits) and (n_machines > 0 or launch.under_torchrun()):
        tell(["torchrun starts the processes and ends them: --processes and --timeout say nothing there"])
    read = read_plan(job.plan)
    predicted, why = predict(read, job.plan, how.profile)
    job = replace(job, order=order_of(predicted))
    if n_machines > 0:
        return print_torchrun(job, read, predicted, how, n_machines)
    job = preflight.with_backend(job)
    leg = _elastic.Leg(job, read, predicted, why)
    if launch.under_torchrun():
        leg, told = joined(leg, emulate)
    elif not job.elastic:
        told = ended(leg, attempt(leg, limits, emulate))
    else:
        allowed = preflight.most_processes(job.backend, limits[0])
        leg, outcome = _elastic.run(leg, _elastic.check(job), partial(attempt, limits=limits, emulate=emulate), allowed)
        told = ended(leg, outcome)
    if isinstance(told, int):
        return told
    compare(leg.job, leg.read, told, leg.predicted, how)
    return 0


def started(
    plans: list[str], dry_run: bool, job: Job, n_machines: int, limits: tuple[int, float], emulate: bool, how: Comparison
) -> int:
    """Run one plan, or several one after the other, or say what runs would be; return the exit status.

    `plans`: files, that of `job` first; `dry_run`: ``--dry-run``; the others are arguments of `execute`.
    """
    from meshwright.base import files

    written = (("--trace", "" if job.profiled else how.trace), ("--calibrate", how.calibrate), ("--log", job.log))
    files.check_targets([(option, path) for option, path in written if path], plans)

    def call(plan: str) -> _several.PlanRun:
        own = replace(job, plan=plan)
        if dry_run:
            return _several.dry(own, limits[0], lambda read, path: predict(read, path, how.profile), prepare)
        entries: list[Measured] = []
        status = execute(own, 0, limits, emulate, replace(how, told=entries.append))
        return _several.PlanRun(plan, status, entries[0] if entries else {})

    if dry_run or len(plans) > 1:
        _several.check(job, (("--trace", how.trace), ("--calibrate", how.calibrate)), n_machines)
        status = _several.tell(_several.each(plans, call), as_json=how.json, dry_run=dry_run)
    else:
        status = execute(job, n_machines, limits, emulate, how)
    return _scripts.ended(status)


def _absolute(path: str) -> str:
    return str(Path(path).absolute()) if path else ""


def register(app: typer.Typer) -> None:
    """Add the command to the program."""

    @app.command(context_settings={"allow_extra_args": True})
    def run(
        context: typer.Context,
        plan: str = typer.Argument(
            help="A plan file, as 'meshwright plan --out' writes it, or several; or SCRIPT.py of yours."
        ),
        model: str = typer.Option("", help="package.module:callable that returns the torch.nn.Module; with a plan file."),
        script_plan: str = typer.Option("", "--plan", metavar="PLAN", help="With SCRIPT.py, whose words follow --: its plan."),
        steps: int = typer.Option(5, help="Steps to train."),
        data: str = typer.Option("", help="package.module:callable(step, n_samples) -> (inputs, targets); default: synthetic."),
        weights: str = typer.Option("", help="Folder of *.safetensors or a checkpoint that weights are read from."),
        loss: str = typer.Option("", help="package.module:callable(output, target) -> mean loss; default: cross entropy."),
        optimizer: str = typer.Option("", help="package.module:callable(parameters) -> optimizer; default: AdamW."),
        learning_rate: float = typer.Option(1e-3, help="Of AdamW."),
        lr_schedule: str = typer.Option("", help="package.module:callable(optimizer) -> scheduler of learning rates."),
        precision: str = typer.Option("", help="Of products, by autocast: bf16, fp16 (loss scaled), fp32; default: weights'."),
        seed: int = typer.Option(0, help="Seed of weights and synthetic data."),
        backend: str = typer.Option("", help="gloo (CPU) or nccl (GPUs); default: nccl where there are GPUs."),
        processes: int = typer.Option(0, help="Most processes to start; 0: one per GPU, or per core but at least eight."),
        save: str = typer.Option("", help="Folder for checkpoints."),
        save_every: int = typer.Option(0, help="Steps between checkpoints; 0: at the end only."),
        keep: int = typer.Option(2, help="Checkpoints that stay in the folder of --save."),
        keep_every: int = typer.Option(0, help="Those of every so many steps stay too; 0: none."),
        resume: bool = typer.Option(False, "--resume", help="Go on from the last checkpoint; --resume auto: the newest whole."),
        elastic: bool = typer.Option(False, "--elastic", help="When a device is lost, plan again for those left and go on."),
        max_restarts: int = typer.Option(3, help="Devices that a run with --elastic may lose."),
        non_finite: str = typer.Option("stop", help="A loss or gradient that is not finite: stop the run, or skip the step."),
        clip_norm: float = typer.Option(0.0, help="Largest norm of the gradient, to which it is scaled down; 0: no limit."),
        log: str = typer.Option("", help="Add a line of JSON a step to this file: loss, gradient norm, tokens a second."),
        monitor: str = typer.Option("", help="package.module:callable(entry) for every step, as for TensorBoard or W&B."),
        costs: str = typer.Option("", "--profile", help="Predict from this profile instead of the plan's own costs."),
        calibrate: str = typer.Option("", help="Write the profile of --profile, corrected by what was measured, to this file."),
        trace: str = typer.Option("", help="Measured and predicted step as a Chrome trace; FOLDER/: PyTorch's, one a rank."),
        emulate: bool = typer.Option(False, "--emulate", help="Limit links to the rates of the plan's cluster (Linux, root)."),
        torchrun: int = typer.Option(0, help="Print the torchrun command of each of so many machines, and start nothing."),
        timeout: float = typer.Option(0.0, help="Seconds after which the run is given up; 0: never."),
        dry_run: bool = typer.Option(False, "--dry-run", help="Check and predict what a run would be, and start no process."),
        reference_: bool = typer.Option(False, "--reference", help="Also train in one process and compare the losses."),
        json_: _options.AsJson = False,
    ) -> int:
        """Train with the plan: start the processes (or join them under torchrun), and compare measured with predicted."""
        from meshwright.runtime.job import options
        from meshwright.runtime.job.job import Job
        from meshwright.runtime.model import source

        source.require_torch()
        if _scripts.is_asked(plan, script_plan, model):
            return _scripts.run_script(context, script_plan, backend, torchrun, (processes, timeout))
        _scripts.check_told(context, elastic, torchrun)
        plans, auto = _several.plans_and_resume([plan, *context.args], resume)
        job = Job(
            plans[0], model, steps, data, loss, optimizer, learning_rate, seed, "", save, save_every, keep,
            "auto" if auto else "last" if resume else "", non_finite, backend, precision=precision, clip_norm_value=clip_norm,
            lr_schedule=lr_schedule, keep_every=keep_every, log=_absolute(log), elastic=elastic,
            max_restarts=max_restarts, monitor=monitor, profiled=options.profiled_folder(trace), weights=_absolute(weights),
        )  # fmt: skip
        options.check(job, (processes, timeout), (costs, calibrate), emulate=emulate)
        how = Comparison(trace, calibrate, costs, reference_, json_)
        return started(plans, dry_run, job, torchrun, (processes, timeout), emulate, how)
