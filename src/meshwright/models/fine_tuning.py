"""Models of which only a part is trained: weights frozen by name (``--freeze``), or all but adapters (``--lora``)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from types import MappingProxyType

from meshwright.base.errors import InputError, UnknownNameError
from meshwright.core.graph import PACKED_BYTES, Graph, Op, Operator
from meshwright.core.problem import ModelSpec
from meshwright.models.weight_tensors import product_parts

__all__ = ["FORMATS", "NF4_BYTES", "Lora", "fine_tuned", "parse_lora"]

FORMATS = ("huggingface",)
"""Formats whose operators are known by name; modules of other kinds are frozen in PyTorch and captured."""

_ALIASES = (
    ("q_proj", "query"), ("k_proj", "key"), ("v_proj", "value"), ("o_proj", "output"), ("gate_proj", "gate"), ("up_proj", "up"),
    ("down_proj", "down"), ("qkv_proj", "query_key_value"), ("c_attn", "query_key_value"), ("gate_up_proj", "gate_up"),
)  # fmt: skip
_TARGETS = ("query", "key", "value", "query_key_value", "output", "gate", "up", "gate_up", "down")
_LARGEST_RANK = 10**5
_GROUPS: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "all": ("attention", "mlp"), "all-linear": ("attention", "mlp"), "attention": ("attention",), "mlp": ("mlp",),
})  # fmt: skip
"""Words for several targets: what products of the attention, and of the feed-forward network, are."""

_JOINED = (
    ("query_key_value", ("bloom", "falcon", "gpt2", "gpt_neox", "phi3")), ("gate_up", ("glm", "glm4", "phi3")),
)  # fmt: skip
"""Families of transformers 5.23 whose code has one product for several."""

NF4_BYTES = PACKED_BYTES + (1.0 + 4.0 / 256.0) / 64.0
"""Of a weight in four bits with scales quantised once more [1]_: a byte for each 64, an fp32 number for 256 such bytes.

References
----------
.. [1] Dettmers et al., "QLoRA: Efficient Finetuning of Quantized LLMs", arXiv 2305.14314, section 3: 4.127 bits a weight.
"""


@dataclass(frozen=True, slots=True)
class Lora:
    """Low-rank adapters beside frozen products.

    `rank`: of each.
    `base`: what frozen products are held in: empty for as they are used, or ``4bit``.
    `targets`: which products have one: ``query``, ``key``, ``value`` (or all three as one: ``query_key_value``), ``output``,
    ``gate``, ``up`` (or both as one: ``gate_up``), ``down``; before they are looked up in a model also ``attention``, ``mlp``
    or ``all``.
    """

    rank: int
    targets: tuple[str, ...]
    base: str = ""


def parse_lora(text: str) -> Lora:
    """Return what ``--lora r=16,targets=query,value`` asks for; names as Hugging Face has them (``q_proj``) are known too.

    Raises `InputError` when something is missing, unknown or wrong.
    """
    entries: dict[str, list[str]] = {}
    key = ""
    for part in text.split(","):
        name, equals, value = part.partition("=")
        key = name.strip() if equals else key
        if not key or (equals and key in entries):
            raise InputError(f"--lora {text}: write r=16,targets=query,value, each once")
        entries.setdefault(key, []).append((value if equals else part).strip())
    unknown = [name for name in entries if name not in ("r", "targets", "base")]
    if unknown:
        raise InputError(f"--lora {text}: '{unknown[0]}' is not known; there are r, targets and base")
    if "base" in entries and entries["base"] not in (["4bit"], ["nf4"]):
        raise InputError(f"--lora {text}: base is {','.join(entries['base']) or 'nothing'}; it must be 4bit")
    ranks = entries.get("r", [])
    if len(ranks) != 1 or not re.fullmatch(r"\d{1,6}", ranks[0]) or not 1 <= int(ranks[0]) <= _LARGEST_RANK:
        raise InputError(f"--lora {text}: r must be one whole number from 1 to {_LARGEST_RANK}")
    words = [dict(_ALIASES).get(word, word) for word in entries.get("targets", [])]
    if not words:
        raise InputError(f"--lora {text}: targets are missing: any of {', '.join((*_TARGETS, *_GROUPS))}")
    for word in words:
        if word not in (*_TARGETS, *_GROUPS):
            raise UnknownNameError("target (of --lora)", word, (*_TARGETS, *_GROUPS))
    targets = tuple(dict.fromkeys(words))
    for whole, parts in (("query_key_value", {"query", "key", "value"}), ("gate_up", {"gate", "up"})):
        if whole in targets and parts & set(targets):
            raise InputError(f"--lora {text}: targets name {whole} and a part of it; name one or the other")
    return Lora(int(ranks[0]), targets, "4bit" if "base" in entries else "")


def fine_tuned(spec: ModelSpec, freeze: Sequence[str], lora: str) -> ModelSpec:
    """Return a model of which only a part is trained.

    Parameters
    ----------
    spec : ModelSpec
        The model, all of it trained.
    freeze : sequence of str
        Patterns (``*``, ``?``, ``[0-9]``) of names that are frozen: ``embed``, ``layers.3``, ``layers.*.attention``, ``*norm``.
    lora : str
        As of `parse_lora`: all weights are frozen, and adapters are trained; empty for none.

    Returns
    -------
    ModelSpec
        Its graph has what the backward pass then computes and keeps.

    Raises
    ------
    InputError
        When a pattern or a target meets nothing, nothing is left to train, or the format has no operators by name.
    """
    asked = "--lora" if lora else "--freeze"
    if spec.format not in FORMATS:
        raise InputError(
            f"{asked}: operators of {spec.name} (format {spec.format}) have no names to freeze by; freeze the parameters of a "
            "PyTorch module (requires_grad_(False)) and use 'meshwright capture'"
        )
    if lora and freeze:
        raise InputError("--lora and --freeze: adapters freeze all other weights already; give one of them")
    adapters = _told(spec, parse_lora(lora)) if lora else None
    notes = spec.notes
    if adapters and adapters != parse_lora(lora):
        lora = f"r={adapters.rank},targets={','.join(adapters.targets)}" + (",base=4bit" if adapters.base else "")
        experts = any(operator.expert for op in spec.graph.ops for operator in op.body)
        more = "; routed experts get none, to which peft 0.21's all-linear gives some" if experts else ""
        notes += (f"--lora: adapters of {', '.join(adapters.targets)}{more}",)
    frozen = _frozen(spec, freeze) if not lora else _everything
    graph = _Tuning(spec.graph, adapters, frozen).graph()
    if adapters and adapters.base:
        graph = _quantised(graph)
    if not graph.n_trained_parameters:
        raise InputError(f"--freeze {' '.join(freeze)}: nothing of {spec.name} is left to train")
    return replace(spec, graph=graph, freeze=tuple(freeze), lora=lora, notes=notes)


def _told(spec: ModelSpec, lora: Lora) -> Lora:
    """Return adapters with what ``attention``, ``mlp`` and ``all`` are in a model, joined where its code joins products.

    Raises `InputError` where products of attention have no names here (latent attention), or there is nothing of the kind.
    """
    if not set(lora.targets) & set(_GROUPS):
        return lora
    from meshwright.models.readers import huggingface

    family = str(huggingface.said_of(spec.spec).get("model_type"))
    joined = {word for word, families in _JOINED if family in families}
    have: dict[str, set[str]] = {"attention": set(), "mlp": set()}
    for op in spec.graph.ops:
        for operator in op.body:
            if operator.name.endswith(("key_value_down", "key_value_up")):
                raise InputError(f"--lora: {spec.name} has latent attention, whose products are not all named; name targets")
            words = {word for word, _ in product_parts(op.body, operator)}
            for whole, parts in (("query_key_value", {"query", "key", "value"}), ("gate_up", {"gate", "up"})):
                if whole in words and len(words) > 1:
                    words -= parts if whole in joined else {whole}
            have["mlp" if operator.name.startswith("mlp") else "attention"] |= words
    wanted: list[str] = []
    for target in lora.targets:
        groups = _GROUPS.get(target, ())
        wanted += [word for word in _TARGETS if any(word in have[group] for group in groups)] if groups else [target]
        if groups and not any(have[group] for group in groups):
            raise InputError(f"--lora: {spec.name} has no products of {target} that take adapters (experts have none here)")
    return replace(lora, targets=tuple(dict.fromkeys(wanted)))


def _quantised(graph: Graph) -> Graph:
    """Return a graph whose frozen products between embedding and head are held in four bits, as bitsandbytes does it.

    Raises `InputError` where there are routed experts: whether those are quantised differs between releases of transformers.
    """
    if any(operator.expert for op in graph.ops for operator in op.body):
        raise InputError(
            f"--lora base=4bit: {graph.name} has routed experts, of which it is not known whether they are quantised"
        )
    bodies = {
        id(op.body): tuple(
            replace(part, frozen_weight_bytes=NF4_BYTES)
            if part.kind == "matmul" and part.frozen and op.kind != "head"
            else part
            for part in op.body
        )
        for op in graph.ops
    }
    return replace(graph, ops=tuple(replace(op, body=bodies[id(op.body)]) for op in graph.ops))


def _everything(_: str) -> bool:
    return True


def _frozen(spec: ModelSpec, patterns: Sequence[str]) -> Callable[[str], bool]:
    """Return what says of ``layer.operator`` whether it is frozen."""
    graph = spec.graph
    names = [f"{op.name}.{operator.name}" for op in graph.ops for operator in op.body if operator.n_parameters]
    for pattern in patterns:
        if not any(_matches(name, pattern) for name in names):
            shown = ", ".join(dict.fromkeys((names[0], *names[len(names) // 2 : len(names) // 2 + 2], names[-1])))
            raise InputError(f"--freeze {pattern}: no weights of {spec.name} are called so; there are: {shown}, ...")

    def frozen(name: str) -> bool:
        return any(_matches(name, pattern) for pattern in patterns)

    tables = {frozen(f"{op.name}.{part.name}") for op in graph.ops for part in op.body if part.name in ("words", "unembedding")}
    if graph.n_shared_parameters and len(tables) > 1:
        raise InputError(
            f"--freeze {' '.join(patterns)}: {spec.name} has one table for embed.words and head.unembedding; freeze "
            "both or none"
        )
    return frozen


def _matches(name: str, pattern: str) -> bool:
    """Return whether a pattern meets a name, or what it lies in."""
    parts = name.split(".")
    return any(fnmatchcase(".".join(parts[:n]), pattern) for n in range(1, len(parts) + 1))


class _Tuning:
    """One graph on its way to being trained in part: which layers' outputs carry gradients, bodies that were made."""

    def __init__(self, graph: Graph, lora: Lora | None, frozen: Callable[[str], bool]) -> None:
        self._graph, self._lora, self._is_frozen = graph, lora, frozen
        self._met: set[str] = set()
        self._bodies: dict[tuple[object, ...], int] = {}

    def graph(self) -> Graph:
        """Return the graph.

        Raises `InputError` when no product is a target.
        """
        old = self._graph
        before: list[list[int]] = [[] for _ in old.ops]
        for edge in old.edges:
            before[edge.target].append(edge.source)
        carries: list[bool] = [False] * len(old.ops)
        ops: dict[int, Op] = {}
        for i in old.topological_order():
            encoded = [carries[j] for j in before[i] if old.ops[j].name == "encoder.norm"]
            enters = any(carries[j] for j in before[i] if old.ops[j].name != "encoder.norm")
            ops[i] = self._layer(i, enters, any(encoded))
            carries[i] = ops[i].has_backward
        missing = [word for word in (self._lora.targets if self._lora else ()) if word not in self._met]
        if missing:
            raise InputError(
                f"--lora: no product of {old.name} is '{missing[0]}' (experts have no adapters here); there are: "
                f"{', '.join(sorted(self._known()))}"
            )
        made = tuple(ops[i] for i in range(len(old.ops)))
        tables = [part for op in made for part in op.body if part.name == "unembedding"]
        shared = old.n_shared_parameters if any(part.n_frozen_parameters for part in tables) else 0
        added = sum(op.n_parameters for op in made) - sum(op.n_parameters for op in old.ops)
        active = old.n_active_parameters + added if old.n_active_parameters else 0
        return replace(old, ops=made, n_shared_frozen_parameters=shared, n_active_parameters=active)

    def _known(self) -> set[str]:
        return {word for op in self._graph.ops for operator in op.body for word, _ in product_parts(op.body, operator)}

    def _layer(self, i: int, enters: bool, encoded: bool) -> Op:
        """Return a layer, the same body for layers that are alike."""
        op = self._graph.ops[i]
        names = tuple(self._is_frozen(f"{op.name}.{operator.name}") for operator in op.body)
        key = (op.like if 0 <= op.like < i else i, names, enters, encoded)
        like = self._bodies.setdefault(key, i)
        body = _trained_part(self._adapted(op.body, names), enters, encoded)
        return replace(op, body=body, like=like)

    def _adapted(self, body: tuple[Operator, ...], frozen: tuple[bool, ...]) -> tuple[Operator, ...]:
        """Return the operators with what is frozen, and adapters behind the products that have one."""
        made: list[Operator] = []
        for operator, still in zip(body, frozen, strict=True):
            made.append(replace(operator, n_frozen_parameters=operator.n_parameters if still else 0))
            for word, n_out in product_parts(body, operator) if self._lora else ():
                if self._lora and word in self._lora.targets:
                    self._met.add(word)
                    made += _adapter(operator, word, n_out, self._lora.rank)
        return tuple(made)


def _adapter(target: Operator, word: str, n_out: int, rank: int) -> tuple[Operator, ...]:
    """Return the two products of an adapter and the sum with its target [1]_. The second keeps what the first puts out; what
    the first reads is what the target reads.

    Of a target split by columns the second product is split alike; of one split by rows the first one is.

    References
    ----------
    .. [1] Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", arXiv 2106.09685, section 4.1.
    """
    sequence, n_in, rows = target.size("sequence"), target.size("in"), target.tensor_axis == "in"
    name = f"{target.name}.{word}.lora"
    down = (("sequence", sequence), ("in", n_in), ("out", rank))
    up = (("sequence", sequence), ("in", rank), ("out", n_out))
    total = (("sequence", sequence), ("hidden", n_out), ("inputs", 2))
    return (
        Operator(
            f"{name}_a", "matmul", down, "in" if rows else "sequence", n_in * rank, saved_elements=sequence * rank,
            saved_axis="sequence",
        ),
        Operator(f"{name}_b", "matmul", up, "sequence" if rows else target.tensor_axis, n_out * rank),
        Operator(f"{name}_sum", "elementwise", total, "sequence" if rows else "hidden"),
    )  # fmt: skip


def _trained_part(body: tuple[Operator, ...], enters: bool, encoded: bool) -> tuple[Operator, ...]:
    """Return operators with the gradients that are computed, and what is then kept.

    `enters`, `encoded`: whether the gradients of what enters the layer, and of an encoder's output, are computed.
    """
    names = {operator.name for operator in body}
    carries, wanted, target = enters, [], enters
    for operator in body:
        if operator.name == "mlp.norm" and "residual" in names:
            carries = enters  # both branches read the same stream
        adapter = operator.name.endswith("lora_a")
        gradient = target if adapter else encoded if operator.name == "cross_attention.key_value" else carries
        gradient = gradient and operator.kind != "embedding"
        if not adapter and not operator.name.endswith(("lora_b", "lora_sum")):
            target = gradient
        wanted.append(replace(operator, input_gradient=gradient))
        carries = carries or operator.n_trained_parameters > 0
        if operator.name == "residual":
            carries = any(other.has_backward for other in wanted)
    return tuple(_kept(wanted, i) for i in range(len(wanted)))


def _kept(body: list[Operator], i: int) -> Operator:
    """Return an operator with what is kept of it: outputs that no gradient needs, and inputs of frozen products, are not.

    Where what is kept was booked is said in `meshwright.models.dense_blocks`.
    """
    operator = body[i]
    if operator.name.endswith("lora_a"):
        return operator
    readers = [other for other in body[i + 1 :] if ".lora_" not in other.name]
    following = readers[0] if readers else next((other for other in body if other.kind == "matmul"), operator)
    elements, needed = operator.saved_elements, operator.has_backward
    word = operator.name.rpartition(".")[2]
    if operator.kind == "matmul" and word in ("patches", "projection"):  # its input
        needed = operator.n_trained_parameters > 0
    elif operator.kind == "matmul" and word == "output":  # the same, which fused attention needs as well
        needed = operator.input_gradient or _has_weight_gradient(body, operator)
    elif operator.kind in ("matmul", "grouped_matmul"):  # its output
        needed = following.has_backward
    elif operator.name.endswith("residual"):  # the stream that the norm before reads
        norms = [other for other in body[:i] if other.kind == "norm"]
        needed = norms[-1].has_backward if norms else operator.has_backward
    elif operator.kind in ("norm", "elementwise", "dispatch") and following.kind in ("matmul", "grouped_matmul"):
        own = operator.size("sequence") * operator.size("top_k") * operator.size("hidden")
        read = _has_weight_gradient(body, following) or (word == "norm" and _routed(body, i))
        elements -= 0 if read else min(own, elements)
    elif operator.name == "attention.rotary":
        needed = following.has_backward
    return replace(
        operator, saved_elements=elements if needed else 0, saved_extra_bytes=operator.saved_extra_bytes * operator.has_backward
    )


def _has_weight_gradient(body: list[Operator], product: Operator) -> bool:
    """Return whether the input of a product is needed: its weights are trained, or those of an adapter beside it."""
    return product.n_trained_parameters > 0 or any(other.name.startswith(f"{product.name}.") for other in body)


def _routed(body: list[Operator], i: int) -> bool:
    """Return whether the output of the norm before a router is read by trained weights of shared experts too."""
    if body[i].name != "mlp.norm":
        return False
    return any(_has_weight_gradient(body, other) for other in body if other.name in ("mlp.shared.in", "mlp.shared.gate"))
