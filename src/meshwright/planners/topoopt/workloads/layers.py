"""Puts a workload together layer by layer."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.planners.topoopt.workloads.workload import DATA, Operation

__all__ = ["LayerBuilder"]


class LayerBuilder:
    """Collects operators; every method returns the position of what it added."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []

    def add(
        self, kind: str, key: str, inputs: Sequence[int], shape: Sequence[int], weights: Sequence[int] = (), bag: int = 0
    ) -> int:
        """Add one operator."""
        at = len(self.operations)
        self.operations.append(Operation(f"{kind}.{at}", kind, key, tuple(inputs), tuple(shape), tuple(weights), bag))
        return at

    def dense(self, at: int, width: int, out: int, *, bias: bool = True, before: Sequence[int] = ()) -> int:
        """Add a fully connected layer on `width` features; `before` are the axes in front of the features."""
        weights = (width * out, out) if bias else (width * out,)
        return self.add("linear", f"Dense_{width}_{out}", (at,), (*before, out), weights)

    def table(self, rows: int, width: int, bag: int) -> int:
        """Add an embedding table."""
        return self.add("embedding", f"Embed_{rows}x{width}", (DATA,), (width,), (rows * width,), bag)

    def concat(self, inputs: Sequence[int], width: int) -> int:
        """Join features."""
        return self.add("concat", "Concat_1", inputs, (width,))

    def conv(
        self,
        at: int,
        out: int,
        kernel: tuple[int, int] | int,
        *,
        stride: int = 1,
        pad: tuple[int, int] | int = 0,
        size: tuple[int, int, int] = (0, 0, 0),
    ) -> int:
        """Add a convolution with bias; `size` is the shape of the input where that is training data."""
        high, wide = (kernel, kernel) if isinstance(kernel, int) else kernel
        pad_high, pad_wide = (pad, pad) if isinstance(pad, int) else pad
        channels, rows, columns = self._shape(at, size)
        shape = (out, (rows + 2 * pad_high - high) // stride + 1, (columns + 2 * pad_wide - wide) // stride + 1)
        return self.add("conv2d", f"Conv2D_{high}_{wide}_{out}", (at,), shape, (channels * out * high * wide, out))

    def pool(self, at: int, kernel: int, stride: int, pad: int = 0) -> int:
        """Add a pooling layer."""
        channels, rows, columns = self._shape(at, (0, 0, 0))
        shape = (channels, (rows + 2 * pad - kernel) // stride + 1, (columns + 2 * pad - kernel) // stride + 1)
        return self.add("pool2d", f"Pool2D_{kernel}_{kernel}", (at,), shape)

    def flat(self, at: int) -> int:
        """Lay all axes in one."""
        return self.add("flat", "Flat", (at,), (self.operations[at].n_elements,))

    def _shape(self, at: int, size: tuple[int, int, int]) -> tuple[int, int, int]:
        if at == DATA:
            return size
        channels, rows, columns = self.operations[at].shape
        return channels, rows, columns
