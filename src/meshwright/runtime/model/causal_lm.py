"""Hugging Face causal language models as layers, without editing them: what the model hands each layer is recorded once."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

from meshwright.base.errors import InputError
from meshwright.runtime.model.arguments import arguments_of
from meshwright.runtime.model.as_given import evaluating
from meshwright.runtime.model.grafts import drop_unused, graft
from meshwright.runtime.model.meta import device_of, on_meta
from meshwright.runtime.model.routers import Routing, routing_of
from meshwright.runtime.model.sequence import part_of_sequence

__all__ = ["FURTHER_INPUTS", "cut", "further_inputs", "layer_names", "recognises"]

FURTHER_INPUTS = ("attention_mask", "position_ids")
"""What a model may take besides tokens: handed on from layer to layer, from stage to stage."""


def _quiet(model: Any) -> dict[str, bool]:
    """Return what parts of a model are run with: nothing is asked of them but hidden states and logits."""
    routers = {"output_router_logits": False} if getattr(model.config, "output_router_logits", False) else {}
    return {"use_cache": False, **routers}


def recognises(model: nn.Module) -> bool:
    """Whether the module is a causal language model of ``transformers``."""
    config = getattr(model, "config", None)
    return (
        hasattr(config, "model_type")
        and hasattr(model, "get_output_embeddings")
        and hasattr(model, "prepare_inputs_for_generation")
    )


def layer_names(model: nn.Module) -> list[str]:
    """Return the names of the model's layers: ``embed``, ``layers.0``, ..., ``head``."""
    return ["embed", *[f"layers.{i}" for i in range(len(_stack(model)[1]))], "head"]


def further_inputs(model: nn.Module, n_inputs: int) -> tuple[str, ...]:
    """Return what so many inputs are besides the tokens, as the model's ``plan_inputs`` or its ``forward`` name them in order;
    nothing where one of them is none of `FURTHER_INPUTS`.
    """
    told = getattr(model, "plan_inputs", ()) or tuple(arguments_of(model)[:n_inputs])
    return tuple(told[1:]) if len(told) == n_inputs and set(told[1:]) <= set(FURTHER_INPUTS) else ()


def cut(model: nn.Module, names: Sequence[str], further: Sequence[str] = ()) -> list[nn.Module]:
    """Return one module per layer: the word table, the decoder layers, the head.

    `names`: ``embed``, one name for each decoder layer, ``head``.
    `further`: names of the inputs after the tokens, as `further_inputs` has them.
    Raises `InputError` when the plan has other layers than the model.
    """
    place, layers = _stack(model)
    if len(names) != len(layers) + 2:
        raise InputError(
            f"{type(model).__name__}: has {len(layers)} layers between word table and head, but the plan has {len(names) - 2}; "
            "is this the plan of another model?"
        )
    model.config.use_cache = False  # type: ignore[union-attr]
    try:
        return _parts(model, place, layers, further)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"{type(model).__name__} cannot be cut between its layers: its forward wants more of them than to take and give a "
            f"hidden state ({type(error).__name__}: {error}); such models are not run here"
        ) from error


def _parts(model: nn.Module, place: str, layers: nn.ModuleList, further: Sequence[str]) -> list[nn.Module]:
    """Return table, layers and head; the forward runs with stand-ins for layers."""
    routing = routing_of(model, _decoder(model))
    table = _Table(graft(model, {place: nn.ModuleList([_Stop()])}), further)
    weight = next(model.parameters())
    ids = torch.zeros(1, 2, dtype=torch.long, device=device_of(weight))
    n_values, width = _values_given(model, layers[0]), _table_width(model)
    records = [_Record(ends=layer is layers[-1], n_values=n_values) for layer in layers]
    shell = _Shell(graft(model, {place: nn.ModuleList(records), **_without_tables(model, place)}))
    drop_unused(shell, torch.zeros(1, 2, width, dtype=weight.dtype, device=device_of(weight)))
    if on_meta(shell):
        raise InputError(f"{type(model).__name__}: what it hands its layers is computed by weights; build it whole")
    context = _Context(copy.deepcopy(shell).eval(), width, further)
    part = graft(model, {place: nn.ModuleList([_Given(n_values)]), **_without_tables(model, place)})
    head = _Head(part, width, further, routing)
    drop_unused(table, ids)
    drop_unused(head, table(ids)[0].detach())
    return [table, *(_Layer(layer, i, context, routing) for i, layer in enumerate(layers)), head]


def _stack(model: nn.Module) -> tuple[str, nn.ModuleList]:
    """Return path and module of the list of decoder layers."""
    if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
        raise InputError(
            f"{type(model).__name__}: learns a prompt, which lengthens sequences; adapters in layers (LoRA) are run"
        )
    config = model.config.get_text_config()  # type: ignore[union-attr,operator]
    for path, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == config.num_hidden_layers:
            return path, module
    raise InputError(f"{type(model).__name__}: its {config.num_hidden_layers} layers are in no list, so it cannot be cut")


def _values_given(model: nn.Module, layer: nn.Module) -> int:
    """Return how many values a layer returns in a tuple, its hidden state and nothings; 0 where it returns the state alone:
    the model takes apart what stand-ins return as it does with layers.
    """

    def stop(_: nn.Module, __: Any, output: Any) -> None:
        raise _Stopped(output)

    handle = layer.register_forward_hook(stop)
    try:
        with torch.no_grad(), evaluating(model):
            ids = torch.zeros(1, 2, dtype=torch.long, device=device_of(next(model.parameters())))
            _decoder(model)(input_ids=ids, **_quiet(model))
    except _Stopped as stopped:
        told: Any = stopped.hidden
        if not isinstance(told, tuple):
            return 0
        return len(told) if all(value is None for value in told[1:]) else 1
    finally:
        handle.remove()
    raise InputError(f"{type(model).__name__}: runs none of its layers")


def _table_width(model: nn.Module) -> int:
    """Return the width of the word table, which some models project to that of their layers."""
    table = model.get_input_embeddings()  # type: ignore[operator]
    return int(getattr(table, "base_layer", table).embedding_dim)  # an adapter of peft may stand around it


def _without_tables(model: nn.Module, place: str) -> dict[str, nn.Module]:
    """Return stand-ins for the word and position tables, which stages after the first do not hold."""
    found: dict[str, nn.Module] = {}
    for path, module in model.named_modules():
        table = getattr(module, "base_layer", module)  # an adapter of peft goes with the table that it stands around
        if isinstance(table, nn.Embedding) and not path.startswith((f"{place}.", *(f"{above}." for above in found))):
            found[path] = _Zeros(table.embedding_dim)
    return found


def _as_given(hidden: Any, n_values: int) -> Any:
    """Return a hidden state as layers do; see `_values_given`."""
    return (hidden, *[None] * (n_values - 1)) if n_values else hidden


class _Stopped(Exception):
    """Carries what reaches the first layer."""

    def __init__(self, hidden: torch.Tensor) -> None:
        super().__init__()
        self.hidden = hidden


class _Stop(nn.Module):
    """Stands for the first layer and ends the forward there."""

    def forward(self, hidden: torch.Tensor, *_: Any, **__: Any) -> None:
        """Raise with the input."""
        raise _Stopped(hidden)


class _Zeros(nn.Module):
    """Stands for a table that is not held."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, ids: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """Return zeros of the shape that the table would give."""
        return torch.zeros(*ids.shape, self.width, device=ids.device, dtype=torch.get_default_dtype())


class _Given(nn.Module):
    """Stands for all layers: returns what it was given beforehand, in a tuple where the layers do (see `_values_given`)."""

    value: torch.Tensor | None = None

    def __init__(self, n_values: int) -> None:
        super().__init__()
        self.n_values = n_values

    def forward(self, hidden: torch.Tensor, *_: Any, **__: Any) -> Any:
        """Return the tensor given."""
        return _as_given(self.value, self.n_values)


class _Record(nn.Module):
    """Stands for one layer: keeps what it is handed besides the hidden state.

    `ends`: whether the forward ends here: what follows the last layer may be sharded, and says nothing of the layers.
    `n_values`: see `_values_given`.
    """

    def __init__(self, *, ends: bool, n_values: int) -> None:
        super().__init__()
        self.ends, self.n_values = ends, n_values
        self.handed: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})

    def forward(self, hidden: torch.Tensor, *rest: Any, **named: Any) -> Any:
        """Return the input."""
        self.handed = (rest, named)
        if self.ends:
            raise _Stopped(hidden)
        return _as_given(hidden, self.n_values)


class _Shell(nn.Module):
    """A model whose layers only keep what they are handed."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, embedded: torch.Tensor, **further: torch.Tensor) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        """Return what each layer is handed besides the hidden state."""
        with suppress(_Stopped):
            _decoder(self.model)(inputs_embeds=embedded, **_quiet(self.model), **further)
        return [module.handed for module in self.modules() if isinstance(module, _Record)]


class _Context:
    """What the model hands its layers besides the hidden state (masks, rotations): by shape of the batch, and by further inputs
    where there are any, of which the last ones are known.

    `shell`: with weights of its own: those that it runs are few, and follow the hidden state to its device.
    `width`: of the word table.
    `further`: names of the inputs after the tokens.
    """

    def __init__(self, shell: _Shell, width: int, further: Sequence[str]) -> None:
        self.shell, self.width, self.further = shell, width, tuple(further)
        self.known: dict[tuple[Any, ...], list[tuple[tuple[Any, ...], dict[str, Any]]]] = {}
        self.inputs: tuple[torch.Tensor, ...] = ()

    def of(
        self, layer: int, hidden: torch.Tensor, length_factor: int, inputs: tuple[torch.Tensor, ...] = ()
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return further arguments of a layer, of a sequence so many times longer than this rank's part of it.

        `inputs`: of the model, after the tokens; whole sequences.
        """
        if len(inputs) != len(self.inputs) or any(one is not other for one, other in zip(inputs, self.inputs, strict=True)):
            self.known.clear()
            self.inputs = inputs
        key = (*hidden.shape, hidden.dtype, hidden.device, length_factor)
        if key not in self.known:
            with (
                torch.no_grad(),
                _disable_current_modes(),
            ):  # selective recomputation counts operators; this runs in some passes
                sizes = (hidden.shape[0], hidden.shape[1] * length_factor, self.width)
                whole = torch.zeros(sizes, dtype=hidden.dtype, device=hidden.device)
                named = dict(zip(self.further, inputs, strict=False))
                self.known[key] = self.shell.to(hidden.device)(whole, **named)
        return self.known[key][layer]


def _decoder(model: nn.Module) -> nn.Module:
    """Return the model without its head."""
    prefix = getattr(model, "base_model_prefix", "")
    inner = getattr(model, prefix, None) if prefix else None
    return inner if isinstance(inner, nn.Module) else model


class _Table(nn.Module):
    """From token ids to the input of the first layer.

    `further`: names of the inputs after the tokens, which are handed on.
    """

    def __init__(self, model: nn.Module, further: Sequence[str]) -> None:
        super().__init__()
        self.model, self.further = model, tuple(further)

    @property
    def token_table(self) -> str:
        """Path of the word table."""
        return _path_of(self, self.model.get_input_embeddings())  # type: ignore[operator]

    def forward(self, ids: torch.Tensor, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return what reaches the first layer, and the further inputs."""
        try:
            _decoder(self.model)(input_ids=ids, **_quiet(self.model), **dict(zip(self.further, inputs, strict=False)))
        except _Stopped as stopped:
            return (stopped.hidden, *inputs)
        raise InputError("the model runs none of its layers")


class _Layer(nn.Module):
    """One decoder layer.

    Attributes
    ----------
    n_parts : int
        Parts of a sequence, of which this rank's hidden state is one.
    positions : tuple of (int, int)
        Which part of a sequence this rank's queries are, of how many.
    """

    def __init__(self, layer: nn.Module, number: int, context: _Context, routing: Routing | None) -> None:
        super().__init__()
        self.layer, self.number, self.routing = layer, number, routing
        self.context = (context,)  # in a tuple, so that its modules are not the layer's
        self.n_parts, self.positions = 1, (0, 1)

    def forward(self, hidden: torch.Tensor, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the hidden state after the layer, and the further inputs, behind them what routers said so far."""
        context = self.context[0]
        rest, named = context.of(self.number, hidden, self.n_parts, inputs[: len(context.further)])
        part, n_parts = self.positions
        if n_parts > 1:
            rest, named = tree_map(lambda value: _own(value, hidden.shape[1] * self.n_parts, part, n_parts), (rest, named))
        said: Sequence[torch.Tensor] = ()
        if self.routing is None:
            output = self.layer(hidden, *rest, **named)
        else:
            with self.routing.listening(self.layer) as heard:
                output = self.layer(hidden, *rest, **named)
            said = [value.reshape(*hidden.shape[:2], -1) for value in heard]
        return (output[0] if isinstance(output, tuple) else output, *inputs, *said)


def _own(value: Any, length: int, part: int, n_parts: int) -> Any:
    """Return the positions of a part of the sequence of what has one row for each; masks of all pairs stay whole."""
    if not isinstance(value, torch.Tensor) or value.dim() > 3:
        return value
    axis = 0 if value.dim() == 1 else 1
    return part_of_sequence(value, axis, part, n_parts) if value.dim() and value.shape[axis] == length else value


class _Head(nn.Module):
    """From the output of the last layer to logits: final norm, output products, whatever the model does to logits; where the
    model asks for the loss of its routers, also what that is made of.
    """

    def __init__(self, model: nn.Module, width: int, further: Sequence[str], routing: Routing | None) -> None:
        super().__init__()
        self.model, self.width, self.further, self.routing = model, width, tuple(further), routing
        self.given = (next(module for module in model.modules() if isinstance(module, _Given)),)

    @property
    def class_product(self) -> str:
        """Path of the output product."""
        return _path_of(self, self.model.get_output_embeddings())  # type: ignore[operator]

    def forward(self, hidden: torch.Tensor, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return logits, and the sums of routers, where there are any."""
        said = inputs[len(self.further) :]
        self.given[0].value = hidden
        try:
            blank = torch.zeros(*hidden.shape[:-1], self.width, dtype=hidden.dtype, device=hidden.device)
            logits = self.model(inputs_embeds=blank, **_quiet(self.model)).logits
            mask = dict(zip(self.further, inputs, strict=False)).get("attention_mask")
            return (logits,) if self.routing is None or not said else (logits, self.routing.sums(said, mask))
        finally:
            self.given[0].value = None


def _path_of(part: nn.Module, wanted: nn.Module | None) -> str:
    """Return the path of a module in a part; empty where it has none."""
    return next((path for path, module in part.named_modules() if module is wanted), "")
