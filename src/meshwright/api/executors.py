"""Where many questions are answered at once: here, on the cores of this machine, or on a Dask or Ray cluster (joblib)."""

from __future__ import annotations

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
"""Calls a function once for each tuple of arguments; returns what it returns, in their order."""


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
    jobs: int, backend: str, scheduler: str = "", *, done: Callable[[int, int], None] | None = None
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
        yield lambda function, arguments: list(_counted((function(*own) for own in arguments), len(arguments), done))
        return
    import joblib

    def run(function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], n_jobs: int = jobs) -> list[Any]:
        found: list[Any] = joblib.Parallel(n_jobs=n_jobs)(joblib.delayed(function)(*argument) for argument in arguments)
        return found

    if backend == "loky":

        def run_here(function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
            each = joblib.Parallel(n_jobs=jobs, return_as="generator")(joblib.delayed(function)(*own) for own in arguments)
            return list(_counted(each, len(arguments), done))

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


def _counted(results: Iterable[Any], n_calls: int, done: Callable[[int, int], None] | None) -> Iterator[Any]:
    """Yield results as they come, and tell how many there are."""
    for n_through, result in enumerate(results, start=1):
        if done is not None:
            done(n_through, n_calls)
        yield result


def _started(backend: str, scheduler: str, start: Callable[[], R]) -> R:
    """Start a cluster or join one; where that fails, say so in a line."""
    try:
        return start()
    except Exception as error:  # each library has errors of its own for a cluster that is not there
        where = f"--backend {backend}: it does not start"
        where = f"--scheduler {scheduler}: no {backend} cluster answers there" if scheduler else where
        said = registry.one_line(error)[:200]
        raise InputError(f"{where} ({said}); --backend loky plans on this machine") from error
