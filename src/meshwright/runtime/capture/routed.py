"""Experts whose code multiplies every token with all of them: counted as a router that sends tokens to a few would have it.

Such code (Llama 4 as published) repeats the tokens for every expert, multiplies stacks of matrices, weights results by what a
router chose (nothing, for most), and adds them up. A training program sends each token to the chosen experts only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from meshwright.runtime.capture.trace import Trace, TracedOperator, TracedTensor

__all__ = ["is_every_expert", "routed"]


@dataclass(frozen=True, slots=True)
class _Mixture:
    """The module that holds router and experts, how many experts there are, and how many a token visits."""

    path: str
    n_experts: int
    top_k: int


def routed(trace: Trace) -> Trace:
    """Return a trace in which every token visits the experts that its router chooses, and a note that says so.

    Parameters
    ----------
    trace : Trace
        Of a module.

    Returns
    -------
    Trace
        The same where no stack of matrices is multiplied with all tokens, or no choice (``topk``) among as many stands in the
        module around it: then `meshwright.runtime.capture.as_written` tells what is counted.
    """
    mixtures = _mixtures(trace)
    if not mixtures:
        return trace
    operators = tuple(_sent(operator, mixtures, _tokens(trace, mixtures)) for operator in trace.operators)
    first = next(iter(mixtures.values()))
    note = (
        f"{first.path} multiplies every token with all {first.n_experts} experts in its code; counted are the {first.top_k} "
        "that its router chooses for a token, all experts visited equally, and the exchange of tokens that this takes"
    )
    return replace(trace, operators=operators, notes=(*trace.notes, note))


def is_every_expert(operator: TracedOperator, trace: Trace) -> bool:
    """Return whether an operator multiplies a stack of matrices, weights of one parameter, with equally many rows each: those
    of all tokens. A parameter that is multiplied head by head (Funnel's two segments) is no such stack.
    """
    if operator.name not in ("bmm", "baddbmm") or not operator.fed:
        return False
    weights = [trace.parameters[name] for name in operator.weights[-2:] if name]
    n_products = operator.inputs[-1].shape[0]
    return len(weights) == 1 and len(weights[0]) == 3 and 1 < weights[0][0] == n_products < math.prod(weights[0])


def _mixtures(trace: Trace) -> dict[str, _Mixture]:
    """Return the mixture that the modules of experts belong to, by their path."""
    found: dict[str, _Mixture] = {}
    for operator in trace.operators:
        if not is_every_expert(operator, trace) or operator.module in found:
            continue
        n_experts = next(trace.parameters[name][0] for name in operator.weights[-2:] if name)
        around = operator.module.rpartition(".")[0]
        choices = [
            choice.outputs[0].shape[-1]
            for choice in trace.operators
            if choice.name == "topk" and choice.inputs[0].shape[-1] == n_experts and _inside(choice.module, around)
        ]
        if choices and choices[0] < n_experts:
            found[operator.module] = _Mixture(around, n_experts, choices[0])
    return found


def _tokens(trace: Trace, mixtures: Mapping[str, _Mixture]) -> int:
    """Return how many tokens all samples hold: rows of one expert's stack."""
    return next(row.inputs[-2].shape[1] for row in trace.operators if row.module in mixtures and is_every_expert(row, trace))


def _sent(operator: TracedOperator, mixtures: Mapping[str, _Mixture], tokens: int) -> TracedOperator:
    """Return one operator with the rows that are sent to experts in the place of all rows for each of them."""
    mine = (one for experts, one in mixtures.items() if operator.module == one.path or _inside(operator.module, experts))
    mixture = next(mine, None)
    if mixture is None or not any(_rows(tensor, mixture, tokens) for tensor in (*operator.inputs, *operator.outputs)):
        return operator
    share = mixture.top_k / mixture.n_experts
    inside = operator.module in mixtures
    changed = replace(
        operator,
        inputs=tuple(_fewer(tensor, mixture, tokens) if not weight else tensor
                     for tensor, weight in zip(operator.inputs, operator.weights, strict=True)),
        outputs=tuple(_fewer(tensor, mixture, tokens) for tensor in operator.outputs),
        forward_flops=operator.forward_flops * share, backward_flops=operator.backward_flops * share,
        saved_bytes=round(operator.saved_bytes * share), saved_other_bytes=round(operator.saved_other_bytes * share),
    )  # fmt: skip
    if inside and operator.name in ("bmm", "baddbmm"):
        return replace(changed, name="_grouped_mm", inputs=changed.inputs[-2:], sources=operator.sources[-2:],
                       weights=operator.weights[-2:], differentiated=operator.differentiated[-2:])  # fmt: skip
    if operator.name == "repeat":  # what sends tokens to their experts, found by `bodies` like the look-up of grouped products
        return replace(changed, name="index")
    return changed


def _rows(tensor: TracedTensor, mixture: _Mixture, tokens: int) -> bool:
    """Return whether a tensor holds every token once for each expert."""
    shape = tensor.shape
    stacked = len(shape) == 3 and shape[:2] == (mixture.n_experts, tokens)
    return stacked or (len(shape) == 2 and shape[0] == mixture.n_experts * tokens)


def _fewer(tensor: TracedTensor, mixture: _Mixture, tokens: int) -> TracedTensor:
    """Return the same tensor with every token as often as it visits experts."""
    if not _rows(tensor, mixture, tokens):
        return tensor
    return tensor._replace(shape=(mixture.top_k * tokens, tensor.shape[-1]))


def _inside(module: str, path: str) -> bool:
    return module == path or module.startswith(path + ".") or not path
