"""One capture from start to end: build, shorten, trace, check, expand; and what went wrong in words."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

from meshwright.base.errors import InputError, MeshwrightError
from meshwright.runtime.capture import as_written, repeats, source
from meshwright.runtime.capture.bodies import unread
from meshwright.runtime.capture.expansion import expand
from meshwright.runtime.capture.layers import Captured, graph_of
from meshwright.runtime.capture.recorder import EndlessStepError, Recorder, record
from meshwright.runtime.capture.routed import routed
from meshwright.runtime.capture.stand_ins import standing_in
from meshwright.runtime.capture.trace import Trace
from meshwright.runtime.model.source import load

__all__ = ["of_maker", "run"]


def run(name: str, *, batch: int, sequence_length: int, shapes: tuple[str, ...], level: str, precision: str) -> Captured:
    """Capture a module; see `meshwright.runtime.capture.capture`."""
    maker = load(name, "capture")
    return of_maker(
        name, maker, batch=batch, sequence_length=sequence_length, shapes=shapes, level=level, precision=precision
    )  # fmt: skip


def of_maker(
    name: str,
    maker: Any,
    *,
    batch: int = 0,
    sequence_length: int = 0,
    shapes: tuple[str, ...] = (),
    level: str = "layers",
    precision: str = "bf16",
) -> Captured:
    """Capture the module that a callable makes.

    `name`: what messages call it.
    `maker`: called without arguments, on the meta device; see `meshwright.runtime.capture.source.build`.
    The others: see `meshwright.runtime.capture.capture`. Raises `InputError` as that.
    """  # fmt: skip
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[precision]
    subject = source.build(name, maker, dtype)
    module = subject.module
    _prepare(module)
    mode = FakeTensorMode()
    positional, keywords, n = source.call(
        name, subject, mode, batch=batch, sequence_length=sequence_length, shapes=shapes
    )  # fmt: skip

    def traced() -> Trace:
        return _trace(name, module, mode, positional, keywords, n)

    trace = _shortened(module, traced, n_apart=0) or _shortened(module, traced, n_apart=1) or traced()
    if not any(operator.trained and not operator.view for operator in trace.operators):
        raise InputError(f"capture {name}: {type(module).__name__} computes nothing from its parameters")
    trace = routed(trace)
    tokens = _tokens(tree_leaves((positional, keywords)))
    found = graph_of(
        trace, getattr(module, "name", "") or type(module).__name__, level, tokens or 1, "tokens" if tokens else ""
    )
    notes = (*subject.notes, *found.notes, *as_written.notes(trace))
    idle = unread(trace)
    if idle:
        parts = ", ".join(dict.fromkeys(".".join(key.split(".")[:2]) for key in idle))
        notes += (f"{sum(idle.values())} weights are not used by this call, they train without work: {parts}",)
    if found.totals.n_backward == 0:
        notes += (f"no output of {type(module).__name__} carries a gradient: the graph has no backward pass",)
    return replace(found, notes=notes)


def _shortened(module: torch.nn.Module, traced: Callable[[], Trace], n_apart: int) -> Trace | None:
    """Return the trace of the whole module from that of one with fewer repeated layers; None where only the whole one tells."""
    runs, taken = repeats.shorten(module, n_apart)
    if not runs:
        return None
    try:
        trace = expand(traced(), runs)
    except MeshwrightError:
        return None  # the module counts its own layers: trace it whole
    finally:
        repeats.restore(taken)
    return trace if trace is not None and _counted(trace) == _parameters(module) else None


def _prepare(module: torch.nn.Module) -> None:
    """Ask a Hugging Face model for what can be traced: no cache of keys, experts as one grouped product."""
    config = getattr(module, "config", None)
    if config is None:
        return
    for part in {id(own): own for one in module.modules() if (own := getattr(one, "config", None)) is not None}.values():
        if getattr(part, "use_cache", False):
            part.use_cache = False
        if getattr(part, "_experts_implementation", None) is not None:
            part._experts_implementation = "grouped_mm"
    if getattr(config, "is_encoder_decoder", False) and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = (
            getattr(config, "pad_token_id", None) or 0
        )  # labels are shifted by it; any token will do


def _trace(
    name: str, module: torch.nn.Module, mode: FakeTensorMode, positional: tuple[Any, ...], keywords: dict[str, Any], batch: int
) -> Trace:
    """Run one step on fake tensors.

    Raises `InputError` when an operator or the module's own code cannot run without values; names the module.
    """
    recorder = Recorder(module, [leaf for leaf in tree_leaves((positional, keywords)) if isinstance(leaf, torch.Tensor)])
    try:
        with mode, _quiet(), standing_in(module, recorder):
            return record(module, lambda: module(*positional, **keywords), recorder, batch)
    except MeshwrightError:
        raise
    except (Exception, SystemExit) as error:  # a module that ends the program is no less wrong
        raise InputError(_failure(name, module, recorder, error)) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep PyTorch from printing the traceback of an operator that fails on fake tensors; ours is the one message."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before = log.disabled
    log.disabled = True
    try:
        yield
    finally:
        log.disabled = before


def _failure(name: str, module: torch.nn.Module, recorder: Recorder, error: BaseException) -> str:
    """Say in which module a trace failed, at which operator, and what to do."""
    paths = {id(part): path for path, part in module.named_modules()}
    path, line = "", ""
    step = error.__traceback__
    while step is not None:
        code = step.tb_frame.f_code
        owner = step.tb_frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        if isinstance(owner, torch.nn.Module) and id(owner) in paths and not code.co_filename.endswith("nn/modules/module.py"):
            path, line = paths[id(owner)], f"{code.co_filename}:{step.tb_lineno}"
        step = step.tb_next
    operator = ""
    if recorder.failed_at is not None:
        operator = recorder.failed_at[1]
        path = path or recorder.failed_at[0]
    part = dict(module.named_modules()).get(path, module)
    place = f"module '{path}' ({type(part).__name__})" if path else f"module {type(part).__name__}"
    place += f" at {line}" if line else ""
    kind, text = type(error).__name__, next(iter(str(error).strip().splitlines()), "")
    if kind in ("DataDependentOutputException", "DynamicOutputShapeException", "GuardOnDataDependentSymNode"):
        return (
            f"capture {name}: {place}: {operator or text} depends on the values of a tensor; data-dependent control flow and "
            "shapes "
            "cannot be captured. Give that part a branch that needs no values, or capture the parts around it"
        )
    if kind in ("UnsupportedOperatorException", "NotImplementedError", "UnsupportedFakeTensorException"):
        return (
            f"capture {name}: {place}: the operator {operator or text} cannot run without values: custom operators need a "
            f"registered fake implementation (torch.library.register_fake); PyTorch says: {text}"
        )
    if isinstance(error, EndlessStepError):
        return f"capture {name}: {place}: {text}"
    return f"capture {name}: {place}: {kind}: {text}" + (f" (in {operator})" if operator else "")


def _counted(trace: Trace) -> int:
    return sum(torch.Size(shape).numel() for shape in trace.parameters.values())


def _parameters(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _tokens(values: list[Any]) -> int:
    """Return the tokens per sample: the second axis of the first whole-number input with two; 0 for none."""
    for value in values:
        if isinstance(value, torch.Tensor) and not value.is_floating_point() and value.ndim == 2:
            return int(value.shape[1])
    return 0
