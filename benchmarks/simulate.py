"""How long a simulation takes: 64 stages x 512 micro-batches, with and without shared links, and what a search asks for."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np

from meshwright import sim
from meshwright.plan import Plan, Stage
from meshwright.sim import engine
from meshwright.sim.transfers import Transfers, fixed
from meshwright.table import StageLoad


def ladder(n_stages: int) -> Transfers:
    """Every stage leaves through one port and enters through another, which both directions share."""
    sends = fixed(np.arange(n_stages), np.full(n_stages - 1, 0.3))
    links, busy = [], []
    for way in (0, 1):
        for stage in range(n_stages):
            target = stage + 1 - 2 * way
            there = 0 <= target < n_stages
            links.append(np.array([2 * stage, 2 * target + 1] if there else [], dtype=np.int64))
            busy.append(np.full(len(links[-1]), 0.3))
    return Transfers(
        sends.channel, sends.seconds, sends.latency_seconds, sends.seconds, tuple(links), tuple(busy), np.ones(2 * n_stages)
    )


def seconds_of(call: Callable[[], object], n_times: int = 3) -> float:
    """Return the least CPU seconds of a few calls, compiled before."""
    call()
    spent = []
    for _ in range(n_times):
        before = time.process_time()
        call()
        spent.append(time.process_time() - before)
    return min(spent)


def whole(word: str, loads: tuple[StageLoad, ...]) -> None:
    """Print what a whole timeline of 64 stages x 512 micro-batches takes."""
    plan = Plan(tuple(Stage((i,), (i,)) for i in range(64)), 512, 1, word, 512)
    for name, sends in (("alone", fixed(np.arange(64), np.full(63, 0.3))), ("shared", ladder(64))):
        print(
            f"{word:18} 64 x 512, whole timeline, links {name:7} {seconds_of(partial(engine.play, plan, loads, sends)):8.3f} s"
        )


def quick(word: str, n_chunks: int, rng: np.random.Generator) -> None:
    """Print what a search waits for one answer."""
    columns = [*rng.random((3, 16 * n_chunks)), rng.random(16 * n_chunks - 1)]
    spent = seconds_of(partial(sim.step_seconds, word, 16, n_chunks, 64, *columns))
    print(f"{word:18} 16 ranks x {n_chunks} stages x 64, step_seconds {spent * 1e3:8.2f} ms")


def main() -> None:
    """Print one line per case."""
    rng = np.random.default_rng(0)
    loads = tuple(
        StageLoad(1.0 + x, 1.0 + x, 1.0, output_bytes=1.0, activation_bytes=1.0, reduce_seconds=3.0, overlap_ratio=0.5)
        for x in rng.random(64)
    )
    for word in ("gpipe", "1f1b", "zb_h1"):
        whole(word, loads)
    for word, n_chunks in (("1f1b", 1), ("interleaved_1f1b", 4), ("zb_h1", 1), ("zb_v", 2)):
        quick(word, n_chunks, rng)


if __name__ == "__main__":
    main()
