"""Workloads of the co-design studies from parameters: ``dlrm,tables=16,batch=16384``, ``candle``, ``bert``,
``ncf``, ``moe``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from meshwright.base import options
from meshwright.base.errors import InputError, UnknownNameError
from meshwright.planners.topoopt.workloads import images
from meshwright.planners.topoopt.workloads.layers import LayerBuilder
from meshwright.planners.topoopt.workloads.workload import DATA, Workload

__all__ = ["Bert", "Candle", "Dlrm", "Images", "Moe", "Ncf", "build", "widths"]


def _whole(value: int, minimum: int = 1) -> Any:
    return field(default=value, metadata={"minimum": minimum})


@dataclass(frozen=True, slots=True)
class Dlrm:
    """Recommendation model: bottom tower and tables, concatenated, top tower.

    Parameters
    ----------
    batch : int
        Samples of one step.
    tables, rows, width, bag : int
        Embedding tables, rows and width of each, rows added up per sample.
    bottom, top : str
        Widths, ``1024x8`` for eight layers of 1024, ``2048x16-1`` with a last one of 1; the first of each is the input.
    """

    batch: int = _whole(4096)
    tables: int = _whole(16)
    rows: int = _whole(10_000_000)
    width: int = _whole(256)
    bag: int = _whole(100)
    bottom: str = "1024x4"
    top: str = "2048x8-1"


@dataclass(frozen=True, slots=True)
class Candle:
    """CANDLE Uno: a tower for each of five features, concatenated with two doses, top tower, one output.

    Parameters
    ----------
    batch : int
        Samples of one step.
    tower, top : str
        Widths of the layers of each tower and of the top.
    """

    batch: int = _whole(64)
    tower: str = "4192x3"
    top: str = "4192x3-1"


@dataclass(frozen=True, slots=True)
class Bert:
    """BERT-like encoder-decoder.

    Parameters
    ----------
    batch, layers, length, hidden, heads : int
        Samples of one step, layers, tokens of a sample, width, attention heads.
    """

    batch: int = _whole(1024)
    layers: int = _whole(12)
    length: int = _whole(128)
    hidden: int = _whole(512)
    heads: int = _whole(16)


@dataclass(frozen=True, slots=True)
class Ncf:
    """Neural collaborative filtering: tables of users and items for a product and for a tower.

    Parameters
    ----------
    batch, tables, rows, product_width, tower_width, bag : int
        Samples of one step, tables of each of four families, their rows, widths for product and tower, rows added up per
        sample.
    tower : str
        Widths; the first is the input.
    """

    batch: int = _whole(65536)
    tables: int = _whole(32)
    rows: int = _whole(1_000_000)
    product_width: int = _whole(64)
    tower_width: int = _whole(128)
    bag: int = _whole(100)
    tower: str = "8192-4096x7"


@dataclass(frozen=True, slots=True)
class Moe:
    """A small mixture of experts.

    Parameters
    ----------
    batch, inputs, gate, experts, chosen, outputs : int
        Samples of one step, input features, width of the gate, experts, experts per sample, output features.
    """

    batch: int = _whole(1024)
    inputs: int = _whole(784)
    gate: int = _whole(64)
    experts: int = _whole(5)
    chosen: int = _whole(2)
    outputs: int = _whole(10)


@dataclass(frozen=True, slots=True)
class Images:
    """An image network.

    Parameters
    ----------
    batch : int
        Samples of one step.
    """

    batch: int = _whole(1024)


def _families() -> dict[str, tuple[type[Any], Callable[[LayerBuilder, Any], None]]]:
    return {
        "dlrm": (Dlrm, _dlrm), "candle": (Candle, _candle), "bert": (Bert, _bert), "ncf": (Ncf, _ncf), "moe": (Moe, _moe),
        "vgg16": (Images, lambda layers, _: images.vgg16(layers)),
        "resnet50": (Images, lambda layers, _: images.resnet50(layers)),
        "alexnet": (Images, lambda layers, _: images.alexnet(layers)),
        "inception3": (Images, lambda layers, _: images.inception3(layers)),
    }  # fmt: skip


def build(text: str, spec: str) -> Workload:
    """Return a workload.

    `text`: ``dlrm,tables=16,batch=16384``.
    Raises `InputError` when the name or a parameter is unknown or out of range.
    """
    name, *pairs = [part.strip() for part in text.split(",")]
    families = _families()
    if name not in families:
        raise UnknownNameError("workload", name, families)
    settings: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = (word.strip() for word in pair.partition("="))
        if not equals:
            raise InputError(f"{spec}: '{pair}' is not KEY=VALUE")
        if key in settings:
            raise InputError(f"{spec}: {key} is given twice")
        settings[key] = value
    kind, make = families[name]
    params = options.parse(kind, settings, f"workload {name}", prefix="")
    layers = LayerBuilder()
    make(layers, params)
    if len(layers.operations) > 20_000:
        raise InputError(f"{spec}: {len(layers.operations)} operators; at most 20000 can be searched")
    return Workload(name, params.batch, tuple(layers.operations))


def widths(text: str, kind: str) -> list[int]:
    """Return the widths written as ``1024x8-1``.

    Raises `InputError` when it is not written so, or is empty.
    """
    found: list[int] = []
    for part in text.split("-"):
        width, times, count = part.partition("x")
        if not width.isdecimal() or int(width) < 1 or (times and (not count.isdecimal() or not 1 <= int(count) <= 10_000)):
            raise InputError(f"{kind}: '{text}' is no list of widths; write for example 2048x16-1")
        found += [int(width)] * (int(count) if times else 1)
    return found


def _dlrm(layers: LayerBuilder, params: Dlrm) -> None:
    bottom, top = widths(params.bottom, "bottom"), widths(params.top, "top")
    at = DATA
    for before, after in pairwise(bottom):
        at = layers.dense(at, before, after)
    tables = [layers.table(params.rows, params.width, params.bag) for _ in range(params.tables)]
    at = layers.concat([at, *tables], bottom[-1] + params.tables * params.width)
    for after in top[1:]:
        at = layers.dense(at, layers.operations[at].n_features, after)


def _candle(layers: LayerBuilder, params: Candle) -> None:
    tower, top = widths(params.tower, "tower"), widths(params.top, "top")
    ends = []
    for before in (942, 5270, 2048, 5270, 2048):
        at = DATA
        for after in tower:
            at = layers.dense(at, before, after)
            before = after
        ends.append(at)
    at = layers.concat([ends[0], DATA, DATA, *ends[1:]], 5 * tower[-1] + 2)
    for after in [*top, 1]:
        at = layers.dense(at, layers.operations[at].n_features, after)


def _bert(layers: LayerBuilder, params: Bert) -> None:
    if params.hidden % params.heads:
        raise InputError(f"heads {params.heads}: must divide hidden {params.hidden}")
    shape = (params.length, params.hidden)

    def attend(query: int, key: int) -> int:
        inputs = (query, key, key)
        at = layers.add("mha", f"MultiHeadAttention_{params.hidden}{params.heads}", inputs, shape, (4 * params.hidden**2,))
        return layers.add("add", "ElementBinary_31", (at, query), shape)

    one = two = DATA
    for _ in range(params.layers):
        one = attend(one, one)
        for _ in range(2):
            one = layers.dense(one, params.hidden, params.hidden, before=shape[:1])
        two = attend(two, two)
        two = attend(two, one)
        for _ in range(2):
            two = layers.dense(two, params.hidden, params.hidden, before=shape[:1])
    layers.dense(two, params.hidden, 1, before=shape[:1])


def _ncf(layers: LayerBuilder, params: Ncf) -> None:
    tower = widths(params.tower, "tower")
    families = [[layers.table(params.rows, width, params.bag) for _ in range(params.tables)]
                for width in (params.product_width, params.product_width, params.tower_width, params.tower_width)]  # fmt: skip
    joined = layers.concat([*families[2], *families[3]], 2 * params.tables * params.tower_width)
    if tower[0] != layers.operations[joined].n_features:
        raise InputError(f"tower: its first width is {tower[0]}, but the tables have {layers.operations[joined].n_features}")
    size = params.tables * params.product_width
    user, item = layers.concat(families[0], size), layers.concat(families[1], size)
    product = layers.add("mul", "ElementBinary_32", (user, item), (size,))
    score = layers.dense(product, size, 1, bias=False)
    at = joined
    for after in tower[1:]:
        at = layers.dense(at, layers.operations[at].n_features, after)
    both = layers.concat([score, at], 1 + tower[-1])
    layers.dense(both, 1 + tower[-1], 1)


def _moe(layers: LayerBuilder, params: Moe) -> None:
    if params.chosen > params.experts:
        raise InputError(f"chosen {params.chosen}: is more than the {params.experts} experts")
    gate = layers.dense(layers.dense(DATA, params.inputs, params.gate), params.gate, params.experts)
    gate = layers.add("softmax", "Softmax", (gate,), (params.experts,))
    routed = layers.add("group_by", "Group_by", (DATA, gate), (params.chosen * params.inputs,))
    experts = [layers.dense(routed, params.inputs, params.outputs) for _ in range(params.experts)]
    layers.add("add", "Aggregate", (gate, *experts), (params.outputs,))
