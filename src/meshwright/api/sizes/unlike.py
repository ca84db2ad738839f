"""Lengths that vary: a question posed for them, and what each way of making samples of documents makes of a plan."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from meshwright.api.evaluation import evaluate
from meshwright.base.errors import InputError, UnknownNameError
from meshwright.core.problem import Problem
from meshwright.core.result import Result
from meshwright.models.documents import has_masked_attention, masked
from meshwright.schedules import Actions
from meshwright.sim import order, tasks, transfers
from meshwright.sim.uneven import LinearSeconds, compute_ends
from meshwright.sizing import batching as ways
from meshwright.sizing.batching import SAME_RATIO
from meshwright.sizing.lengths import Lengths, lengths, mean_packed_pairs, mean_piece

__all__ = ["posed", "with_lengths"]

_COSTS = "analytic"
_N_STEPS = 16  # drawn for each way that is uneven
_MOST_DOCUMENTS = 1 << 21  # drawn at once
_MOST_TIMES = 1 << 22  # of tasks held at once
_MOST_TASKS = 1 << 25  # played, of all replicas and steps
_SIMPLEST = ("pad", "bucket", "pack", "mask", "mask_dealt")


def posed(problem: Problem, told: str, batching: str) -> Problem:
    """Return a question for documents of unlike length.

    Parameters
    ----------
    problem : Problem
        The question for full samples.
    told : str
        As of `meshwright.sizing.lengths.lengths`; empty for full samples.
    batching : str
        One of `meshwright.sizing.batching.WAYS`; empty for ``pack``.

    Returns
    -------
    Problem
        With ``mask`` the attention of documents; otherwise the same.

    Raises
    ------
    InputError
        When an option is wrong, or one is given without the other.
    UnknownNameError
        When there is no such way.
    """
    if batching and batching not in ways.WAYS:
        raise UnknownNameError("batching", batching, ways.WAYS)
    if not told:
        if batching:
            raise InputError(f"--batching {batching}: says how documents become samples; give their --lengths too")
        return problem
    spec = problem.model_spec
    if problem.costs != _COSTS or spec.instance is not None:
        raise InputError(
            f"--lengths: costs {problem.costs} say nothing of documents in a sample; leave it out, or give --costs {_COSTS}"
        )
    if spec.pairs_ratio != 1.0:
        raise InputError(f"--lengths: model {spec.name} has a document mask already; read it anew")
    ratio = mean_packed_pairs(lengths(told).documents(), problem.graph.sequence_length)
    under_mask = masked(spec, ratio)
    return replace(problem, model_spec=under_mask) if batching == "mask" else problem


def with_lengths(result: Result, plain: Problem, told: str, batching: str, seed: int = 0) -> Result:
    """Return a result whose answer holds ``lengths``: what each way of making samples makes of its plan; one without a plan as
    it is.

    Parameters
    ----------
    result : Result
        The answer to what `posed` returned.
    plain : Problem
        The question before `posed`.
    told, batching
        As of `posed`.
    seed : int
        Of the steps that are drawn.

    Returns
    -------
    Result
        With the field, whose fields ``docs/reference/plan_json.md`` lists.

    Raises
    ------
    InputError
        As `posed`.
    """
    if not result.feasible or result.timeline is None:
        return result
    found, problem = lengths(told), replace(result.problem, model_spec=plain.model_spec)
    length = problem.graph.sequence_length
    documents = found.documents()
    ratio = mean_packed_pairs(documents, length)
    step = _Step.of(result, problem, ratio, float(documents.mean()))
    rows = step.rows(found, documents, np.random.default_rng((seed, 1)))
    best = max(row["real_tokens_per_second"] for row in rows.values())
    close = [name for name in _SIMPLEST if rows[name]["real_tokens_per_second"] >= (1.0 - SAME_RATIO) * best]
    entry = {
        "source": told, "batching": batching or "pack", "sequence_length": length, "n_documents": len(documents),
        "mean_tokens": float(documents.mean()), "n_cut": int((documents > length).sum()), "pairs_ratio": ratio,
        "n_steps_drawn": step.n_steps, "ways": rows, "recommended": close[0], "notes": step.notes(result, plain),
    }  # fmt: skip
    return replace(result, answer=replace(result.answer, extra={**result.answer.extra, "lengths": entry}))


@dataclass(frozen=True, slots=True)
class _Step:
    """One step of a plan under lengths: its seconds on full samples and under a mask of the mean share of pairs.

    `in_step`: whether replicas wait for each other at every micro-batch, not only at the end of the step: where they gather
    weights of each layer (sharding 3), or exchange tokens with experts.
    """

    slots: Actions
    sends: transfers.Transfers
    in_step: bool
    seconds: LinearSeconds
    full_seconds: float
    masked_seconds: float
    shape: ways.StepShape
    n_steps: int

    @classmethod
    def of(cls, result: Result, problem: Problem, ratio: float, mean_tokens: float) -> _Step:
        """Play the plan with full samples and with masked ones."""
        plan, length = result.plan, problem.graph.sequence_length
        costs, full = evaluate(problem, plan)
        _, under_mask = evaluate(replace(problem, model_spec=masked(problem.model_spec, ratio)), plan)
        assert full is not None and under_mask is not None
        low = max(1, round(min(ratio, 0.5) * length)) / length
        fewer = evaluate(replace(problem, model_spec=masked(problem.model_spec, low)), plan)[0]
        nothing = np.zeros(max(0, len(costs) - 1))
        many, few = (tasks.task_seconds(tasks.times(held, nothing)) for held in (costs, fewer))
        by_pairs = (many - few) / (1.0 - low)
        shape = ways.StepShape(
            max(stage.strategy.data for stage in plan.stages), plan.n_microbatches, plan.micro_batch, length
        )  # fmt: skip
        slots, sends = order(problem, plan, costs), transfers.transfers(problem, plan, costs)
        in_step = any(stage.strategy.shard == 3 or stage.strategy.expert > 1 for stage in plan.stages)
        n_affordable = min(
            _MOST_DOCUMENTS * mean_tokens / (shape.global_batch * length), _MOST_TASKS / (len(slots.stage) * shape.n_replicas)
        )
        return cls(
            slots, sends, in_step, LinearSeconds(many - by_pairs, by_pairs), full.step_seconds, under_mask.step_seconds, shape,
            int(min(_N_STEPS, max(2, n_affordable))),
        )  # fmt: skip

    def rows(self, told: Lengths, documents: NDArray[np.int64], rng: np.random.Generator) -> dict[str, dict[str, float]]:
        """Return what each way comes to."""
        whole = self.shape.global_batch * self.shape.sequence_length
        held = mean_piece(documents, self.shape.sequence_length) / self.shape.sequence_length
        buckets = ways.bucketed(documents, self.shape, self.n_steps, rng)
        samples = ways.packed(told, self.shape, self.n_steps, rng)
        uneven = {"mask": ways.dealt(samples, self.shape, sort=False), "mask_dealt": ways.dealt(samples, self.shape, sort=True)}
        rows = {"pad": _row(self.full_seconds, held * whole, whole, 0.0)}
        full = self._ends(np.ones((1, 1, 1)), np.ones((1, 1, 1)))
        mean, even = self._waits(buckets)
        computed = held * whole * float(buckets.tokens.mean()) / buckets.real_ratio  # padded as those drawn
        rows["bucket"] = _row(self.full_seconds + mean - full, held * whole, computed, mean - even)
        rows["pack"] = _row(self.full_seconds, whole, whole, 0.0)
        for name, drawn in uneven.items():
            mean, even = self._waits(drawn)
            rows[name] = _row(self.masked_seconds + mean - even, whole, whole, mean - even)
        return rows

    def _waits(self, drawn: ways.DrawnSteps) -> tuple[float, float]:
        """Return the mean over steps of when the slowest replica ends, and when all would with micro-batches alike."""
        alike = np.full((1, 1, 1), drawn.tokens.mean()), np.full((1, 1, 1), drawn.pairs.mean())
        return self._ends(drawn.tokens, drawn.pairs), self._ends(*alike)

    def _ends(self, tokens: NDArray[np.float64], pairs: NDArray[np.float64]) -> float:
        """Return the mean over steps of when the slowest replica's last task ends."""
        n_microbatches = self.shape.n_microbatches
        if self.in_step:
            tokens, pairs = tokens.max(axis=1, keepdims=True), pairs.max(axis=1, keepdims=True)
        shape = (*tokens.shape[:2], n_microbatches)
        flat = [np.broadcast_to(one, shape).reshape(-1, n_microbatches) for one in (tokens, pairs)]
        n_each = max(1, _MOST_TIMES // len(self.slots.stage))
        ends = [
            compute_ends(self.slots, self.seconds, self.sends, flat[0][i : i + n_each], flat[1][i : i + n_each])
            for i in range(0, len(flat[0]), n_each)
        ]
        return float(np.concatenate(ends).reshape(shape[:2]).max(axis=1).mean())

    def notes(self, result: Result, plain: Problem) -> list[str]:
        """Return what the figures leave out."""
        found = []
        if len({stage.strategy.data for stage in result.plan.stages}) > 1:
            found.append("stages have unlike numbers of replicas: all are counted as those of the widest stage")
        if not has_masked_attention(plain.model_spec):
            found.append("the model has no fused attention, so a document mask saves nothing here")
        if any(stage.strategy.context > 1 for stage in result.plan.stages):
            found.append(
                "context parallelism: its ranks are taken to share the pairs of documents evenly, which plain chunks do not"
            )
        return found


def _row(step_seconds: float, real_tokens: float, computed_tokens: float, waiting_seconds: float) -> dict[str, float]:
    """Return the figures of one way."""
    return {
        "step_seconds": step_seconds,
        "real_tokens_per_second": real_tokens / step_seconds,
        "padding_ratio": max(0.0, 1.0 - real_tokens / computed_tokens),
        "waiting_ratio": max(0.0, waiting_seconds) / step_seconds,
    }
