"""The answer: stages of layers on devices, and the schedule that runs them."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.core.strategy import OFFLOAD, Strategy

__all__ = ["Plan", "Stage"]


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of the pipeline: layers, the device mesh that runs them, what they recompute.

    Parameters
    ----------
    ops : tuple of int
        Ids of layers, in topological order.
    devices : tuple of int
        Ids of devices in mesh order: ``data x context x tensor``, tensor fastest. Virtual stages of one pipeline rank name the
        same devices.
    strategy : Strategy
        Degrees; ``strategy.n_devices == len(devices)``.
    recompute : tuple of str
        One of `meshwright.core.strategy.RECOMPUTE` for each layer, a setting of a framework, or ``offload``: it recomputes
        nothing, its activations are on the host between its forward and its backward pass.
    ring : tuple of int
        Replicas (places on the data axis) in the order of the ring that reduces their gradients; empty where the communication
        library is to choose.
    choices : tuple of str
        For each layer the id of its choice, as the input calls it, where the input lists several that recompute alike; empty
        where what is recomputed says it all.
    """

    ops: tuple[int, ...]
    devices: tuple[int, ...]
    strategy: Strategy = Strategy()
    recompute: tuple[str, ...] = ()
    ring: tuple[int, ...] = ()
    choices: tuple[str, ...] = ()

    @property
    def ring_devices(self) -> tuple[int, ...]:
        """Devices in mesh order, replicas in the order of their gradient ring."""
        if not self.ring:
            return self.devices
        size = len(self.devices) // len(self.ring)
        return tuple(device for r in self.ring for device in self.devices[r * size : (r + 1) * size])


@dataclass(frozen=True, slots=True)
class Plan:
    """Stages in pipeline order and the schedule.

    Parameters
    ----------
    stages : tuple of Stage
        In pipeline order; with virtual stages, all of them, each naming its devices.
    n_microbatches : int
        Micro-batches that pass through the pipeline in one step (per data-parallel replica).
    micro_batch : int
        Samples of one micro-batch and replica of the widest stage; see `samples_of_replicas`.
    schedule : str
        A file of `meshwright.schedules`: ``gpipe``, ``1f1b``, ``interleaved_1f1b``, ``zb_h1``, ``zb_v``, ...
    global_batch : int
        Samples of one step over all replicas.
    """

    stages: tuple[Stage, ...]
    n_microbatches: int = 1
    micro_batch: int = 1
    schedule: str = "1f1b"
    global_batch: int = 1

    @property
    def n_devices(self) -> int:
        """Number of distinct devices used."""
        return len({device for stage in self.stages for device in stage.devices})

    @property
    def recomputes(self) -> bool:
        """Whether any layer recomputes anything in its backward pass, or has its activations on the host until then."""
        return any(word != "none" for stage in self.stages for word in stage.recompute)

    @property
    def n_offloaded(self) -> int:
        """Layers whose activations are on the host between their forward and their backward pass."""
        return sum(word == OFFLOAD for stage in self.stages for word in stage.recompute)

    def samples_of_replicas(self) -> tuple[int, ...]:
        """Return how many samples of one micro-batch a replica of each stage takes.

        A micro-batch has ``micro_batch`` samples for each replica of the widest stage; a stage with fewer replicas shares the
        same samples out among them. Where they do not divide, it is the number that the fullest replica takes.
        """
        samples = self.micro_batch * max(stage.strategy.data for stage in self.stages)
        return tuple(-(-samples // stage.strategy.data) for stage in self.stages)

    def contradiction(self, *, rounded: bool = False) -> str:
        """Return in a sentence why micro-batches and global batch cannot both be so; empty where they can.

        Parameters
        ----------
        rounded : bool
            Whether replicas may take less than a sample more or fewer than their even share, as published planners round.
        """
        n, size = self.n_microbatches, self.micro_batch
        widest = max(stage.strategy.data for stage in self.stages)
        if n * size * widest == self.global_batch or (rounded and abs(size - self.global_batch / (n * widest)) < 1.0):
            return ""
        played = f"{n} micro-batches of {size} x {widest} replicas make {n * size * widest} samples"
        whole, rest = divmod(self.global_batch, size * widest)
        instead = f", or n_microbatches {whole}" if whole and not rest else ""
        return f"{played}, but global_batch is {self.global_batch}: make it {n * size * widest}{instead}"

    def ranks(self) -> tuple[tuple[int, ...], ...]:
        """Return the distinct device groups in order of first appearance: the pipeline ranks."""
        return tuple(dict.fromkeys(stage.devices for stage in self.stages))

    def rank_of_stage(self) -> tuple[int, ...]:
        """Return the pipeline rank of each stage (virtual stages share one)."""
        ranks = {devices: i for i, devices in enumerate(self.ranks())}
        return tuple(ranks[stage.devices] for stage in self.stages)
