"""Options that a run has and a plan has nothing like: refused, or said to be priced otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from meshwright.base.errors import InputError
from meshwright.core.plan import Plan
from meshwright.frameworks.megatron.pipeline import whole

__all__ = ["check", "notes", "sentence"]

Options = Mapping[str, tuple[str, ...]]

_ELSEWHERE: Mapping[str, str] = MappingProxyType({
    "--cpu-offloading-num-layers": "activations on the host",
    "--chunked-optimizer-state-offload": "optimizer state that is on the host between updates only",
    "--offload-optimizer-states": "optimizer state that is on the host between updates only",
    "--fine-grained-activation-offloading": "activations on the host", "--use-torch-fsdp2": "PyTorch's FSDP2 in Megatron-Core",
    "--moe-use-upcycling": "a dense checkpoint made into experts", "--freeze-all-layers": "frozen layers",
    "--hybrid-layer-pattern": "state-space layers", "--hybrid-override-pattern": "state-space layers",
    "--heterogeneous-layers-config-path": "layers of different sizes", "--experimental-attention-variant": "another attention",
    "--hybrid-context-parallel": "context degrees that differ between samples",
})  # fmt: skip
"""What changes a step or its memory so that no plan stands for it."""

_PRICED_OTHERWISE: Mapping[str, str] = MappingProxyType({
    "--rampup-batch-size": "the global batch after the ramp is priced",
    "--step-batch-size-schedule": "--global-batch-size alone is priced",
    "--no-overlap-p2p-communication": "transfers between stages are priced beside computing",
    "--defer-embedding-wgrad-compute": "gradients of the head are priced where they arise",
    "--delay-wgrad-compute": "gradients of weights are priced where they arise",
    "--overlap-moe-expert-parallel-comm": "exchanges of experts are priced by themselves",
    "--moe-expert-capacity-factor": "experts are priced with all tokens that are sent to them",
    "--distribute-saved-activations": "what recomputation starts from is priced whole on every tensor rank",
    "--fp8-param-gather": "weights are priced as held and gathered in bf16",
    "--fp4-param-gather": "weights are priced as held and gathered in bf16",
    "--first-last-layers-bf16": "all layers are priced in the precision of products",
    "--use-precision-aware-optimizer": "gradients, moments and masters are priced in four bytes",
    "--fp32-residual-connection": "the residual stream is priced in the precision of activations",
    "--outer-dp-sharding-strategy": "replicas of shards are priced as holding all that their shard has",
})  # fmt: skip


def check(options: Options, place: str) -> None:
    """Refuse what no plan stands for.

    Raises
    ------
    InputError
        When an option is of that kind.
    """
    for name, what in _ELSEWHERE.items():
        if name in options:
            raise InputError(f"{place}: {name}: {what}; plans have nothing like it: leave it out")
    for name in ("--encoder-num-layers", "--decoder-num-layers"):
        if name in options and options[name] != options.get("--num-layers"):
            raise InputError(f"{place}: {name} beside --num-layers: say --num-layers alone")


def notes(options: Options, plan: Plan) -> tuple[tuple[str, str], ...]:
    """Return what is priced otherwise than a run's options say: each option and a sentence without a full stop."""
    found = [(name, text) for name, text in _PRICED_OTHERWISE.items() if name in options]
    one = plan.stages[0].strategy
    if one.offload == "optimizer":
        found = [(name, text) for name, text in found if name != "--use-precision-aware-optimizer"]  # it needs that
        if "--overlap-cpu-optimizer-d2h-h2d" not in options:
            found.append(("--overlap-cpu-optimizer-d2h-h2d", "is not set; transfers are priced beside the host's update"))
        if "--use-torch-optimizer-for-cpu-offload" in options:
            found.append(("--use-torch-optimizer-for-cpu-offload", "the host's update is priced as a fused Adam's"))
    if one.data * one.context > 1 and one.shard < 2:
        wanted = ["--overlap-grad-reduce", *(["--overlap-param-gather"] if one.shard else [])]
        found += [
            (name, f"is not set; {what} beside computing")
            for name, what in (("--overlap-grad-reduce", "the reduction of gradients is priced"),
                               ("--overlap-param-gather", "the gathering of weights is priced"))
            if name in wanted and name not in options
        ]  # fmt: skip
    dispatched = options.get("--moe-token-dispatcher-type", ("flex",))
    if one.expert > 1 and dispatched != ("flex",) and "--moe-enable-deepep" not in options:
        kind = f"is {' '.join(dispatched)}; where releases have DeepEP or HybridEP each token is priced as sent once to a node"
        found.append(("--moe-token-dispatcher-type", kind))
    group = "--microbatch-group-size-per-virtual-pipeline-stage"
    if group in options and whole(options, group, "") != len(plan.ranks()):
        found.append((group, f"is {' '.join(options[group])}; groups of {len(plan.ranks())} micro-batches are priced"))
    return tuple(found)


def sentence(name: str, what: str) -> str:
    """Return what of an option is priced otherwise, under the name that it has in a file."""
    return f"{name}{' ' if what.startswith('is ') else ': '}{what}"
