"""From ``package.module:callable`` to the object it names, and from a model's callable to the module to train."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from meshwright.base.errors import InputError, MissingExtraError

__all__ = ["OLDEST_TORCH", "build", "load", "require_torch", "seeded"]

OLDEST_TORCH = (2, 6)
"""Oldest PyTorch with FSDP2, DTensor and selective recomputation as used here."""


def require_torch() -> None:
    """Refuse a Python without PyTorch, or with one that is too old.

    Raises `MissingExtraError` when it is absent.
    Raises `InputError` when it is too old.
    """
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        raise MissingExtraError("running a plan", "torch") from None
    found = tuple(int(part) for part in version.split("+")[0].split(".")[:2])
    if found < OLDEST_TORCH:
        oldest = ".".join(str(part) for part in OLDEST_TORCH)
        raise InputError(
            f"PyTorch {version} is too old to run a plan: {oldest} or newer is needed; pip install --upgrade torch"
        )


def load(name: str, option: str) -> Callable[..., Any]:
    """Return what ``package.module:callable`` names; the current folder is looked in too, as ``python -m`` does.

    Raises `InputError` when the module cannot be imported, or holds no such callable.
    """
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        raise InputError(f"{option} {name}: write package.module:callable, for example examples.models:small")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise InputError(f"{option} {name}: there is no module '{error.name}' (looked in {os.getcwd()} too)") from None
    except (Exception, SystemExit) as error:
        raise InputError(f"{option} {name}: importing {module_name} failed: {type(error).__name__}: {error}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            known = ", ".join(sorted(key for key, value in vars(found).items() if callable(value) and not key.startswith("_")))
            raise InputError(f"{option} {name}: {module_name} has no '{attribute}'; it has {known or 'nothing callable'}")
        found = getattr(found, part)
    if not callable(found):
        raise InputError(f"{option} {name}: is a {type(found).__name__}; name something to call")
    return found  # type: ignore[no-any-return]


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Let random numbers of Python, NumPy and PyTorch begin with a seed; Python's and NumPy's go on as before afterwards."""
    import random

    import numpy as np
    import torch

    python, numpy = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def build(name: str, seed: int, *, empty: bool = False) -> tuple[Any, tuple[Any, ...]]:
    """Return the model that a callable makes, with weights from a seed, and example inputs where it gives them.

    `name`: ``package.module:callable``; called without arguments, it returns a ``torch.nn.Module``, or one and a tuple of
    example inputs.
    `empty`: whether no weights are made: they are on the meta device.

    Returns `model`: in training mode, or in the modes of its modules where these differ.
    Returns `examples`: empty where the callable gives none.
    Raises `InputError` when the call fails or returns something else.
    """
    import torch

    from meshwright.runtime.model.as_given import to_train
    from meshwright.runtime.model.meta import weights_on_meta

    maker = load(name, "--model")
    try:
        with seeded(seed), weights_on_meta() if empty else nullcontext():
            made = maker()
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise InputError(
            f"--model {name}: calling it failed: {type(error).__name__}: {error} ({place.filename}:{place.lineno}); "
            "it is called without arguments and returns a torch.nn.Module"
        ) from error
    examples: tuple[Any, ...] = ()
    if isinstance(made, tuple) and made and isinstance(made[0], torch.nn.Module):
        rest = made[1:]
        examples = tuple(rest[0]) if len(rest) == 1 and isinstance(rest[0], (tuple, list)) else tuple(rest)
        made = made[0]
    if not isinstance(made, torch.nn.Module):
        raise InputError(f"--model {name}: returned a {type(made).__name__}; it must return a torch.nn.Module")
    return to_train(made), tuple(example for example in examples if isinstance(example, torch.Tensor))
