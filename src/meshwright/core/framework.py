"""The framework that trains (Megatron-LM, torchtitan, ...): how it carries out what a plan says, and what it can run at all."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from meshwright.base.errors import InputError
from meshwright.core.graph import Graph
from meshwright.core.strategy import CONTEXT_EXCHANGES, ON_HOST, RECOMPUTE, Strategy

__all__ = ["AXES", "SCOPES", "SHARES", "Framework", "FrameworkLimits", "listed"]

AXES = ("tensor", "context", "pipeline", "expert")
"""Degrees that a framework may lack; data parallelism is in all of them."""

SCOPES = ("layer", "plan")
"""How finely recomputation is told: of each layer by itself, or one setting for the whole plan."""

SHARES = ("tensor_overlap_ratio", "ring_imbalance_ratio")
"""Figures of a framework that are shares of a whole."""

_FIGURES = (
    "issue_seconds", "expert_issue_seconds", "memory_passes_ratio", "shard_bytes_per_second", "logit_bytes", "loss_bytes",
    "split_loss_bytes", "buffer_bytes", "gradient_copy_bytes", "n_gathered_weights", "compute_ratio", "n_softmax_heads",
    *SHARES,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class FrameworkLimits:
    """What a framework can run, as data: what searches keep to and exports refuse. The defaults are no limits.

    Parameters
    ----------
    degrees : tuple of str
        Those of `AXES` that may be above 1.
    cuts_itself : bool
        Whether pipelines run although `degrees` leaves them out: layers are cut into stages by the framework alone.
    context_exchanges : tuple of str
        How keys and values may be exchanged over a context axis, as `meshwright.core.strategy.CONTEXT_EXCHANGES`.
    latent_exchanges : tuple of str
        Those of them with which heads of keys and of values may have different sizes (multi-head latent attention).
    window_exchanges : tuple of str
        Those of them with which attention may be over a sliding window, or chunks.
    schedules : tuple of str
        Schedules; empty for all.
    shards : tuple of int
        What the data axis may shard, as `Strategy.shard`.
    hybrid_shards : tuple of int
        The levels with which it may be sharded over fewer ranks than there are (HSDP).
    sequence_parallel : bool
        Whether norms and residuals may be split along the sequence over the tensor axis.
    virtual_stages : bool
        Whether a pipeline rank may have several stages.
    uneven_stages : bool
        Whether stages may hold different numbers of layers.
    unlike_stages : bool
        Whether stages may differ in their degrees.
    free_ends : bool
        Whether embedding and head may lie on other stages than the first and the last.
    tied_pipeline : bool
        Whether embedding and head may share a table where a pipeline puts them on different ranks.
    layouts : tuple of str
        Which axis may change slowest over the devices: ``pipeline``, ``data``.
    any_order : bool
        Whether stages may take devices in any order, instead of one of the `layouts` over all devices in order.
    uneven_hosts : bool
        Where devices are taken in order: whether hosts may take part with different numbers of them, not equally many each.
    gradient_rings : bool
        Whether the order of a gradient ring can be told.
    recompute : tuple of str
        What a layer may recompute, as `meshwright.core.strategy.is_recompute` has it; the least first. Modules that stand in
        any of them may be combined otherwise too; searches keep to these.
    recompute_scope : str
        One of `SCOPES`.
    block_recompute : bool
        Whether, beside settings for the whole plan, the first layers of every stage may recompute everything: equally many of
        each stage (Megatron-LM's method ``block``).
    precisions : tuple of str
        Precisions of products; empty for all.
    formats : tuple of str
        Formats of models that it can be told; empty for all.
    frozen_weights : bool
        Whether it trains models with frozen weights; where not, it trains all of them.
    quantised_base : bool
        Whether it trains adapters beside frozen weights in four bits.
    preference_pairs : bool
        Whether it trains on pairs of a chosen and a rejected sequence (DPO).
    tpus : bool
        Whether it runs on TPUs, and not on GPUs alone.
    optimizers : tuple of str
        Optimizers that it can be told, as `meshwright.core.optimizers.OPTIMIZERS`; empty for all.
    context_shards : tuple of int
        Of `shards` those that may stand beside a context axis.
    whole_experts : bool
        Whether an expert that is not spread over the tensor axis must stand whole on its device.
    experts_over_tensor : bool
        Whether experts may be spread over the tensor axis too, each whole on its device (an expert tensor degree of 1).
    expert_ranks : tuple of str
        Axes (``shard``, ``context``, ``tensor``) whose ranks the expert degree divides; empty for any.
    offloads : tuple of str
        What may lie on the host, as `meshwright.core.strategy.ON_HOST`; activations of the first layers, while one at least
        keeps its own, without a pipeline and where nothing is recomputed.
    offload_shards : tuple of int
        The sharding levels with which something may lie there, where there is more than one data or context rank.
    paired_tasks : bool
        Whether a forward task may run beside a backward task (schedules ``combined_1f1b``, ``combined_dualpipe_v``).
    tensor_heads : int
        Heads of keys and values that the tensor degree must divide, where it does not copy them; 0 for any degree.
    split_experts : bool
        Whether it can split an expert of the model over the tensor axis.
    """

    degrees: tuple[str, ...] = AXES
    cuts_itself: bool = False
    context_exchanges: tuple[str, ...] = CONTEXT_EXCHANGES
    latent_exchanges: tuple[str, ...] = CONTEXT_EXCHANGES
    window_exchanges: tuple[str, ...] = CONTEXT_EXCHANGES
    schedules: tuple[str, ...] = ()
    shards: tuple[int, ...] = (0, 1, 2, 3)
    hybrid_shards: tuple[int, ...] = (1, 2, 3)
    sequence_parallel: bool = True
    virtual_stages: bool = True
    uneven_stages: bool = True
    unlike_stages: bool = True
    free_ends: bool = True
    tied_pipeline: bool = True
    layouts: tuple[str, ...] = ("pipeline", "data")
    any_order: bool = True
    uneven_hosts: bool = True
    gradient_rings: bool = True
    recompute: tuple[str, ...] = RECOMPUTE
    recompute_scope: str = "layer"
    block_recompute: bool = False
    precisions: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()
    frozen_weights: bool = True
    quantised_base: bool = True
    preference_pairs: bool = False
    tpus: bool = True
    optimizers: tuple[str, ...] = ()
    context_shards: tuple[int, ...] = (0, 1, 2, 3)
    whole_experts: bool = False
    experts_over_tensor: bool = True
    expert_ranks: tuple[str, ...] = ()
    offloads: tuple[str, ...] = ON_HOST
    offload_shards: tuple[int, ...] = (0, 1, 2, 3)
    paired_tasks: bool = True
    tensor_heads: int = 0
    split_experts: bool = True

    def lacks(self, axis: str) -> str:
        """Return what is to be said of an axis that is none of `degrees`, after ``it has`` or ``which has``."""
        own = "a cut into stages of its own, so that none is planned"
        return own if axis == "pipeline" and self.cuts_itself else f"no {axis} parallelism"

    def unpaired(self, one: Strategy) -> tuple[str, ...]:
        """Return which degrees of a strategy it does not run beside each other, in sentences without a full stop."""
        found = []
        if one.context > 1 and one.shard not in self.context_shards:
            found.append(f"sharding level {one.shard} beside a context axis; weights are always sharded over it")
        if one.offload != "none" and one.data * one.context > 1 and one.shard not in self.offload_shards:
            known = listed(self.offload_shards)
            found.append(f"{one.offload} state on the host with sharding level {one.shard}; it has {known}")
        if self.tensor_heads and self.tensor_heads % one.tensor:
            found.append(f"a tensor degree of {one.tensor}; it must divide the {self.tensor_heads} heads of keys and values")
        if self.whole_experts and one.tensor > 1 and one.expert > 1 and not one.folded:
            found.append("experts split over the tensor axis; it keeps each whole and spreads them over that axis too")
        if not self.split_experts and one.tensor > 1 and not one.folded:
            found.append("experts with biases split over a tensor axis; an expert degree of a multiple of it keeps each whole")
        if one.folded and not self.experts_over_tensor:
            found.append("experts spread over the tensor axis, each whole; it splits each over that axis")
        shard = (one.shard_degree or one.data) if one.shard else 1
        sizes = {"shard": shard, "context": one.context, "tensor": one.tensor}
        n_ranks = math.prod(sizes[axis] for axis in self.expert_ranks)
        if self.expert_ranks and n_ranks % one.expert:
            *axes, last = self.expert_ranks
            words = f"{', '.join(axes)} and {last}" if axes else last
            found.append(f"an expert degree of {one.expert}; it must divide the {n_ranks} ranks of {words} axis")
        return tuple(found)

    def degrees_for(self, graph: Graph) -> tuple[str, ...]:
        """Return those of `degrees` that may be above 1 for a model: no pipeline where it cannot tie the model's weights, and
        what is not priced: no pipeline beside a reference model, no context axis for pairs of sequences.
        """
        tied = graph.n_shared_parameters > 0 and not self.tied_pipeline
        return tuple(axis for axis in self.degrees if not (graph.single(axis) or (axis == "pipeline" and tied)))

    def exchanges(self, graph: Graph) -> tuple[str, ...]:
        """Return how keys and values of a model may be exchanged over a context axis."""
        cores = [one for op in graph.ops for one in op.body if one.kind in ("attention", "causal_attention")]
        latent = any(one.size("head") != one.size("value", one.size("head")) for one in cores)
        window = any(one.size("key_sequence", one.size("sequence")) < one.size("sequence") for one in cores)
        return tuple(
            kind for kind in self.context_exchanges
            if not (latent and kind not in self.latent_exchanges) and not (window and kind not in self.window_exchanges)
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Framework:
    """How the framework that trains carries out what a plan says; the default is one that does everything well.

    Parameters
    ----------
    issue_seconds : float
        Time that the host takes to issue one operator, forward or backward; 0 for `Device.issue_seconds`. Where a layer's work
        is shorter than issuing it, the device waits.
    expert_issue_seconds : float
        Time that the host takes for every expert that a device holds and every grouped product, where each expert is a product
        and a cast of its own; 0 where one kernel runs them all, or a captured graph replays them.
    blocks_launches : bool
        Whether the host waits for each kernel before it issues the next (``CUDA_LAUNCH_BLOCKING=1``, against hangs or to find
        faults): issuing then adds to computing, instead of running beside it.
    memory_passes_ratio : float
        How often norms, softmax and elementwise operators move their bytes, compared with fused kernels.
    n_softmax_heads : float
        Of how many heads, over all samples of a device, the kernel of masked softmax takes a multiple, where attention is not
        fused; others are widened, scaled, masked, normalised and narrowed by five. 0 for any number.
    ring_imbalance_ratio : float
        Share of the imbalance of a causal ring that cuts the sequence into plain chunks: 0 where every rank has an early and a
        late chunk, 1 where the last rank attends to everything.
    tensor_overlap_ratio : float
        Share of the tensor axis' gatherings and scatterings (sequence parallelism) that runs beside the products next to them.
    shard_bytes_per_second : float
        Rate of gathering weights and scattering gradients of ZeRO-3 per device; 0 for what the network allows.
    overlaps_scatter : bool
        Whether gradients of ZeRO-2 and 3 are scattered beside the backward pass.
    overlaps_reduce : bool
        Whether gradients that are reduced once a step leave while the last backward task makes them, or after it.
    overlaps_whole_reduce : bool
        The same of gradients that no rank shards (level 0), where `overlaps_reduce`.
    dispatches_once : bool
        Whether a token crosses to another node, or goes to another device of its own, once for all of its experts there
        (DeepEP, HybridEP) instead of once for each expert.
    splits_transfers : bool
        Whether the ranks of a tensor axis, which hold the same output of a stage, send a piece of it each, gathered at the
        receivers (Megatron-LM's scatter and gather, DeepSpeed's partitioned activations). With sequence parallelism outputs are
        pieces anyway.
    keeps_casts : bool
        Whether inputs of fp8 and fp4 products are kept for the backward pass as cast (Transformer Engine) instead of in the
        precision of activations (PyTorch's float8 products).
    attention : str
        Software of fused attention: ``flash1`` (FlashAttention of 2022 and its Triton version), ``flash2`` (FlashAttention-2,
        which is PyTorch's); empty for the best that a device has (FlashAttention-3, cuDNN). `Device.attention_of` has what
        each reaches.
    logit_bytes : float
        Bytes per logit that are kept for the loss's backward pass: 4 where logits are widened to fp32; 2 where a fused loss
        keeps what the head put out and turns it into gradients in place.
    loss_bytes : float
        Bytes per logit beside them while the loss runs, if more than `MixedPrecision.loss_bytes`.
    split_loss_bytes : float
        The same where the vocabulary is split over the tensor axis, if more.
    expandable_segments : bool
        Whether the caching allocator takes freed memory of any size again (PyTorch's ``expandable_segments``): nothing is
        lost to fragmentation.
    buffer_bytes : float
        What the framework holds all step beside tensors where the data axis shards: buckets of reductions and gatherings.
    gradient_copy_bytes : float
        Bytes of a second copy of the gradients for every weight whose optimizer state a device holds, where weights have
        less than four bytes and stand whole on every device (no ZeRO-3).
    n_gathered_weights : float
        Where ZeRO-3 gathers weights operator by operator (DeepSpeed), how many may stand gathered beside those of the operator
        that runs; 0 where it works layer by layer: this layer's, and the next one's on their way.
    keeps_gathered : bool
        Whether ZeRO-1 and 2 are FSDP whose weights stay gathered through a step, with buffers of a layer's size as in ZeRO-3.
    gathers_each : bool
        Whether ZeRO-2 is FSDP that frees weights after a backward pass (``reshard_after_forward=False``) and gathers them in
        the forward pass of every micro-batch, or they are gathered once a step, after the update; pipelines keep them.
    reduces_once : bool
        Whether in a pipeline gradients of ZeRO-2 stand whole until a stage's last micro-batch is through and scattered then,
        whole ones beside shards (FSDP under PyTorch's pipelines), or every micro-batch scatters its own.
    narrow_gradients : bool
        Whether gradients are held and reduced in the precision of products' weights where the data axis shards (ZeRO's own),
        whatever `MixedPrecision.gradient_bytes` says.
    whole_gradients : bool
        Whether FSDP (ZeRO-2 and 3) leaves the gradients of all layers whole, in the precision of products' weights, until the
        last micro-batch of a step scatters them (Accelerate's ``no_sync``), or every micro-batch scatters its own.
    narrow_scatter : bool
        Whether FSDP scatters gradients, and adds them up over replicas, in the precision of products' weights
        (Accelerate's ``reduce_dtype``), though shards are held in that of gradients.
    reduces_replicas_each : bool
        Whether hybrid sharding adds gradients up over replicas in every micro-batch that scatters them, or once a step.
    keeps_gathered_inputs : bool
        Whether what sequence parallelism gathers for a product is kept for the backward pass (PyTorch's DTensor, whose linear
        layers save their input as it came), or gathered again there (Megatron-LM).
    copies_gathered : bool
        Whether gathered weights arrive in buffers of their own, and gradients leave from such, with a copy each (PyTorch), or
        collectives write what products read (XLA).
    compute_ratio : float
        How many times longer operators take, to compute and to issue, than figures of devices and of the framework say: for
        files of one's own, which ``meshwright calibrate`` writes; 1 in all built-in ones.
    stops_early : bool
        Whether recomputing a layer ends once all that its backward pass reads is there: the last product, whose input alone is
        saved, does not run again.
    overlaps_ring : bool
        Whether keys and values of a ring travel beside attention (point to point), or all are gathered before it, and
        gradients of them scattered after it.
    overlaps_gather : bool
        Whether keys and values that are gathered (``all_gather``) arrive beside attention on the rank's own part and
        gradients of them go round beside it (PyTorch), or attention waits for both (Transformer Engine, Llama 3).
    name : str
        As after ``--for``: ``megatron``, or the path of a file; empty where none is meant.
    variant : str
        Which of its variants: ``experts_x86``, several as ``experts_x86+late_reduce``; empty for the plain one.
    version : str
        For which versions this holds.
    limits : FrameworkLimits
        What it can run.
    base : str
        Of a file of one's own that holds memory as the framework it starts from, that one's name; empty otherwise.

    Raises
    ------
    InputError
        When a figure is not finite or out of range.
    """

    issue_seconds: float = 0.0
    expert_issue_seconds: float = 0.0
    blocks_launches: bool = False
    memory_passes_ratio: float = 1.0
    n_softmax_heads: float = 0.0
    ring_imbalance_ratio: float = 0.0
    tensor_overlap_ratio: float = 0.0
    shard_bytes_per_second: float = 0.0
    overlaps_scatter: bool = True
    overlaps_reduce: bool = True
    overlaps_whole_reduce: bool = True
    dispatches_once: bool = False
    splits_transfers: bool = False
    keeps_casts: bool = False
    attention: str = ""
    logit_bytes: float = 4.0
    loss_bytes: float = 0.0
    split_loss_bytes: float = 0.0
    expandable_segments: bool = False
    buffer_bytes: float = 0.0
    gradient_copy_bytes: float = 0.0
    n_gathered_weights: float = 0.0
    keeps_gathered: bool = False
    gathers_each: bool = False
    reduces_once: bool = False
    narrow_gradients: bool = False
    whole_gradients: bool = False
    narrow_scatter: bool = False
    reduces_replicas_each: bool = False
    keeps_gathered_inputs: bool = False
    copies_gathered: bool = True
    compute_ratio: float = 1.0
    stops_early: bool = False
    overlaps_ring: bool = True
    overlaps_gather: bool = False
    name: str = ""
    variant: str = ""
    version: str = ""
    limits: FrameworkLimits = FrameworkLimits()
    base: str = ""

    def __post_init__(self) -> None:
        for name in _FIGURES:
            value = getattr(self, name)
            most = 1.0 if name in SHARES else math.inf
            if not (isinstance(value, (int, float)) and math.isfinite(value) and 0.0 <= value <= most):
                allowed = "a finite number of at least 0" if most == math.inf else "a number between 0 and 1"
                raise InputError(f"framework {self.word or 'without a name'}: {name} is {value!r}; it must be {allowed}")
        if self.compute_ratio == 0.0:
            raise InputError(f"framework {self.word or 'without a name'}: compute_ratio is 0; it must be above 0")

    def in_pipeline(self, n_ranks: int) -> Framework:
        """Return how it carries out a pipeline of so many ranks: without one, every micro-batch scatters its gradients; in one,
        none gathers weights.
        """
        without = n_ranks == 1
        if without and self.reduces_once:
            return replace(self, reduces_once=False)
        return replace(self, gathers_each=False) if self.gathers_each and not without else self

    @property
    def holds_as(self) -> str:
        """Name of the framework whose measured peaks tell what it holds."""
        return self.base or self.name

    @property
    def variants(self) -> tuple[str, ...]:
        """The variants that it is together: ``experts_x86``, ``late_reduce``; empty for the plain one."""
        return tuple(self.variant.split("+")) if self.variant else ()

    @property
    def word(self) -> str:
        """How it is named on the command line: ``megatron``, ``megatron:experts_x86``."""
        return f"{self.name}:{self.variant}" if self.variant else self.name


def listed(words: tuple[object, ...]) -> str:
    """Return words with commas between them; ``none`` for none."""
    return ", ".join(str(word) for word in words) or "none"
