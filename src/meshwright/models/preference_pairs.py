"""Models trained on pairs of a chosen and a rejected sequence, beside a frozen reference (``--objective dpo``)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from meshwright.base.errors import InputError, UnknownNameError
from meshwright.core.graph import Graph, Op, Operator, SharedWeights
from meshwright.core.problem import ModelSpec
from meshwright.models.fine_tuning import FORMATS

__all__ = ["PREFIX", "REFERENCES", "PreferenceObjective", "parse_objective", "with_objective"]

REFERENCES = ("copy", "adapters-off", "precomputed")
PREFIX = "reference."
"""What names of the reference's operators begin with."""

_OBJECTIVES = ("dpo",)
_N_SEQUENCES = 2


@dataclass(frozen=True, slots=True)
class PreferenceObjective:
    """Direct preference optimisation [1]_: the log-probabilities of both sequences of a pair, against those of a reference.

    `reference`: where the latter come from: a frozen ``copy`` of the model, the model itself with ``adapters-off``, or a pass
    over the data before training (``precomputed``).

    References
    ----------
    .. [1] Rafailov et al., "Direct Preference Optimization: Your Language Model is Secretly a Reward Model", arXiv 2305.18290.
    """

    reference: str


def parse_objective(text: str, *, adapters: bool = False) -> PreferenceObjective:
    """Return what ``--objective dpo`` or ``--objective dpo,reference=precomputed`` asks for.

    Parameters
    ----------
    text : str
        As after the option.
    adapters : bool
        Whether adapters alone are trained: the reference is then the model without them unless another is told.

    Raises
    ------
    InputError
        When something is missing, unknown or wrong.
    """
    name, *others = (part.strip() for part in text.split(","))
    if name not in _OBJECTIVES:
        raise UnknownNameError("objective", name, _OBJECTIVES)
    said = [other.partition("=") for other in others]
    wrong = next(
        (other for other, (key, equals, _) in zip(others, said, strict=True) if key != "reference" or not equals), None
    )
    if wrong is not None or len(said) > 1:
        shown = f"'{wrong}' is not known" if wrong is not None else "reference is given twice"
        raise InputError(f"--objective {text}: {shown}; write {name}, or {name},reference=precomputed")
    reference = said[0][2] if said else "adapters-off" if adapters else "copy"
    if reference not in REFERENCES:
        raise InputError(
            f"--objective {text}: reference is {reference or 'nothing'}; it must be one of {', '.join(REFERENCES)}"
        )
    if reference == "adapters-off" and not adapters:
        raise InputError(f"--objective {text}: there are no adapters to leave out; give --lora, or reference=copy")
    return PreferenceObjective(reference)


def with_objective(spec: ModelSpec, objective: str) -> ModelSpec:
    """Return a model that is trained on pairs of sequences.

    A sample is then a pair: two sequences of `Graph.sequence_length` tokens, attention inside each. Every layer runs the
    reference's layer too: its forward pass, of which nothing is kept.

    Parameters
    ----------
    spec : ModelSpec
        The model, and what of it is trained.
    objective : str
        As of `parse_objective`; empty for the model as it is.

    Raises
    ------
    InputError
        When the words are wrong, or the model is none of a single stream of tokens whose operators are known by name.
    """
    if not objective:
        return spec
    asked = parse_objective(objective, adapters=bool(spec.lora))
    graph = spec.graph
    if spec.objective:
        raise InputError(f"--objective {objective}: {spec.name} has an objective already ({spec.objective}); read it anew")
    if spec.format not in FORMATS:
        raise InputError(
            f"--objective {objective}: operators of {spec.name} (format {spec.format}) are not known by name; give a built-in "
            "model or a config.json of a family that is read ('meshwright list models')"
        )
    if spec.pairs_ratio != 1.0:
        raise InputError(f"--objective {objective}: pairs under a document mask are not priced; leave --lengths out")
    sizes = {part.size("sequence", 0) for op in graph.ops for part in op.body}
    if graph.tokens_name != "tokens" or sizes != {graph.sequence_length} or "cross_entropy" not in _kinds(graph):
        raise InputError(f"--objective {objective}: {spec.name} is no causal language model of one stream of tokens")
    bodies: dict[int, tuple[Operator, ...]] = {}
    ops = tuple(replace(op, body=bodies.setdefault(id(op.body), _paired(op, asked.reference))) for op in graph.ops)
    edges = tuple(replace(edge, n_elements=_N_SEQUENCES * edge.n_elements) for edge in graph.edges)
    made = replace(graph, ops=ops, edges=edges, n_sequences=_N_SEQUENCES)
    if asked.reference == "copy":
        made = _with_copy(made, graph)
    return replace(spec, graph=made, objective=objective, notes=(*spec.notes, _note(asked.reference)))


def _kinds(graph: Graph) -> set[str]:
    return {part.kind for part in graph.ops[-1].body}


def _paired(op: Op, reference: str) -> tuple[Operator, ...]:
    """Return a layer's operators for two sequences, those of the reference behind them."""
    own = tuple(_twice(part) for part in op.body)
    if reference == "precomputed":
        return own
    return own + tuple(_forward_only(part, reference) for part in own if ".lora_" not in part.name)


def _twice(part: Operator) -> Operator:
    """Return an operator on two sequences: queries of each see its own keys."""
    dims = tuple((name, _N_SEQUENCES * size if name == "sequence" else size) for name, size in part.dims)
    return replace(
        part, dims=dims, saved_elements=_N_SEQUENCES * part.saved_elements, flops=_N_SEQUENCES * part.flops,
        saved_extra_bytes=_N_SEQUENCES * part.saved_extra_bytes, moved_elements=_N_SEQUENCES * part.moved_elements,
    )  # fmt: skip


def _forward_only(part: Operator, reference: str) -> Operator:
    """Return the reference's operator: no gradient, nothing kept, weights of its own or the layer's."""
    n_own, n_borrowed = (part.n_parameters, 0) if reference == "copy" else (0, part.n_parameters)
    return replace(
        part, name=f"{PREFIX}{part.name}", n_parameters=n_own, n_frozen_parameters=n_own, n_borrowed_parameters=n_borrowed,
        saved_elements=0, saved_extra_bytes=0, selective=False, input_gradient=False, reference=True,
    )  # fmt: skip


def _with_copy(made: Graph, graph: Graph) -> Graph:
    """Return the graph with what the copy shares within itself, and what a token meets of it."""
    base = sum(part.n_parameters for op in graph.ops for part in op.body if ".lora_" in part.name)
    shared = tuple(
        SharedWeights(tuple((op, f"{PREFIX}{name}") for op, name in own.places), own.n_parameters) for own in graph.shared
    )
    active = graph.n_active_parameters
    return replace(
        made, shared=(*graph.shared, *shared), n_shared_parameters=2 * graph.n_shared_parameters,
        n_shared_frozen_parameters=graph.n_shared_frozen_parameters + graph.n_shared_parameters,
        n_active_parameters=2 * active - base if active else 0,
    )  # fmt: skip


def _note(reference: str) -> str:
    """Say what a sample is, and where the reference's log-probabilities come from."""
    pair = "DPO: a sample is a pair of a chosen and a rejected sequence, each of the full sequence length"
    if reference == "precomputed":
        return (
            f"{pair}; the reference's log-probabilities are computed before training: one forward pass over all pairs, which "
            "is in no step, day or price here"
        )
    held = (
        "a frozen copy of the model" if reference == "copy" else "the model with its adapters off, which takes no more weights"
    )
    return f"{pair}; each micro-batch is also run forward through the reference, {held}"
