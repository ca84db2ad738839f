"""Random numbers that layers draw: which ones goes by the step, the layer, the samples, and the part of them that a rank has.

So they hang neither on what was drawn before nor on where a layer runs: ranks that hold the same values drop the same ones,
others do not; a layer that is recomputed, and a run that goes on from a checkpoint, draw the same ones again.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

__all__ = ["Generators", "LayerNumbers", "own_number"]

_STRIDE = 0x9E3779B97F4A7C15
"""An odd number whose multiples are spread over all bits: seeds of neighbours differ in every one."""
_BITS = (1 << 63) - 1


class Generators:
    """The random numbers of PyTorch of this process, on the CPU and on the device where it trains.

    `device`: where it trains.
    """

    def __init__(self, device: torch.device) -> None:
        self._all = [torch.default_generator]
        if device.type == "cuda":
            own = torch.cuda.current_device() if device.index is None else device.index
            self._all.append(torch.cuda.default_generators[own])

    def states(self) -> list[torch.Tensor]:
        """Return how they stand."""
        return [generator.get_state() for generator in self._all]

    def put_back(self, states: list[torch.Tensor]) -> None:
        """Let them stand as they did."""
        for generator, state in zip(self._all, states, strict=True):
            generator.set_state(state)

    def begin(self, seed: int) -> None:
        """Let them begin with a seed."""
        for generator in self._all:
            generator.manual_seed(seed & _BITS)

    def begin_apart(self, states: list[torch.Tensor], turn: int, rank: int) -> None:
        """Let them begin with what follows from states that several ranks have, and is another for each of these and each turn.

        `states`: see `states`. `turn`: how often that was done with the same states. `rank`: among the ranks.
        """
        value = 0
        for state in states:
            value = zlib.crc32(state.numpy().tobytes(), value)
        self.begin(_mixed(value, turn, rank))


class LayerNumbers:
    """The random numbers that the layers of this process draw; those of everything else go on as if none had been drawn.

    `device`: where it trains.

    Attributes
    ----------
    seed : int
        The same in all processes of a run.
    n_steps : int
        Steps begun since the seed.
    """

    def __init__(self, device: torch.device) -> None:
        self.seed = self.n_steps = 0
        self._numbers, self._key = Generators(device), -1

    def agree(self) -> None:
        """Take the seed of process 0, the last one given to ``torch.manual_seed``; called in every process at once."""
        told = [torch.initial_seed()]
        dist.broadcast_object_list(told, src=0)
        self.seed = told[0]

    @contextmanager
    def of_samples(self, first: int, *, evaluating: bool = False) -> Iterator[None]:
        """Let layers draw numbers for some samples of the step at hand for a while; what was drawn is forgotten afterwards.

        `first`: the first of the samples among all of the step. `evaluating`: whether they are evaluated, not trained on.
        """
        states = self._numbers.states()
        self._key = _mixed(self.seed, self.n_steps, first, int(evaluating))
        try:
            yield
        finally:
            self._key = -1
            self._numbers.put_back(states)

    def begin(self, number: int) -> None:
        """Begin those of a layer; nothing outside `of_samples`, as where samples are sent through to look.

        `number`: of the layer, and of the part of every sample that this rank has of it; see `own_number`.
        """
        if self._key >= 0:
            self._numbers.begin(self._key + _STRIDE * (number + 1))


def own_number(op: int, n_layers: int, part: int) -> int:
    """Return a number for a layer of a model and the part of every sequence that a rank runs it on.

    `op`, `n_layers`: which layer, of how many. `part`: 0 also where a rank has all of a sequence.
    """
    return op + (n_layers + 1) * part  # one more for the loss, which follows the last layer


def _mixed(*values: int) -> int:
    """Return a number that says nothing of those given, and is another for others."""
    return int.from_bytes(hashlib.blake2b(repr(values).encode(), digest_size=8).digest(), "little") & _BITS
