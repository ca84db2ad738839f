"""A plan priced with another optimizer, or with packed weights, is not run as if it had AdamW."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.base.errors import InputError
from meshwright.runtime.job.preflight import check_optimizer

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("entry", "given", "message"),
    [
        ({}, "", ""),
        ({"training": {"optimizer": "adam", "state_bytes": 4}}, "", ""),
        ({"training": {"optimizer": "sgd", "state_bytes": 4}}, "mine:sgd", ""),
        ({"training": {"optimizer": "sgd", "state_bytes": 4}}, "", "the optimizer sgd .* give yours: --optimizer"),
        ({"training": {"optimizer": "adamw", "state_bytes": 2}}, "", "adamw and numbers of 2 bytes"),
        ({"training": {"optimizer": "muon", "state_bytes": 4}}, "mine:muon", "muon, which works on whole tensors"),
        ({"model": {"lora": "r=4,targets=query,base=4bit"}}, "", "four bits"),
        ({"model": {"lora": "r=4,targets=query"}}, "", ""),
    ],
)
def test_what_run_does_not_do_is_refused(entry: dict[str, Any], given: str, message: str) -> None:
    if not message:
        check_optimizer(entry, given, "plan.json")
        return
    with pytest.raises(InputError, match=message):
        check_optimizer(entry, given, "plan.json")
