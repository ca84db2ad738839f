"""Our own runtime, ``meshwright run``."""

from __future__ import annotations

from pathlib import Path

from meshwright.core import framework_file
from meshwright.core.launch import StartCommand
from meshwright.core.plan import Plan
from meshwright.core.plan_forms.exceeded import exceeded
from meshwright.core.problem import Problem
from meshwright.core.result import Result

__all__ = ["FRAMEWORK", "RINGS", "VARIANTS", "program", "refusals", "write"]

RINGS = True

FRAMEWORK, VARIANTS = framework_file.read(Path(__file__).parent / "data" / "meshwright.toml")


def refusals(plan: Plan, problem: Problem) -> tuple[str, ...]:
    """Return what of a plan is outside its limits, or is not what ``run`` does."""
    packed = ("frozen weights in four bits; it holds weights as they are used",) if problem.graph.quantised else ()
    return packed + exceeded(FRAMEWORK.limits, plan, problem.graph, problem.training.precision, problem.training.optimizer)


def write(result: Result, path: str) -> None:
    """Write the plan file, which is the runtime's configuration; `meshwright.simulate` and ``run`` read it back."""
    from meshwright.frameworks import _exact
    from meshwright.writers import plan_json

    _exact.check("meshwright", refusals(result.plan, result.problem))
    plan_json.write(result, path)


def program(result: Result, path: str) -> StartCommand:
    """Return what every host starts: ``meshwright run``, whose rank k takes the k-th device of the plan."""
    import shlex

    from meshwright.frameworks import _exact

    words = f'-m -- meshwright run {shlex.quote(Path(path).name)} --model "$MODEL" --backend nccl'
    needs = (("MODEL", "package.module:callable of the model, as for meshwright run"),)
    return StartCommand(_exact.torchrun("meshwright", result, words), (), needs, _exact.environment(FRAMEWORK))
