"""``meshwright compile``: compile the kernels once, so that later runs start at once."""

from __future__ import annotations

from collections.abc import Collection
from types import MappingProxyType

import typer

__all__ = ["precompile", "register"]

_SHARES = MappingProxyType(
    {"best": 114, "dapple": 36, "network": 1, "parmesan": 43, "pase": 5, "piper": 76, "sim": 1, "topoopt": 83}
)
"""How long groups took beside each other when that was last measured (v0.1.0); those added since count as a mean one."""


def precompile(path: str) -> tuple[float, list[str]]:
    """Compile the kernels of one package, in a process of its own.

    `path`: its module ``precompile``.
    Returns (float, list of str): seconds, and what was warned of.
    """
    import importlib
    import logging
    import time
    import warnings

    from meshwright import api

    logging.disable(logging.WARNING)  # the command itself says what is compiled
    started = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        importlib.import_module(path).run(api.plan)
    return time.perf_counter() - started, [str(warning.message) for warning in caught]


def share_of(done: Collection[str], groups: Collection[str]) -> float:
    """Return which share of the work on groups of kernels those that are done were."""
    mean = sum(_SHARES.values()) / len(_SHARES)
    done_share, all_share = (sum(_SHARES.get(name, mean) for name in names) for names in (done, groups))
    return done_share / all_share


def _end_quietly() -> None:
    """Let Ctrl-C end a process without a word: the command says it."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_DFL)


def register(app: typer.Typer) -> None:
    """Add the command to the program."""

    @app.command(name="compile")
    def compile_() -> int:
        """Compile every kernel for the types it is used with, showing progress, and keep the result for later runs."""
        import multiprocessing
        import os
        import sys
        import time
        from concurrent.futures import ProcessPoolExecutor, as_completed
        from concurrent.futures.process import BrokenProcessPool

        from meshwright.base import registry
        from meshwright.base.errors import MeshwrightError
        from meshwright.report.progress import progress

        groups = registry.beside("precompile")
        n_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        n_processes = min(len(groups), n_cores)
        started = time.perf_counter()
        said = f"compiling {len(groups)} groups of kernels in {n_processes} processes (once; kept for later runs)"
        print(said, file=sys.stderr, flush=True)
        warned: set[str] = set()
        through: list[str] = []
        try:
            with (
                progress("compiling") as told,
                ProcessPoolExecutor(n_processes, multiprocessing.get_context("spawn"), _end_quietly) as pool,
            ):
                try:
                    asked = {pool.submit(precompile, path): name for name, path in groups.items()}
                    told.count(0, len(groups), "groups")
                    for i, done in enumerate(as_completed(asked), 1):
                        seconds, warnings = done.result()
                        warned.update(warnings)
                        elapsed = time.perf_counter() - started
                        through.append(asked[done])
                        told.count(i, len(groups), "groups", share_of(through, groups))
                        said = f"  [{i}/{len(groups)}] {elapsed:.1f} s: {asked[done]} took {seconds:.1f} s"
                        print(said, file=sys.stderr, flush=True)
                except KeyboardInterrupt:  # told to this process alone, the others would go on to the end
                    pool.shutdown(wait=False, cancel_futures=True)
                    for process in multiprocessing.active_children():
                        process.terminate()
                    raise
        except KeyboardInterrupt:
            whole = f"{len(through)} of {len(groups)} groups are whole"
            print(f"meshwright: interrupted; every kernel that was through is kept, {whole}", file=sys.stderr)
            sys.exit(130)
        except BrokenProcessPool as error:
            raise MeshwrightError(
                "a process that compiled kernels was ended from outside, for want of memory perhaps: each takes about 0.5 GB, "
                f"and there were {n_processes}; with fewer cores, as by 'taskset -c 0 meshwright compile', there are fewer"
            ) from error
        for warning in sorted(warned):
            print(f"meshwright: {warning}", file=sys.stderr)
        return 0
