"""State and activations on the host: what the update of weights takes there, what travels there and back, and what it holds."""

from __future__ import annotations

from meshwright.core.cluster import Device
from meshwright.core.optimizers import optimizer
from meshwright.core.problem import MixedPrecision, Problem

__all__ = ["HOST_FILL_RATIO", "HOST_MEMORY_RATIO", "exposed_seconds", "host_update", "no_host", "unknown_host"]

HOST_MEMORY_RATIO = 0.46
"""Share of the host's memory bandwidth that a fused Adam reaches there: ZeRO-Offload (Ren et al., USENIX ATC 2021, arXiv
2101.06840), table 4, 2.57 s for 10 billion weights of 30 bytes on a DGX-2 (two Xeon 8168 of six channels of DDR4-2666,
256 GB/s); 1 billion took 0.22 s, 0.53 of it."""

HOST_FILL_RATIO = 0.9
"""Share of the host's memory that state may fill; the rest is for the system, data loading and buffers (estimate)."""

_WIDE_BYTES = 4  # masters, and weights on their way back: cast on the device


def unknown_host(problem: Problem) -> str:
    """Return why nothing can lie on the hosts of a problem's devices, in one sentence; empty where it can."""
    kind = optimizer(problem.training.optimizer)
    if kind.shaped:
        return (
            f"optimizer {kind.name} keeps state that follows from shapes of weights, which is not updated on hosts; take adam"
        )
    return no_host(problem)


def no_host(problem: Problem) -> str:
    """Return of which device's host nothing is known, in one sentence; empty where all are."""
    for device in problem.required_cluster.kinds:
        if device.host is None:
            return (
                f"nothing is known of the host of {device.name} in cluster {problem.required_cluster.name}; a cluster file "
                "says it with host_link, host_memory and host_memory_bandwidth"
            )
    return ""


def exposed_seconds(n_bytes: float, beside_seconds: float, device: Device) -> float:
    """Return by how much a layer's pass is longer because its activations travel to the host, or back.

    Parameters
    ----------
    n_bytes : float
        What travels.
    beside_seconds : float
        Compute of the layer's own pass.
    device : Device
        Its host must be known.

    Notes
    -----
    Transfers have streams of their own, one for each way, and run beside the compute of a layer: that of the next layer
    forward, that of the one before it backward [1]_; as such layers are alike, each hides as much as its own would. Only what
    exceeds it is waited for. Where fewer layers than all are away, Transformer Engine spreads their transfers over the compute
    of several layers, which is not counted.

    References
    ----------
    .. [1] Transformer Engine, transformer_engine/pytorch/cpu_offload.py: AsyncDoubleBufferGroupOffloadHandler.
    """
    host = device.host
    assert host is not None  # else it is refused
    return max(0.0, n_bytes / host.link_bytes_per_second - beside_seconds)


def host_update(n_updated: float, device: Device, training: MixedPrecision) -> tuple[float, float]:
    """Return the seconds of updating weights on the host, and the bytes that it holds for them.

    Parameters
    ----------
    n_updated : float
        Weights that one device updates.
    device : Device
        Its host must be known.
    training : MixedPrecision
        Bytes of gradients and of the optimizer's state.

    Notes
    -----
    Once a step gradients go to the host tensor by tensor, the host updates its fp32 weights, and these come back and are cast
    on the device: three things beside each other, of which the slowest counts (Megatron-LM's
    ``--overlap-cpu-optimizer-d2h-h2d``). The host's memory takes in gradients, which are read; reads and writes state and
    weights; and reads weights to send them [1]_. The device reads gradients once for their norm, and casts.

    References
    ----------
    .. [1] Ren et al., "ZeRO-Offload: Democratizing Billion-Scale Model Training", USENIX ATC 2021.
    """
    host = device.host
    assert host is not None  # else it is illegal
    state = training.optimizer_bytes + (0 if training.has_copy else _WIDE_BYTES)
    sent, back = training.gradient_bytes * n_updated, _WIDE_BYTES * n_updated
    moved = 2.0 * sent + 2.0 * state * n_updated + back
    there = moved / (host.memory_bytes_per_second * HOST_MEMORY_RATIO)
    here = (sent + back + training.weight_bytes * n_updated) / (device.memory_bytes_per_second * device.memory_ratio)
    return max(sent / host.link_bytes_per_second, there, back / host.link_bytes_per_second) + here, state * n_updated + sent
