"""DAPPLE's early-backward schedule against GPipe: peak memory and step time over the number of micro-batches.

Run ``python benchmarks/early_backward.py [PROFILE] [--profile-batch N] --machines 8,16 --stages 8 [--svg FILE]``. The profile
is cut into stages of about equal time, one device each on the published links; the micro-batch stays the same, so more
micro-batches are a larger batch. All four schedules play the same plan in this package's simulator, without recomputation.
Memory is that of the fullest device: weights, gradients and two moments (4 bytes per byte of weights) and the activations in
flight.
"""

from __future__ import annotations

import argparse
import pathlib
import re
from dataclasses import dataclass

import numpy as np

from meshwright import api
from meshwright.base import files
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Problem
from meshwright.planners.dapple.profile import PipeDreamProfile

SCHEDULES = (("gpipe", "#c03030"), ("early_backward_a", "#2060c0"), ("early_backward_b", "#d08020"), ("1f1b", "#808080"))
PROFILE = pathlib.Path(__file__).resolve().parents[1] / "tests" / "reference" / "dapple" / "bert-48-pbs-2.txt"
PANELS = (("peak_bytes", "peak memory of the fullest device, GB", 1e9), ("step_seconds", "step, seconds per micro-batch", 1.0))


@dataclass(frozen=True, slots=True)
class Point:
    """One schedule with one number of micro-batches."""

    schedule: str
    n_microbatches: int
    peak_bytes: float
    step_seconds: float


def cut_evenly(problem: Problem, profile: PipeDreamProfile, n_stages: int) -> tuple[Stage, ...]:
    """Return consecutive stages of about equal time, one device each."""
    seconds_of = {node.name: node.compute_seconds for node in profile.nodes}
    order = problem.graph.topological_order()
    passed = np.cumsum([seconds_of.get(problem.graph.ops[op].name, 0.0) for op in order])
    middle = passed - np.diff(passed, prepend=0.0) / 2.0
    stage = np.minimum((middle / passed[-1] * n_stages).astype(int), n_stages - 1)
    groups = [tuple(op for op, mine in zip(order, stage, strict=True) if mine == i) for i in range(n_stages)]
    if not all(groups):
        raise SystemExit(f"a layer takes more than one of {n_stages} equal parts of the time; give fewer --stages")
    return tuple(Stage(group, (i,), recompute=("none",) * len(group)) for i, group in enumerate(groups))


def points(path: str, settings: dict[str, str], n_stages: int, micro_batch: int, counts: list[int]) -> list[Point]:
    """Play every schedule with every number of micro-batches."""
    model_spec, found = api.read(path), []
    assert isinstance(model_spec.instance, PipeDreamProfile)
    for n_microbatches in counts:
        batch = n_microbatches * micro_batch
        problem = api.completed(api.make_problem(model_spec), "dapple", settings | {"global_batch": str(batch)})
        stages = cut_evenly(problem, model_spec.instance, n_stages)
        for schedule, _ in SCHEDULES:
            _, timeline = api.judge(problem, Plan(stages, n_microbatches, micro_batch, schedule, batch))
            assert timeline is not None
            found.append(Point(schedule, n_microbatches, max(timeline.peak_bytes), timeline.step_seconds))
    return found


def table(found: list[Point], counts: list[int]) -> str:
    """Return the points as a table in Markdown: memory, then milliseconds per micro-batch."""
    names = [name for name, _ in SCHEDULES]
    lines = ["| micro-batches | " + " | ".join(names) + " |", "|" + "---|" * (len(names) + 1)]
    for count in counts:
        row = {point.schedule: point for point in found if point.n_microbatches == count}
        cells = [
            f"{row[name].peak_bytes / 1e9:.2f} GB, {1e3 * row[name].step_seconds / count:.2f} ms" for name in names
        ]  # fmt: skip
        lines.append(f"| {count} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def svg(title: str, found: list[Point], counts: list[int]) -> str:
    """Return two plots side by side over the number of micro-batches: memory, and time per micro-batch."""
    width, height, left, bottom, top = 430, 320, 55, 45, 60
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * width} {height}" font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{left}" y="18" font-size="13">{title}</text>',
    ]
    for panel, (field, label, unit) in enumerate(PANELS):
        value = {
            (point.schedule, point.n_microbatches): getattr(point, field)
            / unit
            / (point.n_microbatches if field == "step_seconds" else 1)
            for point in found
        }
        highest, start = max(value.values()), panel * width + left
        parts.append(f'<text x="{start}" y="36">{label}</text>')

        def x(i: int, start: int = start) -> float:
            return start + (width - left - 20) * i / max(len(counts) - 1, 1)

        def y(number: float, highest: float = highest) -> float:
            return height - bottom - (height - bottom - top) * number / highest

        for part in (0.0, 0.5, 1.0):
            parts.append(
                f'<line x1="{x(0)}" x2="{x(len(counts) - 1)}" y1="{y(part * highest)}" y2="{y(part * highest)}" stroke="#ddd"/>'
            )
            parts.append(f'<text x="{start - 4}" y="{y(part * highest) + 4}" text-anchor="end">{part * highest:.3g}</text>')
        parts += [
            f'<text x="{x(i):.1f}" y="{height - bottom + 16}" text-anchor="middle">{n}</text>' for i, n in enumerate(counts)
        ]
        for k, (name, colour) in enumerate(SCHEDULES):
            line = " ".join(f"{x(i):.1f},{y(value[name, n]):.1f}" for i, n in enumerate(counts))
            dash = ' stroke-dasharray="4 4"' if name == "1f1b" else ""
            parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
            parts.append(f'<text x="{start + 92 * k}" y="{height - 8}" fill="{colour}">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    """Print the table, and write the picture where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile", nargs="?", default=str(PROFILE), help="a profile in PipeDream's text format")
    parser.add_argument(
        "--profile-batch", type=int, default=0, help="samples it was measured with; 0: as the name says, NAME-pbs-N.txt"
    )
    parser.add_argument("--machines", default="8,16", help="exclusive ends of the machines' device ids")
    parser.add_argument("--stages", type=int, default=8)
    parser.add_argument("--micro-batch", type=int, default=0, help="samples; 0: as profiled")
    parser.add_argument("--counts", default="2,4,8,16,32,64", help="numbers of micro-batches")
    parser.add_argument("--svg", default="", help="write the picture to this file")
    asked = parser.parse_args()
    counts = [int(count) for count in asked.counts.split(",")]
    named = re.search(r"-pbs-(\d+)", asked.profile)
    if not asked.profile_batch and not named:
        parser.error(f"{asked.profile} does not say its batch; give it with --profile-batch")
    profile_batch = asked.profile_batch or int(named[1])
    settings = {"profile_batch": str(profile_batch), "machines": asked.machines}
    found = points(asked.profile, settings, asked.stages, asked.micro_batch or profile_batch, counts)
    print(table(found, counts))
    if asked.svg:
        title = f"{pathlib.Path(asked.profile).stem}: {asked.stages} stages, one device each"
        files.write(asked.svg, svg(title, found, counts))


if __name__ == "__main__":
    main()
