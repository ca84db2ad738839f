"""Options that a run has and a plan has nothing like: refused, or said to be priced otherwise."""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.base.errors import InputError
from meshwright.core.plan import Plan
from meshwright.frameworks.megatron import parser
from meshwright.frameworks.megatron.pipeline import whole

__all__ = ["captured", "check", "notes", "of_log", "sentence"]

Options = Mapping[str, tuple[str, ...]]

_SCALED = (("tensorwise",), ("delayed",), ("mxfp8",))
"""Recipes of fp8 that are priced as they are."""


def check(options: Options, place: str) -> None:
    """Refuse what no plan stands for.

    Raises
    ------
    InputError
        When an option is of that kind.
    """
    for name, what in parser.table("refused").items():
        if name in options and not _without_effect(name, options[name]):
            raise InputError(f"{place}: {name}: {what}; plans have nothing like it: leave it out")
    for name in ("--encoder-num-layers", "--decoder-num-layers"):
        if name in options and options[name] != options.get("--num-layers"):
            raise InputError(f"{place}: {name} beside --num-layers: say --num-layers alone")


def notes(options: Options, plan: Plan) -> tuple[tuple[str, str], ...]:
    """Return what is priced otherwise than a run's options say: each option and a sentence without a full stop."""
    found = [
        (name, text or "what it changes is not priced") for name, text in parser.table("unpriced").items()
        if name in options and not _without_effect(name, options[name])
    ]  # fmt: skip
    if "--multi-latent-attention" in options and options.get("--rope-type") == ("rope",):
        found = [(name, text) for name, text in found if name != "--no-rope-fusion"]  # it needs that
    one = plan.stages[0].strategy
    if "--use-precision-aware-optimizer" in options:
        found.append(("--use-precision-aware-optimizer", "gradients, moments and masters are priced in four bytes"))
    if "--no-gradient-accumulation-fusion" in options and "--use-megatron-fsdp" not in options:
        found.append(("--no-gradient-accumulation-fusion", "gradients are priced as summed where products make them"))
    if options.get("--fp8-recipe", ("tensorwise",)) not in _SCALED:
        found.append(("--fp8-recipe", f"is {' '.join(options['--fp8-recipe'])}; fp8 is priced with a scale a tensor"))
    found += _not_taken(options)
    found += captured(options)
    if one.offload == "optimizer":
        found = [(name, text) for name, text in found if name != "--use-precision-aware-optimizer"]  # it needs that
        if "--overlap-cpu-optimizer-d2h-h2d" not in options:
            found.append(("--overlap-cpu-optimizer-d2h-h2d", "is not set; transfers are priced beside the host's update"))
        if "--use-torch-optimizer-for-cpu-offload" in options:
            found.append(("--use-torch-optimizer-for-cpu-offload", "the host's update is priced as a fused Adam's"))
    dispatched = options.get("--moe-token-dispatcher-type", ("flex",))
    if one.expert > 1 and dispatched != ("flex",) and "--moe-enable-deepep" not in options:
        kind = f"is {' '.join(dispatched)}; where releases have DeepEP or HybridEP each token is priced as sent once to a node"
        found.append(("--moe-token-dispatcher-type", kind))
    group = "--microbatch-group-size-per-virtual-pipeline-stage"
    if group in options and whole(options, group, "") != len(plan.ranks()):
        found.append((group, f"is {' '.join(options[group])}; groups of {len(plan.ranks())} micro-batches are priced"))
    return tuple(found)


def of_log(options: Options, plan: Plan, place: str) -> tuple[str, ...]:
    """Return what is priced otherwise than the arguments in a log say, in sentences without a full stop.

    A log prints every argument: of those with a value only such count whose usual value is known.

    Raises
    ------
    InputError
        When plans have nothing like one of them.
    """
    usual = (("0",), ("1",), ("0.0",))
    set_ = {name: words for name, words in options.items() if words not in usual}
    check({name: words for name, words in set_.items() if name in parser.table("refused")}, place)
    known = parser.table("without_effect")
    found = [
        (name, text or "what it changes is not priced") for name, text in parser.table("unpriced").items()
        if name in set_ and (not set_[name] or name in known) and not _without_effect(name, set_[name])
    ]  # fmt: skip
    if "--use-precision-aware-optimizer" in options and plan.stages[0].strategy.offload != "optimizer":
        found.append(("--use-precision-aware-optimizer", "gradients, moments and masters are priced in four bytes"))
    if "--fp8-format" in options and options.get("--fp8-recipe", ("tensorwise",)) not in _SCALED:
        found.append(("--fp8-recipe", f"is {' '.join(options['--fp8-recipe'])}; fp8 is priced with a scale a tensor"))
    return tuple(f"{place}: {sentence(name, what)}" for name, what in (*found, *captured(options)))


def _not_taken(options: Options) -> list[tuple[str, str]]:
    """Return options that Megatron-LM leaves aside because another is not there."""
    found: list[tuple[str, str]] = []
    if "--num-query-groups" in options and "--group-query-attention" not in options:
        found.append(("--num-query-groups", "is not taken without --group-query-attention; every head has keys of its own"))
    if not {"--recompute-granularity", "--recompute-activations", "--moe-layer-recompute"} & set(options):
        for name in ("--recompute-modules", "--recompute-method", "--recompute-num-layers"):
            kind = "selective" if name == "--recompute-modules" else "full"
            if name in options:
                found.append((name, f"is not taken without --recompute-granularity {kind}; nothing is recomputed"))
    if options.get("--transformer-impl") == ("local",) and "--use-legacy-models" not in options:
        own = "--transformer-impl local: Megatron-Core's own layers"
        asked = "--use-flash-attn" in options or options.get("--attention-backend") in (("flash",), ("fused",))
        if asked:
            name = "--use-flash-attn" if "--use-flash-attn" in options else "--attention-backend"
            found.append((name, f"is not taken beside {own} compute attention unfused"))
        found += [
            (name, f"is priced as asked; beside {own} multiply in 16 bits")
            for name in ("--fp8-format", "--fp8-hybrid", "--fp8-e4m3", "--fp4-format")
            if name in options
        ]
    if options.get("--position-embedding-type") != ("yarn",):
        found += [(name, "is not taken without --position-embedding-type yarn") for name in options if "yarn-" in name]
    return found


def captured(options: Options) -> list[tuple[str, str]]:
    """Return the options that capture graphs, each with what is to be said of it.

    `options`: of a script.
    """
    said = [name for name in ("--enable-cuda-graph", "--external-cuda-graph") if name in options]
    said += ["--cuda-graph-impl"] if options.get("--cuda-graph-impl", ("none",)) != ("none",) else []
    what = "captured graphs are priced by --for megatron:experts_captured only; other variants launch kernels"
    return [(name, what) for name in said]


def _without_effect(name: str, words: tuple[str, ...]) -> bool:
    """Return whether an option has a value that changes nothing."""
    return len(words) == 1 and words[0] in parser.table("without_effect").get(name, ())


def sentence(name: str, what: str) -> str:
    """Return what of an option is priced otherwise, under the name that it has in a file."""
    return f"{name}{' ' if what.startswith('is ') else ': '}{what}"
