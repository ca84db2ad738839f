"""What a module's own code computes and keeps that a training program would not: said with the graph, since it is counted."""

from __future__ import annotations

from meshwright.base.units import format_bytes
from meshwright.runtime.capture.routed import is_every_expert
from meshwright.runtime.capture.trace import Trace

__all__ = ["notes"]

_SCANS = ("mamba", "statespace", "selectivescan")


def notes(trace: Trace) -> tuple[str, ...]:
    """Return what of a trace is counted as its code has it: all experts on every token, scans in steps."""
    return tuple(note for note in (_every_expert(trace), _scans(trace)) if note)


def _every_expert(trace: Trace) -> str:
    """Say which part of the forward FLOPs are products of every token with every expert."""
    # experts that are shared are for every token
    found = [operator for operator in trace.operators if is_every_expert(operator, trace) and "shared" not in operator.module]
    if not found:
        return ""
    share = sum(operator.forward_flops for operator in found) / sum(operator.forward_flops for operator in trace.operators)
    n_experts = max(trace.parameters[name][0] for operator in found for name in operator.weights if name)
    part = next(operator.module for operator in found)
    return (
        f"{part} multiplies every token with all {n_experts} experts, as its code does, and so it is counted: {share:.0%} of "
        "the forward FLOPs. A program that sends tokens to the experts that a router chose computes the share of those "
        "experts only, and has exchanges between devices that this graph does not have"
    )


def _scans(trace: Trace) -> str:
    """Say what is kept inside state-space layers whose scan runs operator by operator."""
    if any(operator.name == "fused_scan" for operator in trace.operators):
        return ""  # counted as kernels, which a note of the recorder says
    mixers = [path for path, name in trace.classes.items() if any(word in name.lower() for word in _SCANS) and path]
    outer = {path for path in mixers if not any(path.startswith(other + ".") for other in mixers if "mixer" in other)}
    kept = sum(
        operator.saved_bytes + operator.saved_other_bytes
        for operator in trace.operators
        if any(operator.module == path or operator.module.startswith(path + ".") for path in outer)
    )
    if not kept:
        return ""
    names = ", ".join(sorted({trace.classes[path] for path in outer}))
    return (
        f"state-space layers ({names}) are captured operator by operator: they keep {format_bytes(kept / trace.batch)} a "
        "sample and move what their code moves. Fused scans recompute inside the kernel, and keep and move a small part of it"
    )
