"""What follows a trace, on traces written by chance: layers, axes of a tensor degree, attention, experts, repeated layers."""

from __future__ import annotations

import json
import random
import zlib
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch", reason="capture needs PyTorch, an optional extra: pip install 'meshwright[torch]'")
pytestmark = pytest.mark.torch

from written_traces import model  # noqa: E402

from meshwright.core.graph import Operator  # noqa: E402
from meshwright.runtime.capture import as_written, attention, bodies, layers, routed  # noqa: E402
from meshwright.runtime.capture.axes import tensor_axes  # noqa: E402
from meshwright.runtime.capture.expansion import expand  # noqa: E402
from meshwright.runtime.capture.repeats import RepeatedModules  # noqa: E402
from meshwright.runtime.capture.segments import segments  # noqa: E402
from meshwright.runtime.capture.trace import Trace  # noqa: E402
from recorded import Recorded, plain  # noqa: E402

SEEDS = range(32)


def crc(value: object) -> int:
    return zlib.crc32(json.dumps(plain(value)).encode())


def said(operator: Operator) -> str:
    """Return an operator in one line."""
    sizes = ",".join(f"{axis}{size}" for axis, size in operator.dims)
    rest = (
        operator.n_parameters, operator.n_frozen_parameters, operator.saved_elements, operator.saved_extra_bytes,
        operator.moved_elements, operator.flops, operator.saved_axis, int(operator.expert), int(operator.input_gradient),
    )  # fmt: skip
    return f"{operator.name} {operator.kind} {sizes} {operator.tensor_axis} {' '.join(map(str, rest))}"


def test_a_trace_is_cut_into_layers(recorded: Recorded) -> None:
    """Five are recorded in full, the others by their checksum."""
    found_all: dict[str, Any] = {}
    for seed in SEEDS:
        trace = routed.routed(model(seed, n_layers=2 + seed % 2))
        for level in ("layers", "operator"):
            found = layers.graph_of(trace, "m", level, 5, "tokens")
            graph = found.graph
            bodies_said = [[said(operator) for operator in op.body] for op in graph.ops]
            named = [(op.name, op.kind, op.like, op.n_parameters) for op in graph.ops]
            totals = plain(found.totals)
            figures = crc([plain(one) for one in found.figures])
            edges = [(edge.source, edge.target, edge.n_elements) for edge in graph.edges]
            rest = (graph.n_shared_parameters, graph.n_active_parameters, graph.n_shared_frozen_parameters, found.notes)
            if level == "layers" and seed < 5:
                found_all[f"{seed}"] = [named, totals, figures, edges, rest]
                found_all[f"{seed} inside"] = [bodies_said[i] for i in dict.fromkeys(op.like for op in graph.ops)]
            else:
                found_all[f"{seed} {level}"] = [len(named), crc([named, totals, figures, edges, rest]), crc(bodies_said)]
    recorded(found_all)


def test_the_axes_of_a_tensor_degree_follow_split_columns(recorded: Recorded) -> None:
    all_words: dict[str, Any] = {}
    letters = {"": ".", "out": "o", "in": "i", "heads": "h", "hidden": "e", "vocabulary": "v", "sequence": "s"}
    for seed in SEEDS:
        trace = model(seed)
        parts = segments(trace)
        later = bodies._read_later(trace, parts)
        told, found = [], []
        for part in parts:
            axes = tensor_axes(trace.operators, part.operators[0], part.operators[-1], later)
            told.append("".join(letters[axes.words.get(i, "")] for i in range(part.operators[0], part.operators[-1] + 1)))
            found += [(attention.find(trace, part.operators, axes.splits), crc(sorted(axes.splits.items())))]
        all_words[f"{seed}"] = [told, found if seed < 6 else crc(found)]
    recorded(all_words)


@pytest.mark.parametrize("kind", ["name", "whole", "constant", "weight", "shape"])
def test_a_trace_with_something_strange_in_it_is_answered_all_the_same(kind: str, recorded: Recorded) -> None:
    """Norms, sums and choices where none were; results that depend on nothing; weights that are several; odd shapes."""
    all_kinds: dict[str, Any] = {}
    for seed in SEEDS:
        chance, trace = random.Random(seed), model(seed)
        operators = list(trace.operators)
        for i in chance.sample(range(len(operators)), 4):
            operators[i] = _strange(operators[i], kind, chance)
        changed = replace(trace, operators=tuple(operators))
        parts = segments(changed)
        names = [(part.name, part.path, part.listed, len(part.operators)) for part in parts]
        built = bodies.build(changed, parts, "layers", 5)
        kinds = [layer.kind for layer in built]
        inside = crc([[said(operator) for operator in layer.body] for layer in built])
        all_kinds[f"{seed}"] = [len(names), kinds, crc(names), inside]
    recorded(all_kinds)


def _strange(operator: Any, kind: str, chance: random.Random) -> Any:
    if kind == "name" and not operator.view and not operator.forward_flops and operator.numbers == ():
        return replace(operator, name=chance.choice(("native_layer_norm", "topk", "clone", "fft", "max_pool2d", "cumsum")),
                       numbers=chance.choice(((8,), (-1,), (2, 8))))  # fmt: skip
    if kind == "whole":
        return replace(operator, sources=tuple(-1 for _ in operator.sources))
    if kind == "constant":
        return replace(operator, trained=False, forward_flops=0.0, backward_flops=0.0)
    if kind == "weight" and operator.weights[0]:
        return replace(operator, module=f"{operator.module}.again")
    if kind == "shape" and len(operator.outputs[0].shape) == 3 and not operator.view and not operator.forward_flops:
        shape = operator.outputs[0].shape
        return replace(operator, outputs=(operator.outputs[0]._replace(shape=(shape[0], 1, shape[2])),))
    return operator


def test_repeated_layers_are_written_out_again(recorded: Recorded) -> None:
    """Two layers of one make stand for five; with branches, skips or weights of others they stand for nothing."""
    all_shown: dict[str, Any] = {}
    for seed in SEEDS:
        trace = model(seed, alike=True)
        holder = next(iter(trace.lists))
        whole = expand(trace, (RepeatedModules(holder, 0, 0, 5),))
        assert whole is not None
        shown = [(o.module, o.name, o.sources, o.weights, o.saved_bytes, o.saved_other_bytes) for o in whole.operators]
        named = (dict(whole.parameters), dict(whole.classes), sorted(whole.lists), sorted(whole.frozen))
        refused = [
            expand(broken, (RepeatedModules(holder, 0, 0, 5),)) is None
            for broken in (_broken(trace, holder, seed) if seed < 8 else ())
        ]
        told = "".join("01"[one] for one in refused)
        all_shown[f"{seed}"] = [len(shown), crc(shown), len(whole.parameters), crc(named), told]
    recorded(all_shown)


def _broken(trace: Trace, holder: str, seed: int) -> list[Trace]:
    """Return the trace with one thing changed in one of its layers, in many ways."""
    chance = random.Random(seed)
    one, two = ([i for i, o in enumerate(trace.operators) if o.module.startswith(f"{holder}.{k}")] for k in (0, 1))
    found = []
    for ids in (one, two):
        for _ in range(3):
            i = chance.choice(ids)
            operator = trace.operators[i]
            changes: list[dict[str, Any]] = [
                {"name": "other"}, {"numbers": (77,)}, {"sources": tuple(-1 for _ in operator.sources)},
                {"sources": tuple(max(source - 1, -1) for source in operator.sources)},
                {"sources": tuple(one[0] - 1 if source >= 0 else -1 for source in operator.sources)},
                {"sources": tuple(one[-1] if source >= 0 else -1 for source in operator.sources)},
                {"weights": tuple("embed.weight" if weight else "" for weight in operator.weights)},
                {"weights": tuple(f"{holder}.0.x" for _ in operator.weights)},
                {"differentiated": tuple(False for _ in operator.differentiated)}, {"module": "elsewhere"},
            ]  # fmt: skip
            for change in changes:
                operators = list(trace.operators)
                operators[i] = replace(operator, **change)
                found.append(replace(trace, operators=tuple(operators)))
    operators = list(trace.operators)
    last = operators[-1]
    for source in (one[0], one[-1], two[0], two[-2]):
        operators[-1] = replace(last, sources=(source, *last.sources[1:]))
        found.append(replace(trace, operators=tuple(operators)))
    return found


def test_two_runs_of_layers_are_written_out_each_with_its_own_numbers(recorded: Recorded) -> None:
    trace = model(3, 4, alike=True)
    holder = next(iter(trace.lists))
    both = expand(trace, (RepeatedModules(holder, 0, 0, 3), RepeatedModules(holder, 2, 3, 4)))
    assert both is not None
    inside = [o.module.removeprefix(f"{holder}.") for o in both.operators if o.module.startswith(holder)]
    assert list(dict.fromkeys(path.partition(".")[0] for path in inside)) == list("0123456")
    recorded([crc([(o.module, o.sources, o.weights) for o in both.operators]), sorted(both.parameters)])
    apart = expand(model(4, 3, alike=True), (RepeatedModules("layers", 1, 1, 4),))
    recorded([None if apart is None else crc([(o.module, o.sources) for o in apart.operators])], "the first stands apart")


def test_experts_that_all_tokens_visit_are_counted_as_a_router_sends_them(recorded: Recorded) -> None:
    n_routed, all_sent = 0, {}
    for seed in SEEDS:
        trace = model(seed)
        changed = routed.routed(trace)
        n_routed += changed is not trace
        if changed is trace:
            continue
        shown = [(o.name, [t.shape for t in o.inputs], o.outputs[0].shape, o.forward_flops, o.backward_flops, o.saved_bytes,
                  o.saved_other_bytes, o.sources, o.weights)
                 for o, before in zip(changed.operators, trace.operators, strict=True) if o != before]  # fmt: skip
        notes = (changed.notes, as_written.notes(trace), as_written.notes(changed))
        all_sent[f"{seed}"] = [shown if seed < 12 else crc(shown), notes]
    recorded(all_sent)
    assert n_routed >= 4, "too few of the models have such experts"
