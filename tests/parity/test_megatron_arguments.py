"""What `megatron_args` writes is what Megatron-LM's own parser takes: every option known,
with as many values of the right type.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest

import reference
from meshwright import api, models
from meshwright.base.errors import ExportError
from meshwright.core.problem import Batch
from meshwright.frameworks.megatron import model as _megatron_model
from meshwright.frameworks.megatron.writers import megatron_args
from meshwright.models.readers import huggingface

KNOWN = {
    name: entry
    for entry in json.loads(reference.path("megatron/megatron_arguments.json").read_text())
    for name in entry["option"]
}
TYPES = {"int": int, "float": float}


def check(options: Iterable[tuple[str, ...]]) -> None:
    said: list[list[str]] = []
    for word in (word for words in options for word in words):
        if word.startswith("--"):
            said.append([word])
        else:
            said[-1].append(word)
    for name, *values in said:
        assert name in KNOWN, name
        entry = KNOWN[name]
        most = {0: 0, None: 1}.get(entry["nargs"], len(values))
        assert len(values) == most and (most == 0 or values), (name, values)
        for value in values:
            TYPES.get(entry["type"], str)(value)
            assert entry["choices"] is None or value in map(str, entry["choices"]), (name, value)


def test_every_built_in_model_is_told_in_options_that_megatron_knows() -> None:
    told = 0
    for model in huggingface.names():
        model_spec = models.read(model)
        try:
            options, _ = _megatron_model.arguments(model_spec.spec, model_spec.graph)
        except ExportError:
            continue  # encoders: there is no program of Megatron-LM's for them
        check(options)
        told += bool(options)
    assert told > 30


@pytest.mark.parametrize("model", ["gpt2-xl", "mixtral-8x7b"])
def test_a_plan_is_told_in_options_that_megatron_knows(model: str) -> None:
    result = api.plan(model, "dgx-h100:64", search="megatron_grid", batch=Batch(128), framework="megatron")
    options = megatron_args.arguments(result)
    check(options)
    assert ("--global-batch-size", "128") in options
