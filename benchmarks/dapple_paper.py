"""DAPPLE's comparison: our planner, the published one, PipeDream's and data parallelism, on measured profiles and by two
simulators.

Run ``python benchmarks/dapple_paper.py [FOLDER]`` where FOLDER holds profiles in PipeDream's text format. Speed-ups are over
one device that had the memory. "ours" is this package's simulator: whole samples, every layer counted once, transfers that
share links, one backward pass at a time on a device. "theirs" is the event simulation of the authors' code, which counts one
state twice per cut and lets backward passes overlap while the pipeline drains; it flatters plans with few stages, and is shown
because the published ratios were taken with it. Both use the published bandwidths. Plans were made by each planner for itself,
with the same micro-batch limits; the published planner's run exactly as it answered.
"""

from __future__ import annotations

import argparse
import itertools
import pathlib
import time

import numpy as np

from meshwright import api
from meshwright.base.errors import MeshwrightError
from meshwright.core.plan import Plan
from meshwright.core.problem import ModelSpec
from meshwright.core.result import Result
from meshwright.planners.dapple import published
from meshwright.planners.dapple import states as _dapple_states

PROFILES = pathlib.Path(__file__).resolve().parents[1] / "tests" / "reference" / "dapple"

SETTINGS = {
    # profile: samples of the profile, of a step, fewest of a micro-batch, optimizer scaling (the authors' settings)
    "vgg-19-pbs-32": (32, 1024, 32, 2),
    "gnmt-16-pbs-64": (64, 1024, 64, 3),
    "gnmt-32-pbs-64-simplified": (64, 1024, 64, 3),
    "bert-48-pbs-2": (2, 128, 1, 3),
    "xlnet-36-pbs-1": (1, 128, 1, 3),
    "amoeba-18-pbs-8": (8, 128, 1, 3),
}
MACHINES = {"2 x 8": "8,16", "16 x 1": ",".join(str(end) for end in range(1, 17))}
PLANNERS = (
    ("data parallel", "dapple", {"max_stages": "1"}),
    ("PipeDream", "pipedream", {}),
    ("DAPPLE, published", "dapple", {"mode": "published"}),
    ("DAPPLE, corrected", "dapple", {}),
    ("DAPPLE, corrected, uneven", "dapple", {"uneven": "true"}),
)


def theirs(model_spec: ModelSpec, plan: Plan, result: Result, sizes: tuple[int, ...]) -> float | None:
    """Speed-up by the authors' event simulation; None where a stage does not end with one of their states."""
    if "published" in result.answer.extra:
        return result.answer.extra["published"]["recursive_speedup"]
    states = _dapple_states.states_of(model_spec)
    seconds, _, parameter_bytes = _dapple_states.interval_tables(model_spec, states)
    profile_batch, batch, _, scaling = SETTINGS[model_spec.name]
    done, stages, begin = np.zeros(states.inside.shape[1], dtype=bool), [], 0
    machine = np.repeat(np.arange(len(sizes)), sizes)
    for i, stage in enumerate(plan.stages):
        done[list(stage.ops)] = True
        equal = np.flatnonzero((states.inside == done).all(axis=1))
        if not len(equal):
            return None
        last = i + 1 == len(plan.stages)
        stop = states.n_states - 1 if last else int(equal[-1]) + 1
        counts = np.bincount(machine[list(stage.devices)], minlength=len(sizes))
        stages.append((begin, stop, len(stage.devices), tuple(int(count) for count in counts)))
        begin = stop
    setting = published.Setting(profile_batch, batch, batch // plan.n_microbatches, sizes, scaling, 1.0)
    instance = published.scaled(
        seconds, parameter_bytes, states.cut_bytes, (states.before_first, states.before), batch / profile_batch
    )
    candidate = published.Candidate(0.0, 1, tuple(stages), tuple(stage.devices for stage in plan.stages))
    return published.recursive_speedup(instance, setting, candidate)


def row(path: pathlib.Path, ends: str, search: str, more: dict[str, str]) -> str:
    """One line: speed-ups by both simulators, CPU seconds, plan."""
    profile_batch, batch, micro, scaling = SETTINGS[path.stem]
    settings = {
        "profile_batch": str(profile_batch), "global_batch": str(batch), "min_micro_batch": str(micro),
        "optimizer_memory_scaling": str(scaling), "machines": ends,
    } | more  # fmt: skip
    model_spec = api.read(str(path))
    started = time.process_time()
    try:
        result = api.plan(model_spec, search=search, settings=settings)
    except MeshwrightError as error:
        return f"{error}"
    spent = time.process_time() - started
    if not result.feasible or result.timeline is None:
        return f"nothing fits ({result.answer.missing_bytes / 1e9:.1f} GB missing)"
    states = _dapple_states.states_of(model_spec)
    alone = float(states.compute_seconds[-1]) * batch / profile_batch
    bounds = [0, *(int(end) for end in ends.split(","))]
    sizes = tuple(later - end for end, later in itertools.pairwise(bounds))
    other = theirs(model_spec, result.plan, result, sizes)
    shape = " | ".join(f"{len(stage.ops)}@{len(stage.devices)}" for stage in result.plan.stages)
    shown = "     -" if other is None else f"{other:6.2f}"
    bound = ""
    if result.answer.bound is not None and search == "dapple" and more.get("mode") != "published":
        bound = f"  proven <= {alone / result.answer.bound.value:.2f}"
    return (
        f"{alone / result.timeline.step_seconds:6.2f} {shown} {spent:6.2f} s  M={result.plan.n_microbatches:<4d} {shape}{bound}"
    )


def main() -> None:
    """Print one table per machine layout."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=pathlib.Path, default=PROFILES, help="profiles in PipeDream's text format")
    folder = parser.parse_args().folder
    found = [folder / f"{name}.txt" for name in SETTINGS if (folder / f"{name}.txt").exists()]
    if not found:
        parser.error(f"{folder} holds none of {', '.join(SETTINGS)}")
    row(found[0], "2,4", "dapple", {})  # compile
    row(found[0], "2,4", "dapple", {"mode": "published"})
    row(found[0], "2,4", "pipedream", {})
    for label, ends in MACHINES.items():
        print(f"\n{label} devices{'':26s} ours theirs    CPU    plan: layers@devices")
        for path in found:
            print(f"{path.stem}, {SETTINGS[path.stem][1]} samples")
            for name, search, more in PLANNERS:
                print(f"  {name:32s} {row(path, ends, search, dict(more))}", flush=True)


if __name__ == "__main__":
    main()
