"""Several plans in the same few processes, since starting processes costs more than the small plans themselves."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import traceback

ROOT = pathlib.Path(__file__).resolve().parents[3]


def plan_of(stages: list, *, schedule: str = "1f1b", n_microbatches: int = 4, global_batch: int = 16, names: list[str] | None = None,
            n_layers: int = 6, sequence_length: int = 16) -> dict:  # fmt: skip
    """Return a plan file's content from (number of layers, devices, options) of every stage."""
    names = names or ["embed", *[f"layers.{i}" for i in range(n_layers)], "head"]
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
        "schedule": {"name": schedule, "n_microbatches": n_microbatches, "micro_batch": 1, "global_batch": global_batch},
        "batch": {"sequence_length": sequence_length}, "planning_seconds": 0.0,
        "model": {"name": "by hand", "spec": "none", "format": "none"}, "cluster": None,
    }  # fmt: skip


def environment() -> dict[str, str]:
    """Return the environment of a process that finds the package and the examples."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "examples"), str(pathlib.Path(__file__).parent)])
    return {
        **os.environ,
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }


def run_all(cases: dict[str, dict], n_ranks: int, folder: pathlib.Path, n_steps: int = 3) -> dict[str, dict]:
    """Train every case's model under its plan in `n_ranks` processes, and in one; by name of case return the losses of both, and the
    largest difference between a weight after the last step and the same weight of the one process."""
    (folder / "cases.json").write_text(json.dumps({"n_steps": n_steps, "cases": cases}))
    processes = []
    for rank in range(n_ranks):
        variables = {**environment(), "RANK": str(rank), "WORLD_SIZE": str(n_ranks)}
        command = [sys.executable, "-W", "ignore", __file__, str(folder)]
        with (folder / f"log-{rank}").open("w") as log:
            processes.append(subprocess.Popen(command, env=variables, stdout=log, stderr=log))
    try:
        for process in processes:
            process.wait(timeout=500)
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
    failed = [rank for rank, process in enumerate(processes) if process.returncode]
    assert not failed, "\n".join((folder / f"log-{rank}").read_text()[-3000:] for rank in failed)
    return json.loads((folder / "results.json").read_text())


def sgd(parameters: list) -> object:
    """Return an optimizer that shows a gradient of the wrong size, which Adam would hide."""
    import torch

    return torch.optim.SGD(parameters, 0.3, foreach=False)


def weights_differ(trainer: object, alone: object, names: tuple[str, ...], sample: tuple) -> float:
    """Return how far any weight that this rank holds is from that of a model trained in one process."""
    import torch
    from torch.distributed.tensor import DTensor

    from meshwright.runtime.cut import cut

    units = cut(alone, names, sample)
    furthest = 0.0
    for stage, weights in trainer.weights.items():
        expected = torch.nn.ModuleList([units[op] for op in trainer.layout.plan.stages[stage].ops]).parameters()
        for mine, theirs in zip(weights.parameters, expected, strict=True):
            whole = mine.detach().full_tensor() if isinstance(mine, DTensor) else mine.detach()
            furthest = max(furthest, float((whole - theirs.detach()).abs().max()))
    return furthest


def main() -> None:
    """Be one of the processes."""
    import torch
    import torch.distributed as dist

    from meshwright.runtime import source
    from meshwright.runtime.autocast import dtype_of
    from meshwright.runtime.data import batches_of, default_loss, example_of
    from meshwright.runtime.layout import layout
    from meshwright.runtime.plan_file import read_plan
    from meshwright.runtime.reference import reference_losses
    from meshwright.runtime.trainer import assemble

    torch.set_num_threads(1)
    folder = pathlib.Path(sys.argv[1])
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    told = json.loads((folder / "cases.json").read_text())
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world)
    results = {}
    for name, case in told["cases"].items():
        path = folder / f"plan-{rank}.json"
        path.write_text(json.dumps(case["plan"]))
        read = read_plan(str(path))
        places = layout(read.plan)
        model, examples = source.build(case["model"], 0)
        sample = example_of(model, examples, read.sequence_length)
        batches = batches_of(None, model, sample, read.plan.global_batch, 0)
        precision = dtype_of(case.get("precision", ""))
        trainer = assemble(model, read.names, places, sample, optimizer=sgd, loss=default_loss, precision=precision)
        losses, skipped = [], []
        for step in range(told["n_steps"]):
            losses.append(trainer.step(*batches(step)))
            skipped += [step] * (trainer.loss_scale is not None and trainer.loss_scale.skipped)
        alone, _ = source.build(case["model"], 0)
        expected = []
        if rank == 0:
            expected = reference_losses(
                alone,
                batches,
                sgd(list(alone.parameters())),
                default_loss,
                n_steps=told["n_steps"],
                n_parts=case.get("parts", 1),
                precision=precision,
            )
        for parameter in alone.parameters():
            dist.broadcast(parameter.detach(), 0)
        far: list = [None] * world
        dist.all_gather_object(far, weights_differ(trainer, alone, read.names, sample))
        if rank == 0:
            results[name] = {"losses": losses, "reference_losses": expected, "weights": max(far), "skipped": skipped}
            print(name, max(abs(a - b) for a, b in zip(losses, expected, strict=True)), max(far), losses, flush=True)
        dist.barrier()
    if rank == 0:
        (folder / "results.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
