"""What a user's type checker sees of the package: ``mypy`` checks this file with the package; nothing runs it.

An error that is not found here is one: the comment that expects it would be of no use, which mypy says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, assert_type

import meshwright
from meshwright import ModelSpec, Plan, Result, plan

result = plan("gpt2", "dgx-h100:8")
assert_type(result, Result)
assert_type(meshwright.plan("gpt2", "dgx-h100:8"), Result)
assert_type(meshwright.read("gpt2"), ModelSpec)
assert_type(result.plan, Plan)
seconds: float = meshwright.simulate(result.problem, result.plan).step_seconds if result.plan else 0.0
untyped: Callable[[], Any] = plan  # type: ignore[assignment]  # its signature is known
meshwright.plan("gpt2", "dgx-h100:8", serch="best")  # type: ignore[call-arg]
print(meshwright.plna)  # type: ignore[attr-defined]
