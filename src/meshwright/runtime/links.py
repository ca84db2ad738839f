"""Measuring links: every pair of processes, and collectives of all of them; latency and seconds per byte by least squares."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["fit", "main", "measure"]

_SIZES = (4_096, 65_536, 524_288, 2_097_152)
_ROUNDS, _REPEATS = 3, 5


def fit(sizes: list[float], seconds: list[float]) -> tuple[float, float]:
    """Return latency and seconds per byte of the line through measured times, nearest in relative terms; neither negative.

    Parameters
    ----------
    sizes, seconds : list of float
        Bytes sent, and how long it took.
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
    """Return the least over rounds of the median time of a round: hiccups and rounds that another program disturbed drop out."""
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


def measure() -> dict[str, Any] | None:
    """Measure all links and collectives; called in every process; return the profile's ``links`` on rank 0."""
    rank, world = dist.get_rank(), dist.get_world_size()
    pairs = []
    for source in range(world):
        for target in range(world):
            if source == target:
                continue
            seconds = [_round_trip(source, target, size // 4) / 2 for size in _SIZES]
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
            seconds = [_collective(kind, size // 4, n_ranks, group if rank < n_ranks else None) for size in _SIZES]
            everyone: list[Any] = [None] * world
            dist.all_gather_object(everyone, seconds)
            latency, slope = fit([float(size) for size in _SIZES], everyone[0])
            collectives.append({"kind": kind, "n_ranks": n_ranks, "latency_seconds": latency, "seconds_per_byte": slope})
    return {"n_ranks": world, "pairs": pairs, "collectives": collectives} if rank == 0 else None


def _round_trip(source: int, target: int, n_elements: int) -> float:
    rank = dist.get_rank()
    buffer = torch.ones(n_elements)

    def action() -> None:
        if rank == source:
            dist.send(buffer, target)
            dist.recv(buffer, target)
        elif rank == target:
            dist.recv(buffer, source)
            dist.send(buffer, source)

    mine = torch.tensor([_steady(action) if rank in (source, target) else _steady(lambda: None)], dtype=torch.float64)
    dist.broadcast(mine, source)
    return float(mine)


def _collective(kind: str, n_elements: int, n_ranks: int, group: Any) -> float:
    whole = torch.ones(n_elements // n_ranks * n_ranks)
    part = torch.ones(n_elements // n_ranks)
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

    return _steady(action)


def main() -> int:
    """Be one of the processes; return the exit status."""
    folder = Path(sys.argv[1]).parent
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=os.environ["MESHWRIGHT_RENDEZVOUS"], rank=rank, world_size=world)
    result = measure()
    if result is not None:
        (folder / "result.json").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
