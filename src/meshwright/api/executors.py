"""Where many questions are answered at once: here, on the cores of this machine, or on a Dask or Ray cluster (joblib)."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from meshwright.base import registry
from meshwright.base.errors import InputError, MissingExtraError

__all__ = ["BACKENDS", "Runner", "check", "workers"]

BACKENDS = ("loky", "dask", "ray")
"""Where joblib runs calls: processes of this machine, or a Dask or Ray cluster."""

R = TypeVar("R")

Runner = Callable[[Callable[..., Any], Sequence[tuple[Any, ...]]], list[Any]]
"""Calls a function once for each tuple of arguments; returns what it returns, in their order, and None for calls that Ctrl-C
cut short (`workers`, `keep`).
"""


def check(jobs: int, backend: str) -> None:
    """Refuse a number of jobs or a backend that there is not.

    Parameters
    ----------
    jobs : int
        Calls at once; 1 runs them here, -1 takes every core.
    backend : str
        One of `BACKENDS`.

    Raises
    ------
    InputError
        When there is no such backend, or the number is none.
    """
    if backend not in BACKENDS:
        raise InputError(f"--backend {backend}: not known; choose one of {', '.join(BACKENDS)}")
    if jobs == 0 or jobs < -1:
        raise InputError(f"--jobs {jobs}: must be 1 or more, or -1 for every core")


@contextmanager
def workers(
    jobs: int, backend: str, scheduler: str = "", *, done: Callable[[int, int], None] | None = None, keep: bool = False
) -> Iterator[Runner]:
    """Open what runs calls, and close it in the end.

    Parameters
    ----------
    jobs, backend
        As of `check`.
    scheduler : str
        Address of a Dask scheduler or Ray cluster; empty for one on this machine.
    done : callable or None
        Told how many of how many calls are through, after each one that runs on this machine.
    keep : bool
        Whether Ctrl-C ends calls on this machine and keeps what others have returned; else it is raised, as where none has,
        and on a cluster.

    Yields
    ------
    Runner
        What runs them: the results are the same whoever does.

    Raises
    ------
    InputError
        As `check`; when the cluster does not start, or does not answer at its address.
    MissingExtraError
        When the backend's package is not installed.
    """
    check(jobs, backend)
    if jobs == 1 and backend == "loky":
        yield lambda function, arguments: _collected(_in_order(function, arguments), len(arguments), done, keep)
        return
    import joblib

    def run(function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], n_jobs: int = jobs) -> list[Any]:
        found: list[Any] = joblib.Parallel(n_jobs=n_jobs)(joblib.delayed(function)(*argument) for argument in arguments)
        return found

    if backend == "loky":

        def run_here(function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
            calls = [joblib.delayed(_numbered)(i, function, own) for i, own in enumerate(arguments)]
            with _deaf_to_ctrl_c():
                each = joblib.Parallel(n_jobs=jobs, return_as="generator_unordered")(calls)
            try:
                return _collected(each, len(arguments), done, keep)
            finally:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", UserWarning)  # joblib's of calls cut short: who asked knows
                    each.close()

        with joblib.parallel_config(backend="loky"):
            yield run_here
    elif backend == "ray":
        try:
            import ray
            from ray.util.joblib import register_ray
        except ImportError:
            raise MissingExtraError("--backend ray", "ray") from None
        joined = ray.is_initialized()
        if not joined:
            address = {"address": scheduler} if scheduler else {"include_dashboard": False}
            _started("ray", scheduler, lambda: ray.init(**address))
        register: Callable[[], object] = register_ray  # which has no types
        register()
        try:
            with joblib.parallel_config(backend="ray", n_jobs=jobs):
                yield run
        finally:
            if not joined:
                ray.shutdown()
    else:
        try:
            from distributed import Client
        except ImportError:
            raise MissingExtraError("--backend dask", "dask") from None
        own: dict[str, Any] = {"n_workers": None if jobs < 0 else jobs, "threads_per_worker": 1, "dashboard_address": None}
        options: dict[str, Any] = {"address": scheduler} if scheduler else own
        with _started("dask", scheduler, lambda: Client(**options)), joblib.parallel_config(backend="dask"):
            yield lambda function, arguments: run(function, arguments, -1)


def _in_order(function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> Iterator[tuple[int, Any]]:
    for i, own in enumerate(arguments):
        yield _numbered(i, function, own)


def _numbered(i: int, function: Callable[..., Any], own: tuple[Any, ...]) -> tuple[int, Any]:
    """Return the number of a call and its result; runs in a worker."""
    return i, function(*own)


def _collected(
    results: Iterable[tuple[int, Any]], n_calls: int, done: Callable[[int, int], None] | None, keep: bool
) -> list[Any]:
    """Return results in the order of their calls, telling how many there are; None for calls that Ctrl-C cut short."""
    found: dict[int, Any] = {}
    try:
        for i, result in results:
            found[i] = result
            if done is not None:
                done(len(found), n_calls)
    except KeyboardInterrupt:  # which ends the workers too, as joblib has it
        if not keep or not found:
            raise
    return [found.get(i) for i in range(n_calls)]


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Start processes that do not hear Ctrl-C: a terminal sends it to all of them, and this one ends the others."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing import resource_tracker

    from joblib.externals.loky.backend import resource_tracker as loky_tracker

    for tracker in (resource_tracker, loky_tracker):
        tracker.ensure_running()  # now: starting them later may end the mask
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # threads and processes started now inherit it
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _started(backend: str, scheduler: str, start: Callable[[], R]) -> R:
    """Start a cluster or join one; where that fails, say so in a line."""
    try:
        return start()
    except Exception as error:  # each library has errors of its own for a cluster that is not there
        where = f"--backend {backend}: it does not start"
        where = f"--scheduler {scheduler}: no {backend} cluster answers there" if scheduler else where
        said = registry.one_line(error)[:200]
        raise InputError(f"{where} ({said}); --backend loky plans on this machine") from error
