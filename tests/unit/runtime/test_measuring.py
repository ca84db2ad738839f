"""Profiles measure the model given; calibration scales them by what a run took; delayed weight gradients are the same."""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="measuring needs PyTorch: pip install 'meshwright[torch]'")
pytestmark = pytest.mark.torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "examples"))


def test_a_profile_holds_every_layer_once_and_is_read_back(tmp_path: pathlib.Path) -> None:
    import models

    from meshwright import api
    from meshwright.runtime.profile.measure import profile_layers

    model = models.Transformer(n_layers=2)
    row = torch.zeros(1, 8, dtype=torch.long)
    said: list[str] = []
    found = profile_layers(model, (row,), [1, 2], [1, 2], repeats=1, say=lambda text, _: said.append(text))
    assert [layer["name"] for layer in found["layers"]] == ["embed", "layers.0", "layers.1", "head"]
    assert [layer["like"] for layer in found["layers"]] == ["embed", "layers.0", "layers.0", "head"]
    assert sum(layer["n_parameters"] for layer in found["layers"]) == sum(p.numel() for p in model.parameters())
    first = [text for text in said if "neighbours" not in text]
    assert len(first) == 3 * (2 * 3 + 2)  # three rounds of two numbers of rows of three distinct layers, and of half a block
    assert found["layers"][1]["output_bytes"] == 8 * 64 * 4
    path = tmp_path / "profile.json"
    path.write_text(json.dumps({"format": "meshwright/profile/1", "model": "m", "sequence_length": 8, **found}))
    model_spec = api.read(str(path))
    assert (model_spec.format, model_spec.costs, model_spec.graph.n_parameters) == (
        "profile_json",
        "profiled",
        sum(p.numel() for p in model.parameters()),
    )


def test_a_table_that_embedding_and_head_share_is_in_the_profile_once(tmp_path: pathlib.Path) -> None:
    import models

    from meshwright import api
    from meshwright.runtime.profile.measure import profile_layers

    model = models.Transformer(n_layers=2)
    model.head.weight = model.embed.weight
    found = profile_layers(model, (torch.zeros(1, 8, dtype=torch.long),), [1], [1], repeats=1, say=lambda *_: None)
    n = model.embed.weight.numel()
    assert found["shared"] == [{"layers": ["embed", "head"], "n_parameters": n, "weight_bytes": 4.0 * n}]
    path = tmp_path / "profile.json"
    path.write_text(json.dumps({"format": "meshwright/profile/1", "model": "m", "sequence_length": 8, **found}))
    spec = api.read(str(path))
    assert spec.graph.n_parameters == sum(p.numel() for p in model.parameters())
    assert spec.instance.weight_bytes == 4.0 * spec.graph.n_parameters


def test_a_hiccup_in_one_round_does_not_reach_the_profile() -> None:
    from meshwright.runtime.profile.measure import Probe, settle

    rounds = {1: iter([1.0, 1.1, 1.0, 1.0, 1.0, 1.0, 1.0]), 2: iter([4.1, 3.9, 2.1]), 4: iter([8.0] * 7)}
    said: list[str] = []
    times = ("forward_seconds", "backward_input_seconds", "backward_weight_seconds")

    def probe(n_rows: int) -> Probe:
        return Probe("layers.0", n_rows, 1, lambda _: dict.fromkeys(times, next(rounds[n_rows])))

    probes = [probe(n_rows) for n_rows in (1, 2, 4)]
    strange = settle(probes, 3, lambda text, _: said.append(text))
    assert [p.figures["forward_seconds"] for p in probes] == [1.0, 2.1, 8.0]
    assert [p.rows for p in strange] == [4]  # dearer per row than two rows in every round: told, not hidden
    assert sum("again" in text for text in said) == 4


def test_what_does_not_fit_its_neighbours_is_measured_again_until_it_does() -> None:
    from meshwright.runtime.profile.measure import Probe, settle

    slow = iter([9.0, 9.0, 9.0, 2.0])
    times = ("forward_seconds", "backward_input_seconds", "backward_weight_seconds")
    probes = [
        Probe("layers.0", 1, 1, lambda _: dict.fromkeys(times, 1.0)),
        Probe("layers.0", 2, 1, lambda _: dict.fromkeys(times, next(slow))),
        Probe("layers.0", 4, 1, lambda _: dict.fromkeys(times, 4.0)),
    ]
    assert settle(probes, 3, lambda *_: None) == []
    assert probes[1].figures["forward_seconds"] == 2.0


def test_the_line_through_measured_times_has_their_latency_and_slope() -> None:
    from meshwright.runtime.profile.links import fit

    sizes = [1e3, 1e4, 1e6]
    latency_seconds, slope = fit(sizes, [2e-5 + size * 3e-9 for size in sizes])
    assert latency_seconds == pytest.approx(2e-5)
    assert slope == pytest.approx(3e-9)


def test_links_are_told_apart_by_kind_of_hop() -> None:
    from meshwright.runtime.profile.links import hops

    def pair(source: int, target: int, latency_seconds: float, slope: float) -> dict:
        return {"source": source, "target": target, "latency_seconds": latency_seconds, "seconds_per_byte": slope}

    pairs = [pair(0, 1, 1e-5, 1e-9), pair(1, 0, 3e-5, 1e-9), pair(0, 2, 9e-5, 1e-8), pair(2, 1, 9e-5, 1e-8)]
    assert hops(pairs, ["a", "a", "b"]) == [
        "inside a machine: 20 us, 1.00 GB/s (median of 2 pairs)",
        "between machines: 90 us, 0.10 GB/s (median of 2 pairs)",
    ]


def test_the_clock_of_a_gpu_reads_events_after_it_has_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    from meshwright.runtime.step.clock import Clock

    done: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at_milliseconds = 5.0 * len(done)
            done.append("recorded")

        def elapsed_time(self, other: Event) -> float:
            assert done[-1] == "waited"
            return other.at_milliseconds - self.at_milliseconds

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: done.append("waited"))
    clock = Clock(torch.device("cuda", 0))
    first, last = clock.mark(), clock.mark()
    clock.finish()
    assert clock.seconds(first, last) == pytest.approx(0.005)


def test_peak_memory_of_a_gpu_is_what_its_allocator_held_most(monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    from meshwright.runtime.job.memory import allocator_peak

    device, read = torch.device("cuda", 1), []
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda place: read.append(place) or 4096)
    trainer = SimpleNamespace(executor=SimpleNamespace(device=device), weights={0: None, 2: None})
    assert allocator_peak(trainer) == {0: 4096.0, 2: 4096.0}
    assert read == [device]


@pytest.mark.parametrize(
    ("serves", "gpus", "kind"),
    [
        ("cuda:nccl", True, "cuda"),
        ("cpu:gloo,cuda:nccl", True, "cuda"),
        ("cpu:gloo,cuda:gloo", True, "cpu"),
        ("cpu:gloo", False, "cpu"),
    ],
)
def test_training_runs_on_gpus_where_nccl_serves_them(
    serves: str, gpus: bool, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from meshwright.runtime.job import trainer

    monkeypatch.setattr(trainer.dist, "get_backend_config", lambda: serves)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert trainer._device().type == kind


def test_a_process_takes_the_gpu_of_its_local_rank_before_it_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    from meshwright.runtime.job import worker
    from meshwright.runtime.job.job import Job

    done: list[Any] = []
    device = torch.device("cuda", 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda place: done.append(("gpu", place)))
    monkeypatch.setattr(
        worker.dist, "init_process_group", lambda backend, **told: done.append((backend, told["rank"], told["device_id"]))
    )
    monkeypatch.setattr(worker.dist, "barrier", lambda: done.append("barrier"))
    monkeypatch.setattr(worker.dist, "destroy_process_group", lambda: done.append("left"))
    monkeypatch.setattr(worker, "train", lambda job: done.append("trained"))
    for name, value in {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}.items():
        monkeypatch.setenv(name, value)
    worker.join(Job("plan.json", "models:small", backend="nccl"))
    assert done == [("gpu", device), ("nccl", 5, device), "trained", "barrier", "left"]


@pytest.mark.parametrize(("n_gpus", "processes", "allowed"), [(2, 0, True), (1, 0, False), (1, 4, False), (4, 1, False)])
def test_processes_on_gpus_are_at_most_as_many_as_these(
    n_gpus: int, processes: int, allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from meshwright.base.errors import InputError
    from meshwright.core.plan import Plan, Stage
    from meshwright.core.strategy import Strategy
    from meshwright.runtime.job.preflight import check_machine
    from meshwright.runtime.ranks.layout import layout

    monkeypatch.setattr(torch.cuda, "device_count", lambda: n_gpus)
    places = layout(Plan((Stage((0,), (0, 1), Strategy(data=2)),), global_batch=2))
    if allowed:
        check_machine(places, "nccl", processes, "plan.json")
    else:
        with pytest.raises(InputError, match=f"needs 2 processes, but this machine has {n_gpus} GPUs and at most 1"):
            check_machine(places, "nccl", processes, "plan.json")


def test_delayed_weight_gradients_are_those_of_a_whole_backward_pass() -> None:
    import models

    from meshwright.runtime.step.split_backward import DeferredWeightGrad, delay_weight_gradients

    torch.manual_seed(0)
    block = models.Block(16, 2, 32)
    x = torch.randn(2, 5, 16, requires_grad=True)
    block(x).square().sum().backward()
    expected = {name: parameter.grad.clone() for name, parameter in block.named_parameters()}
    of_input = x.grad.clone()
    block.zero_grad()
    x.grad = None
    later = DeferredWeightGrad()
    assert delay_weight_gradients(block, later) == 6
    later.collecting = []
    block(x).square().sum().backward()
    assert block.attention.wq.weight.grad is None
    assert len(later.collecting) == 6
    for gradient, _ in later.collecting:
        gradient()
    torch.testing.assert_close(x.grad, of_input)
    for name, parameter in block.named_parameters():
        assert parameter.grad is not None and parameter.grad.grad_fn is None  # or it would keep every activation alive
        torch.testing.assert_close(parameter.grad, expected[name])


def test_a_boundary_that_cannot_be_cut_is_named() -> None:
    from meshwright.base.errors import InputError
    from meshwright.runtime.model.cut import cut

    class Decides(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x) if x.sum() > 0 else x
            return x

    with pytest.raises(InputError, match="Decides cannot be cut between its layers"):
        cut(Decides(), ["layers.0", "layers.1"])
