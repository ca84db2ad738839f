"""The plan that Megatron-LM's options say: a script of ours, or any command line that has them, read back."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from meshwright.base.errors import InputError
from meshwright.core.graph import Graph
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import MixedPrecision
from meshwright.core.run_config import RunConfig
from meshwright.core.strategy import MODULES, OFFLOAD, Strategy, repeats_dispatch
from meshwright.frameworks import _command_line, _exact, _optimizers
from meshwright.frameworks._shell_words import is_open
from meshwright.frameworks.megatron import aside, contradictions, parser, pipeline, shape, sizes, surroundings
from meshwright.frameworks.megatron.options import EXCHANGES, OVERLAP

__all__ = ["config_of", "plan_of", "read", "variant_of"]

FLAGS = ("--sequence-parallel", "--use-tp-pp-dp-mapping", "--use-distributed-optimizer", "--use-megatron-fsdp")
"""Options without a value that a plan depends on."""

_LEVELS: Mapping[str, int] = MappingProxyType({"optim": 1, "optim_grads": 2, "optim_grads_params": 3})
_OPTIMIZERS: Mapping[str, str] = MappingProxyType(
    {"adam": "adamw", "sgd": "sgd-momentum", "muon": "muon", "dist_muon": "muon", "lion": "lion"}
)
"""Ours of each of its own; its SGD has a momentum of 0.9 unless told."""
_MOST_DEVICES = 10**7
_AWAY = "--cpu-offloading-num-layers"
_SIZES = "--hierarchical-context-parallel-sizes"


def read(path: str, graph: Graph, n_devices: int = 0) -> RunConfig:
    """Return what a script says.

    Layers are numbered as in our models: embedding, layers, layers that predict further tokens, head. `n_devices`: how many
    there are, where the script does not say.

    Raises
    ------
    InputError
        When it cannot be read, an option that is needed is missing, options contradict each other, or they are another model's.
    """
    found = _command_line.read(_exact.read_text(path), path)
    options, warnings = _with_devices(found, path, n_devices)
    try:
        aside.check(options, path)
        parser.check(options, path, found.lines)
        said = config_of(options, path, graph, n_devices)
    except InputError as error:
        raise InputError(_with_place(str(error), path, found)) from None
    for line, what in surroundings.wrong(options, found.environment):
        raise InputError(f"{path}: line {line}: {what}")
    warnings += _unknown(found, path)
    warnings += [f"{path}: line {line}: {what}" for line, what in surroundings.slowed(found.environment)]
    noted = [
        *aside.notes(options, said.plan),
        *shape.unlike(options, path, graph),
        *_ungated(options, graph),
        *shape.padded(options, path, graph, said.plan.stages[0].strategy.tensor),
        *contradictions.refused_aside(options),
    ]
    for name, what in noted:
        place = f"line {found.lines[name]}: " if name in found.lines else ""
        warnings.append(f"{path}: {place}{aside.sentence(name, what)}")
    return replace(said, warnings=(*warnings, *said.warnings), environment=found.environment)


def _ungated(options: Mapping[str, tuple[str, ...]], graph: Graph) -> list[tuple[str, str]]:
    """Return what is to be said of a model with gated networks whose script asks for none."""
    if {"--swiglu", "--quick-geglu"} & set(options) or "--ffn-hidden-size" not in options:
        return []
    return [(name, f"is not set; {what}, which are priced") for name, what in sizes.unlike_kind(graph, ("--swiglu",))]


def _with_devices(found: _command_line.CommandLine, path: str, n_devices: int) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """Return the options, without numbers of hosts or processes that the script leaves open, and warnings."""
    options, warnings = dict(found.options), list(found.warnings)
    for name in ("--nnodes", "--nproc-per-node"):
        if n_devices and is_open(" ".join(options.get(name, ()))):
            word = " ".join(options.pop(name))
            options.pop("--nproc-per-node", None)
            what = f"{name} is {word}, which is not known; all {n_devices} devices of the cluster are taken"
            warnings.append(f"{path}: line {found.lines[name]}: {what}")
    return options, warnings


def _with_place(text: str, path: str, found: _command_line.CommandLine) -> str:
    """Return a message with the line of the option that it names first, or of one spelt much like it where it is missing."""
    name = re.match(rf"{re.escape(path)}: (--[\w-]+)", text)
    if not name:
        return text
    if name[1] in found.lines:
        return f"{path}: line {found.lines[name[1]]}: {text.removeprefix(f'{path}: ')}"
    unknown = [one for one in found.lines if one not in parser.known()]
    close = difflib.get_close_matches(name[1], unknown, 1, 0.85)
    return f"{text}; line {found.lines[close[0]]} has {close[0]}, which is no option of Megatron-LM" if close else text


def _reduced_in_half(options: Mapping[str, tuple[str, ...]]) -> bool:
    """Return whether gradients are summed and reduced in two bytes: as they come in fp16, where asked for in bf16 [1]_.

    References
    ----------
    .. [1] megatron/training/arguments.py: validate_args, accumulate_allreduce_grads_in_fp32.
    """
    if "--fp16" in options:
        return "--accumulate-allreduce-grads-in-fp32" not in options
    return "--bf16" in options and "--grad-reduce-in-bf16" in options


def variant_of(graph: Graph, plan: Plan, *, tensor: bool, reduce: bool) -> str:
    """Return the variant that a run is priced as whose collectives run by themselves; mixtures have others beside it.

    `tensor`, `reduce`: whether those of the tensor axis, and reductions of gradients, run beside computing.
    """
    one = plan.stages[0].strategy
    found = ["plain"] if one.tensor > 1 and one.sequence_parallel and not tensor else []
    found += ["late_reduce"] if one.data * one.context > 1 and one.shard < 2 and not reduce else []
    mixture = any(operator.expert for op in graph.ops for operator in op.body)
    return "+" * (mixture and bool(found)) + "+".join(found)


def config_of(
    options: Mapping[str, tuple[str, ...]], path: str, graph: Graph, n_devices: int = 0, *, says_overlaps: bool = True
) -> RunConfig:
    """Return what options say of a model's run.

    `path`: where they stand, for messages. `says_overlaps`: whether reductions run by themselves where no option says
    otherwise. The others as in `read`.
    """
    plan = plan_of(options, path, n_devices)
    n_layers = sum(len(stage.ops) for stage in plan.stages) - 2
    if n_layers != len(graph.ops) - 2:
        if "--mtp-num-layers" in options and not any(op.name.startswith("mtp.") for op in graph.ops):
            what = "layers that predict further tokens are built with experts only; leave it out, or give --model"
            raise InputError(f"{path}: --mtp-num-layers: {graph.name} has none: {what}")
        raise InputError(
            f"{path}: --num-layers: makes {n_layers} layers, but {graph.name} has {len(graph.ops) - 2}: another model?"
        )
    sizes.check(options, path, graph)
    _head_ranks(options, plan, graph, path)
    length, precision = shape.length_of(options, path), _precision(options)
    reduce = "--overlap-grad-reduce" in options or not says_overlaps
    variant = variant_of(graph, plan, tensor="--tp-comm-overlap" in options, reduce=reduce)
    return RunConfig(
        plan, precision, length, (), variant, training=_training(options, precision, path),
        attention=shape.attention_of(options),
    )  # fmt: skip


def _training(options: Mapping[str, tuple[str, ...]], precision: str, path: str) -> MixedPrecision | None:
    """Return how numbers are held and updated; None for as usual with the precision."""
    optimizer = _OPTIMIZERS.get(" ".join(options.get("--optimizer", ("adam",))), "")
    if optimizer == "sgd-momentum" and not " ".join(options.get("--sgd-momentum", ("0.9",))).strip("0."):
        optimizer = "sgd"
    if not optimizer:
        raise InputError(f"{path}: --optimizer is {' '.join(options['--optimizer'])}; priced are {', '.join(_OPTIMIZERS)}")
    training = _optimizers.held(precision, optimizer)
    if _reduced_in_half(options):
        training = (training or MixedPrecision.of(precision)).updated_by(gradient_bytes=2)
    return training


def _precision(options: Mapping[str, tuple[str, ...]]) -> str:
    """Return the precision of products."""
    if "--fp4-format" in options:
        return "fp4"
    if "--fp8-format" in options:
        return "mxfp8" if options.get("--fp8-recipe") == ("mxfp8",) else "fp8"
    return next((word for word in ("bf16", "fp16") if f"--{word}" in options), "fp32")


def _unknown(found: _command_line.CommandLine, place: str) -> list[str]:
    """Return a warning for every option that Megatron-LM's parser does not have."""
    known = {*parser.known(), *_command_line.TORCHRUN}
    close = {name: difflib.get_close_matches(name, sorted(known), 1, 0.85) for name in found.lines if name not in known}
    return [
        f"{place}: line {line}: {name} is no option of Megatron-LM that is known; it is left out"
        + (f" (did you mean {close[name][0]}?)" if close[name] else "")
        for name, line in found.lines.items()
        if name not in known and name.replace("_", "-") not in _command_line.TORCHRUN
    ]


def plan_of(options: Mapping[str, tuple[str, ...]], place: str, n_devices: int = 0) -> Plan:
    """Return the plan that options say.

    `place`: the file, for messages. `n_devices`: how many there are, where the options do not say.

    Raises
    ------
    InputError
        When an option that is needed is missing or wrong, or options contradict each other.
    """
    tensor, ranks = (
        pipeline.whole(options, "--tensor-model-parallel-size", place, 1),
        pipeline.whole(options, "--pipeline-model-parallel-size", place, 1),
    )
    context, expert = (
        pipeline.whole(options, "--context-parallel-size", place, 1),
        pipeline.whole(options, "--expert-model-parallel-size", place, 1),
    )
    if not n_devices or "--nproc-per-node" in options:
        n_devices = pipeline.whole(options, "--nnodes", place, 1) * pipeline.whole(options, "--nproc-per-node", place)
    if n_devices % (tensor * context * ranks) or n_devices > _MOST_DEVICES:
        raise InputError(
            f"{place}: {n_devices} devices are no multiple of tensor x context x pipeline = {tensor * context * ranks}"
        )
    data = n_devices // (tensor * context * ranks)
    level, degree = _sharding(options, place, data * context, data)
    strategy = Strategy(
        data, tensor, context, expert, "--sequence-parallel" in options and tensor > 1, level, degree,
        _exchange(options, place, context), _offload(options, place),
    )  # fmt: skip
    if expert > 1 and tensor > 1 and strategy.folded != (options.get("--expert-tensor-parallel-size") == ("1",)):
        raise InputError(
            f"{place}: --expert-tensor-parallel-size: experts over {expert} ranks are split otherwise in our plans"
        )
    stages, n_virtual = pipeline.stages(options, place, ranks)
    words = _recompute(options, place, stages)
    micro = pipeline.whole(options, "--micro-batch-size", place)
    batch = pipeline.whole(options, "--global-batch-size", place, micro * data)  # one micro-batch of each where it is not said
    if batch % (micro * data):
        raise InputError(f"{place}: --global-batch-size {batch} is no multiple of --micro-batch-size {micro} x {data} replicas")
    devices = _devices(strategy, ranks, "--use-tp-pp-dp-mapping" in options)
    return Plan(
        tuple(
            Stage(ops, devices[i % ranks], strategy, word) for i, (ops, word) in enumerate(zip(stages, words, strict=True))
        ),
        batch // (micro * data), micro, _schedule(options, place, (ranks, n_virtual, expert), words), batch,
    )  # fmt: skip


def _schedule(
    options: Mapping[str, tuple[str, ...]], place: str, degrees: tuple[int, int, int], words: Sequence[Sequence[str]]
) -> str:
    """Return the schedule; `degrees`: pipeline ranks, stages of each, expert degree.

    What Megatron-Core asks of its overlap stands in megatron/core/transformer/transformer_config.py.
    """
    n_ranks, n_virtual, expert = degrees
    if OVERLAP not in options:
        return "interleaved_1f1b" if n_virtual > 1 else "1f1b"
    needs = ""
    if expert == 1:
        needs = "--expert-model-parallel-size above 1"
    elif n_ranks > 1 and n_virtual == 1:
        needs = "virtual stages beside a pipeline (--num-virtual-stages-per-pipeline-rank)"
    elif any(repeats_dispatch(word) for own in words for word in own):
        needs = "layers that recompute neither everything nor their experts (--recompute-granularity, --recompute-modules)"
    if needs:
        raise InputError(f"{place}: {OVERLAP} needs {needs}")
    return "combined_1f1b"


def _exchange(options: Mapping[str, tuple[str, ...]], place: str, context: int) -> str:
    """Return how keys and values are exchanged over the context axis; layers may be told one by one, but alike."""
    sizes = options.get(_SIZES)
    if context == 1 and sizes is None:
        return "ring"
    words = set(options.get("--cp-comm-type", ("p2p",)))
    known = {word: kind for kind, word in EXCHANGES.items()}
    if len(words) != 1 or not words <= set(known):
        said = " ".join(options["--cp-comm-type"])
        raise InputError(f"{place}: --cp-comm-type is '{said}'; plans have one of {', '.join(known)} for all layers")
    kind = known[words.pop()]
    if kind != "all_to_all+ring":
        if sizes is not None:
            raise InputError(f"{place}: {_SIZES}: two context axes are of --cp-comm-type a2a+p2p; leave it out, or say that")
        return kind
    numbers = [int(size) if size.isdigit() else 0 for size in sizes or ()]
    if len(numbers) != 2 or numbers[0] * numbers[1] != context:
        raise InputError(
            f"{place}: {_SIZES} is '{' '.join(sizes or ())}'; --cp-comm-type a2a+p2p needs two numbers that make "
            f"--context-parallel-size, {context}: ranks that exchange heads, and ranks of a ring"
        )
    return kind


def _head_ranks(options: Mapping[str, tuple[str, ...]], plan: Plan, graph: Graph, place: str) -> None:
    """Refuse other numbers of ranks that exchange heads beside a ring than plans have for a model."""
    strategy = plan.stages[0].strategy
    if strategy.context_exchange == "all_to_all+ring" and int(options[_SIZES][0]) != strategy.head_ranks(graph):
        raise InputError(
            f"{place}: {_SIZES} {' '.join(options[_SIZES])}: plans exchange heads among as many ranks as they divide over, "
            f"here {strategy.head_ranks(graph)} of {strategy.context}; other sizes are not priced"
        )


def _offload(options: Mapping[str, tuple[str, ...]], place: str) -> str:
    """Return what lies on the host: all of the optimizer's state, or nothing."""
    if "--optimizer-cpu-offload" not in options:
        return "none"
    said = " ".join(options.get("--optimizer-offload-fraction", ("1.0",)))
    if said.rstrip("0").rstrip(".") != "1":
        raise InputError(
            f"{place}: --optimizer-offload-fraction is {said}; plans have all of the state on the host (1.0) or none"
        )
    for needed in ("--use-precision-aware-optimizer", "--use-distributed-optimizer"):
        if needed not in options:
            raise InputError(f"{place}: --optimizer-cpu-offload: Megatron-LM asks for {needed} beside it; add it")
    return "optimizer"


def _sharding(options: Mapping[str, tuple[str, ...]], place: str, n_ranks: int, data: int) -> tuple[int, int]:
    """Return what the data axis shards, and over how many of its ranks (0: all)."""
    level = 1 if "--use-distributed-optimizer" in options else 0
    if "--use-megatron-fsdp" in options:
        word = " ".join(options.get("--data-parallel-sharding-strategy", ("optim_grads_params",)))
        if word not in _LEVELS and word != "no_shard":
            raise InputError(
                f"{place}: --data-parallel-sharding-strategy is '{word}'; it must be no_shard, {', '.join(_LEVELS)}"
            )
        level = _LEVELS.get(word, 0)
    instances = pipeline.whole(options, "--num-distributed-optimizer-instances", place, 1)
    if data % instances:
        raise InputError(f"{place}: --num-distributed-optimizer-instances {instances} does not divide {data} replicas")
    return (level if n_ranks > 1 else 0), (data // instances if instances > 1 and level else 0)


def _recompute(options: Mapping[str, tuple[str, ...]], place: str, stages: list[tuple[int, ...]]) -> list[tuple[str, ...]]:
    """Return what every layer recomputes; embedding and head nothing."""
    by_expert = "--moe-layer-recompute" in options
    asked = by_expert or "--recompute-activations" in options
    kind = " ".join(options.get("--recompute-granularity", ("selective",) if asked else ()))
    last = max(op for ops in stages for op in ops)
    n_first, word = 0, "none"
    if options.get(_AWAY, ("0",)) != ("0",):
        n_away = pipeline.whole(options, _AWAY, place)
        captured = [name for name, _ in aside.captured(options)]
        _activations(n_away, last - 1, place, recomputes=bool(kind), n_stages=len(stages), captured=captured)
        n_first, word = n_away, OFFLOAD
    if kind == "selective":
        usual = ("moe",) if by_expert else ("core_attn",)
        modules = sorted({*options.get("--recompute-modules", usual), *(usual if by_expert else ())})
        unknown = [module for module in modules if module not in MODULES]
        if unknown or not modules:
            raise InputError(f"{place}: --recompute-modules {' '.join(unknown)}: there are {', '.join(MODULES)}")
        n_first, word = last, "+".join(modules)
    elif kind == "full":
        count, method = (
            pipeline.whole(options, "--recompute-num-layers", place, 1),
            " ".join(options.get("--recompute-method", ())),
        )
        if method not in ("uniform", "block") or (method == "uniform" and count != 1):
            raise InputError(f"{place}: --recompute-method {method} of {count} layers: our plans have uniform of 1, or block")
        n_first, word = (last if method == "uniform" else count), "full"
    elif kind:
        raise InputError(f"{place}: --recompute-granularity is '{kind}'; it must be selective or full")
    found = []
    for ops in stages:
        inner = iter(range(len(ops)))
        found.append(tuple("none" if op in (0, last) or next(inner) >= n_first else word for op in ops))
    return found


def _activations(
    n_away: int, n_layers: int, place: str, *, recomputes: bool, n_stages: int, captured: Sequence[str]
) -> None:  # fmt: skip
    """Refuse activations on the host where Megatron-LM does: megatron/core/transformer/transformer_config.py."""
    wrong = ""
    if n_away >= n_layers:
        wrong = f" is {n_away}; Megatron-LM asks for less than the {n_layers} layers"
    elif n_stages > 1:
        wrong = " beside a pipeline, which Megatron-LM does not run: leave out one of the two"
    elif recomputes:
        wrong = " beside recomputation, which Megatron-LM does not run: leave out one of the two"
    elif captured:
        wrong = f" beside {captured[0]}: Megatron-LM captures no graphs then: leave out one of the two"
    if wrong:
        raise InputError(f"{place}: {_AWAY}{wrong}")


def _devices(strategy: Strategy, n_ranks: int, data_outermost: bool) -> list[tuple[int, ...]]:
    """Return the devices of every pipeline rank, in mesh order."""
    size, width = strategy.n_devices, strategy.tensor * strategy.context
    if not data_outermost or n_ranks == 1:
        return [tuple(range(r * size, (r + 1) * size)) for r in range(n_ranks)]
    row = width * n_ranks
    return [tuple(d * row + r * width + k for d in range(strategy.data) for k in range(width)) for r in range(n_ranks)]
