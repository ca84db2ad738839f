"""Running a plan with PyTorch, measuring layers and links, and comparing what was said with what happened.

Nothing here is imported before it is asked for, so that planning needs no PyTorch. A training script of one's own calls
`parallelize` (as ``meshwright.parallelize``), in every process of a job; `apply` is the short way where every process has the
whole batch: ``trainer.step(inputs, targets)`` trains one step and returns the loss.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os

    import torch

    from meshwright.runtime.job.trainer import Trainer
    from meshwright.runtime.open.building import Example, Model, PlanSource
    from meshwright.runtime.open.engine import Engine

__all__ = ["apply", "parallelize"]


def parallelize(
    model: Model,
    plan: PlanSource = None,
    *,
    example: Example = None,
    precision: torch.dtype | None = None,
    clip_norm: float = 0.0,
    skip_non_finite: bool = False,
    seed: int = 0,
    loss_parallel: bool = False,
    weights: str | os.PathLike[str] | None = None,
) -> Engine:
    """Cut, place and wrap a model as a plan says, for a training loop of your own; called in every process of a job.

    Parameters
    ----------
    model : torch.nn.Module or callable
        The whole model, which is taken apart, or a function without arguments that builds it. Processes whose weights differ
        take those of process 0, and a note says so.
    plan : str, path, mapping or Result, optional
        A plan file, its content, or the answer of `meshwright.plan`; by default the plan that ``meshwright run SCRIPT.py
        --plan PLAN`` names.
    example : tensor, tuple of tensors or mapping of names to tensors, optional
        Samples of what the model takes, where it takes several inputs, or begins with neither a table nor a linear layer.
        By name where batches are mappings.
    precision : torch.dtype, optional
        Of products, by autocast; that of the weights by default. With ``torch.float16`` the loss is scaled.
    clip_norm : float
        The largest norm of the whole gradient, to which a larger one is scaled down; 0 for no limit.
    skip_non_finite : bool
        Whether a step whose loss or gradients are not finite is left out; else it raises.
    seed : int
        Of the random numbers with which a function builds the model.
    loss_parallel : bool
        Under a tensor degree that splits the head by words: whether losses of your own take logits as a ``DTensor`` of which
        each rank has some classes (`torch.nn.functional.cross_entropy` does: what they run in is PyTorch's ``loss_parallel``);
        else they are given all classes, put together on every rank. The default losses never put them together.
    weights : str or path, optional
        A folder of ``*.safetensors`` under the model's own names, as ``save_pretrained`` writes them, or of
        ``torch.distributed.checkpoint`` (checkpoints, too). The model's function is then run without making any weights, and
        every process makes and reads its own part of them alone. A model on the meta device may be given without:
        ``resume`` and ``load_state_dict`` read into it.

    Returns
    -------
    Engine
        What the loop asks of this process; see `meshwright.runtime.open.engine.Engine`: ``optimizer``, ``schedule``, ``step``,
        ``evaluate``, ``state_dict``, ``batch_sampler``.

    Raises
    ------
    InputError
        What ``meshwright run`` refuses: plan, model and number of processes that do not go together.
    MissingExtraError
        Without PyTorch.

    Examples
    --------
    >>> engine = meshwright.parallelize(build_model, "plan.json", clip_norm=1.0)  # doctest: +SKIP
    >>> engine.optimizer(lambda groups: AdamW(groups, lr=3e-4), groups={"*norm*": {"weight_decay": 0.0}})  # doctest: +SKIP
    >>> loss = engine.step(batch, token_loss)  # doctest: +SKIP
    """
    from meshwright.runtime.model import source

    source.require_torch()
    from meshwright.runtime.open import building

    return building.build(
        model,
        plan,
        example=example,
        precision=precision,
        clip_norm=clip_norm,
        skip_non_finite=skip_non_finite,
        seed=seed,
        loss_parallel=loss_parallel,
        weights=weights,
    )


def apply(model: Any, plan_file: str, **options: Any) -> Trainer:
    """Return a trainer for the module, cut and wrapped as a plan says; see `meshwright.runtime.job.trainer.apply`.

    Parameters
    ----------
    model : torch.nn.Module
        The whole model, with the same weights in every process.
    plan_file : str
        A plan as ``meshwright plan --out`` writes it.
    options
        Optimizer and loss, see `meshwright.runtime.job.trainer.apply`.
    """
    from meshwright.runtime.job import trainer

    return trainer.apply(model, plan_file, **options)
