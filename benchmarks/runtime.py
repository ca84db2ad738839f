"""What running a plan adds to hand-written PyTorch, and how well profiled costs predict what runs take.

``python benchmarks/runtime.py overhead`` trains one model under four plans twice in the same two processes, step by step in
turn: once by the executor, once by the lines below, as one writes them for this one case: a pipeline of uneven stages under
1F1B (also with the norm of the whole gradient asked for before the update: all stages wait for the first one then),
``DistributedDataParallel``, ``fully_shard`` and ``parallelize_module``. ``python benchmarks/runtime.py predict`` profiles two
models and the links, runs seven plans of each in rounds, each plan once a round, and profiles again; of both profiles the
lesser figure counts, as of the rounds the best. What disturbs the machine for some seconds then reaches neither. Both take one
to two minutes.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
N_PAIRS = 30
N_ROUNDS, N_STEPS = 4, 4
"""Times that all plans are run one after the other, and steps of a plan each time; the first one warms up."""

sys.path[:0] = [str(ROOT / "src"), str(ROOT / "examples"), str(ROOT / "tests" / "unit" / "runtime")]


ROWS = {"wide": "1,2,4,8", "deep": "2,4,8,16"}
"""Numbers of rows to profile: what the plans below give a replica at once."""


def plans() -> dict[str, tuple[str, dict]]:
    """Return seven plans of each of two models; the slowest takes well over twice as long as the fastest."""
    from runtime_processes import plan_of

    found = {}
    for model, n_layers, batch in (("wide", 4, 8), ("deep", 6, 16)):
        n = n_layers + 2
        half = n // 2
        whole = {"recompute": ["full"] * n}
        first, second = {"recompute": ["full"] * half}, {"recompute": ["full"] * (n - half)}

        def add(name: str, stages: list, model: str = model, batch: int = batch, **options: Any) -> None:
            n_microbatches = options.get("n_microbatches", 4)
            rows = batch // (n_microbatches * len(stages[0][1]))
            plan = plan_of(stages, sequence_length=64, global_batch=batch, micro_batch=rows, **options)
            found[f"{model}, {name}"] = (f"runtime:{model}", plan)

        add("data parallel", [(n, [0, 1], {})], n_microbatches=2)
        add("data parallel, recomputed", [(n, [0, 1], whole)], n_microbatches=2)
        add("even, four micro-batches", [(half, [0], {}), (n - half, [1], {})])
        add("very uneven, two micro-batches", [(2, [0], {}), (n - 2, [1], {})], n_microbatches=2)
        rest = {"recompute": ["full"] * (n - 2)}
        add("very uneven, the long stage recomputed", [(2, [0], {}), (n - 2, [1], rest)], n_microbatches=2)
        add("even, one micro-batch", [(half, [0], {}), (n - half, [1], {})], n_microbatches=1)
        add("one micro-batch, recomputed", [(half, [0], first), (n - half, [1], second)], n_microbatches=1, schedule="gpipe")
    return found


def wide() -> object:
    """Four layers of width 256."""
    import models

    return models.wide()


def deep() -> object:
    """Six layers of width 192."""
    import models

    return models.Transformer(n_layers=6, width=192, n_heads=6, length=128)


def start(mode: str, folder: pathlib.Path) -> None:
    """Start two processes of this file and wait for them."""
    path = os.pathsep.join([str(ROOT / "benchmarks"), *sys.path])
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__, mode, str(folder)],
            env={**os.environ, "RANK": str(rank), "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        )
        for rank in range(2)
    ]
    for process in processes:
        if process.wait(timeout=550):
            raise SystemExit(f"a process ended with status {process.returncode}")


def join(folder: pathlib.Path) -> int:
    """Join the other process; return the rank."""
    import torch
    import torch.distributed as dist

    from meshwright.runtime.job.allocator import keep_freed_memory

    keep_freed_memory()
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    return rank


def trainer_of(path: pathlib.Path, model: str) -> tuple:
    """Return a trainer and its batches."""
    from meshwright.runtime.job.trainer import adamw, assemble
    from meshwright.runtime.model import source
    from meshwright.runtime.model.data import batches_of, default_loss, example_of
    from meshwright.runtime.ranks.layout import layout
    from meshwright.runtime.ranks.plan_file import read_plan

    read = read_plan(str(path))
    module, examples = source.build(model, 0)
    sample = example_of(module, examples, read.sequence_length)
    batches = batches_of(None, module, sample, read.plan.global_batch, 0)
    return assemble(module, read.names, layout(read.plan), sample, optimizer=adamw, loss=default_loss), batches


def measure(folder: pathlib.Path) -> None:
    """Run every plan in every round; rank 0 leaves the seconds of every step."""
    import torch.distributed as dist

    rank = join(folder)
    trainers = {}
    for name, (model, plan) in plans().items():
        path = folder / f"plan-{rank}.json"
        path.write_text(json.dumps(plan))
        trainers[name] = trainer_of(path, model)
    seconds: dict[str, list] = {name: [] for name in trainers}
    cpu: dict[str, list] = {name: [] for name in trainers}
    for number in range(N_ROUNDS * N_STEPS * len(trainers)):
        name = list(trainers)[number // N_STEPS % len(trainers)]
        trainer, batches = trainers[name]
        inputs, targets = batches(number)
        dist.barrier()
        begin = time.perf_counter()
        trainer.step(inputs, targets)
        if number % N_STEPS:
            seconds[name].append(time.perf_counter() - begin)
            cpu[name].append(sum(s.cpu_seconds for s in trainer.spans if s.phase.startswith(("forward", "backward"))))
    everyone: list = [None, None]
    dist.all_gather_object(everyone, {name: min(values) for name, values in cpu.items()})
    if rank == 0:
        found = {
            name: {"seconds": values, "cpu_seconds": [entry[name] for entry in everyone]} for name, values in seconds.items()
        }
        (folder / "measured.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def profile(folder: pathlib.Path) -> None:
    """Profile both models and the links; where there is a profile already, the lesser figures of both stay."""
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "benchmarks"), *sys.path])}
    for model in ("wide", "deep"):
        path, new = folder / f"{model}.json", folder / "new.json"
        new.unlink(missing_ok=True)
        for words in ([f"runtime:{model}", "--sequence-length", "64", "--rows", ROWS[model]], ["links"]):
            command = [sys.executable, "-m", "meshwright", "profile", *words, "--out", str(new)]
            subprocess.run(command, check=True, env=variables, capture_output=True)
        entry = json.loads(new.read_text())
        if path.exists():
            entry = least(entry, json.loads(path.read_text()))
        path.write_text(json.dumps(entry))


def least(one: object, other: object) -> object:
    """Return two profiles of the same machine as one, of every time the lesser."""
    if isinstance(one, dict):
        return {key: least(value, other[key]) if not key.endswith(("seconds", "per_byte")) else min(value, other[key])
                for key, value in one.items()}  # fmt: skip
    if isinstance(one, list):
        return [least(a, b) for a, b in zip(one, other, strict=True)]
    return one


def busiest(result: object) -> float:
    """Return the predicted seconds of compute of the rank that computes longest."""
    stage_costs = [
        load.forward_seconds + load.backward_input_seconds + load.backward_weight_seconds + load.recompute_seconds
        for load in result.stage_costs
    ]
    ranks = {device for stage in result.plan.stages for device in stage.devices}
    stages = result.plan.stages
    work = [sum(load for load, stage in zip(stage_costs, stages, strict=True) if rank in stage.devices) for rank in ranks]
    return max(work) * result.plan.n_microbatches


def predict() -> None:
    """Profile, run, and print measured beside predicted."""
    from scipy.stats import spearmanr

    from meshwright.commands.run import predict as simulated
    from meshwright.runtime.ranks.plan_file import read_plan

    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        profile(folder)
        start("measure", folder)
        profile(folder)
        measured = json.loads((folder / "measured.json").read_text())
        rows = []
        for name, (model, plan) in plans().items():
            path = folder / "plan.json"
            path.write_text(json.dumps(plan))
            result, _ = simulated(read_plan(str(path)), str(path), str(folder / f"{model.partition(':')[2]}.json"))
            found = measured[name]["seconds"]
            cpu = max(measured[name]["cpu_seconds"]) / busiest(result)
            rows.append((name, result.timeline.step_seconds, min(found), statistics.median(found), cpu))
    print(
        f"{'plan':45} {'predicted':>10} {'minimum':>10} {'median':>10} {'min/pred':>9} {'med/pred':>9} {'CPU/pred':>9}   (ms)"
    )
    for name, said, lowest, middle, cpu in rows:
        print(
            f"{name:45} {said * 1e3:10.1f} {lowest * 1e3:10.1f} {middle * 1e3:10.1f} {lowest / said:9.2f} {middle / said:9.2f} "
            f"{cpu:9.2f}"
        )
    for column, word in ((2, "minimum"), (3, "median")):
        errors = [abs(row[1] / row[column] - 1.0) for row in rows]
        by_model = []
        for which in ("wide", "deep"):
            some = [row for row in rows if row[0].startswith(which)]
            by_model.append(float(spearmanr([row[1] for row in some], [row[column] for row in some])[0]))
        print(
            f"predicted against the {word}: off by {max(errors):.1%} at most, {statistics.mean(errors):.1%} on average, "
            f"{sum(error <= 0.15 for error in errors)} of {len(rows)} plans within 15 %; "
            f"rank correlation wide {by_model[0]:.3f}, deep {by_model[1]:.3f}"
        )
    print(f"targets: 15 %, rank correlation 0.9; took {time.perf_counter() - began:.0f} s")


def pipeline(rank: int, batches: object, n_microbatches: int, *, looks: bool = False) -> object:
    """Return a function that trains one step of two stages under 1F1B, written for this one case.

    `looks`: whether it asks for the norm of the whole gradient before it updates, as ours does, to stop where it is not finite.
    """
    import torch
    import torch.distributed as dist

    from meshwright.runtime.model import source
    from meshwright.runtime.model.cut import cut

    module, _ = source.build("runtime:wide", 0)
    units = cut(module, ["embed", "layers.0", "layers.1", "layers.2", "layers.3", "head"])
    stage = torch.nn.ModuleList(units[:2] if rank == 0 else units[2:])
    optimizer = torch.optim.AdamW(stage.parameters(), lr=1e-3, foreach=False)

    def forward(x: tuple) -> tuple:
        for unit in stage:
            x = unit(*x)
        return x

    def step(number: int) -> None:
        (inputs,), targets = batches(number)
        rows = len(inputs) // n_microbatches
        optimizer.zero_grad()
        sent, held = [], {}
        buffers = [torch.empty(rows, inputs.shape[1], 256) for _ in range(n_microbatches)]
        works = [dist.irecv(buffer, 1 - rank, tag=i) for i, buffer in enumerate(buffers)]
        order = [("f", 0)] if rank == 0 else []
        for i in range(n_microbatches):
            if rank == 1:
                order += [("f", i), ("b", i)]
            else:
                order += [("f", i + 1), ("b", i)] if i + 1 < n_microbatches else [("b", i)]
        for kind, i in order:
            part = slice(i * rows, (i + 1) * rows)
            if rank == 0 and kind == "f":
                (held[i],) = forward((inputs[part],))
                sent.append((dist.isend(held[i].detach(), 1, tag=i), held[i]))
            elif rank == 0:
                works[i].wait()
                held.pop(i).backward(buffers[i])
            elif kind == "f":
                works[i].wait()
                (logits,) = forward((buffers[i].requires_grad_(),))
                held[i] = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets[part].flatten()) / n_microbatches
            else:
                held.pop(i).backward()
                sent.append((dist.isend(buffers[i].grad, 0, tag=i), buffers[i]))
        for work, _ in sent:
            work.wait()
        if looks:
            squared = torch.stack(torch._foreach_norm([p.grad for p in stage.parameters()])).square().sum()
            dist.all_reduce(squared)
            if not squared.isfinite():
                raise ArithmeticError("a gradient is not finite")
        optimizer.step()

    return step


def alone_on(rank: int, batches: object, n_microbatches: int, wrap: object, last_only: object, n_parts: int) -> object:
    """Return a function that trains one step of a whole model of which every process works on a part of the samples.

    `wrap`: from the model to what runs, `last_only`: from that and whether gradients are exchanged to a context.
    """
    import torch

    from meshwright.runtime.model import source

    module, _ = source.build("runtime:wide", 0)
    model = wrap(module)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)

    def step(number: int) -> None:
        (inputs,), targets = batches(number)
        optimizer.zero_grad()
        for i in range(n_microbatches):
            own = slice(None) if n_parts == 1 else slice(rank, None, n_parts)
            x, y = (whole.chunk(n_microbatches)[i][own] for whole in (inputs, targets))
            with last_only(model, i == n_microbatches - 1):
                loss = torch.nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
                (loss / n_microbatches).backward()
        optimizer.step()

    return step


def replicas(rank: int, batches: object, n_microbatches: int) -> object:
    """Return a step of ``DistributedDataParallel``."""
    from torch.nn.parallel import DistributedDataParallel

    def last_only(model: object, last: bool) -> object:
        return contextlib.nullcontext() if last else model.no_sync()

    return alone_on(rank, batches, n_microbatches, DistributedDataParallel, last_only, 2)


def fully_sharded(rank: int, batches: object, n_microbatches: int) -> object:
    """Return a step of ``fully_shard``, of every layer and what is left; gradients are scattered after every micro-batch."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))

    def wrap(model: object) -> object:
        for part in (model.embed, *model.layers, model):
            fully_shard(part, mesh=mesh)
        return model

    return alone_on(rank, batches, n_microbatches, wrap, lambda *_: contextlib.nullcontext(), 2)


def tensor(rank: int, batches: object, n_microbatches: int) -> object:
    """Return a step of ``parallelize_module``."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2,))
    column, row = ("attention.wq", "attention.wk", "attention.wv", "feed_forward.up"), ("attention.wo", "feed_forward.down")

    def wrap(model: object) -> object:
        for layer in model.layers:
            parallelize_module(
                layer, mesh, {name: ColwiseParallel() for name in column} | {name: RowwiseParallel() for name in row}
            )
        return model

    return alone_on(rank, batches, n_microbatches, wrap, lambda *_: contextlib.nullcontext(), 1)


def overhead(folder: pathlib.Path) -> None:
    """Train every plan both ways in turn; rank 0 prints the ratios."""
    import torch.distributed as dist
    from runtime_processes import plan_of

    rank, sizes = join(folder), {"sequence_length": 64, "global_batch": 8}
    cases = {
        "pipeline, 1f1b": (plan_of([(2, [0], {}), (4, [1], {})], **sizes), pipeline),
        "the same, norm first": (plan_of([(2, [0], {}), (4, [1], {})], **sizes), functools.partial(pipeline, looks=True)),
        "replicas": (plan_of([(6, [0, 1], {})], **sizes), replicas),
        "fully sharded": (plan_of([(6, [0, 1], {"shard": 3})], **sizes), fully_sharded),
        "tensor": (plan_of([(6, [0, 1], {"tensor": 2})], **sizes), tensor),
    }
    if rank == 0:
        print(
            f"{'a step in ms, medians':24} {'CPU, ours':>10} {'by hand':>8} {'ratio':>7}"
            f" {'wall, ours':>11} {'by hand':>8} {'ratio':>7}"
        )
    for name, (plan, written) in cases.items():
        path = folder / f"plan-{rank}.json"
        path.write_text(json.dumps(plan))
        trainer, batches = trainer_of(path, "runtime:wide")
        hand = written(rank, batches, plan["schedule"]["n_microbatches"])
        ours = in_turn({"ours": lambda i, t=trainer, b=batches: t.step(*b(i)), "by hand": hand})
        if rank == 0:
            cpu, wall = ([statistics.median(ours[way][kind]) for way in ("ours", "by hand")] for kind in ("cpu", "wall"))
            ratios = {
                kind: statistics.median(a / b for a, b in zip(ours["ours"][kind], ours["by hand"][kind], strict=True))
                for kind in ("cpu", "wall")
            }
            print(
                f"{name:24} {cpu[0] * 1e3:10.1f} {cpu[1] * 1e3:8.1f} {ratios['cpu']:7.3f} {wall[0] * 1e3:11.1f} "
                f"{wall[1] * 1e3:8.1f} {ratios['wall']:7.3f}",
                flush=True,
            )
    dist.barrier()
    dist.destroy_process_group()


def in_turn(ways: dict[str, object]) -> dict[str, dict[str, list[float]]]:
    """Return seconds of CPU of both processes, and of wall clock, of every step after the first ones; ratios are of pairs."""
    import torch.distributed as dist

    found = {way: {"cpu": [], "wall": []} for way in ways}
    for number in range(2 + N_PAIRS):
        for way in list(ways) if number % 2 else list(ways)[::-1]:
            dist.barrier()
            begin, used = time.perf_counter(), time.process_time()
            ways[way](number)
            used = time.process_time() - used
            dist.barrier()
            everyone: list = [None, None]
            dist.all_gather_object(everyone, used)
            if number >= 2:
                found[way]["cpu"].append(sum(everyone))
                found[way]["wall"].append(time.perf_counter() - begin)
    return found


def main() -> None:
    """Run what the command line asks for; both where it asks for nothing."""
    words = sys.argv[1:]
    if len(words) == 2:
        {"measure": measure, "overhead": overhead}[words[0]](pathlib.Path(words[1]))
        return
    if not words or words[0] == "overhead":
        with tempfile.TemporaryDirectory() as folder:
            start("overhead", pathlib.Path(folder))
    if not words or words[0] == "predict":
        predict()


if __name__ == "__main__":
    main()
