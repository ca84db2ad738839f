"""A plan inside torchtitan's own trainer: the two functions of a ``ModelSpec``, and what its configuration has to say beside.

The trainer makes meshes, data loader and loss from its configuration before it calls either function, so that degrees and
batches stand there; stages, order of work, resharding and the recomputation of every layer are the functions' part.

References
----------
.. [1] torchtitan 0.3.0, torchtitan/trainer.py, torchtitan/protocols/model_spec.py, torchtitan/models/llama3/parallelize.py,
   torchtitan/distributed/pipeline_parallel.py. Main (August 2026) counts batches otherwise, and is refused.
"""

from __future__ import annotations

import importlib.metadata
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from meshwright.base.errors import ExportError, InputError, MissingExtraError
from meshwright.core.framework import FrameworkLimits
from meshwright.core.graph import Graph
from meshwright.core.plan import Plan
from meshwright.core.problem import Problem
from meshwright.core.result import Result
from meshwright.frameworks import _exact
from meshwright.frameworks.torchtitan import degrees, module
from meshwright.frameworks.torchtitan.writers import pytorch_schedule

__all__ = ["configure", "functions", "refusals"]

_RELEASE = "0.3.0"
_AXES = (
    ("data_parallel_replicate_degree", "dp_replicate"), ("data_parallel_shard_degree", "dp_shard"),
    ("context_parallel_degree", "cp"), ("tensor_parallel_degree", "tp"), ("expert_parallel_degree", "ep"),
)  # fmt: skip
"""Degrees by their name in the configuration and in ``ParallelDims``, where a degree left open is known."""

_OF_FUNCTIONS = ("fsdp_reshard_after_forward", "module_fqns_per_model_part", "pipeline_parallel_schedule_csv")
"""Fields that the functions set for what torchtitan calls: the configuration says the same, or has them at their defaults."""

_TOLERATED_RATIO = 0.01
"""Of the number of weights: further off it is another model than was planned."""


def refusals(limits: FrameworkLimits, plan: Plan, problem: Problem) -> tuple[str, ...]:
    """Return what of a plan torchtitan's trainer cannot do, whatever functions its model has: sentences without a full stop."""
    graph = problem.graph
    found = list(_exact.unsaid(limits, plan, problem))
    if problem.training.precision not in module.DTYPES:
        found.append(f"products in {problem.training.precision}, which are its model's converters; plan with bf16 or fp32")
    kinds = [op.kind for op in graph.ops]
    if not (kinds[0] == "embedding" and kinds[-1] == "head" and not set(kinds[1:-1]) & set(_exact.ENDS)):
        found.append("a model that is not an embedding, layers and a head, as its decoders are")
    n_ranks, n_stages = len(plan.ranks()), len(plan.stages)
    if n_ranks == 1:
        return (*found, *degrees.refusals(plan))
    loop = tuple(i % n_ranks for i in range(n_stages))
    if n_stages % n_ranks or plan.rank_of_stage() not in (loop, _v_shape(n_ranks)):
        found.append(f"{n_stages} stages that lie on {n_ranks} pipeline ranks neither in turn nor there and back")
    return tuple(found)


def _v_shape(n_ranks: int) -> tuple[int, ...]:
    return (*range(n_ranks), *range(n_ranks - 1, -1, -1))


def _schedule(plan: Plan) -> tuple[str, bool]:
    """Return the name of a schedule, and whether the order of work goes along as a file: then it says how stages lie only."""
    if plan.schedule not in ("zb_h1", "zb_v") and plan.schedule in degrees.SCHEDULES and not degrees.refusals(plan):
        return degrees.SCHEDULES[plan.schedule], False
    return ("ZBVZeroBubble" if plan.rank_of_stage() == _v_shape(len(plan.ranks())) else "1F1B"), True


class _AsPlanned:
    """Stands for ``activation_checkpoint`` of a configuration: builds what wraps every layer as the plan says.

    `words`: what each layer recomputes, by its name in torchtitan's model.
    """

    def __init__(self, words: Mapping[str, str]) -> None:
        self.words = words

    def build(self, dump_folder: str = "") -> Any:
        """Return a policy of torchtitan's own kind."""
        from torchtitan.distributed import activation_checkpoint as kinds

        words = self.words
        policies = {
            word: getattr(kinds, name).Config().build(dump_folder=dump_folder)
            for word, name in module.CHECKPOINTING.items()
            if name
        }

        class AsPlanned(kinds.ActivationCheckpointing):  # type: ignore[misc]
            """Every layer by its own setting."""

            def _wrap_block(self, block: Any, *, base_fqn: str | None = None) -> Any:
                word = words[str(base_fqn)]
                return block if word == "none" else policies[word]._wrap_block(block, base_fqn=base_fqn)

        return AsPlanned(kinds.ActivationCheckpointing.Config(), dump_folder)


def functions(result: Result, limits: FrameworkLimits, spec: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return ``parallelize_fn`` and ``pipelining_fn`` of a model under a plan; see `meshwright.torchtitan_functions`."""
    _check(result, limits)
    plan, graph = result.plan, result.problem.graph
    own_parallelize, own_pipelining = spec.parallelize_fn, spec.pipelining_fn
    piped = len(plan.ranks()) > 1
    if piped and own_pipelining is None:
        raise ExportError(f"torchtitan: {spec.name} has no pipelining_fn, and the plan is a pipeline")
    checkpointing = _AsPlanned(_words(plan, graph))
    said = module.parallelism(result)

    def parallelize_fn(
        model: Any,
        *,
        parallel_dims: Any,
        training: Any,
        parallelism: Any,
        compile_config: Any,
        ac_config: Any,
        dump_folder: str,
    ) -> Any:
        """Shard a model, or a stage of it, as the plan says."""
        _compare(result, parallel_dims, training, parallelism, ac_config)
        if not piped:
            _check_model(model, graph)
        return own_parallelize(
            model, parallel_dims=parallel_dims, training=training, compile_config=compile_config, dump_folder=dump_folder,
            parallelism=replace(parallelism, fsdp_reshard_after_forward=said["fsdp_reshard_after_forward"]),
            ac_config=checkpointing,
        )  # fmt: skip

    def pipelining_fn(  # noqa: PLR0913  torchtitan's arguments
        model: Any, *, parallel_dims: Any, training: Any, parallelism: Any, compile_config: Any, ac_config: Any,
        dump_folder: str, device: Any, model_config: Any, parallelize_fn: Callable[..., Any], loss_fn: Callable[..., Any],
    ) -> Any:  # fmt: skip
        """Cut a model into the plan's stages, and return its schedule over them."""
        _compare(result, parallel_dims, training, parallelism, ac_config)
        _check_model(model, graph)
        name, ordered = _schedule(plan)
        with tempfile.TemporaryDirectory() as folder:
            order = Path(folder) / "order.csv"
            if ordered:
                order.write_text(pytorch_schedule.rows(result), encoding="utf-8")
            cut = replace(
                parallelism, module_fqns_per_model_part=module.parts(result), pipeline_parallel_schedule=name,
                pipeline_parallel_schedule_csv=str(order) if ordered else "",
            )  # fmt: skip
            made = own_pipelining(
                model, parallel_dims=parallel_dims, training=training, parallelism=cut, compile_config=compile_config,
                ac_config=ac_config, dump_folder=dump_folder, device=device, model_config=model_config, loss_fn=loss_fn,
                parallelize_fn=lambda part, **given: parallelize_fn(part, **given | {"parallelism": parallelism}),
            )  # fmt: skip
        return made

    return parallelize_fn, pipelining_fn


def configure(result: Result, limits: FrameworkLimits, config: Any) -> Any:
    """Make a trainer's configuration say the plan, in place, and return it; see `meshwright.torchtitan_config`."""
    parallelize_fn, pipelining_fn = functions(result, limits, config.model_spec)
    plan = result.plan
    config.model_spec = replace(config.model_spec, parallelize_fn=parallelize_fn, pipelining_fn=pipelining_fn)
    for key, value in module.batches(result).items():
        setattr(config.training, key, value)
    config.training.disable_cuda_graphs = config.training.disable_cuda_graphs or module.uncaptured(plan)
    said = {"pipeline_parallel_degree": 1, "module_fqns_per_model_part": None, "pipeline_parallel_schedule_csv": ""}
    if len(plan.ranks()) > 1:
        said["pipeline_parallel_schedule"] = _schedule(plan)[0]
    for key, value in (said | module.parallelism(result)).items():
        setattr(config.parallelism, key, value)
    config.activation_checkpoint = None
    if result.problem.framework.name == "torchtitan":
        config.compile.enable = result.problem.framework.variant != "eager"
        config.compile.enable_async_tensor_parallel = result.problem.framework.variant == "async_tensor"
    return config


def _check(result: Result, limits: FrameworkLimits) -> None:
    """Raise `ExportError` for a plan that the trainer cannot run, or another release, `MissingExtraError` without any."""
    if not result.feasible:
        raise InputError("nothing fits, so there is no plan for torchtitan to run")
    try:
        release = importlib.metadata.version("torchtitan")
    except importlib.metadata.PackageNotFoundError:
        raise MissingExtraError("running a plan inside torchtitan", "frameworks") from None
    if release != _RELEASE:
        raise ExportError(
            f"torchtitan {release} is installed; plans run inside {_RELEASE}, whose functions they take the place of"
        )
    _exact.check("torchtitan:functions", refusals(limits, result.plan, result.problem))


def _words(plan: Plan, graph: Graph) -> dict[str, str]:
    """Return what every layer recomputes, by its name in torchtitan's model."""
    return {
        f"layers.{op - 1}": word
        for stage in plan.stages
        for op, word in zip(stage.ops, stage.recompute or ("none",) * len(stage.ops), strict=True)
        if graph.ops[op].kind not in _exact.ENDS
    }


def _check_model(model: Any, graph: Graph) -> None:
    """Raise `ExportError` when a model is not the one that was planned."""
    n_layers, planned = len(model.layers), len(graph.ops) - 2
    if n_layers != planned:
        raise ExportError(f"torchtitan: the model has {n_layers} layers, and the plan is for {planned}, of {graph.name}")
    n_weights = sum(weight.numel() for weight in model.parameters())
    if abs(n_weights - graph.n_parameters) > _TOLERATED_RATIO * graph.n_parameters:
        raise ExportError(
            f"torchtitan: the model has {n_weights:,} weights, and the plan is for {graph.n_parameters:,}, of {graph.name}"
        )


def _compare(result: Result, dims: Any, training: Any, parallelism: Any, ac_config: Any) -> None:
    """Raise `ExportError` when the configuration that the trainer was built from says otherwise than the plan."""
    plan = result.plan
    wanted, found = module.parallelism(result), {}
    for name, axis in _AXES:
        found[f"parallelism.{name}"] = (wanted[name], getattr(dims, axis))
    found["parallelism.pipeline_parallel_degree"] = (len(plan.ranks()), dims.pp)
    if plan.stages[0].strategy.tensor > 1:
        name = "enable_sequence_parallel"
        found[f"parallelism.{name}"] = (wanted[name], getattr(parallelism, name))
    if len(plan.ranks()) > 1:
        name = "pipeline_parallel_microbatch_size"
        found[f"parallelism.{name}"] = (wanted[name], getattr(parallelism, name))
        found["parallelism.pipeline_parallel_schedule"] = (_schedule(plan)[0], parallelism.pipeline_parallel_schedule)
    found |= {f"training.{key}": (value, getattr(training, key)) for key, value in module.batches(result).items()}
    wrong = [f"{key}={value!r} (it is {said!r})" for key, (value, said) in found.items() if value != said]
    mine = wanted | {"module_fqns_per_model_part": module.parts(result), "pipeline_parallel_schedule_csv": None}
    for name in _OF_FUNCTIONS:
        said = getattr(parallelism, name)
        if said not in (mine[name], None, "", "default"):
            wrong.append(f"parallelism.{name}: leave it out (it is {said!r})")
    if ac_config is not None:
        wrong.append(f"activation_checkpoint=None (it is {type(ac_config).__qualname__}): layers recompute as the plan says")
    if training.enable_cpu_offload:
        wrong.append("training.enable_cpu_offload=False (it is True)")
    if wrong:
        raise ExportError(
            f"torchtitan: its configuration says otherwise than the plan; set {'; '.join(wrong)}, or let "
            "meshwright.torchtitan_config(plan, config) do so"
        )
