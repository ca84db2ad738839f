"""A plan as a recipe of Megatron-Bridge: a Python module with a function ``recipe``, which also starts the training."""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.base import files
from meshwright.core.result import Result
from meshwright.frameworks import _exact
from meshwright.frameworks.megatron import options as megatron_options
from meshwright.frameworks.megatron_bridge import fields
from meshwright.frameworks.megatron_bridge.provider import provider

__all__ = ["write"]

_PARTS = ("model", "train", "ddp", "dist")


def write(result: Result, path: str) -> tuple[str, ...]:
    """Write the recipe of a plan that is not refused, whole or not at all; returns what of model or price it leaves out.

    Raises
    ------
    ExportError
        When no provider builds the model, or nodes of different sizes take part.
    """
    imports, made, notes = provider(result.problem)
    sizes = _exact.launch_sizes("megatron_bridge", result)
    own = megatron_options.framework_of(result.problem)
    if "experts_captured" in own.variants:
        notes += ("the step is priced with captured graphs: set cfg.model.cuda_graph_impl and cuda_graph_scope as your release "
                  "has them",)  # fmt: skip
    if "experts_drop" in own.variants:
        notes += ("the step is priced with a fixed capacity of experts: set cfg.model.moe_expert_capacity_factor",)
    files.write(path, "\n".join(_lines(result, imports, made, sizes)) + "\n")
    return notes


def _lines(result: Result, imports: list[str], made: list[str], sizes: tuple[int, int]) -> list[str]:
    """Return the module."""
    problem, plan = result.problem, result.plan
    said = _fields(result)
    precision = next((name for name, word in fields.PRECISIONS.items() if word == problem.training.precision), "")
    endpoint = " --node-rank RANK --master-addr HOST" if sizes[0] > 1 else ""
    optimizer = {"bf16_mixed": "bf16-mixed", "fp16_mixed": "16-mixed", "": "32"}.get(precision, "bf16-mixed")
    overlaps = ("--tp-comm-overlap",) in megatron_options.arguments(result)
    beside = ", overlap_moe_expert_parallel_comm=True" * (plan.schedule == "combined_1f1b")
    late = not megatron_options.framework_of(problem).overlaps_reduce
    beside += ", overlap_grad_reduce=False, overlap_param_gather=False" * late
    by_bridge = any("AutoBridge" in line for line in imports)
    return [
        f'"""{problem.model_spec.name} on {plan.n_devices} devices{_exact.predicted(result)}; for Megatron-Bridge 0.3.1.',
        "",
        f"    torchrun --nnodes {sizes[0]} --nproc-per-node {sizes[1]}{endpoint} THIS_FILE.py",
        "",
        "It trains on mock data until cfg.dataset and cfg.tokenizer say otherwise.",
        '"""',
        "",
        *imports,
        "from megatron.bridge.recipes.utils.optimizer_utils import distributed_fused_adam_with_cosine_annealing",
        "from megatron.bridge.training import config, mixed_precision",
        "from megatron.bridge.training.comm_overlap import CommOverlapConfig",
        "from megatron.bridge.training.gpt_step import forward_step",
        "from megatron.bridge.training.pretrain import pretrain",
        "from megatron.bridge.training.tokenizers.config import TokenizerConfig",
        "",
        *(['MODEL = "./MODEL"  # a folder with the model\'s config.json, or its name on the hub', ""] if by_bridge else []),
        "",
        "def recipe() -> config.ConfigContainer:",
        f'    optimizer, scheduler = distributed_fused_adam_with_cosine_annealing(precision="{optimizer}")',
        "    cfg = config.ConfigContainer(",
        f"        model={made[0]}{',' if len(made) == 1 else ''}",
        *(f"        {line}" for line in made[1:-1]),
        *([f"        {made[-1]},"] if len(made) > 1 else []),
        "        train=config.TrainingConfig(train_iters=1000),",
        "        optimizer=optimizer,",
        "        scheduler=scheduler,",
        f"        dataset=config.GPTDatasetConfig(seq_length={problem.graph.sequence_length}, random_seed=1234,",
        "            reset_attention_mask=False, reset_position_ids=False, eod_mask_loss=False, blend=None,",
        '            split="9999,8,2", dataloader_type="single"),',
        "        logger=config.LoggerConfig(),",
        '        tokenizer=TokenizerConfig(tokenizer_type="NullTokenizer"),',
        f"        checkpoint=config.CheckpointConfig({_checkpoint(said)}),",
        f"        mixed_precision={f'mixed_precision.{precision}()' if precision else 'None'},",
        f"        comm_overlap=CommOverlapConfig(tp_comm_overlap={overlaps}{beside}),",
        "    )",
        *(f"    cfg.{name} = {value}" for name, value in said.items()),
        "    cfg.tokenizer.vocab_size = cfg.model.vocab_size - 1  # it adds the end of a document",
        "    return cfg",
        "",
        "",
        'if __name__ == "__main__":',
        "    pretrain(recipe(), forward_step)",
    ]  # fmt: skip


def _checkpoint(said: Mapping[str, str]) -> str:
    return 'ckpt_format="fsdp_dtensor"' if said["ddp.use_megatron_fsdp"] == "True" else ""


def _fields(result: Result) -> dict[str, str]:
    """Return every field that a plan decides, whatever a provider sets by itself, as Python."""
    problem, strategy = result.problem, result.plan.stages[0].strategy
    options = {option[0]: option[1:] for option in megatron_options.arguments(result)}
    ahead = sum(op.name.startswith("mtp.") for op in problem.graph.ops)
    n_ranks = len(result.plan.ranks())
    options["--seq-length"] = (str(problem.graph.sequence_length),)
    options["--num-layers"] = (str(len(problem.graph.ops) - 2 - ahead),)
    if ahead:
        options["--mtp-num-layers"] = (str(ahead),)
    if len(result.plan.stages) > n_ranks:
        options["--num-virtual-stages-per-pipeline-rank"] = (str(len(result.plan.stages) // n_ranks),)
    unsaid = {"--cp-comm-type"} - set(options)  # a ring, as without it
    said = {field: _value(name, options.get(name)) for name, field in fields.VALUES.items() if name not in unsaid}
    for name, usual in (("context_parallel_size", "1"), ("expert_model_parallel_size", "1")):
        if said[f"model.{name}"] == "None":
            said[f"model.{name}"] = usual
    for name, usual in (("data_parallel_sharding_strategy", '"no_shard"'), ("num_distributed_optimizer_instances", "1")):
        if said[f"ddp.{name}"] == "None":
            said[f"ddp.{name}"] = usual
    said |= {field: str(name in options) for name, field in fields.FLAGS.items()}
    said["optimizer.use_distributed_optimizer"] = said["ddp.use_distributed_optimizer"]
    wide = str(problem.training.gradient_bytes != 2)
    said["ddp.grad_reduce_in_fp32"] = wide
    if problem.training.precision != "fp32":
        said["mixed_precision.grad_reduce_in_fp32"] = wide
    if problem.training.precision in ("fp8", "mxfp8", "fp4"):  # all layers are priced in it, weights held in bf16
        said |= dict.fromkeys(
            ("mixed_precision.first_last_layers_bf16", "mixed_precision.fp8_param_gather",
             "mixed_precision.reuse_grad_buf_for_mxfp8_param_ag"), "False",
        )  # fmt: skip
    if "--no-gradient-accumulation-fusion" in options:
        said["model.gradient_accumulation_fusion"] = "False"
    if strategy.expert > 1:
        sent = [words[1] for words in megatron_options.dispatch(problem, result.plan)]
        said["model.moe_token_dispatcher_type"] = f'"{sent[0]}"'
        if len(sent) > 1:
            said["model.moe_flex_dispatcher_backend"] = f'"{sent[1]}"'
            said["model.moe_shared_expert_overlap"] = "False"
    return dict(sorted(said.items(), key=lambda one: (one[0].split(".")[0] not in _PARTS, one[0].split(".")[0])))


def _value(name: str, words: tuple[str, ...] | None) -> str:
    """Return an option's values as Python."""
    if words is None:
        return "None"
    if name == "--recompute-modules":
        return "[" + ", ".join(f'"{word}"' for word in words) + "]"
    return words[0] if words[0].isdigit() else f'"{words[0]}"'
