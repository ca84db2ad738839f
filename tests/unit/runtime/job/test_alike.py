"""What would train wrongly without a sign: unlike weights or samples in processes, optimizers that cannot update parts."""

from __future__ import annotations

import json
import pathlib
import random
from typing import Any

import numpy as np
import pytest
from runtime_processes import plan_of

torch = pytest.importorskip("torch", reason="running plans needs PyTorch: pip install 'meshwright[torch]'")
pytestmark = pytest.mark.torch

from torch import nn  # noqa: E402

from meshwright.base.errors import InputError  # noqa: E402
from meshwright.runtime.job import checkpoint_folders, preflight  # noqa: E402
from meshwright.runtime.model import data, source  # noqa: E402
from meshwright.runtime.open import own_batch  # noqa: E402
from meshwright.runtime.parallel import optimizer_probe  # noqa: E402
from meshwright.runtime.ranks import alike  # noqa: E402
from meshwright.runtime.ranks.layout import layout  # noqa: E402
from meshwright.runtime.ranks.plan_file import plan_file_of  # noqa: E402


def plan(**options: Any) -> Any:
    return plan_file_of(plan_of([(4, [0, 1], options)]), "p").plan


class NormOfAll(torch.optim.Optimizer):
    """Scales an update by the norm of the weight, as LAMB does."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(0.1 * parameter.norm() * parameter.grad / parameter.grad.norm())


@pytest.mark.parametrize("options", [{"shard": 1}, {"shard": 2}, {"expert": 2}], ids=str)
@pytest.mark.parametrize("make", [NormOfAll, lambda own: torch.optim.Adafactor(own, lr=0.1), torch.optim.Muon,
    lambda own: torch.optim.AdamW([{"params": own, "weight_decay": 0.5 if own[0].dim() > 1 else 0.0}])],
    ids=["norms", "adafactor", "muon", "groups by dimensions"])  # fmt: skip
def test_optimizers_that_look_at_whole_weights_are_refused_where_ranks_update_parts(make: Any, options: dict) -> None:
    with pytest.raises(InputError, match=r"opt: .*stage 0 (shards optimizer state|divides experts)") as told:
        optimizer_probe.check(make, plan(**options), "opt")
    assert "\n" not in str(told.value)
    optimizer_probe.check(make, plan(shard=3), "opt")
    optimizer_probe.check(make, plan(tensor=2), "opt")


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.NAdam,
    lambda own: torch.optim.SGD(own, 0.1, momentum=0.9, nesterov=True)],
    ids=["sgd", "adamw", "rmsprop", "nadam", "nesterov"])  # fmt: skip
def test_optimizers_that_treat_every_element_alike_are_taken(make: Any) -> None:
    optimizer_probe.check(make, plan(shard=2), "opt")


def test_an_optimizer_that_asks_for_a_closure_is_refused_under_every_plan() -> None:
    with pytest.raises(InputError, match=r"opt: cannot update weights of shape .6, 4.: TypeError"):
        optimizer_probe.check(torch.optim.LBFGS, plan(), "opt")


def test_unlike_samples_within_a_part_of_the_data_are_found_and_unlike_parts_are_no_fault() -> None:
    drawn = random.Random(0)
    for _ in range(200):
        n_parts = drawn.randint(1, 3)
        own = [drawn.randrange(65536) for _ in range(n_parts)]
        marks: list[Any] = [(part, own[part]) for part in range(n_parts) for _ in range(drawn.randint(1, 600))] + [None]
        sums = np.sum([alike.votes(mark, n_parts) for mark in marks], axis=0).tolist()
        assert alike.unlike_share(sums) == -1
        victim = drawn.randrange(len(marks) - 1)
        part, value = marks[victim]
        several = sum(mark is not None and mark[0] == part for mark in marks) > 1
        marks[victim] = (part, value ^ (1 << drawn.randrange(16)))
        sums = np.sum([alike.votes(mark, n_parts) for mark in marks], axis=0).tolist()
        assert alike.unlike_share(sums) == (part if several else -1)


def test_fingerprints_differ_by_shape_order_and_value() -> None:
    tokens = torch.arange(24)
    others = [tokens.view(4, 6), tokens.flip(0), tokens + (tokens == 3), tokens.float(), tokens[:23]]
    assert alike.fingerprint([tokens, "name"]) == alike.fingerprint([tokens.clone(), 3])
    assert len({alike.fingerprint([value]) for value in (tokens, *others)}) == 6
    assert alike.fingerprint([tokens[::2]]) == alike.fingerprint([tokens[::2].clone()])
    assert alike.fingerprint([torch.zeros(0), torch.tensor(True)]) != alike.fingerprint([torch.tensor(False)])


def test_a_model_is_built_alike_whoever_draws_its_weights() -> None:
    found = []
    state = np.random.get_state()[1].tolist()
    for _ in range(2):
        with source.seeded(2**40 + 7):
            found.append((random.random(), float(np.random.randn()), float(torch.randn(()))))
    assert found[0] == found[1] and np.random.get_state()[1].tolist() == state


def test_of_the_default_loss_every_label_counts_the_same_and_of_ones_own_every_sample() -> None:
    output, targets = torch.randn(6, 5, 7), torch.randint(7, (6, 5))
    for i, n in enumerate((0, 5, 1, 2, 0, 3)):
        targets[i, n:] = -100
    whole = nn.functional.cross_entropy(output.flatten(0, 1), targets.flatten())
    rows = [(0, 1), (1, 2), (2, 5), (5, 6)]
    parts = [data.share_of_loss(data.default_loss, output[a:b], targets, (a, b)) for a, b in rows]
    assert float(sum(parts)) == pytest.approx(float(whole), rel=1e-6)
    value, count = own_batch.class_loss(output, targets)
    assert float(value / count) == pytest.approx(float(whole), rel=1e-6)
    values = torch.randn(6, 5, 7)
    parts = [data.share_of_loss(data.default_loss, output[a:b], values, (a, b)) for a, b in rows]
    assert float(sum(parts)) == pytest.approx(float(nn.functional.mse_loss(output, values)), rel=1e-6)
    with pytest.raises(InputError, match="--loss gave a tuple"):
        data.share_of_loss(own_batch.class_loss, output, targets, (0, 6))


def test_a_description_of_a_checkpoint_that_was_changed_is_not_believed(tmp_path: pathlib.Path) -> None:
    content: dict[str, Any] = {"format": checkpoint_folders.FORMAT, "step": 4, "plan": [], "files": {}, "n_ranks": 1}
    content |= {"global_batch": 8, "optimizer": "AdamW", "numbers": {}}
    (tmp_path / "done.json").write_text(json.dumps(content))
    assert checkpoint_folders.content_of(tmp_path)["step"] == 4, "as versions before the sum wrote it"
    content["sum"] = checkpoint_folders.sum_of_description(content)
    (tmp_path / "done.json").write_text(json.dumps(content))
    assert checkpoint_folders.content_of(tmp_path)["step"] == 4
    (tmp_path / "done.json").write_text(json.dumps(content | {"step": 6}))
    with pytest.raises(InputError, match=r"done.json is not what was written"):
        checkpoint_folders.content_of(tmp_path)


def test_too_few_queues_for_the_messages_of_a_pipeline_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = layout(plan_file_of(plan_of([(1, [0], {}), (1, [1], {}), (2, [2], {})]), "p").plan)
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "4")
    with pytest.raises(InputError, match="CUDA_DEVICE_MAX_CONNECTIONS=4, but a rank computes beside 4 streams"):
        preflight.check_queues(pipeline, "nccl", "p")
    preflight.check_queues(pipeline, "gloo", "p")
    preflight.check_queues(layout(plan()), "nccl", "p")
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "5")
    preflight.check_queues(pipeline, "nccl", "p")
    preflight.free_queues("nccl")
    assert preflight.os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] == "5"
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS")
    preflight.check_queues(pipeline, "nccl", "p")
    preflight.free_queues("gloo")
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in preflight.os.environ
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "")
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS")
    assert preflight.backend_of("") == ("nccl" if torch.cuda.is_available() else "gloo") and preflight.backend_of("x") == "x"


def test_what_analytic_costs_price_otherwise_is_told() -> None:
    analytic: dict[str, Any] = {"costs": "analytic"}
    told = [
        preflight.priced_otherwise(analytic, plan(**options), [nn.ReLU()], {})
        for options in ({}, {"shard": 3}, {"tensor": 2}, {"context": 2})
    ]
    grouped = plan_file_of(plan_of([(4, [0, 1, 2, 3], {"shard": 1, "shard_degree": 2})]), "p").plan
    told.append(preflight.priced_otherwise(analytic, grouped, [nn.ReLU()], {}))
    assert [len(one) for one in told] == [0, 0, 2, 1, 1] and "word table" in told[2][0]
    assert "of a context axis begin after" in told[3][0] and "over groups of shards begin after" in told[4][0]
    assert not preflight.priced_otherwise({"costs": "profiled"}, plan(), [], {})


def test_an_optimizer_that_counts_on_the_models_weights_is_taken_where_it_gets_them() -> None:
    def of_the_second(own: Any) -> Any:
        return torch.optim.SGD([own[1]], 0.1)

    optimizer_probe.check(of_the_second, plan(), "opt")
    with pytest.raises(InputError, match=r"opt: cannot update weights of shape \(6, 4\): IndexError"):
        optimizer_probe.check(of_the_second, plan(shard=1), "opt")
