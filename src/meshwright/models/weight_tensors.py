"""The tensors that the weights of an operator are: what optimizers that look at shapes see."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.core.graph import Operator

__all__ = ["WeightTensor", "product_parts", "weight_tensors"]

_VECTORS = ("norm", "attention", "causal_attention")


@dataclass(frozen=True, slots=True)
class WeightTensor:
    """`count` equal tensors of weights.

    Parameters
    ----------
    rows, columns : int
        Sizes; one column for a vector.
    count : int
        How many.
    hidden : bool
        Whether it is a matrix inside the model: no table, not the head, no vector.
    """

    rows: int
    columns: int = 1
    count: int = 1
    hidden: bool = False

    @property
    def n_weights(self) -> int:
        """Weights of one."""
        return self.rows * self.columns


def product_parts(body: tuple[Operator, ...], operator: Operator) -> tuple[tuple[str, int], ...]:
    """Return the products that a product is, or is made of, by name, and the columns of each; as a whole first.

    ``query_key_value``, ``query``, ``key``, ``value``, ``output``, ``gate_up``, ``gate``, ``up``, ``down``; empty where it is
    none of them.
    """
    if operator.kind != "matmul":
        return ()
    name, n_out = operator.name, operator.size("out")
    word = name.rpartition(".")[2]
    if word == "query_key_value":
        core = next((other for other in body if other.name == f"{name.rpartition('.')[0]}.core"), None)
        if core is None:
            return (("query_key_value", n_out),)
        query, key = core.size("heads") * core.size("head"), core.size("kv_heads") * core.size("head")
        return (("query_key_value", n_out), ("query", query), ("key", key), ("value", n_out - query - key))
    if word == "key_value":
        return (("key", n_out // 2), ("value", n_out // 2))
    if word in ("query", "output"):
        return ((word, n_out),)
    if name.startswith("mlp") and word == "in":
        after = next((other for other in body if other.name == f"{name.rpartition('.')[0]}.out"), None)
        if after is not None and n_out == 2 * after.size("in"):
            return (("gate_up", n_out), ("gate", n_out // 2), ("up", n_out // 2))
        return (("up", n_out),)
    return (("down", n_out),) if name.startswith("mlp") and word == "out" else ()


def weight_tensors(body: tuple[Operator, ...], operator: Operator) -> tuple[WeightTensor, ...] | None:
    """Return the weights of an operator as tensors, products that were joined taken apart (query, key and value; gate and up).

    None where an operator has weights of which no shape is known (convolutions, operators captured as totals).
    """
    if not operator.n_parameters:
        return ()
    if operator.kind in _VECTORS:
        width = operator.size("hidden")
        whole = operator.kind == "norm" and width > 1 and operator.n_parameters % width == 0
        return (WeightTensor(width, 1, operator.n_parameters // width),) if whole else (WeightTensor(operator.n_parameters),)
    if operator.kind == "embedding":
        rows, columns = operator.size("vocabulary"), operator.size("hidden")
        return (WeightTensor(rows, columns),) if operator.n_parameters == rows * columns else None
    if operator.kind not in ("matmul", "grouped_matmul"):
        return None
    n_in, n_out, count = operator.size("in"), operator.size("out"), operator.size("experts")
    n_biases = operator.n_parameters // count - n_in * n_out
    if n_biases < 0 or operator.n_parameters % count:
        return None
    hidden = operator.name.rpartition(".")[2] != "unembedding"
    matrices = tuple(WeightTensor(n_in, columns, count, hidden) for columns in _columns(body, operator))
    return (*matrices, WeightTensor(n_biases, 1, count)) if n_biases else matrices


def _columns(body: tuple[Operator, ...], operator: Operator) -> tuple[int, ...]:
    """Return the columns of the matrices that a product is made of."""
    n_out = operator.size("out")
    if operator.kind == "grouped_matmul":
        after = next((other for other in body if other.name == f"{operator.name.rpartition('.')[0]}.out"), None)
        return (n_out // 2, n_out // 2) if after is not None and n_out == 2 * after.size("in") else (n_out,)
    known = product_parts(body, operator)
    if len(known) > 1:
        columns = tuple(n for word, n in known if word not in ("query_key_value", "gate_up"))
        return columns if sum(columns) == n_out else (n_out,)
    return (n_out,)
