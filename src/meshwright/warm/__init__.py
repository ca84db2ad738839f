"""Small problems that touch every kernel once, so that all are compiled and kept. One file each.

Its one function is ``run(plan)``; `plan` is `meshwright.api.plan`, handed in since it lies above.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from meshwright.base import registry

__all__ = ["tasks"]


def tasks(plan: Callable[..., object]) -> list[tuple[str, Callable[[], object]]]:
    """Return names and functions; each runs a small problem through one part of the package.

    `plan`: `meshwright.api.plan`.
    Returns: sorted by name.
    """
    return [
        (name.replace("_", " "), partial(module.run, plan))
        for name, module in sorted(registry.each("warm", "warm-up"), key=lambda pair: pair[0])
    ]
