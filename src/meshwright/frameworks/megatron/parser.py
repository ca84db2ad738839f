"""What is known of every option of Megatron-LM's parser, and what its parser and ``validate_args`` refuse."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from meshwright.base import files
from meshwright.base.errors import InputError

__all__ = ["check", "known", "table"]

Options = Mapping[str, tuple[str, ...]]

_GONE: Mapping[str, str] = MappingProxyType({
    "--checkpoint-activations": "--recompute-activations", "--model-parallel-size": "--tensor-model-parallel-size",
    "--batch-size": "--micro-batch-size", "--warmup": "--lr-warmup-fraction",
})  # fmt: skip
"""Options that the parser still has and ``validate_args`` refuses, and what it asks for."""

_BESIDE: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("--overlap-param-gather", ("--use-distributed-optimizer", "--use-megatron-fsdp")),
    ("--overlap-param-gather", ("--overlap-grad-reduce", "--use-megatron-fsdp")),
    ("--overlap-param-gather-with-optimizer-step", ("--overlap-param-gather",)),
)
"""Options that need one of others beside them."""

_NEVER_BOTH = (
    ("--bf16", "--fp16"), ("--fp8-format", "--fp4-format"), ("--train-iters", "--train-samples"),
    ("--lr-warmup-fraction", "--lr-warmup-iters"), ("--use-megatron-fsdp", "--use-torch-fsdp2"),
    ("--rampup-batch-size", "--step-batch-size-schedule"),
)  # fmt: skip


@lru_cache(maxsize=1)
def _content() -> Mapping[str, Any]:
    return MappingProxyType(files.read_toml(Path(__file__).parents[1] / "data" / "megatron_options.toml"))


def table(name: str) -> Mapping[str, Any]:
    """Return a table of the data file: ``refused``, ``unpriced``, ``without_effect`` or ``choices``, by option."""
    return MappingProxyType(_content()[name])


def known() -> frozenset[str]:
    """Return every option that the parser has."""
    content = _content()
    return frozenset([*content["read"], *content["neutral"], *content["refused"], *content["unpriced"]])


def check(options: Options, place: str, lines: Mapping[str, int]) -> None:
    """Refuse what the parser or ``validate_args`` refuses: values, options that are gone, and such as contradict each other.

    `lines`: where each option stands.

    Raises
    ------
    InputError
        When an option is of that kind.
    """

    def wrong(name: str, what: str) -> InputError:
        return InputError(f"{place}: line {lines.get(name, 1)}: {name}{what}")

    flags, choices = frozenset(_content()["flags"]), _content()["choices"]
    for name, words in options.items():
        if name in flags and words and "$" not in words[0]:
            raise wrong(name, f" takes no value, and '{' '.join(words)}' follows it; leave out one of them")
        if name in choices and words and words[0] not in choices[name] and "$" not in words[0]:
            raise wrong(name, f" is '{' '.join(words)}'; it must be one of {', '.join(choices[name])}")
    for name, what in (*_contradictions(options), *_of_axes(options)):
        raise wrong(name, what)


def _contradictions(options: Options) -> Iterator[tuple[str, str]]:
    """Yield what ``validate_args`` refuses of options beside each other: an option, and what is wrong with it."""
    if "--yaml-cfg" in options:
        yield "--yaml-cfg", ": the file that it names stands in place of most options, and is not read; write options"
    for name, instead in _GONE.items():
        if name in options:
            yield name, f": Megatron-LM refuses it; say {instead}"
    for one, other in _NEVER_BOTH:
        if one in options and other in options:
            yield other, f" beside {one}: keep one of them"
    for name, needed in _BESIDE:
        if name in options and not any(one in options for one in needed):
            yield name, f": Megatron-LM asks for {needed[0]} beside it; add it"
    kind = options.get("--recompute-granularity", ("",))
    if "--recompute-activations" in options and kind not in (("",), ("selective",)):
        yield "--recompute-activations", f" is selective, and --recompute-granularity says {' '.join(kind)}: keep one"
    if kind == ("selective",) and "--recompute-method" in options:
        yield "--recompute-method", " beside --recompute-granularity selective: it is of full recomputation; keep one"


def _of_axes(options: Options) -> Iterator[tuple[str, str]]:
    """Yield what is refused of overlaps, experts and lengths."""
    split = _whole(options, "--tensor-model-parallel-size") > 1
    if split and "--tp-comm-overlap" in options and "--sequence-parallel" not in options:
        yield "--tp-comm-overlap", ": Megatron-LM asks for --sequence-parallel beside it; add it"
    spread = _whole(options, "--expert-model-parallel-size") > 1
    if spread and "--num-layers" in options and "--num-experts" not in options:
        yield "--expert-model-parallel-size", ": there are no experts; say --num-experts too, or leave it out"
    length, most = (_whole(options, name) for name in ("--seq-length", "--max-position-embeddings"))
    if length and most and most < length:
        yield "--max-position-embeddings", f" {most} is less than --seq-length {length}"


def _whole(options: Options, name: str) -> int:
    word = " ".join(options.get(name, ()))
    return int(word) if word.isdecimal() else 0
