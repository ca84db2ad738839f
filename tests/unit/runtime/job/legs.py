"""Trainings in legs: each goes on from the checkpoint of the one before, under another plan, with another number of processes.

Processes are forked from one that has imported everything, since that takes longer than the small trainings do.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import sys
import time
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import runtime_processes

_PATIENCE_SECONDS = 500


def adamw(parameters: list) -> object:
    """Return an optimizer with two moments, a count of steps and decay; it does not blow up gradients that are next to zero."""
    import torch

    return torch.optim.AdamW(parameters, 0.01, eps=1e-3, weight_decay=0.1, foreach=False)


def momentum(parameters: list) -> object:
    """Return an optimizer whose first step remembers the gradient as it is."""
    import torch

    return torch.optim.SGD(parameters, 0.2, momentum=0.9, foreach=False)


def sgd(parameters: list) -> object:
    """Return an optimizer that remembers nothing."""
    import torch

    return torch.optim.SGD(parameters, 0.3, foreach=False)


OPTIMIZERS: dict[str, Any] = {"adamw": adamw, "momentum": momentum, "sgd": sgd}


def kill_during(case: dict, n_ranks: int, folder: pathlib.Path, after: tuple[int, float], victim: int) -> list[int]:
    """Train a leg of one case that does not end by itself, and kill one of its processes so many steps, and then seconds,
    later; return who failed.
    """
    (folder / "cases.json").write_text(json.dumps({"case": case}))
    (folder / "rendezvous").unlink(missing_ok=True)
    named, log = folder / f"pid-{victim}", pathlib.Path(case["log"])
    named.unlink(missing_ok=True)
    wanted = _n_lines(log) + after[0]
    runtime_processes.begin(train, n_ranks, folder)
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not (named.exists() and named.read_text()) or _n_lines(log) < wanted:
        assert time.monotonic() < deadline, "it never came so far"
        time.sleep(0.005)
    time.sleep(after[1])
    os.kill(int(named.read_text()), signal.SIGKILL)
    return [rank for rank, status in enumerate(runtime_processes.ended()) if status]


def _n_lines(path: pathlib.Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


def run_leg(cases: dict[str, dict], n_ranks: int, folder: pathlib.Path) -> dict[str, dict]:
    """Train a leg of every case in as many processes; return by case its losses, and the message where it was refused.

    A case has a model, a plan, the name of an optimizer, the number of its last step, and a folder of checkpoints; without one
    it is trained by plain PyTorch, which leaves its state in a file.
    """
    (folder / "cases.json").write_text(json.dumps(cases))
    (folder / "rendezvous").unlink(missing_ok=True)
    runtime_processes.work(train, n_ranks, folder)
    return json.loads((folder / "results.json").read_text())


def train(rank: int, world: int, folder: pathlib.Path) -> None:
    """Be one of the processes of a leg."""
    (folder / f"pid-{rank}").write_text(str(os.getpid()))
    import torch
    import torch.distributed as dist

    cases = json.loads((folder / "cases.json").read_text())
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world)
    results = {}
    for name, case in cases.items():
        path = folder / f"plan-{rank}.json"
        path.write_text(json.dumps(case["plan"]))
        results[name] = _one(str(path), case) if case["folder"] else _plain(str(path), case)
        print(name, results[name], flush=True)
    if rank == 0:
        (folder / "results.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


def _one(path: str, case: dict) -> dict:
    from meshwright.base.errors import InputError
    from meshwright.runtime.job import checkpoints
    from meshwright.runtime.job.trainer import assemble
    from meshwright.runtime.model import source
    from meshwright.runtime.model.data import batches_of, default_loss, example_of
    from meshwright.runtime.ranks.layout import layout
    from meshwright.runtime.ranks.plan_file import read_plan

    read = read_plan(path)
    model, examples = source.build(case["model"], case.get("seed", 0))
    sample = example_of(model, examples, read.sequence_length)
    batches = batches_of(None, model, sample, read.plan.global_batch, 0)
    make = OPTIMIZERS[case["optimizer"]]
    trainer = assemble(model, read.names, layout(read.plan), sample, optimizer=make, loss=default_loss)
    try:
        first, losses = checkpoints.load_newest_whole(trainer, case["folder"]), []
        for step in range(first, case["last"]):
            losses.append(trainer.step(*batches(step)))
            if trainer.rank == 0 and case.get("log"):
                with open(case["log"], "a", encoding="utf-8") as file:
                    file.write(f"{step} {losses[-1]!r}\n")
            if case.get("save_all") or step == case["last"] - 1:
                checkpoints.save(trainer, case["folder"], step + 1)
    except InputError as error:
        return {"refused": str(error)}
    return {"first": first, "losses": losses}


def _plain(path: str, case: dict) -> dict:
    """Train without any plan; leave the weights, and the state of the optimizer as PyTorch names it."""
    import torch
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    from meshwright.runtime.job.reference import reference_steps
    from meshwright.runtime.model import source
    from meshwright.runtime.model.data import batches_of, default_loss, example_of
    from meshwright.runtime.ranks.plan_file import read_plan

    read = read_plan(path)
    model, examples = source.build(case["model"], 0)
    batches = batches_of(None, model, example_of(model, examples, read.sequence_length), read.plan.global_batch, 0)
    optimizer = OPTIMIZERS[case["optimizer"]](list(model.parameters()))
    steps = reference_steps(model, batches, optimizer, default_loss, n_steps=case["last"], n_parts=1)
    state = {"weights": model.state_dict(), "optimizer": get_optimizer_state_dict(model, optimizer)}
    torch.save(state, case["state"])
    return {"losses": [step.loss for step in steps]}
