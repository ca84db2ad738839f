"""Measuring links: every pair of processes, and collectives of all of them; latency and seconds per byte by least squares."""

from __future__ import annotations

import json
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from meshwright.base.errors import InputError
from meshwright.runtime.job import launch, lifeline
from meshwright.runtime.job.launch import Failure

__all__ = ["among", "fit", "hops", "join", "main", "measure"]

_SIZES = (4_096, 65_536, 524_288, 2_097_152)
_ROUNDS, _REPEATS = 3, 5


def fit(sizes: list[float], seconds: list[float]) -> tuple[float, float]:
    """Return latency and seconds per byte of the line through measured times, nearest in relative terms; neither negative.

    `sizes`, `seconds`: bytes sent, and how long it took.
    """
    weights = [1.0 / max(second, 1e-9) ** 2 for second in seconds]
    total = sum(weights)
    x = sum(w * size for w, size in zip(weights, sizes, strict=True)) / total
    y = sum(w * second for w, second in zip(weights, seconds, strict=True)) / total
    spread = sum(w * (size - x) ** 2 for w, size in zip(weights, sizes, strict=True))
    slope = sum(w * (size - x) * (second - y) for w, size, second in zip(weights, sizes, seconds, strict=True)) / spread
    slope = max(slope, 1e-13)
    return max(0.0, y - slope * x), slope


def _steady(action: Callable[[], None]) -> float:
    """Return the least over rounds of the median time of a round:
    hiccups and rounds that another program disturbed drop out.
    """
    medians = []
    action()
    for _ in range(_ROUNDS):
        times = []
        for _ in range(_REPEATS):
            dist.barrier()
            begin = time.perf_counter()
            action()
            times.append(time.perf_counter() - begin)
        medians.append(statistics.median(times))
    return min(medians)


def measure(device: torch.device) -> dict[str, Any] | None:
    """Measure all links and collectives; called in every process; return the profile's ``links`` on rank 0."""
    rank, world = dist.get_rank(), dist.get_world_size()
    pairs = []
    for source in range(world):
        for target in range(world):
            if source == target:
                continue
            seconds = [_round_trip(source, target, size // 4, device) / 2 for size in _SIZES]
            latency, slope = fit([float(size) for size in _SIZES], seconds)
            pairs.append({"source": source, "target": target, "latency_seconds": latency, "seconds_per_byte": slope})
            if rank == 0:
                print(
                    f"link {source} -> {target}: {latency * 1e6:.0f} us, {1 / slope / 1e9:.2f} GB/s",
                    file=sys.stderr,
                    flush=True,
                )
    collectives = []
    for n_ranks in range(2, world + 1):
        group = dist.new_group(list(range(n_ranks)))
        for kind in ("all_reduce", "all_gather", "reduce_scatter"):
            seconds = [_collective(kind, size // 4, n_ranks, group if rank < n_ranks else None, device) for size in _SIZES]
            everyone: list[Any] = [None] * world
            dist.all_gather_object(everyone, seconds)
            latency, slope = fit([float(size) for size in _SIZES], everyone[0])
            collectives.append({"kind": kind, "n_ranks": n_ranks, "latency_seconds": latency, "seconds_per_byte": slope})
    hosts: list[Any] = [None] * world
    dist.all_gather_object(hosts, socket.gethostname())
    if rank != 0:
        return None
    for line in hops(pairs, hosts):
        print(line, file=sys.stderr, flush=True)
    return {"n_ranks": world, "hosts": [hosts.index(host) for host in hosts], "pairs": pairs, "collectives": collectives}


def hops(pairs: list[dict[str, Any]], hosts: list[str]) -> list[str]:
    """Return a sentence for each kind of hop, inside a machine and between machines: medians over pairs.

    `pairs`: source, target, latency and seconds per byte.
    `hosts`: the machine of every rank.
    """
    told = []
    for kind, inside in (("inside a machine", True), ("between machines", False)):
        some = [pair for pair in pairs if (hosts[pair["source"]] == hosts[pair["target"]]) == inside]
        if some:
            alpha = statistics.median(pair["latency_seconds"] for pair in some)
            beta = statistics.median(pair["seconds_per_byte"] for pair in some)
            told.append(f"{kind}: {alpha * 1e6:.0f} us, {1 / beta / 1e9:.2f} GB/s (median of {len(some)} pairs)")
    return told


def _round_trip(source: int, target: int, n_elements: int, device: torch.device) -> float:
    rank = dist.get_rank()
    buffer = torch.ones(n_elements, device=device)

    def action() -> None:
        if rank == source:
            dist.send(buffer, target)
            dist.recv(buffer, target)
        elif rank == target:
            dist.recv(buffer, source)
            dist.send(buffer, source)
        _finish(device)

    seconds = _steady(action) if rank in (source, target) else _steady(lambda: None)
    mine = torch.tensor([seconds], dtype=torch.float64, device=device)
    dist.broadcast(mine, source)
    return float(mine)


def _finish(device: torch.device) -> None:
    """Wait for a GPU to have done what was issued; a CPU has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _collective(kind: str, n_elements: int, n_ranks: int, group: Any, device: torch.device) -> float:
    whole = torch.ones(n_elements // n_ranks * n_ranks, device=device)
    part = torch.ones(n_elements // n_ranks, device=device)
    gather = dist.all_gather_single if hasattr(dist, "all_gather_single") else dist.all_gather_into_tensor
    scatter = dist.reduce_scatter_single if hasattr(dist, "reduce_scatter_single") else dist.reduce_scatter_tensor

    def action() -> None:
        if group is None:
            return
        if kind == "all_reduce":
            dist.all_reduce(whole, group=group)
        elif kind == "all_gather":
            gather(whole, part, group=group)
        else:
            scatter(part, whole, group=group)
        _finish(device)

    return _steady(action)


def join(kind: str) -> dict[str, Any] | None:
    """Join the other processes, measure, and leave.

    `kind`: ``cpu``, for Gloo, or ``cuda``, for NCCL: this process takes the GPU of its number on its machine.
    """
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cpu")
    if kind == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    torch.set_num_threads(1)
    rendezvous = os.environ.get("MESHWRIGHT_RENDEZVOUS", "env://")
    dist.init_process_group("nccl" if kind == "cuda" else "gloo", init_method=rendezvous, rank=rank, world_size=world)
    result = measure(device)
    dist.barrier()
    dist.destroy_process_group()
    return result


def among(ranks: int, device: str) -> dict[str, Any] | Failure | None:
    """Return the links among processes started here, or, under torchrun, among those that it started; None on ranks but the
    first.

    `device`: ``cpu`` or ``cuda``.
    Raises `InputError` when there are no such devices.
    """
    if device not in ("cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        raise InputError(f"--device {device}: must be cpu, or cuda where PyTorch sees a GPU")
    if launch.under_torchrun():
        return join(device)
    if device == "cuda" and ranks > torch.cuda.device_count():
        raise InputError(
            f"--ranks {ranks}: this machine has {torch.cuda.device_count()} GPUs; start more machines with torchrun"
        )
    return launch.run_module("meshwright.runtime.profile.links", ranks, {"device": device})


def main() -> int:
    """Be one of the processes; return the exit status."""
    lifeline.hold()
    path = Path(sys.argv[1])
    result = join(json.loads(path.read_text(encoding="utf-8"))["device"])
    if result is not None:
        (path.parent / "result.json").write_text(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
