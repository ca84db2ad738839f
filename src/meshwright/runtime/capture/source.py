"""From ``package.module:callable`` to a module on fake tensors and inputs for it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map

from meshwright.base.errors import InputError
from meshwright.runtime.capture import guesses

__all__ = ["Subject", "build", "call"]


@dataclass(frozen=True, slots=True)
class Subject:
    """A module and what to call it with.

    `module`: in training mode.
    `examples`: inputs that came with it: a tensor, a tuple of them, or a mapping by name.
    `notes`: what was assumed.
    """

    module: torch.nn.Module
    examples: Any
    notes: tuple[str, ...] = ()


def build(name: str, maker: Any, dtype: torch.dtype) -> Subject:
    """Return the module that a callable makes, its weights without memory where it allows.

    `maker`: returns an ``nn.Module``, or one and its inputs; or is a module itself.
    `dtype`: type of weights that the callable does not decide.
    Raises `InputError` when the call fails or returns something else.
    """
    notes: tuple[str, ...] = ()
    if isinstance(maker, torch.nn.Module):
        made: Any = maker
    else:
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            with torch.device("meta"):
                made = maker()
        except (Exception, SystemExit) as first:
            if isinstance(first, TypeError) and "required positional argument" in str(first):
                raise InputError(f"capture {name}: {first}; the callable is called without arguments") from first
            try:
                made = maker()
            except (Exception, SystemExit) as error:
                raise InputError(
                    f"capture {name}: calling it failed: {type(error).__name__}: {' '.join(str(error).split())}"
                ) from error
            notes = (
                f"{name} could not be built without memory ({type(first).__name__}: {' '.join(str(first).split())}); it was "
                "built on the CPU",
            )
        finally:
            torch.set_default_dtype(before)
    examples = None
    if isinstance(made, tuple) and len(made) >= 2 and isinstance(made[0], torch.nn.Module):
        examples = made[1] if len(made) == 2 else made[1:]
        made = made[0]
    if not isinstance(made, torch.nn.Module):
        raise InputError(f"capture {name}: returned a {type(made).__name__}; it must return an nn.Module, or (module, inputs)")
    if isinstance(made, torch.jit.ScriptModule):
        raise InputError(f"capture {name}: returned a TorchScript module; return the nn.Module that it was made from")
    lazy = [key for key, value in made.named_parameters() if isinstance(value, torch.nn.parameter.UninitializedParameter)]
    if lazy:
        raise InputError(
            f"capture {name}: {type(made).__name__}: the shape of '{lazy[0]}' is not known yet; call the lazy module once on "
            "inputs "
            "before returning it"
        )
    if not any(parameter.requires_grad for parameter in made.parameters()):
        raise InputError(f"capture {name}: {type(made).__name__} has no parameters that can be trained")
    if examples is None:
        examples = getattr(made, "example_inputs", None)
        if callable(examples) and not isinstance(examples, (torch.Tensor, torch.nn.Module)):
            examples = examples()
    return Subject(made.train(), examples, notes)


def call(
    name: str, subject: Subject, mode: FakeTensorMode, *, batch: int, sequence_length: int, shapes: tuple[str, ...]
) -> tuple[tuple[Any, ...], dict[str, Any], int]:
    """Return the fake arguments of a call and the number of samples in it; the module's own tensors become fake too.

    `batch`: samples; 0 for those of the examples, or one.
    `sequence_length`: tokens per sample of a language model; 0 for its own.
    `shapes`: ``--input`` as typed.
    Raises `InputError` when an argument that the module needs is not given, or a shape is wrong.
    """
    _fake(subject.module, mode)
    weight = next(iter(subject.module.parameters())).dtype
    given: Any = guesses.typed(shapes, weight) if shapes else subject.examples
    if given is None:
        given = guesses.inputs(subject.module, batch or 1, sequence_length, weight)
    if given is None:
        raise InputError(
            f"capture {name}: {_needs(subject.module)}; give the shape of each with --input, for example --input 8,3,224,224, "
            "or "
            "return (module, inputs) from the callable"
        )
    keywords = dict(given) if isinstance(given, Mapping) else {}
    positional = () if keywords else tuple(given) if isinstance(given, (tuple, list)) else (given,)
    own = _samples((positional, keywords))
    n = batch or own
    positional, keywords = tree_map(lambda value: _resized(value, own, n, mode, weight), (positional, keywords))
    try:
        inspect.signature(subject.module.forward).bind(*positional, **keywords)
    except TypeError as error:
        raise InputError(
            f"capture {name}: {_needs(subject.module)}, but {error}; give every one with --input, in order or as NAME=SHAPE"
        ) from None
    return positional, keywords, n


def _needs(module: torch.nn.Module) -> str:
    """Say which arguments a module needs."""
    needed = [
        parameter.name
        for parameter in inspect.signature(module.forward).parameters.values()
        if parameter.default is parameter.empty and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    return f"{type(module).__name__}.forward needs {', '.join(needed) or 'inputs'}"


def _samples(values: Any) -> int:
    """Return the first axis of the first tensor that has one, whatever holds it."""
    for value in tree_leaves(values):
        if isinstance(value, torch.Tensor) and value.ndim:
            return int(value.shape[0])
    return 1


def _resized(value: Any, own: int, n: int, mode: FakeTensorMode, weight: torch.dtype) -> Any:
    """Return a fake tensor with as many samples as asked for; anything that is no tensor stays."""
    if not isinstance(value, torch.Tensor):
        return value
    shape = (n, *value.shape[1:]) if value.ndim and value.shape[0] == own else tuple(value.shape)
    dtype = weight if value.is_floating_point() else value.dtype
    with mode:
        return torch.empty(shape, dtype=dtype, device="cpu")


def _fake(module: torch.nn.Module, mode: FakeTensorMode) -> None:
    """Replace every weight and buffer by a fake tensor on the CPU; what is shared stays shared."""
    made: dict[int, torch.Tensor] = {}

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, FakeTensor):
            return tensor
        if id(tensor) not in made:
            # a tensor of another mode or device must not reach the kernels
            bare = tensor.detach() if tensor.is_meta else tensor.detach().to("meta")
            new = FakeTensor(mode, bare, torch.device("cpu"))
            parameter = isinstance(tensor, torch.nn.Parameter)
            made[id(tensor)] = torch.nn.Parameter(new, tensor.requires_grad) if parameter else new
        return made[id(tensor)]

    for part in module.modules():
        for tensors in (cast(dict[str, Any], part._parameters), part._buffers):
            for key, tensor in tensors.items():
                if tensor is not None:
                    tensors[key] = fake(tensor)
