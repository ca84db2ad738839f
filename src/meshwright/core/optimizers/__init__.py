"""Optimizers: what each keeps of a weight from step to step, as its definition says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from meshwright.base.errors import UnknownNameError

__all__ = ["BLOCK", "FORMS", "NEWTON_SCHULZ_STEPS", "OPTIMIZERS", "SMALLEST_QUANTISED", "Optimizer", "optimizer"]

FORMS = ("plain", "blocks", "factored", "matrices")
"""How state follows from weights: so many numbers of every weight; bytes with an fp32 scale for every block; sums of rows
and of columns; one number of every weight of a hidden matrix and two of others.
"""

BLOCK = 256
"""Weights that share a scale in 8-bit state (bitsandbytes/optim/optimizer.py: blocksize 256, as torchao; 2048 in the paper)."""

SMALLEST_QUANTISED = 4096
"""Weights of the smallest tensor whose state is held in 8 bits (bitsandbytes/optim/optimizer.py: min_8bit_size)."""

NEWTON_SCHULZ_STEPS = 5
"""Iterations that orthogonalise Muon's update (Jordan et al., 2024; torch.optim.Muon: ns_steps)."""


@dataclass(frozen=True, slots=True)
class Optimizer:
    """What an optimizer keeps.

    Parameters
    ----------
    name : str
        As after ``--optimizer``.
    form : str
        One of `FORMS`.
    n_moments : int
        Numbers that it keeps of every weight; of ``matrices`` those of weights outside them, of ``factored`` none.
    number_bytes : tuple of int
        Bytes that one such number may have; the first unless told.
    source : str
        Where this is defined.
    """

    name: str
    form: str
    n_moments: int
    number_bytes: tuple[int, ...]
    source: str

    @property
    def shaped(self) -> bool:
        """Whether state, or the work of a step, depends on shapes of weights."""
        return self.form != "plain"


_WIDE = (4, 2)

OPTIMIZERS: Mapping[str, Optimizer] = MappingProxyType({one.name: one for one in (
    Optimizer("adamw", "plain", 2, _WIDE, "Loshchilov and Hutter, arXiv 1711.05101, algorithm 2; torch.optim.AdamW"),
    Optimizer("adam", "plain", 2, _WIDE, "Kingma and Ba, arXiv 1412.6980, algorithm 1; torch.optim.Adam"),
    Optimizer("adam-8bit", "blocks", 2, (1,), "Dettmers et al., arXiv 2110.02861, section 2; bitsandbytes.optim.AdamW8bit"),
    Optimizer("sgd", "plain", 0, (4,), "torch.optim.SGD with momentum 0"),
    Optimizer("sgd-momentum", "plain", 1, _WIDE, "torch.optim.SGD: momentum_buffer"),
    Optimizer("adafactor", "factored", 0, (4,), "Shazeer and Stern, arXiv 1804.04235, algorithm 4; torch.optim.Adafactor"),
    Optimizer("muon", "matrices", 2, _WIDE, "Jordan et al., Muon, 2024; Liu et al., arXiv 2502.16982; torch.optim.Muon"),
    Optimizer("lion", "plain", 1, _WIDE, "Chen et al., arXiv 2302.06675, algorithm 2"),
)})  # fmt: skip
"""By name; ``adamw`` is what is taken where none is told."""


def optimizer(name: str) -> Optimizer:
    """Return an optimizer by its name.

    Raises
    ------
    UnknownNameError
        When there is none of this name.
    """
    if name not in OPTIMIZERS:
        raise UnknownNameError("optimizer", name, tuple(OPTIMIZERS))
    return OPTIMIZERS[name]
