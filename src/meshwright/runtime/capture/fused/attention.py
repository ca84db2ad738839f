"""Calls of fused attention while a module is traced: asked for as a GPU would run them, whatever the CPU's kernels can do."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch.overrides import TorchFunctionMode

__all__ = ["FusedAttention", "Notebook"]

_NO_DROPOUT = "drop-out inside attention was left out: fused kernels keep no mask for it"
_TRIANGLES = "masks of causal attention were taken to be plain triangles (no packing, no padding)"
_DROPOUT_PLACE = 10  # of the arguments of multi_head_attention_forward


class Notebook(Protocol):
    """What this needs of the recorder: the module that runs, notes, and one operator that stands for a call."""

    stack: list[tuple[str, torch.nn.Module]]
    notes: dict[str, None]

    def one_operator(
        self, name: str, call: Any, inputs: list[torch.Tensor], *, causal: bool, flops: tuple[float, float] = ...
    ) -> torch.Tensor:
        """Run a call and record it as one operator."""
        ...


class FusedAttention(TorchFunctionMode):
    """Takes drop-out and causal masks out of calls of attention, and runs itself what the CPU has no fused kernel for."""

    def __init__(self, recorder: Notebook) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one function of PyTorch."""
        kwargs = dict(kwargs or {})
        if func is torch.nn.functional.multi_head_attention_forward and args[_DROPOUT_PLACE]:
            args = (*args[:_DROPOUT_PLACE], 0.0, *args[_DROPOUT_PLACE + 1 :])
            self.recorder.notes[_NO_DROPOUT] = None
        if func is not torch.nn.functional.scaled_dot_product_attention:
            return func(*args, **kwargs)
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        kwargs |= dict(zip(names, args, strict=False))
        if kwargs.get("dropout_p"):
            kwargs["dropout_p"] = 0.0
            self.recorder.notes[_NO_DROPOUT] = None
        mask = kwargs.get("attn_mask")
        owner = self.recorder.stack[-1][1]
        causal = getattr(owner, "is_causal", False) is True and not getattr(owner, "sliding_window", None)
        if mask is not None and causal and mask.shape[-1] == mask.shape[-2] and not mask.requires_grad:
            kwargs |= {"attn_mask": None, "is_causal": True}
            self.recorder.notes[_TRIANGLES] = None
        query, key, value, mask = (kwargs.get(name) for name in names[:4])
        if _has_a_kernel(query, key, value, mask):
            return func(**kwargs)
        inputs = [tensor for tensor in (query, key, value, mask) if tensor is not None]
        causal = bool(kwargs.get("is_causal"))

        def attended() -> Any:
            return _Attention.apply(*inputs)  # type: ignore[no-untyped-call]

        return self.recorder.one_operator("_scaled_dot_product_attention", attended, inputs, causal=causal)


def _has_a_kernel(query: Any, key: Any, value: Any, mask: Any) -> bool:
    """Whether the CPU runs this as one kernel; otherwise PyTorch takes it apart into products, unlike on a GPU."""
    same = query.ndim == 4 and query.shape[:2] == key.shape[:2] == value.shape[:2]
    same = same and query.shape[-1] == key.shape[-1] == value.shape[-1]
    return same and (mask is None or (mask.ndim in (2, 4) and not mask.requires_grad))


class _Attention(torch.autograd.Function):
    """Fused attention without values: what goes in and out, and what such a kernel keeps."""

    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any, mask: Any = None) -> Any:  # type: ignore[override]
        """Return the mixed values; kept are inputs, result and one sum of exponentials per row and head."""
        out = query.new_empty(*query.shape[:-1], value.shape[-1])
        if query.ndim == 4:  # heads lie side by side, as the next product reads them
            out = query.new_empty(query.shape[0], query.shape[2], query.shape[1], value.shape[-1]).transpose(1, 2)
        sums = query.new_empty(query.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(query, key, value, out, sums, *([] if mask is None else [mask]))
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:  # type: ignore[override]
        """Return gradients of the inputs that were given."""
        query, key, value, _, _, *mask = ctx.saved_tensors
        return (*map(torch.empty_like, (query, key, value)), *map(torch.empty_like, mask))
