"""Encoder-decoders of the T5 family as layers, without editing them: attention, feed-forward networks and norms in the order in
which both stacks run them, the encoder's result handed on to every layer of the decoder.

References
----------
.. [1] C. Raffel et al., Exploring the limits of transfer learning with a unified text-to-text transformer, JMLR 21 (2020),
   section 2.1: layers of a stack share one table of relative positions, which the first of them has.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from meshwright.base.errors import InputError
from meshwright.runtime.model.arguments import arguments_of
from meshwright.runtime.model.grafts import shallow

__all__ = ["INPUTS", "cut", "recognises"]

INPUTS = ("input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask")
"""What a model may take; tokens of encoder and decoder it must."""

_STACKED = re.compile(r"^(encoder|decoder)\.(?:block\.)?(\d+)(\..+)?$")


def recognises(model: nn.Module) -> bool:
    """Whether the module is an encoder-decoder of ``transformers`` with a head."""
    config = getattr(model, "config", None)
    return bool(getattr(config, "is_encoder_decoder", False)) and hasattr(model, "prepare_inputs_for_generation")


def cut(model: nn.Module, names: Sequence[str], n_inputs: int) -> list[nn.Module]:
    """Return one module per layer of a plan.

    Parameters
    ----------
    model : torch.nn.Module
        ``T5ForConditionalGeneration`` or a model built like it.
    names : sequence of str
        ``embed``, layers of both stacks in order (``encoder.0`` or ``encoder.block.0.layer.0``, ``encoder.norm`` or
        ``encoder.final_layer_norm``), ``head``. What a plan does not name belongs to the layer before it.
    n_inputs : int
        How many inputs there are: those that the model's ``plan_inputs`` names, else its first arguments.

    Raises
    ------
    InputError
        When it is built otherwise, the plan has other layers, or the tokens of the decoder are not among the inputs.
    """
    given = tuple(getattr(model, "plan_inputs", ())) or tuple(arguments_of(model)[:n_inputs])
    if len(given) != n_inputs or not set(given) <= set(INPUTS) or not {"input_ids", "decoder_input_ids"} <= set(given):
        raise InputError(
            f"{type(model).__name__}: takes {', '.join(given)} here, but an encoder-decoder is run on input_ids and "
            "decoder_input_ids (model.prepare_decoder_input_ids_from_labels makes them of labels), with masks or without: name "
            "them by example={...}, or let the model's callable return (model, (input_ids, attention_mask, decoder_input_ids))"
        )
    stacks: Any = [getattr(model, name, None) for name in ("encoder", "decoder")]
    if any(not isinstance(getattr(stack, "block", None), nn.ModuleList) for stack in stacks):
        raise InputError(
            f"{type(model).__name__}: of models with an encoder and a decoder, those built like T5 are run (T5, mT5): an "
            "encoder and a decoder that hold their layers as 'block'"
        )
    model.config.use_cache = False  # type: ignore[union-attr]
    layers = _layers(model, stacks, given)
    paths = list(layers)
    named = [_path(name, paths) for name in names]
    unknown = [name for name, path in zip(names, named, strict=True) if path is None]
    if unknown or named[0] != "embed" or named[-1] != "head":
        raise InputError(
            f"{type(model).__name__}: has no layer '{(unknown or [names[0]])[0]}'; is this the plan of another model? Its "
            f"layers are: {', '.join(paths[:12])}, ..."
        )
    members: list[list[nn.Module]] = [[] for _ in names]
    current = 0
    for path, layer in layers.items():
        wanted = next((i for i, known in enumerate(named) if path == known or path.startswith(f"{known}.")), current)
        if wanted not in (current, current + 1):
            raise InputError(
                f"{type(model).__name__}: runs '{path}' after '{names[current]}', where the plan has other layers; is this the "
                "plan of another model?"
            )
        current = wanted
        members[current].append(layer)
    if not all(members):
        raise InputError(f"{type(model).__name__}: has fewer layers than the plan, which has {len(names)}")
    return [_Group(held) for held in members]


def _path(name: str, paths: Sequence[str]) -> str | None:
    """Return the path of a layer, or of several, that a plan's name means; None where there is none."""
    found = _STACKED.match(name)
    path = f"{found[1]}.block.{found[2]}{found[3] or ''}" if found else name
    path = {"encoder.norm": "encoder.final_layer_norm", "shared": "embed", "lm_head": "head"}.get(path, path)
    return path if any(other == path or other.startswith(f"{path}.") for other in paths) else None


def _layers(model: nn.Module, stacks: Sequence[Any], given: Sequence[str]) -> dict[str, nn.Module]:
    """Return the smallest parts of a model between which it can be cut, by path, in the order in which they run."""
    carried = ("hidden", *(name for name in given if name != "input_ids"))
    decoded = ("hidden", "encoded", *(name for name in carried[1:] if name != "decoder_input_ids"))
    found: dict[str, nn.Module] = {"embed": _Embed(stacks[0].embed_tokens, stacks[0].dropout, given, carried, "input_ids")}
    for kind, stack, names in (("encoder", stacks[0], carried), ("decoder", stacks[1], decoded)):
        if kind == "decoder":
            found["encoder.final_layer_norm"] = _Norm(stacks[0].final_layer_norm, stacks[0].dropout)
            embed = _Embed(stack.embed_tokens, stack.dropout, carried, decoded, "decoder_input_ids")
            found["decoder.embed_tokens"] = embed
        masks = _Masks(stack, names)
        first = stack.block[0].layer[0].SelfAttention
        for i, block in enumerate(stack.block):
            for j, layer in enumerate(block.layer):
                part = _with_positions(layer, first) if i and j == 0 else layer
                role = "feed_forward" if j == len(block.layer) - 1 else "attention" if j == 0 else "cross"
                found[f"{kind}.block.{i}.layer.{j}"] = _Layer(part, role, masks)
    found["head"] = _Head(model, stacks[1])
    return found


def _with_positions(layer: Any, first: Any) -> nn.Module:
    """Return an attention layer with the table of relative positions of the first one, with which it makes its own biases."""
    if layer.SelfAttention.has_relative_attention_bias:
        return layer  # type: ignore[no-any-return]
    twin, attention = shallow(layer), shallow(layer.SelfAttention)
    attention._modules["relative_attention_bias"] = first.relative_attention_bias
    attention.has_relative_attention_bias = True  # type: ignore[assignment]
    twin._modules["SelfAttention"] = attention
    return twin


class _Group(nn.Module):
    """Parts that one layer of the plan stands for, one after the other."""

    def __init__(self, parts: Sequence[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, *carried: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return what later layers need."""
        for part in self.parts:
            carried = part(*carried)
        return carried


class _Embed(nn.Module):
    """From tokens to hidden states: those of the encoder, or those of the decoder, beside which the encoder's result goes on.

    `before`, `after`: names of what comes in and goes out. `ids`: the name of the tokens.
    """

    def __init__(self, table: nn.Module, dropout: nn.Module, before: Sequence[str], after: Sequence[str], ids: str) -> None:
        super().__init__()
        self.table, self.dropout = table, dropout
        self.before, self.after, self.ids = tuple(before), tuple(after), ids

    def forward(self, *carried: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return hidden states and what else goes on."""
        named = dict(zip(self.before, carried, strict=True))
        if "encoded" in self.after:
            named["encoded"] = named["hidden"]
        named["hidden"] = self.dropout(self.table(named[self.ids]))
        return tuple(named[name] for name in self.after)


class _Norm(nn.Module):
    """The end of the encoder."""

    def __init__(self, norm: nn.Module, dropout: nn.Module) -> None:
        super().__init__()
        self.norm, self.dropout = norm, dropout

    def forward(self, hidden: torch.Tensor, *rest: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the hidden states normed."""
        return (self.dropout(self.norm(hidden)), *rest)


class _Recorded(Exception):
    """Carries what a stack hands its layers."""

    def __init__(self, handed: tuple[Any, ...]) -> None:
        super().__init__()
        self.handed = handed


class _Record(nn.Module):
    """Stands for the layers of a stack and ends its forward."""

    def forward(self, *handed: Any, **_: Any) -> None:
        """Raise with what it is handed."""
        raise _Recorded(handed)


class _Masks:
    """The masks that a stack makes of its inputs; of the last ones they are known.

    `stack`: encoder or decoder; without its layers and its table it holds no weights that it runs.
    `names`: what its layers are handed.
    """

    def __init__(self, stack: nn.Module, names: Sequence[str]) -> None:
        self.stack = shallow(stack)
        self.stack._modules.update(block=nn.ModuleList([_Record()]), embed_tokens=nn.Identity(), final_layer_norm=nn.Identity())
        self.names = tuple(names)
        self.key: tuple[Any, ...] = ()
        self.given: tuple[torch.Tensor, ...] = ()
        self.known: tuple[Any, Any] = (None, None)

    def of(self, carried: Sequence[torch.Tensor]) -> tuple[Any, Any]:
        """Return the masks of attention within the stack, and to the encoder's result."""
        named = dict(zip(self.names, carried, strict=True))
        hidden, encoded = named["hidden"], named.get("encoded")
        given = tuple(value for name, value in named.items() if name.endswith("_mask"))
        key = (hidden.shape, hidden.dtype, hidden.device, None if encoded is None else encoded.shape)
        if key == self.key and len(given) == len(self.given) and all(a is b for a, b in zip(given, self.given, strict=True)):
            return self.known
        own = "attention_mask" if encoded is None else "decoder_attention_mask"
        more: dict[str, Any] = {"attention_mask": named.get(own)}
        if encoded is not None:
            more |= {"encoder_hidden_states": encoded.detach(), "encoder_attention_mask": named.get("attention_mask")}
        drawn = torch.random.fork_rng([hidden.device] if hidden.device.type == "cuda" else [])
        try:
            with torch.no_grad(), _disable_current_modes(), drawn:  # modes: see `causal_lm._Context`
                self.stack(inputs_embeds=hidden.detach(), use_cache=False, **more)
        except _Recorded as told:
            self.known = (told.handed[1], told.handed[4])
        self.key, self.given = key, given
        return self.known


class _Layer(nn.Module):
    """Attention within a stack (``attention``), to the encoder's result (``cross``), or a ``feed_forward`` network."""

    def __init__(self, layer: nn.Module, role: str, masks: _Masks) -> None:
        super().__init__()
        self.layer, self.role = layer, role
        self.masks = (masks,)  # in a tuple, so that its modules are not the layer's

    def forward(self, hidden: torch.Tensor, *rest: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the hidden states after the layer, and all else as it came."""
        if self.role == "feed_forward":
            return (self.layer(hidden), *rest)
        own, to_encoder = self.masks[0].of((hidden, *rest))
        more = {"attention_mask": own} if self.role == "attention" else {
            "attention_mask": to_encoder, "key_value_states": rest[0],
        }  # fmt: skip
        return (self.layer(hidden, **more)[0], *rest)


class _Head(nn.Module):
    """From the decoder's last layer to logits."""

    def __init__(self, model: nn.Module, decoder: Any) -> None:
        super().__init__()
        self.norm, self.dropout, self.lm_head = decoder.final_layer_norm, decoder.dropout, model.lm_head
        config: Any = model.config
        scales = getattr(config, "scale_decoder_outputs", config.tie_word_embeddings)
        self.factor_ratio = float(config.d_model) ** -0.5 if scales else 1.0

    def forward(self, hidden: torch.Tensor, *_: torch.Tensor) -> tuple[torch.Tensor]:
        """Return logits."""
        return (self.lm_head(self.dropout(self.norm(hidden)) * self.factor_ratio),)  # type: ignore[operator]
