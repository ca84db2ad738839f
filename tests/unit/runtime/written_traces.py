"""Traces as `meshwright.runtime.capture.recorder` would leave them, written without PyTorch: layers of many makes, by chance.

What follows a trace (layers, axes of a tensor degree, attention, experts, repeated layers) is plain Python and depends on
nothing else, so that what it makes of these can be recorded.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

from meshwright.runtime.capture.trace import Trace, TracedOperator, TracedTensor

Shape = tuple[int, ...]
VIEWS = ("t", "view", "transpose", "permute", "select", "slice", "expand", "unsqueeze", "_unsafe_view", "split", "unbind")


class Maker:
    """Writes one trace, operator by operator; operators are named by their number, weights by their name."""

    def __init__(self, seed: int, batch: int, tokens: int, width: int, heads: int) -> None:
        self.chance = random.Random(seed)
        self.batch, self.tokens, self.width, self.heads = batch, tokens, width, heads
        self.head = width // heads
        self.made: list[TracedOperator] = []
        self.parameters: dict[str, Shape] = {}
        self.classes: dict[str, str] = {"": "Model"}
        self.lists: set[str] = set()
        self.frozen: set[str] = set()
        self.module = ""

    def inside(self, path: str, kind: str = "Module") -> None:
        """Go on inside a module."""
        self.module = path
        self.classes[path] = kind
        while "." in path:
            path = path.rpartition(".")[0]
            self.classes.setdefault(path, "Module")

    def weight(self, name: str, *shape: int) -> str:
        """Return a weight of the module at hand."""
        full = f"{self.module}.{name}".lstrip(".")
        self.parameters.setdefault(full, shape)
        return full

    def op(self, name: str, read: list[Any], out: Shape, *, numbers: Shape = (), flops: float = 0.0, **changes: Any) -> int:
        """Write one operator. `read`: numbers of operators, names of weights, shapes of constants, or ``("fed", shape)``."""
        tensors, sources, weights, trained, fed = [], [], [], False, False
        for one in read:
            source, weight, floating = -1, "", True
            if isinstance(one, int):
                source, shape = one, self.made[one].outputs[0].shape
                weight = self.made[one].weights[0] if self.made[one].name == "t" and self.made[one].weights[0] else ""
                trained, fed = trained or self.made[one].trained, fed or self.made[one].fed
                floating = self.made[one].outputs[0].floating
            elif isinstance(one, str):
                weight, shape, trained = one, self.parameters[one], True
            elif one and one[0] == "fed":
                shape, fed, floating = one[1], True, False
            else:
                shape = one
            tensors.append(TracedTensor(shape, "float32" if floating else "int64", floating))
            sources.append(source)
            weights.append(weight)
        differs = tuple(
            (w != "" and w not in self.frozen) or (s >= 0 and self.made[s].trained)
            for s, w in zip(sources, weights, strict=True)
        )
        saved = self.chance.choice((0, 0, 4, 8)) * self.batch * self.tokens
        made = TracedOperator(
            name, self.module, tuple(tensors), (TracedTensor(out, "float32", True),), tuple(sources), tuple(weights), numbers,
            trained, fed, name in VIEWS, False, flops if trained else 0.0, 2.0 * flops if trained else 0.0,
            self.chance.randrange(3), saved, self.chance.choice((0, 0, 1)) * self.batch * 3, differs,
        )  # fmt: skip
        self.made.append(replace(made, **changes))
        return len(self.made) - 1

    def shape(self, i: int) -> Shape:
        return self.made[i].outputs[0].shape

    def view(self, i: int, *shape: int, name: str = "view") -> int:
        return self.op(name, [i], shape)

    def turned(self, i: int, one: int, other: int) -> int:
        shape = list(self.shape(i))
        shape[one], shape[other] = shape[other], shape[one]
        return self.op("transpose", [i], tuple(shape), numbers=(one, other))

    def linear(self, i: int, name: str, columns: int, *, bias: bool = False, inside: bool = True) -> int:
        """A product with a weight, of samples and tokens taken together."""
        outer, shape = self.module, self.shape(i)
        rows, inner = math.prod(shape[:-1]), shape[-1]
        if inside:
            self.inside(f"{outer}.{name}".lstrip("."), "Linear")
        weight = self.op("t", [self.weight("weight", columns, inner)], (inner, columns))
        flat = self.view(i, rows, inner)
        read = [self.weight("bias", columns)] * bias + [flat, weight]
        made = self.op("addmm" if bias else "mm", read, (rows, columns), flops=2.0 * rows * inner * columns)
        made = self.view(made, *shape[:-1], columns, name="_unsafe_view" if not bias else "view")
        self.module = outer
        return made

    def norm(self, i: int, name: str = "norm", kind: str = "LayerNorm", last: int = 0) -> int:
        """A norm over the last axis: one operator, or several."""
        outer, shape = self.module, self.shape(i)
        self.inside(f"{outer}.{name}".lstrip("."), kind)
        weight = self.weight("weight", last or shape[-1])
        if kind == "LayerNorm":
            made = self.op("native_layer_norm", [i, weight], shape, numbers=(shape[-1],))
        else:
            square = self.op("pow", [i], shape, numbers=(2,))
            mean = self.op("mean", [square], (*shape[:-1], 1), numbers=(-1,))
            made = self.op("mul", [weight, self.op("mul", [i, self.op("rsqrt", [mean], self.shape(mean))], shape)], shape)
        self.module = outer
        return made

    def rotated(self, i: int) -> int:
        """Positions turned into a query or key, as halves that change places."""
        shape = self.shape(i)
        half = (*shape[:-1], shape[-1] // 2)
        table = (1, 1, shape[-2], shape[-1])
        first = self.op("slice", [i], half, numbers=(3, 0, shape[-1] // 2))
        second = self.op("slice", [i], half, numbers=(3, shape[-1] // 2, shape[-1]))
        other = self.op("cat", [self.op("neg", [second], half), first], shape, numbers=(-1,))
        return self.op("add", [self.op("mul", [i, table], shape), self.op("mul", [other, table], shape)], shape)

    def repeated(self, i: int, times: int) -> int:
        """Heads of keys, each so many times."""
        b, h, t, d = self.shape(i)
        if times == 1:
            return i
        wide = self.op("expand", [self.op("unsqueeze", [i], (b, h, 1, t, d), numbers=(2,))], (b, h, times, t, d))
        return self.op("view", [self.op("clone", [wide], (b, h, times, t, d))], (b, h * times, t, d))

    def queries(self, i: int, fused: str, groups: int, bias: bool) -> list[int]:
        """Query, key and value by head: of three products, or of one that is taken apart."""
        b, t, w = self.shape(i)
        h, d = self.heads, self.head
        if fused == "apart":
            found = []
            for name, n in (("q_proj", h), ("k_proj", h // groups), ("v_proj", h // groups)):
                product = self.linear(i, name, n * d, bias=bias)
                found.append(self.turned(self.view(product, b, t, n, d), 1, 2))
            return found
        product = self.linear(i, "qkv", 3 * w, bias=bias)
        if fused == "select":
            wide = self.op("permute", [self.view(product, b, t, 3, h, d)], (3, b, h, t, d), numbers=(2, 0, 3, 1, 4))
            return [self.op("select", [wide], (b, h, t, d), numbers=(0, k)) for k in range(3)]
        if fused == "split":
            parts = [self.op("split", [product], (b, t, w), numbers=(w, 2)) for _ in range(3)]
        else:
            parts = [self.op("slice", [product], (b, t, w), numbers=(2, k * w, (k + 1) * w)) for k in range(3)]
        return [self.turned(self.view(part, b, t, h, d), 1, 2) for part in parts]

    def attention(self, i: int, kind: str, fused: str, groups: int, **told: Any) -> int:
        """Attention, fused or by products, and the product behind it."""
        b, t, w = self.shape(i)
        h, d = self.heads, self.head
        q, k, v = self.queries(i, fused, groups if fused == "apart" else 1, told.get("bias", False))
        if told.get("head_norm"):
            q, k = self.norm(q, "q_norm", last=d), self.norm(k, "k_norm", last=d)
        if told.get("rotary"):
            q, k = self.rotated(q), self.rotated(k)
        times = h // self.shape(k)[1]
        flops = 4.0 * b * h * t * t * d
        if kind.startswith("fused"):
            if times > 1 and kind != "fused_shared":
                k, v = self.repeated(k, times), self.repeated(v, times)
            causal = bool(told.get("causal"))
            mixed = self.op("_scaled_dot_product_flash_attention_for_cpu", [q, k, v], (b, h, t, d), causal=causal,
                            flops=flops * (0.5 if causal else 1.0))  # fmt: skip
        else:
            k, v = self.repeated(k, times), self.repeated(v, times)
            flat = [self.view(self.op("expand", [one], (b, h, t, d)), b * h, t, d) for one in (q, k, v)]
            scores = self.op("bmm", [flat[0], self.turned(flat[1], 1, 2)], (b * h, t, t), flops=flops / 2)
            scores = self.op("div", [self.view(scores, b, h, t, t)], (b, h, t, t))
            if told.get("mask"):
                scores = self.op("add", [scores, (1, 1, t, t)], (b, h, t, t))
            if told.get("relative"):  # a table of weights with a column for each head
                outer = self.module
                self.inside(f"{outer}.relative", "Embedding")
                rows = self.op("embedding", [self.weight("weight", 32, h), (t, t)], (t, t, h))
                self.module = outer
                bias = self.op("permute", [rows], (h, t, t), numbers=(2, 0, 1))
                scores = self.op("add", [scores, self.op("unsqueeze", [bias], (1, h, t, t), numbers=(0,))], (b, h, t, t))
            soft = self.op("_softmax", [scores], (b, h, t, t), numbers=(told.get("axis", -1),))
            if told.get("dropout"):
                soft = self.op("native_dropout", [soft], (b, h, t, t))
            soft = self.view(self.op("expand", [soft], (b, h, t, t)), b * h, t, t)
            mixed = self.view(self.op("bmm", [soft, flat[2]], (b * h, t, d), flops=flops / 2), b, h, t, d)
        merged = self.view(self.op("clone", [self.turned(mixed, 1, 2)], (b, t, h, d)), b, t, w)
        return self.linear(merged, "out", w, bias=told.get("bias", False))

    def mlp(self, i: int, kind: str, factor: int = 4) -> int:
        """Two products, or three with a gate, side by side or fused."""
        shape = self.shape(i)
        w, wide = shape[-1], factor * shape[-1]
        if kind == "gated":
            gate = self.op("silu", [self.linear(i, "gate", wide)], (*shape[:-1], wide))
            made = self.op("mul", [gate, self.linear(i, "up", wide)], (*shape[:-1], wide))
        elif kind == "fused_gate":
            both = self.linear(i, "gate_up", 2 * wide)
            halves = [self.op("slice", [both], (*shape[:-1], wide), numbers=(2, k * wide, (k + 1) * wide)) for k in range(2)]
            made = self.op("mul", [self.op("silu", [halves[0]], self.shape(halves[0])), halves[1]], (*shape[:-1], wide))
        else:
            up = self.linear(i, "up", wide, bias=True)
            made = self.op("gelu", [up], (*shape[:-1], wide))
            if kind == "norm_between":
                made = self.norm(made, "between")
            if kind == "sorted":
                made = self.op("cumsum", [made], (*shape[:-1], wide), numbers=(-1,))
        return self.linear(made, "down", w, bias=kind == "plain")

    def experts(self, i: int, n_experts: int, top_k: int) -> int:
        """A router and stacked experts behind one grouped product each."""
        b, t, w = self.shape(i)
        rows, outer = b * t, self.module
        flat = self.view(i, rows, w)
        scores = self.op("_softmax", [self.linear(flat, "router", n_experts)], (rows, n_experts), numbers=(-1,))
        best = self.op("topk", [scores], (rows, top_k), numbers=(top_k, -1))
        self.inside(f"{outer}.experts", "Experts")
        order = self.op("sort", [best], (rows * top_k,))
        sent = self.op("index", [flat, order], (rows * top_k, w))
        wide = self.op("_grouped_mm", [sent, self.weight("up", n_experts, w, 2 * w)], (rows * top_k, 2 * w),
                       flops=4.0 * rows * top_k * w * w)  # fmt: skip
        wide = self.op("relu", [wide], (rows * top_k, 2 * w))
        back = self.op("_grouped_mm", [wide, self.weight("down", n_experts, 2 * w, w)], (rows * top_k, w),
                       flops=4.0 * rows * top_k * w * w)  # fmt: skip
        back = self.op("mul", [back, (rows * top_k, 1)], (rows * top_k, w))
        total = self.op("sum", [self.view(back, rows, top_k, w)], (rows, w), numbers=(1,))
        self.module = outer
        return self.view(total, b, t, w)

    def every_expert(self, i: int, n_experts: int, top_k: int) -> int:
        """A router, and all tokens through all experts."""
        b, t, w = self.shape(i)
        rows, outer = b * t, self.module
        flat = self.view(i, rows, w)
        scores = self.linear(flat, "router", n_experts)
        self.op("topk", [scores], (rows, top_k), numbers=(top_k, -1))
        wide = self.op("repeat", [flat], (n_experts * rows, w))
        self.inside(f"{outer}.experts", "Experts")
        stack = self.view(wide, n_experts, rows, w)
        up = self.op("bmm", [stack, self.weight("up", n_experts, w, 2 * w)], (n_experts, rows, 2 * w),
                     flops=4.0 * n_experts * rows * w * w)  # fmt: skip
        up = self.op("relu", [up], (n_experts, rows, 2 * w))
        down = self.op("bmm", [up, self.weight("down", n_experts, 2 * w, w)], (n_experts, rows, w),
                       flops=4.0 * n_experts * rows * w * w)  # fmt: skip
        down = self.view(down, n_experts * rows, w)
        self.module = outer
        total = self.op("sum", [self.view(down, n_experts, rows, w)], (rows, w), numbers=(0,))
        return self.view(total, b, t, w)

    def add(self, *read: int) -> int:
        return self.op("add", list(read), self.shape(read[0]))

    def trace(self) -> Trace:
        return Trace(tuple(self.made), dict(self.classes), dict(self.parameters), 4, self.batch, frozenset(self.lists),
                     ("written",), frozenset(self.frozen))  # fmt: skip


def model(seed: int, n_layers: int = 2, *, alike: bool = False) -> Trace:
    """Return the trace of a model drawn by chance: table, layers of attention and products, head.

    `alike`: whether all layers are of one make, as a run that was shortened has them.
    """
    chance = random.Random(1000 + seed)
    heads = chance.choice((2, 4))
    m = Maker(seed, chance.choice((1, 2, 3)), chance.choice((3, 5, 6)), 4 * heads, heads)
    b, t, w = m.batch, m.tokens, m.width
    m.inside("embed", "Embedding")
    if chance.random() < 0.2:
        m.frozen.add("embed.weight")
    words = chance.choice((50, 9000))
    x = m.op("embedding", [m.weight("weight", words, w), ("fed", (b, t))], (b, t, w))
    if chance.random() < 0.5:
        m.inside("positions", "Embedding")
        x = m.op("add", [x, m.op("embedding", [m.weight("weight", 64, w), (t,)], (t, w))], (b, t, w))
    holder = chance.choice(("layers", "model.blocks", "decoder.h"))
    m.lists.add(holder)
    for i in range(n_layers):
        if i == 0 or not alike:
            make = _make_of(chance)
        x = _layer(m, x, f"{holder}.{i}", make)
    m.inside("norm", "RMSNorm")
    x = m.norm(x, "final", chance.choice(("LayerNorm", "RMSNorm")))
    m.module = ""
    x = m.linear(x, "out", words if words < 100 else 60)
    if chance.random() < 0.5:
        m.inside("")
        m.op("_log_softmax", [m.view(x, b * t, m.shape(x)[-1])], (b * t, m.shape(x)[-1]), numbers=(1, 0))
    if chance.random() < 0.3:
        m.inside("idle", "Linear")
        m.weight("weight", 3, 5)
    return m.trace()


def _make_of(chance: random.Random) -> dict[str, Any]:
    """Draw the make of a layer."""
    return {
        "kind": chance.choice(("fused", "fused_shared", "products", "products")),
        "fused": chance.choice(("apart", "apart", "select", "split", "slice")),
        "groups": chance.choice((1, 1, 2)),
        "told": {name: chance.random() < share for name, share in (("bias", 0.3), ("head_norm", 0.25), ("rotary", 0.35),
                 ("causal", 0.5), ("mask", 0.5), ("relative", 0.25), ("dropout", 0.2))}
        | {"axis": chance.choice((-1, -1, 3, 2))},
        "mlp": chance.choice(("plain", "gated", "fused_gate", "norm_between", "sorted", "experts", "every", "none")),
        "norm": chance.choice(("LayerNorm", "RMSNorm")),
        "parallel": chance.random() < 0.2,
    }  # fmt: skip


def _layer(m: Maker, x: int, path: str, make: dict[str, Any]) -> int:
    m.inside(path, "Block")
    normed = m.norm(x, "norm1", make["norm"])
    m.inside(f"{path}.attention", "Attention")
    mixed = m.attention(normed, make["kind"], make["fused"], make["groups"], **make["told"])
    m.module = path
    y = x if make["parallel"] else m.add(x, mixed)
    if make["mlp"] == "none":
        return m.add(y, mixed) if make["parallel"] else y
    second = m.norm(y, "norm2", make["norm"])
    m.inside(f"{path}.mlp", "Mlp")
    if make["mlp"] == "experts":
        found = m.experts(second, 4, 2)
    elif make["mlp"] == "every":
        found = m.every_expert(second, 4, 1)
    else:
        found = m.mlp(second, make["mlp"])
    m.module = path
    return m.add(y, found, mixed) if make["parallel"] else m.add(y, found)
