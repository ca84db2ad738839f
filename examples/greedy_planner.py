"""A planner from outside for ``meshwright bench``: a pipeline of equal parts, one device a stage.

Run it with ``meshwright bench --planner "python3 examples/greedy_planner.py" --problems generated``. It imports nothing of
meshwright: it reads the problem file and writes a plan file, see docs/howto/compare_planners.md.
"""

import graphlib
import json
import sys


def plan(problem: dict) -> dict:
    """Return the plan file: layers in order, cut where the next part of the work is full."""
    layers, parents = problem["layers"], {i: set() for i in range(len(problem["layers"]))}
    for source, target in problem["edges"]:
        parents[target].add(source)
    order = list(graphlib.TopologicalSorter(parents).static_order())
    work = [layer["seconds"] or layer["flops"] or 0.0 for layer in layers]
    n_stages = min(problem["n_devices"] or 1, len(order))
    stages, done = [[] for _ in range(n_stages)], 0.0
    for layer in order:
        stages[min(int(done / (sum(work) or 1.0) * n_stages), n_stages - 1)].append(layers[layer]["name"])
        done += work[layer]
    filled = [names for names in stages if names]
    samples = problem["n_microbatches"] or problem["global_batch"] or 1
    return {
        "format": "meshwright/plan/1", "problem": problem["problem"], "feasible": True,
        "stages": [{"ops": names, "devices": [i], "data": 1, "tensor": 1, "recompute": ["none"] * len(names)}
                   for i, names in enumerate(filled)],
        "schedule": {"name": "1f1b", "n_microbatches": samples, "micro_batch": 1, "global_batch": samples},
    }  # fmt: skip


if __name__ == "__main__":
    with open(sys.argv[1]) as asked:
        answer = plan(json.load(asked))
    with open(sys.argv[2], "w") as file:
        json.dump(answer, file)
