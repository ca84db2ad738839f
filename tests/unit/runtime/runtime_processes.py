"""Several plans in the same few processes, since starting processes costs more than the small plans themselves."""

from __future__ import annotations

import atexit
import contextlib
import copy
import functools
import gc
import importlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable

import meshwright

SOURCE = pathlib.Path(meshwright.__file__).parents[1]  # the package that is tested, wherever it lies
ROOT = pathlib.Path(__file__).resolve().parents[3]
Job = Callable[[int, int, pathlib.Path], None]  # of a process, told its rank, their number and the folder
_PATIENCE_SECONDS = 500


def plan_of(stages: list, *, schedule: str = "1f1b", n_microbatches: int = 0, global_batch: int = 16,
            names: list[str] | None = None,
            sequence_length: int = 16, micro_batch: int = 1) -> dict:  # fmt: skip
    """Return a plan file's content from (number of layers, devices, options) of every stage;
    a pipeline has four micro-batches.
    """
    n_microbatches = n_microbatches or (4 if len(stages) > 1 else 2)
    n_layers = sum(stage[0] for stage in stages)
    names = names or ["embed", *[f"layers.{i}" for i in range(n_layers - 2)], "head"]
    entries, start = [], 0
    for count, devices, options in stages:
        alike = options.get("tensor", 1) * options.get("context", 1)
        entry = {
            "ops": names[start : start + count],
            "devices": devices,
            "data": len(devices) // alike,
            "recompute": ["none"] * count,
        }
        entries.append({**entry, **options})
        start += count
    assert start == len(names)
    return {
        "format": "meshwright/plan/1", "search": "by hand", "costs": "analytic", "seed": 0, "feasible": True, "stages": entries,
        "schedule": {
            "name": schedule, "n_microbatches": n_microbatches, "micro_batch": micro_batch, "global_batch": global_batch,
        },
        "batch": {"sequence_length": sequence_length}, "planning_seconds": 0.0,
        "model": {"name": "by hand", "spec": "none", "format": "none"}, "cluster": None,
    }  # fmt: skip


def environment() -> dict[str, str]:
    """Return the environment of a process that finds the package and the examples."""
    path = os.pathsep.join([str(SOURCE), str(ROOT / "examples"), str(pathlib.Path(__file__).parent)])
    return {
        **os.environ,
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }


@functools.cache
def _server() -> subprocess.Popen:
    """Return a process that has imported everything, and forks into as many as a run needs; it ends with this one."""
    command = [sys.executable, "-W", "ignore", __file__]
    server = subprocess.Popen(command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(server.communicate)  # closes its input, on which it ends
    return server


def run_all(cases: dict[str, dict], n_ranks: int, folder: pathlib.Path, n_steps: int = 3, rules: str = "") -> dict[str, dict]:
    """Train every case's model under its plan in `n_ranks` processes, and in one; by name of case return the losses of both,
    and the largest difference between a weight after the last step and the same weight of the one process.
    `rules`: NCCL's rules that messages keep, see `nccl_rules`; empty for Gloo's own."""
    (folder / "cases.json").write_text(json.dumps({"n_steps": n_steps, "cases": cases, "rules": rules}))
    (folder / "rendezvous").unlink(missing_ok=True)
    work(train, n_ranks, folder)
    return json.loads((folder / "results.json").read_text())


def work(job: Job, n_ranks: int, folder: pathlib.Path) -> None:
    """Have so many forked processes do a job in a folder."""
    begin(job, n_ranks, folder)
    failed = [rank for rank, status in enumerate(ended()) if status]
    assert not failed, "\n".join((folder / f"log-{rank}").read_text()[-3000:] for rank in failed)


def begin(job: Job, n_ranks: int, folder: pathlib.Path) -> list[int]:
    """Fork so many processes for a job, a function of a module of tests; return their numbers. `ended` comes next."""
    server, script = _server(), sys.modules[job.__module__].__file__
    told = {"script": script, "job": job.__name__, "n_ranks": n_ranks, "folder": str(folder)}
    print(json.dumps(told), file=server.stdin, flush=True)
    return json.loads(server.stdout.readline())


def ended() -> list[int]:
    """Return how the processes ended, by rank; where one fails, the others are killed."""
    return json.loads(_server().stdout.readline())


def sgd(parameters: list) -> object:
    """Return an optimizer that shows a gradient of the wrong size, which Adam would hide."""
    import torch

    return torch.optim.SGD(parameters, 0.3, foreach=False)


def weights_differ(trainer: object, alone: object, names: tuple[str, ...], sample: tuple) -> float:
    """Return how far any weight that this rank holds is from that of a model trained in one process."""
    import torch

    from meshwright.runtime.model.cut import cut
    from meshwright.runtime.parallel.experts import ExpertParallel

    units = cut(alone, names, sample)
    furthest = 0.0
    for stage, weights in trainer.weights.items():
        expected = torch.nn.ModuleList([units[op] for op in trainer.layout.plan.stages[stage].ops]).parameters()
        divided = {p for part in weights.module.modules() if isinstance(part, ExpertParallel) for p in part.parameters()}
        for mine, theirs in zip(weights.parameters, expected, strict=True):
            whole = weights.whole(mine)
            if mine in divided:
                theirs = theirs.chunk(len(theirs) // len(whole))[weights.groups.expert_index]
            furthest = max(furthest, float((whole - theirs.detach()).abs().max()))
    return furthest


def train(rank: int, world: int, folder: pathlib.Path) -> None:
    """Be one of the processes."""
    import torch
    import torch.distributed as dist

    told = json.loads((folder / "cases.json").read_text())
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world)
    if told["rules"]:
        import nccl_rules

        nccl_rules.install(told["rules"])
    results, known = {}, {}
    for name, case in told["cases"].items():
        path = folder / f"plan-{rank}.json"
        path.write_text(json.dumps(case["plan"]))
        found, far = compare(str(path), case, told["n_steps"], known)
        everyone: list = [None] * world
        dist.all_gather_object(everyone, far)
        if rank == 0:
            results[name] = {**found, "weights": max(everyone)}
            print(name, results[name], flush=True)
    if rank == 0:
        (folder / "results.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


def compare(path: str, case: dict, n_steps: int, known: dict) -> tuple[dict, float]:
    """Train one case; return its losses and norms of gradients, the steps skipped, and the same of one process, and how far any
    weight held here is from its.
    """
    from meshwright.runtime.job.trainer import assemble
    from meshwright.runtime.model import source
    from meshwright.runtime.model.data import batches_of, default_loss, example_of
    from meshwright.runtime.ranks.layout import layout
    from meshwright.runtime.ranks.plan_file import read_plan
    from meshwright.runtime.step.autocast import dtype_of

    read = read_plan(path)
    model, examples = source.build(case["model"], 0)
    sample = example_of(model, examples, read.sequence_length)
    batches = batches_of(None, model, sample, read.plan.global_batch, 0)
    precision = dtype_of(case.get("precision", ""))
    how = (case.get("parts", 1), precision, case.get("clip_norm", 0.0))
    key = (case["model"], len(read.names), read.plan.global_batch, read.sequence_length, *how)
    if key not in known:  # cases that train the same share what one process does
        known[key] = alone(case, batches, n_steps, precision)
    places = layout(read.plan)
    trainer = assemble(model, read.names, places, sample, optimizer=sgd, loss=default_loss, precision=precision)
    trainer.clip_norm = case.get("clip_norm", 0.0)
    losses, norms, skipped = [], [], []
    for step in range(n_steps):
        losses.append(trainer.step(*batches(step)))
        norms.append(trainer.gradient_norm)
        skipped += [step] * (trainer.loss_scale is not None and trainer.loss_scale.skipped)
    trained, expected = known[key]
    found = {
        "losses": losses, "norms": norms, "skipped": skipped,
        "reference_losses": [loss for loss, _ in expected], "reference_norms": [norm for _, norm in expected],
    }  # fmt: skip
    return found, weights_differ(trainer, copy.deepcopy(trained), read.names, sample)


def alone(case: dict, batches: object, n_steps: int, precision: object) -> tuple[object, list]:
    """Train a case's model on rank 0 by itself; return it, on every rank, and its losses and norms, on rank 0."""
    import torch.distributed as dist

    from meshwright.runtime.job.reference import reference_steps
    from meshwright.runtime.model import source
    from meshwright.runtime.model.data import default_loss

    model, _ = source.build(case["model"], 0)
    steps: list = []
    if dist.get_rank() == 0:
        how = {"n_steps": n_steps, "n_parts": case.get("parts", 1), "precision": precision}
        how["clip_norm"] = case.get("clip_norm", 0.0)
        steps = reference_steps(model, batches, sgd(list(model.parameters())), default_loss, **how)
    for parameter in model.parameters():
        dist.broadcast(parameter.detach(), 0)
    return model, steps


def fork(told: dict, rank: int) -> int:
    """Return the id of a process that works as one of several."""
    child = os.fork()
    if child:
        return child
    folder, script = pathlib.Path(told["folder"]), pathlib.Path(told["script"])
    log = os.open(folder / f"log-{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    signal.alarm(_PATIENCE_SECONDS)
    try:
        sys.path.insert(0, str(script.parent))
        getattr(importlib.import_module(script.stem), told["job"])(rank, told["n_ranks"], folder)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    sys.stdout.flush()
    os._exit(0)


def serve() -> None:
    """Fork for every line that names a job, a number of processes and a folder; answer with their numbers, and with how they
    ended.
    """
    for name in ("commands.run", "runtime.job.reference", "runtime.job.worker"):  # what takes longest, once for all
        importlib.import_module(f"meshwright.{name}")
    importlib.import_module("torch._dynamo")
    settle()

    for line in sys.stdin:
        told = json.loads(line)
        children = [fork(told, rank) for rank in range(told["n_ranks"])]
        print(json.dumps(children), flush=True)
        statuses = [0] * len(children)
        for _ in children:
            child, status = os.wait()
            statuses[children.index(child)] = os.waitstatus_to_exitcode(status)
            if status:  # the others wait for it
                for other in children:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(other, signal.SIGKILL)
        print(json.dumps(statuses), flush=True)


def settle() -> None:
    """Leave what was imported out of the search for garbage, and search as seldom as the command line does."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


if __name__ == "__main__":
    serve()
