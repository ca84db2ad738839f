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


def test_the_base_is_a_part_of_what_lora_says() -> None:
    assert training_states.adapters("r=8", "nf4") == "r=8,base=nf4"
    assert (training_states.adapters("r=8", ""), training_states.adapters("", "")) == ("r=8", "")
    with pytest.raises(InputError, match="--base nf4: is what --lora's frozen weights are held in; give adapters"):
        training_states.adapters("", "nf4")


def test_weights_of_four_bytes_have_no_copy() -> None:
    for text in ("copy=fp32", "copy=none", "gradients=bf16"):
        with pytest.raises(InputError, match="weights of fp32 training have four bytes"):
            training_states.with_states(MixedPrecision.of("fp32"), "", text)


def _posed(optimizer: str, **told: str) -> object:
    return api.make_problem(TINY, "dgx-h100:4", batch=Batch(16), optimizer=optimizer, **told)  # type: ignore[arg-type]


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


def test_what_an_optimizer_does_not_keep_is_refused_by_the_option() -> None:
    with pytest.raises(InputError, match="--state-precision moments=bf16: what sgd keeps is held in fp32; leave moments out"):
        training_states.with_states(MixedPrecision(), "sgd", "moments=bf16")
    with pytest.raises(InputError, match="what adam-8bit keeps is held in 8 bit"):
        training_states.with_states(MixedPrecision(), "adam-8bit", "moments=fp32")


def test_nothing_told_leaves_numbers_as_they_are_held() -> None:
    odd = MixedPrecision(optimizer_bytes=6)  # a file of another program may hold less than the definition
    assert training_states.with_states(odd) is odd


def test_python_takes_what_the_command_takes() -> None:
    told = api.make_problem(
        TINY, "dgx-h100:4", training="fp16", optimizer="lion", state_precision="bf16", lora="r=4,targets=query,base=4bit"
    )
    assert (told.training.precision, told.training.optimizer, told.training.state_bytes) == ("fp16", "lion", 2)
    assert told.graph.quantised
    plans = [api.plan(TINY, "dgx-h100:4", global_batch=16, optimizer=name) for name in ("adamw", "sgd")]
    assert max(plans[0].timeline.peak_bytes) > max(plans[1].timeline.peak_bytes)
    frozen = api.plan(TINY, "dgx-h100:4", global_batch=16, freeze=["embed"], training="bf16")
    assert frozen.problem.graph.n_frozen_parameters


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"optimizer": 3}, "optimizer 3: must be a text, as in optimizer='sgd'"),
        ({"state_precision": True}, "state_precision True: must be a text, as in state_precision='moments=bf16'"),
        ({"freeze": "embed"}, r"freeze 'embed': must be names in a list, as in freeze=\['embed'\]"),
        ({"training": 4}, "training 4: must be a MixedPrecision or a str"),
        ({"training": "fp9"}, "no precision called 'fp9'"),
    ],
)
def test_python_is_told_the_right_call(told: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        api.plan(TINY, "dgx-h100:4", **told)  # type: ignore[arg-type]


def test_a_posed_problem_has_its_own() -> None:
    posed = api.make_problem(TINY, "dgx-h100:4", batch=Batch(16))
    for told in ({"optimizer": "sgd"}, {"freeze": ["embed"]}, {"lora": "r=4,targets=query"}, {"state_precision": "bf16"}):
        with pytest.raises(InputError, match=f"{next(iter(told))}: a Problem that is posed already has its own"):
            api.plan(posed, **told)  # type: ignore[arg-type]
