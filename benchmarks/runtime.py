"""What running a plan adds to hand-written PyTorch, and how well profiled costs predict what runs take.

``python benchmarks/runtime.py overhead`` trains two uneven stages under 1F1B twice in the same two processes, step by step in
turn: once by the executor, once by the forty lines below. ``python benchmarks/runtime.py predict`` profiles two models and the
links, and runs seven plans of each. Both take a minute or two; on a machine that others use too, look at the minima.
"""

from __future__ import annotations

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
N_STEPS = 12
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

        def add(
            name: str, stages: list, model: str = model, n_layers: int = n_layers, batch: int = batch, **options: object
        ) -> None:
            plan = plan_of(stages, n_layers=n_layers, sequence_length=64, global_batch=batch, **options)
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

    from meshwright.runtime.allocator import keep_freed_memory

    keep_freed_memory()
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    return rank


def trainer_of(path: pathlib.Path, model: str) -> tuple:
    """Return a trainer and its batches."""
    from meshwright.runtime import source
    from meshwright.runtime.data import batches_of, default_loss, example_row
    from meshwright.runtime.layout import layout
    from meshwright.runtime.plan_file import read_plan
    from meshwright.runtime.trainer import adamw, assemble

    read = read_plan(str(path))
    module, examples = source.build(model, 0)
    row = example_row(module, examples, read.sequence_length)
    batches = batches_of(None, module, row, None, read.plan.global_batch, 0)
    return assemble(module, read.names, layout(read.plan), row, optimizer=adamw, loss=default_loss), batches


def measure(folder: pathlib.Path) -> None:
    """Run every plan; rank 0 leaves the seconds of every step."""
    import torch.distributed as dist

    rank = join(folder)
    results = {}
    for name, (model, plan) in plans().items():
        path = folder / f"plan-{rank}.json"
        path.write_text(json.dumps(plan))
        trainer, batches = trainer_of(path, model)
        seconds, cpu = [], []
        for step in range(N_STEPS):
            inputs, targets = batches(step)
            dist.barrier()
            begin = time.perf_counter()
            trainer.step(inputs, targets)
            seconds.append(time.perf_counter() - begin)
            cpu.append(sum(s.cpu_seconds for s in trainer.spans if s.phase.startswith(("forward", "backward"))))
        everyone: list = [None, None]
        dist.all_gather_object(everyone, statistics.median(cpu[2:]))
        results[name] = {"seconds": seconds[2:], "cpu_seconds": everyone}
    if rank == 0:
        (folder / "measured.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


def predict() -> None:
    """Profile, run, and print measured beside predicted."""
    from scipy.stats import spearmanr

    from meshwright.commands.run import predict as simulated
    from meshwright.runtime.plan_file import read_plan

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for model in ("wide", "deep"):
            for words in ([f"runtime:{model}", "--sequence-length", "64", "--rows", ROWS[model]], ["links"]):
                command = [sys.executable, "-m", "meshwright", "profile", *words, "--out", str(folder / f"{model}.json")]
                path = os.pathsep.join([str(ROOT / "benchmarks"), *sys.path])
                subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": path}, capture_output=True)
        start("measure", folder)
        measured = json.loads((folder / "measured.json").read_text())
        rows = []
        for name, (model, plan) in plans().items():
            path = folder / "plan.json"
            path.write_text(json.dumps(plan))
            result, _ = simulated(read_plan(str(path)), str(path), str(folder / f"{model.partition(':')[2]}.json"))
            said = result.timeline.step_seconds
            busy = max(
                sum(load.forward_seconds + load.backward_input_seconds + load.backward_weight_seconds + load.recompute_seconds
                    for load, stage in zip(result.loads, result.plan.stages) if rank in stage.devices)
                for rank in range(2)
            ) * result.plan.n_microbatches  # fmt: skip
            found = measured[name]["seconds"]
            rows.append((name, said, min(found), statistics.median(found), max(measured[name]["cpu_seconds"]) / busy))
        print(f"{'plan':32} {'predicted':>10} {'minimum':>10} {'median':>10} {'min/pred':>9} {'CPU/pred':>9}   (ms)")
        for name, said, least, middle, cpu in rows:
            print(f"{name:32} {said * 1e3:10.1f} {least * 1e3:10.1f} {middle * 1e3:10.1f} {least / said:9.2f} {cpu:9.2f}")
        for which in ("", "wide", "deep"):
            some = [row for row in rows if row[0].startswith(which)]
            least, middle = (float(spearmanr([row[1] for row in some], [row[i] for row in some])[0]) for i in (2, 3))
            print(f"rank correlation, {which or 'both models'}: predicted with minimum {least:.3f}, with median {middle:.3f}")


def by_hand(rank: int, units: list, batches: object, n_microbatches: int) -> object:
    """Return a function that trains one step of two stages under 1F1B, written for this one case."""
    import torch
    import torch.distributed as dist

    stage = torch.nn.ModuleList(units[:2] if rank == 0 else units[2:])
    optimizer = torch.optim.AdamW(stage.parameters(), lr=1e-3, foreach=False)

    def forward(x: tuple) -> tuple:
        for unit in stage:
            x = unit(*x)
        return x

    def step(number: int) -> None:
        inputs, targets = batches(number)
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
        optimizer.step()

    return step


def overhead(folder: pathlib.Path) -> None:
    """Train both ways in turn; rank 0 prints the ratio."""
    import torch.distributed as dist
    from runtime_processes import plan_of

    from meshwright.runtime import source
    from meshwright.runtime.cut import cut

    rank = join(folder)
    plan = plan_of([(2, [0], {}), (4, [1], {})], n_layers=4, sequence_length=64, global_batch=8)
    path = folder / f"plan-{rank}.json"
    path.write_text(json.dumps(plan))
    trainer, batches = trainer_of(path, "runtime:wide")
    module, _ = source.build("runtime:wide", 0)
    hand = by_hand(rank, cut(module, [name for stage in plan["stages"] for name in stage["ops"]]), batches, 4)
    seconds: dict[str, list] = {"ours": [], "by hand": []}
    cpu: dict[str, list] = {"ours": [], "by hand": []}
    for number in range(40):
        for name in ("ours", "by hand") if number % 2 else ("by hand", "ours"):
            dist.barrier()
            begin, used = time.perf_counter(), time.process_time()
            if name == "ours":
                trainer.step(*batches(number))
            else:
                hand(number)
            dist.barrier()
            seconds[name].append(time.perf_counter() - begin)
            cpu[name].append(time.process_time() - used)
    everyone: list = [None, None]
    dist.all_gather_object(everyone, {name: statistics.median(values[4:]) for name, values in cpu.items()})
    if rank == 0:
        for name, values in seconds.items():
            print(f"{name:8} minimum {min(values[4:]) * 1e3:.1f} ms, median {statistics.median(values[4:]) * 1e3:.1f} ms a step, "
                  f"CPU {sum(entry[name] for entry in everyone) * 1e3:.1f} ms of both processes")  # fmt: skip
    dist.barrier()
    dist.destroy_process_group()


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
