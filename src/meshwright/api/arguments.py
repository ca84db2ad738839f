"""Arguments of Python calls: kinds that are wrong are answered with the call that is right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from meshwright.base import units
from meshwright.base.errors import InputError
from meshwright.core.cluster import Cluster
from meshwright.core.problem import Batch, ModelSpec, Problem

__all__ = ["batch_of", "besides", "check", "numbers", "texts"]

_EXAMPLES = MappingProxyType({
    "search": "best", "costs": "analytic", "framework": "megatron", "lora": "r=16,targets=query", "optimizer": "sgd",
    "objective": "dpo", "mtbf": "50000h",
    "state_precision": "moments=bf16", "lengths": "lognormal:2k,1", "batching": "mask",
    "within": "30d", "pricing": "reserved", "file_format": "huggingface", "backend": "loky", "scheduler": "tcp://host:8786",
})  # fmt: skip


def check(model: object, cluster: object, settings: object = None, freeze: object = (), **words: object) -> None:
    """Refuse arguments of `meshwright.plan` of the wrong kind; `words`: those that are text, by name.

    Raises
    ------
    InputError
        With the call as it should be.
    """
    if not isinstance(model, (str, ModelSpec, Problem)):
        raise InputError(f"model {_shown(model)}: must be a name, a path or what read returned: plan('gpt2', 'dgx-h100:8')")
    if not (cluster is None or isinstance(cluster, (str, Cluster))):
        raise InputError(
            f"cluster {_shown(cluster)}: must be a name with its number of devices, a file, or a Cluster, as in "
            f"plan('gpt2', 'dgx-h100:{cluster if isinstance(cluster, int) and cluster > 0 else 8}')"
        )
    for name, value in words.items():
        if not isinstance(value, str):
            raise InputError(f"{name} {_shown(value)}: must be a text, as in {name}='{_EXAMPLES[name]}'")
    if isinstance(freeze, str) or not isinstance(freeze, Sequence):
        raise InputError(f"freeze {_shown(freeze)}: must be names in a list, as in freeze=['embed']")
    if settings is None:
        return
    if not isinstance(settings, Mapping):
        raise InputError(f"settings {_shown(settings)}: must be a mapping, as in settings={{'schedules': '1f1b'}}")
    for key, value in settings.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise InputError(
                f"settings {key!r}: {_shown(value)}: options of the search are text, as in settings={{'{key}': '{value}'}}; "
                f"a part of the plan is given as fix={{'{key}': {value!r}}}"
            )


def numbers(**values: object) -> None:
    """Refuse what is no number.

    Raises
    ------
    InputError
        With its name.
    """
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise InputError(f"{name} {_shown(value)}: must be a number, as in {name}=8")


def texts(**values: object) -> None:
    """Refuse what is no list of texts.

    Raises
    ------
    InputError
        With its name.
    """
    for name, value in values.items():
        if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(one, str) for one in value):
            raise InputError(f"{name} {_shown(value)}: must be texts in a list, as in {name}=['h100=2.49']")


def besides(why_not: object, mtbf: str) -> dict[str, str]:
    """Return the degrees that an answer is to be compared with, as a search's options have them.

    Raises
    ------
    InputError
        When they are no mapping, or the time between failures is none: said before the search.
    """
    if mtbf:
        from meshwright.sizing.failures import rates

        rates(mtbf)
    if why_not is None:
        return {}
    if not isinstance(why_not, Mapping):
        raise InputError(f"why_not {_shown(why_not)}: must be a mapping, as in why_not={{'tensor': 8}}")
    return {str(name): str(value) for name, value in why_not.items()}


def batch_of(batch: object, global_batch: object, micro_batch: object, sequence_length: object) -> Batch | None:
    """Return the batch that a call asks for, given as one or in words.

    Raises
    ------
    InputError
        When both are given, or one is of the wrong kind.
    """
    told = (("global_batch", global_batch), ("micro_batch", micro_batch), ("sequence_length", sequence_length))
    given = [name for name, value in told if value != 0]
    if batch is not None and not isinstance(batch, Batch):
        number = batch if isinstance(batch, int) else 64
        raise InputError(f"batch {_shown(batch)}: must be a Batch; samples of a step are given as in global_batch={number}")
    if not given:
        return batch
    if batch is not None:
        raise InputError(f"batch and {given[0]}: say it once, as in plan(model, cluster, global_batch=64)")
    return Batch(**{name: _count(name, value) for name, value in told})


def _count(name: str, value: object) -> int:
    """Return a whole number, also where it is typed as people do."""
    if isinstance(value, str):
        return units.tokens(value) if name == "sequence_length" else units.samples(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{name} {_shown(value)}: must be a whole number, as in {name}=64")
    return value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
