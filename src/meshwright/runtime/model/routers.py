"""The load balancing loss of mixtures of experts, as Hugging Face models add it to their own loss: what routers say travels
along with the hidden state, and is summed up behind the last layer.

References
----------
.. [1] W. Fedus, B. Zoph, N. Shazeer, Switch Transformers, JMLR 23 (2022), equations 4 to 6: experts times the sum over experts
   of the share of tokens sent to one times the mean probability of one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from meshwright.base.errors import InputError
from meshwright.runtime.model.as_given import evaluating

__all__ = ["Routing", "check", "own_loss", "routing_of"]

_TOLERANCE_RATIO = 1e-3
"""Of the model's own value, on the sample that is looked at."""


@dataclass(frozen=True, slots=True)
class Routing:
    """How the routers of a model are listened to.

    `kinds`: class of a router, place of its logits in what it returns, and a part of its path (empty for any).
    `top_k`: experts chosen for a token.
    `coefficient_ratio`: what the loss of the routers is multiplied by.
    """

    kinds: tuple[tuple[type, int, str], ...]
    top_k: int
    coefficient_ratio: float

    def places(self, path: str, module: nn.Module) -> list[int]:
        """Return the place of the logits in what a module of a layer returns, if it is a router."""
        return [place for kind, place, part in self.kinds if isinstance(module, kind) and part in f".{path}."]

    @contextmanager
    def listening(self, layer: nn.Module) -> Iterator[list[torch.Tensor]]:
        """Collect the logits that the routers of a layer give while it runs."""
        heard: list[torch.Tensor] = []
        handles = [
            module.register_forward_hook(_hook(heard, place))
            for path, module in layer.named_modules()
            for place in self.places(path, module)
        ]
        try:
            yield heard
        finally:
            for handle in handles:
                handle.remove()

    def sums(self, logits: Sequence[torch.Tensor], mask: torch.Tensor | None) -> torch.Tensor:
        """Return, over all tokens of all layers, how often each expert is chosen, its probabilities added up, and the tokens.

        `logits`: of every layer, of shape (samples, tokens, experts).
        `mask`: of shape (samples, tokens), where tokens count.
        Returns: of shape (2 experts + 1).
        """
        n_experts = logits[0].shape[-1]
        weight = None if mask is None else mask.reshape(-1, 1).float()
        total = logits[0].new_zeros(2 * n_experts + 1, dtype=torch.float32)
        for given in logits:
            probabilities = nn.functional.softmax(given.reshape(-1, n_experts), dim=-1)
            chosen = torch.zeros_like(probabilities).scatter_(1, probabilities.topk(self.top_k, dim=-1).indices, 1.0).detach()
            both = torch.cat([chosen, probabilities, torch.ones_like(probabilities[:, :1])], 1).float()
            total = total + (both if weight is None else both * weight).sum(0)
        return total


def _hook(heard: list[torch.Tensor], place: int) -> Any:
    """Return a hook that keeps what a router says."""

    def hook(_: nn.Module, __: Any, output: Any) -> None:
        heard.append(output[place] if isinstance(output, tuple) else output)

    return hook


def routing_of(model: nn.Module, decoder: nn.Module) -> Routing | None:
    """Return how the routers of a model are listened to; None where the model does not ask for their loss.

    `model`: of Hugging Face; its configuration asks by ``output_router_logits``.
    `decoder`: the model without its head.
    Raises `InputError` when it says nowhere which modules are routers.
    """
    config: Any = model.config
    if not getattr(config, "output_router_logits", False):
        return None
    told: Mapping[str, Any] = {}
    for part in (model, decoder):
        told = told or {"router_logits": found} if (found := _recorded(part)) else told
    entries = told.get("router_logits", ())
    top_k = getattr(config, "num_experts_per_tok", None) or getattr(model, "num_experts_per_tok", None)
    coefficient = getattr(model, "router_aux_loss_coef", getattr(config, "router_aux_loss_coef", None))
    if not entries or top_k is None or coefficient is None:
        raise InputError(
            f"{type(model).__name__}: asks for the loss of its routers (output_router_logits), but does not say which modules "
            "they are, as models of transformers 5 do; set model.config.output_router_logits = False to train without it"
        )
    return Routing(tuple(entries), int(top_k), float(coefficient))


def _recorded(part: nn.Module) -> list[tuple[type, int, str]]:
    """Return which modules a part of a model records as routers."""
    told = (getattr(part, "_can_record_outputs", None) or {}).get("router_logits", ())
    found = []
    for entry in told if isinstance(told, list | tuple) else [told]:
        kind = getattr(entry, "target_class", entry)
        name = (getattr(entry, "layer_name", None) or "").strip(".")
        if isinstance(kind, type):
            found.append((kind, int(getattr(entry, "index", 1)), f".{name}." if name else ""))
    return found


def own_loss(model: nn.Module, output: Any) -> Any:
    """Return what a whole model's routers add to its loss: zero where it does not ask for that.

    `output`: what the model returned.
    """
    value = getattr(output, "aux_loss", None)
    if value is None:
        return 0.0
    config: Any = model.config
    return value * float(getattr(model, "router_aux_loss_coef", getattr(config, "router_aux_loss_coef", 0.0)))


def check(model: nn.Module, units: Sequence[nn.Module], sample: Sequence[torch.Tensor], place: str) -> None:
    """Refuse a model whose routers' loss is another one than what is added here; looked at on a sample.

    `units`: its layers, of which the last one returns logits and sums.
    Raises `InputError`.
    """
    with torch.no_grad(), evaluating(model, *units):
        named = dict(zip(getattr(units[0], "further", ()), sample[1:], strict=False))
        wanted = float(own_loss(model, model(sample[0], **named)))
        carried: Any = tuple(sample)
        for unit in units:
            carried = unit(*carried)
    routing, sums = units[-1].routing, carried[1].double()
    n_experts = (len(sums) - 1) // 2
    ours = float((sums[:n_experts] * sums[n_experts:-1]).sum() / sums[-1] ** 2) * n_experts * routing.coefficient_ratio  # type: ignore[union-attr,operator]
    if abs(ours - wanted) > _TOLERANCE_RATIO * abs(wanted) + 1e-8:
        raise InputError(
            f"{place}: {type(model).__name__} adds {wanted:.6g} for its routers to the loss of a sample, but the loss of "
            f"Switch Transformers, which is known here, is {ours:.6g}; set model.config.output_router_logits = False to train "
            "without it"
        )
