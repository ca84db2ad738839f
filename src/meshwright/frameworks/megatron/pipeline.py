"""How Megatron-LM's options cut layers into stages: a layout, virtual stages, ends of their own."""

from __future__ import annotations

import re
from collections.abc import Mapping

from meshwright.base.errors import InputError

__all__ = ["CUTS", "stages", "whole"]

Options = Mapping[str, tuple[str, ...]]

CUTS = (
    "--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers", "--account-for-embedding-in-pipeline-split",
    "--account-for-loss-in-pipeline-split",
)  # fmt: skip
"""Options that make the ends of a pipeline other stages than those between; none stands beside a layout."""

_FIRST, _LAST, _EMBEDDING, _LOSS = CUTS
_LAYERS_OF_A_CHUNK, _CHUNKS = "--num-layers-per-virtual-pipeline-stage", "--num-virtual-stages-per-pipeline-rank"


def whole(options: Options, name: str, place: str, default: int = 0) -> int:
    """Return a whole number from 1 on; a default of 0 stands for none. Raises `InputError` when it is wrong or missing."""
    if name not in options and default:
        return default
    text = " ".join(options.get(name, ()))
    if not re.fullmatch(r"[1-9]\d{0,8}", text):
        said = f"is '{text}'" if text else "has no value" if name in options else "is missing"
        raise InputError(f"{place}: {name} {said}; it must be a whole number from 1 on")
    return int(text)


def stages(options: Options, place: str, n_ranks: int) -> tuple[list[tuple[int, ...]], int]:
    """Return the layers of every stage, and how many stages a rank has.

    `place`: where the options stand, for messages. Layers are numbered as in our models: embedding, layers, layers that
    predict further tokens, head.

    Raises
    ------
    InputError
        When an option is wrong, or options contradict each other.
    """
    n_layers, n_ahead = whole(options, "--num-layers", place), 0
    if "--mtp-num-layers" in options:
        n_ahead = whole(options, "--mtp-num-layers", place)
    layout = " ".join(options.get("--pipeline-model-parallel-layout", ()))
    if layout:
        cut = [name for name in (*CUTS, _LAYERS_OF_A_CHUNK) if name in options]
        if cut:
            raise InputError(f"{place}: --pipeline-model-parallel-layout and {cut[0]} both say how layers are cut; keep one")
        parts = _spread(layout).split("|")
        sizes, ahead = ([part.count(letter) for part in parts] for letter in "tm")
        plain = [re.sub(r"[tm]", "", part) for part in parts]
        if plain != ["E", *[""] * (len(parts) - 2), "L"] and not (len(parts) == 1 and plain == ["EL"]):
            raise InputError(
                f"{place}: --pipeline-model-parallel-layout {layout}: E comes first, L last, t*N and m between |, or (t|)*N"
            )
    else:
        sizes = _sizes(options, place, n_ranks, n_layers)
        ahead = [0] * (len(sizes) - 1) + [n_ahead]
    if sum(sizes) != n_layers or sum(ahead) != n_ahead or len(sizes) % n_ranks:
        raise InputError(
            f"{place}: stages of {', '.join(map(str, sizes))} layers do not make {n_layers} layers on {n_ranks} pipeline ranks"
        )
    found, layer, more = [], 1, n_layers + 1
    for i, (size, own) in enumerate(zip(sizes, ahead, strict=True)):
        ops = [0] * (i == 0) + list(range(layer, layer + size)) + list(range(more, more + own))
        found.append(tuple(ops + [n_layers + n_ahead + 1] * (i == len(sizes) - 1)))
        layer, more = layer + size, more + own
    return found, len(sizes) // n_ranks


def _spread(layout: str) -> str:
    """Return a layout without its multiplications, as ``E|(t|)*3,m|m||L`` has them; commas are for the eye [1]_.

    References
    ----------
    .. [1] megatron/core/transformer/pipeline_parallel_layer_layout.py: PipelineParallelLayerLayout.from_str.
    """
    text, before = re.sub(r"[,\s]", "", layout), ""
    while text != before and len(text) < 10**5:
        before = text
        text = re.sub(r"\(([^()]*)\)\*(\d{1,4})|([EtmL|])\*(\d{1,4})", lambda m: (m[1] or m[3] or "") * int(m[2] or m[4]), text)
    return text


def _sizes(options: Options, place: str, n_ranks: int, n_layers: int) -> list[int]:
    """Return the layers of every (virtual) stage where no layout says them, as Megatron-Core counts them [1]_.

    References
    ----------
    .. [1] megatron/core/transformer/transformer_block.py: get_num_layers_to_build; megatron/training/arguments.py:
       validate_args.
    """
    counted = [int(name in options) for name in (_EMBEDDING, _LOSS)]
    ends = [whole(options, name, place) if name in options else None for name in (_FIRST, _LAST)]
    if any(counted) and any(end is not None for end in ends):
        raise InputError(f"{place}: {_FIRST if ends[0] else _LAST} and an --account-for- option both say the ends; keep one")
    if n_ranks == 1:
        if _chunks(options, place, n_layers, ends) > 1:
            raise InputError(f"{place}: virtual stages need a --pipeline-model-parallel-size above 1")
        return [n_layers]
    between = n_ranks - sum(end is not None for end in ends)
    total = n_layers + sum(counted) - sum(end or 0 for end in ends)
    if total < 0 or (total % between if between else total):
        several = f"{total} layers are no multiple of {between} stages"
        raise InputError(f"{place}: --num-layers {n_layers}: {several}; say a layout")
    each = total // between if between else 0
    per_rank = [each if end is None else end for end in (ends[0], *[None] * (n_ranks - 2), ends[1])]
    chunks = _chunks(options, place, each, ends)
    uneven = [size for size in per_rank if size % chunks]
    if uneven:
        raise InputError(f"{place}: {uneven[0]} layers of a rank are no multiple of {chunks} virtual stages; say a layout")
    sizes = [size // chunks for _ in range(chunks) for size in per_rank]
    sizes[0], sizes[-1] = sizes[0] - counted[0], sizes[-1] - counted[1]
    return sizes


def _chunks(options: Options, place: str, each: int, ends: list[int | None]) -> int:
    """Return how many virtual stages a rank has. `each`: layers of a rank between the ends."""
    chunks = whole(options, _CHUNKS, place, 1)
    if _LAYERS_OF_A_CHUNK not in options:
        return chunks
    size = whole(options, _LAYERS_OF_A_CHUNK, place)
    if any(end is not None for end in ends) and _CHUNKS not in options:
        raise InputError(f"{place}: {_LAYERS_OF_A_CHUNK} beside ends of their own; say {_CHUNKS} instead")
    if each % size or (_CHUNKS in options and chunks != each // size):
        more = f" into {chunks} virtual stages" if _CHUNKS in options else ""
        raise InputError(f"{place}: {_LAYERS_OF_A_CHUNK} {size} does not divide the {each} layers of a rank{more}")
    return each // size
