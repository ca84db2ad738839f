"""One process of a run: joins the others, trains, and leaves its results. Started as
``python -m meshwright.runtime.job.worker``.
"""

from __future__ import annotations

import datetime
import faulthandler
import json
import math
import os
import signal
import socket
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from meshwright.base import files
from meshwright.base.errors import InputError, MeshwrightError
from meshwright.runtime.job import checkpoints, lifeline, preflight, weight_files
from meshwright.runtime.job.allocator import keep_freed_memory
from meshwright.runtime.job.job import Job
from meshwright.runtime.job.memory import allocator_peak, peak_bytes
from meshwright.runtime.job.recording import recorded
from meshwright.runtime.job.trainer import NonFiniteError, Trainer, adamw, assemble
from meshwright.runtime.model import source
from meshwright.runtime.model.data import batches_of, default_loss, example_of
from meshwright.runtime.parallel import optimizer_probe
from meshwright.runtime.ranks.layout import layout
from meshwright.runtime.ranks.plan_file import PlanFile, read_plan
from meshwright.runtime.step.autocast import dtype_of
from meshwright.runtime.step.executor import Span

__all__ = ["join", "main", "rank", "train", "world_size"]

_PATIENCE = datetime.timedelta(minutes=10)


def train(job: Job) -> dict[str, Any] | None:
    """Train as one of the processes of a run.

    Returns: what happened on all ranks, JSON-ready; on rank 0 only.
    """
    keep_freed_memory()
    torch.set_num_threads(max(1, int(os.environ.get("OMP_NUM_THREADS", "1"))))
    read = read_plan(job.plan)
    places = layout(read.plan, job.order)
    model, examples = source.build(job.model, job.seed, empty=bool(job.weights))
    sample = example_of(model, examples, read.sequence_length)
    data = source.load(job.data, "--data") if job.data else None
    batches = batches_of(data, model, sample, places.plan.global_batch, job.seed)
    make = source.load(job.optimizer, "--optimizer") if job.optimizer else partial(adamw, learning_rate=job.learning_rate_value)
    loss = source.load(job.loss, "--loss") if job.loss else default_loss
    trainer = assemble(model, read.names, places, sample, optimizer=make, loss=loss, precision=dtype_of(job.precision))
    _tell(trainer, trainer.notes[len(places.notes()) :])  # what was seen before this process was started is told there
    trainer.skip_non_finite, trainer.clip_norm = job.non_finite == "skip", job.clip_norm_value
    if job.weights:
        weight_files.read_weights(trainer, job.weights)
    if job.lr_schedule:
        made = source.load(job.lr_schedule, "--lr-schedule")(trainer.optimizer)
        trainer.lr_schedule = optimizer_probe.stepped_alone(made, f"--lr-schedule {job.lr_schedule}")
    monitor = source.load(job.monitor, "--monitor") if job.monitor else None
    signal.signal(signal.SIGTERM, lambda *_: setattr(trainer, "asked_to_stop", True))
    first = _first_step(job, trainer)
    losses: list[float] = []
    norms: list[float] = []
    seconds: list[float] = []
    spans: list[tuple[float, list[Span]]] = []
    peak: dict[int, float] = {}
    for step in range(first, job.n_steps):
        inputs, targets = batches(step)
        rate = trainer.optimizer.param_groups[0]["lr"]
        dist.barrier()
        started = time.perf_counter()
        train_step = partial(trainer.step, inputs, targets)
        if job.profiled and step + 1 == job.n_steps:
            train_step = partial(recorded, trainer, job.profiled, train_step)
        try:
            if step == first and job.memory and trainer.executor.device.type == "cpu":
                loss_value, peak = peak_bytes(trainer, train_step)
            else:
                loss_value = train_step()
        except NonFiniteError as error:
            raise NonFiniteError(f"step {step + 1}: {error}; the step was not taken{_kept(job)}") from None
        seconds.append(time.perf_counter() - started)
        spans.append((trainer.executor.began, trainer.spans))
        losses.append(loss_value)
        norms.append(trainer.gradient_norm)
        _note(job, step, loss_value, trainer)
        if trainer.rank == 0:
            _log(job, monitor, _told_of(read, trainer, step, (loss_value, rate), seconds[-1]))
        done = step + 1
        if job.save and ((job.save_every and done % job.save_every == 0) or done == job.n_steps or trainer.stopping):
            checkpoints.save(trainer, job.save, done, job.keep, job.keep_every)
        if trainer.stopping:
            break
    if job.profiled and len(seconds) > 1 and first + len(seconds) == job.n_steps:
        del seconds[-1], spans[-1]  # the profiler takes its time
    if job.memory and trainer.executor.device.type == "cuda":
        peak = allocator_peak(trainer)
    return _gather(trainer, (losses, norms), seconds, spans, peak, first)


def _tell(trainer: Trainer, notes: Sequence[str]) -> None:
    """Print sentences once."""
    for note in notes if trainer.rank == 0 else ():
        print(f"note: {note}", file=sys.stderr, flush=True)


def _first_step(job: Job, trainer: Trainer) -> int:
    """Return the steps trained so far, after going on from a checkpoint where that was asked for.

    Raises `InputError` when there is none, or another run writes to its folder.
    """
    if job.save:
        checkpoints.claim(trainer, job.save)
    if not job.resume:
        return 0
    load = checkpoints.load_newest_whole if job.resume == "auto" else checkpoints.load
    done = load(trainer, job.save)
    if done >= job.n_steps and trainer.rank == 0:
        told = f"meshwright: {done} steps are trained already: --steps {job.n_steps} asks for none"
        print(told, file=sys.stderr, flush=True)
    return done


def _kept(job: Job) -> str:
    """Say which checkpoint is left."""
    newest = checkpoints.last(job.save) if job.save else None
    return f"; the newest checkpoint is {newest}" if newest else ""


def _note(job: Job, step: int, loss: float, trainer: Trainer) -> None:
    scale = trainer.loss_scale
    skipped = "" if scale is None or not scale.skipped else f"; gradients overflowed: skipped, loss scale now {scale.value:g}"
    skipped = "; the loss or a gradient is not finite: skipped" if trainer.skipped else skipped
    if dist.get_rank() == 0 and (skipped or step < 3 or (step + 1) % max(1, job.n_steps // 10) == 0):
        print(f"step {step + 1} of {job.n_steps}: loss {loss:.4f}{skipped}", file=sys.stderr, flush=True)


def _log(job: Job, monitor: Callable[..., Any] | None, entry: dict[str, Any]) -> None:
    """Hand what a step gave to the user's function, and add it to the log as a line, or not at all.

    Raises `InputError` when that cannot be written, as on a full disk.
    """
    if monitor is not None:
        monitor(dict(entry))
    if not job.log:
        return
    size = os.path.getsize(job.log) if os.path.exists(job.log) else 0
    try:
        with open(job.log, "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
    except OSError as error:
        with suppress(OSError):
            os.truncate(job.log, size)  # half a line would spoil the next one
        raise InputError(
            f"--log {job.log}: step {entry['step']} cannot be written: {error.strerror}{_kept(job)}: make room, then go on"
        ) from None


def _told_of(read: PlanFile, trainer: Trainer, step: int, found: tuple[float, float], seconds: float) -> dict[str, Any]:
    """Return what is told of a step, of which loss and learning rate were `found`; JSON has no NaN."""
    loss, rate = found
    n_samples = read.plan.global_batch
    utilization, predicted = (read.entry.get(key) for key in ("model_flops_utilization_ratio", "step_seconds"))
    on_gpu = trainer.executor.device.type == "cuda"
    return {
        "step": step + 1,
        "loss": loss if math.isfinite(loss) else None,
        "gradient_norm": trainer.gradient_norm if math.isfinite(trainer.gradient_norm) else None,
        "skipped": trainer.skipped or (trainer.loss_scale is not None and trainer.loss_scale.skipped),
        "learning_rate": rate,
        "step_seconds": seconds,
        "samples_per_second": n_samples / seconds,
        "tokens_per_second": n_samples * read.sequence_length / seconds if read.sequence_length > 1 else None,
        "model_flops_utilization_ratio": utilization * predicted / seconds if utilization and predicted else None,
        "memory_bytes": torch.cuda.max_memory_allocated() if on_gpu else None,
        "time": time.time(),
    }


def _gather(
    trainer: Trainer,
    told: tuple[list[float], list[float]],
    seconds: list[float],
    spans: list[tuple[float, list[Span]]],
    peak: dict[int, float],
    first: int,
) -> dict[str, Any] | None:
    """Collect what every rank measured; steps after the first, which warms up, where there are several.

    `told`: losses and norms of gradients.
    """
    warm = slice(1, None) if len(seconds) > 1 else slice(None)
    steps = [step for _, step in spans[warm]]
    busy = {stage: _median(steps, stage, lambda span: span.end_seconds - span.start_seconds) for stage in trainer.weights}
    began, typical = _typical(seconds[warm], spans[warm]) if spans else (0.0, [])
    cpu = {stage: _median(steps, stage, lambda span: span.cpu_seconds) for stage in trainer.weights}
    mine = {
        "rank": trainer.rank,
        "device": trainer.layout.device_of_rank[trainer.rank],
        "compute_seconds": busy,
        "cpu_seconds": cpu,
        "peak_bytes": peak,
        "spans": [(span.stage, span.microbatch, span.phase, span.start_seconds, span.end_seconds) for span in typical],
        "began_seconds": began,
        "host": socket.gethostname(),
    }
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.gather_object(mine, everyone if trainer.rank == 0 else None)
    if trainer.rank != 0:
        return None
    found = {"losses": told[0], "gradient_norms": told[1], "step_seconds": seconds, "first_step": first, "ranks": everyone}
    return found | ({"stopped_after": first + len(told[0])} if trainer.stopping else {})


def _median(steps: list[list[Span]], stage: int, length: Callable[[Span], float]) -> float:
    """Return the median over steps of what the tasks of one stage took."""
    sums = [
        sum(length(span) for span in step if span.stage == stage and span.phase.startswith(("forward", "backward")))
        for step in steps
    ]
    return statistics.median(sums) if sums else 0.0


def _typical(seconds: list[float], spans: list[tuple[float, list[Span]]]) -> tuple[float, list[Span]]:
    """Return beginning and spans of the step of median length; all ranks choose the same one only if their clocks agree:
    rank 0 decides.
    """
    order = sorted(range(len(seconds)), key=seconds.__getitem__)
    chosen = [order[(len(order) - 1) // 2]]
    dist.broadcast_object_list(chosen, src=0)
    return spans[chosen[0]]


def join(job: Job, n_ranks: int = 0) -> dict[str, Any] | None:
    """Join the other processes as torchrun, or `meshwright.runtime.job.launch`, tells through the environment; train; leave.

    `n_ranks`: how many processes train, where the last of those that were started do not; 0 for all.
    Returns: see `train`.
    """
    lifeline.end_with_agent()
    backend = preflight.backend_of(job.backend)
    preflight.free_queues(backend)
    rendezvous = os.environ.get("MESHWRIGHT_RENDEZVOUS", "env://")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if backend == "nccl" else None
    if device is not None:
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend,
        init_method=rendezvous,
        rank=rank(),
        world_size=n_ranks or world_size(),
        timeout=_PATIENCE,
        device_id=device,
    )
    # Where training fails the groups stay: taking them apart would make other ranks fail too, before this one has told why.
    result = train(job)
    dist.barrier()
    dist.destroy_process_group()
    return result


def world_size() -> int:
    """Return the number of processes that torchrun started."""
    return int(os.environ["WORLD_SIZE"])


def rank() -> int:
    """Return the number of this process among them."""
    return int(os.environ["RANK"])


def main() -> int:
    """Run one process; return its exit status."""
    lifeline.hold()
    path = Path(sys.argv[1])
    job = Job.read(path)
    folder = Path(job.folder)
    with (folder / f"where-{rank()}").open("w") as place:
        faulthandler.register(signal.SIGUSR1, file=place, all_threads=False)  # sent where the time given is up
        return _joined(job, folder)


def _joined(job: Job, folder: Path) -> int:
    """Join and leave results or the error in the folder; return the exit status."""
    try:
        result = join(job)
        if result is not None:
            files.write(folder / "result.json", json.dumps(result))
    except BaseException as error:
        wrong = isinstance(error, MeshwrightError)
        text = str(error) if wrong or isinstance(error, NonFiniteError) else "".join(traceback.format_exception(error))
        try:
            (folder / f"error-{rank()}.json").write_text(json.dumps({"wrong_input": wrong, "text": text, "time": time.time()}))
        except OSError:  # no room where the launcher would read it
            print(f"meshwright: rank {rank()}: {text}", file=sys.stderr)
        sys.stdout.flush()
        os._exit(2 if wrong else 1)  # other ranks may be gone: no orderly end is possible
    return 0


if __name__ == "__main__":
    sys.exit(main())
