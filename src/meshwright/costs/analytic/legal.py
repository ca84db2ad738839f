"""Which strategies a model allows, each refusal in words."""

from __future__ import annotations

from meshwright.core.graph import Graph, Operator
from meshwright.core.strategy import CONTEXT_EXCHANGES, OFFLOADS, Strategy

__all__ = ["illegal"]

_ATTENTION = ("attention", "causal_attention")


def illegal(graph: Graph, strategy: Strategy, micro_batch: int = 1) -> str:
    """Return why a strategy cannot run a model, in one sentence; empty when it can.

    `micro_batch`: samples of one micro-batch and replica.
    Returns: the reason. Key and value heads may be fewer than the tensor degree when they divide it: they are then
    replicated. The vocabulary is padded to a multiple of the tensor degree.
    """
    reason = _degrees(strategy, micro_batch)
    if reason:
        return reason
    if strategy.expert > 1 and not any(operator.kind == "grouped_matmul" for op in graph.ops for operator in op.body):
        return f"the expert degree is {strategy.expert}, but the model has no experts to spread; it must be 1"
    if graph.n_sequences > 1 and strategy.context > 1:
        return (
            f"the context degree is {strategy.context}, but pairs of sequences are not priced over a context axis; it must be 1"
        )
    if graph.n_sequences > 1 and strategy.sequence_parallel and graph.sequence_length % strategy.tensor:
        return f"sequence parallelism needs the sequence of {graph.sequence_length} to divide by tensor, {strategy.tensor}"
    if strategy.tensor > 1 and graph.quantised:
        return f"the tensor degree is {strategy.tensor}, but weights in four bits are quantised as a whole; it must be 1"
    reason = _both_ways(graph, strategy)
    if reason:
        return reason
    for i, op in enumerate(graph.ops):
        if 0 <= op.like < i:
            continue
        # heads first: a degree that does not divide them often does not divide the sequence either, which is less telling
        for operator in sorted(op.body, key=lambda one: one.kind not in _ATTENTION):
            reason = _operator(operator, strategy)
            if reason:
                return f"{op.name}: {reason}"
    return ""


def _degrees(strategy: Strategy, micro_batch: int) -> str:
    """Check the degrees against each other."""
    ranks = strategy.data * strategy.context
    if micro_batch < 1:
        return f"the micro-batch is {micro_batch}; it must be at least 1"
    for name in ("data", "tensor", "context", "expert"):
        if getattr(strategy, name) < 1:
            return f"the {name} degree is {getattr(strategy, name)}; it must be at least 1"
    if strategy.folded and (strategy.n_devices % strategy.expert or strategy.expert % strategy.tensor):
        return (
            f"the expert degree {strategy.expert} does not divide the {ranks} data and context ranks, nor, as a multiple of "
            f"the tensor degree, the stage's {strategy.n_devices} devices"
        )
    if strategy.expert > 1 and strategy.tensor > 1 and not strategy.sequence_parallel:
        return (
            "experts beside a tensor degree need sequence parallelism: otherwise every tensor rank would send the same tokens"
        )
    if strategy.shard_degree and (not strategy.shard or strategy.data % strategy.shard_degree):
        return (
            f"the sharding degree {strategy.shard_degree} must divide the data degree {strategy.data}, and something must "
            "be sharded"
        )
    if strategy.context_exchange not in CONTEXT_EXCHANGES:
        return f"the context exchange is '{strategy.context_exchange}'; there are {', '.join(CONTEXT_EXCHANGES)}"
    if strategy.context == 1 and strategy.context_exchange != "ring":
        return f"the context exchange is {strategy.context_exchange}, but the context degree is 1: nothing is exchanged"
    if strategy.offload not in OFFLOADS:
        return f"the offload is '{strategy.offload}'; there are {', '.join(OFFLOADS)}"
    if strategy.sequence_parallel and strategy.tensor == 1:
        return "sequence parallelism splits over the tensor axis, which has one rank"
    return ""


def _both_ways(graph: Graph, strategy: Strategy) -> str:
    """Check that a context axis that is split by heads and by queries has more than one rank for each."""
    if strategy.context_exchange != "all_to_all+ring":
        return ""
    n_heads = strategy.head_ranks(graph)
    if n_heads == 1:
        return (
            f"the context exchange all_to_all+ring needs tensor, {strategy.tensor}, times a divisor of context, "
            f"{strategy.context}, to divide the heads of queries and of keys; take ring"
        )
    if n_heads == strategy.context:
        return (
            f"the context exchange all_to_all+ring leaves nothing to a ring: tensor times context, "
            f"{strategy.tensor * n_heads}, divides all heads; take all_to_all"
        )
    return ""


def _operator(operator: Operator, strategy: Strategy) -> str:
    """Check one operator."""
    tensor, context = strategy.tensor, strategy.context
    if operator.kind in _ATTENTION:
        heads, kv_heads = operator.size("heads"), operator.size("kv_heads", operator.size("heads"))
        if heads % tensor:
            return f"the tensor degree {tensor} does not divide the {heads} attention heads"
        if kv_heads % tensor and tensor % kv_heads:
            return f"the tensor degree {tensor} and the {kv_heads} key and value heads do not divide each other"
        sequence = operator.size("sequence")
        if context > 1 and sequence % (2 * context):
            return f"the context degree {context} must split the sequence of {sequence} into two equal chunks per rank"
        whole = [(heads, "attention heads"), (kv_heads, "key and value heads")]
        cut = [f"{count} {what}" for count, what in whole if count % (tensor * context)]
        if strategy.context_exchange == "all_to_all" and cut:
            return f"the context exchange all_to_all needs tensor times context, {tensor * context}, to divide the {cut[0]}"
    if operator.kind == "grouped_matmul":
        experts = operator.size("experts")
        if experts % strategy.expert:
            return f"the expert degree {strategy.expert} does not divide the {experts} experts"
    if operator.kind in ("matmul", "grouped_matmul") and operator.tensor_axis in ("out", "in"):
        size = operator.size(operator.tensor_axis)
        if tensor > size:
            return f"the tensor degree {tensor} exceeds the {size} {operator.tensor_axis}puts of {operator.name}"
    split = strategy.sequence_parallel and operator.tensor_axis == "sequence" and operator.size("sequence") > 1
    if split and operator.size("sequence") % (tensor * context):
        return (
            f"sequence parallelism needs the sequence of {operator.size('sequence')} to divide by tensor times context, "
            f"{tensor * context}"
        )
    return ""
