"""``--optimizer`` and ``--state-precision``: what they say, and what refuses them."""

from __future__ import annotations

import pathlib

import pytest

from meshwright import api
from meshwright.api import training_states
from meshwright.base.errors import ExportError, InputError
from meshwright.core.problem import Batch, MixedPrecision

TINY = str(pathlib.Path(__file__).resolve().parents[2] / "data" / "tiny_llama.json")


def test_words_of_state_precision() -> None:
    mixed = MixedPrecision()
    assert training_states.with_states(mixed, "", "bf16") == training_states.with_states(mixed, "", "moments=bf16")
    told = training_states.with_states(mixed, "lion", "moments=bf16, gradients=bf16,copy=none")
    assert (told.optimizer, told.state_bytes, told.gradient_bytes, told.optimizer_bytes) == ("lion", 2, 2, 2)
    assert training_states.with_states(mixed, "muon").optimizer_bytes == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("moments=int8", "moments is int8; it must be fp32 or bf16"),
        ("bf16,moments=fp32", "moments is given twice"),
        ("copy=bf16", "copy is bf16; it must be fp32 or none"),
        ("grads=bf16", "did you mean 'gradients'"),
        ("gradients=", "gradients is nothing"),
    ],
)
def test_other_words_are_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        training_states.with_states(MixedPrecision(), "", text)


def test_weights_of_four_bytes_have_no_copy() -> None:
    for text in ("copy=fp32", "copy=none", "gradients=bf16"):
        with pytest.raises(InputError, match="weights of fp32 training have four bytes"):
            training_states.with_states(MixedPrecision.of("fp32"), "", text)


def _posed(optimizer: str, **told: str) -> object:
    problem = api.make_problem(TINY, "dgx-h100:4", batch=Batch(16), **told)  # type: ignore[arg-type]
    return training_states.told(problem, optimizer)


def test_costs_searches_and_frameworks_without_the_optimizer_refuse_it_by_name() -> None:
    with pytest.raises(InputError, match=r"costs sharded: the optimizer is muon .*STATES"):
        _posed("muon", costs="sharded")
    with pytest.raises(InputError, match=r"--for torchtitan: it has no optimizer lion; it has adam, adamw"):
        _posed("lion", framework="torchtitan")
    with pytest.raises(InputError, match=r"search parmesan: the optimizer is sgd .*STATES"):
        api.plan(_posed("sgd"), search="parmesan")  # type: ignore[arg-type]
    assert _posed("adam", costs="sharded", framework="")  # keeps what AdamW keeps


def test_a_file_for_another_program_says_it_or_is_refused(tmp_path: pathlib.Path) -> None:
    result = api.plan(_posed("sgd-momentum"))  # type: ignore[arg-type]
    from meshwright.api.export import export

    with pytest.raises((ExportError, InputError), match="optimizer sgd-momentum; it has adam, adamw"):
        export(result, "megatron", str(tmp_path / "run.sh"))
    with pytest.raises(InputError, match=r"--to chakra.*the optimizer is sgd-momentum"):
        export(result, "chakra", str(tmp_path / "chakra"))
    export(result, "plan_json", str(tmp_path / "plan.json"))
    assert "megatron" not in result.answer.extra.get("runs_on", [])
