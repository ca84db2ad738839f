"""Folding what a run measured into the profile that predicted it."""

from __future__ import annotations

import json
from typing import Any

from meshwright.base import files
from meshwright.core.result import Result

__all__ = ["write"]

_TIMES = ("forward_seconds", "backward_input_seconds", "backward_weight_seconds")


def write(profile: str, path: str, predicted: Result, entry: dict[str, Any]) -> None:
    """Write the profile with the times of every layer scaled by what the run took over what was predicted.

    `profile`: the profile that predicted the run.
    `path`: where the corrected one goes.
    `entry`: the JSON object of the run; its stages hold measured and predicted compute.
    Raises `InputError` when the file cannot be written.

    Notes
    -----
    A layer that was measured in place of others in several stages takes the mean of their ratios, weighted by predicted time.
    """
    content = files.read_json(profile)
    like = {layer["name"]: layer["like"] for layer in content["layers"]}
    measured: dict[str, float] = {}
    said: dict[str, float] = {}
    for stage, told in zip(predicted.plan.stages, entry["stages"], strict=True):
        pair = told["compute_seconds"]
        if not pair["measured"] or not pair["predicted"]:
            continue
        for op in stage.ops:
            name = like[predicted.problem.graph.ops[op].name]
            measured[name] = measured.get(name, 0.0) + pair["measured"]
            said[name] = said.get(name, 0.0) + pair["predicted"]
    for figures in content["measures"]:
        if figures["layer"] in said:
            ratio = measured[figures["layer"]] / said[figures["layer"]]
            for field in _TIMES:
                figures[field] *= ratio
    files.write(path, json.dumps(content, indent=1) + "\n")
