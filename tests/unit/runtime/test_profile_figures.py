"""Figures of measures and comparisons, with clocks that go as told: layers, links, what hides nothing, tables of a run."""

from __future__ import annotations

import itertools
import json
import pathlib
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from runtime_processes import plan_of
from test_comparing import profile

from meshwright.base.errors import InputError
from meshwright.commands.run import predict
from meshwright.core.plan import Plan, Stage
from meshwright.runtime.profile import calibration, comparison, exposed
from meshwright.runtime.ranks.plan_file import read_plan
from recorded import Recorded

torch = pytest.importorskip("torch", reason="measuring needs PyTorch: pip install 'meshwright[torch]'")
pytestmark = pytest.mark.torch

PLANS = {
    "uneven": plan_of([(1, [0], {}), (3, [1], {})], micro_batch=2, global_batch=8, sequence_length=1),
    "replicas": plan_of([(2, [0], {}), (2, [1], {})], schedule="gpipe", n_microbatches=3, global_batch=12, micro_batch=4,
                        sequence_length=1),
    "two stages a rank": plan_of([(1, [0], {}), (1, [1], {}), (1, [0], {}), (1, [1], {})], schedule="interleaved_1f1b",
                                 micro_batch=2, global_batch=8, sequence_length=1),
    "zero bubble": plan_of([(2, [0], {}), (2, [1], {})], schedule="zb_h1", micro_batch=2, global_batch=8, sequence_length=1),
    "alone": plan_of([(4, [0, 1], {"shard": 1})], micro_batch=4, global_batch=16, sequence_length=1),
}  # fmt: skip


def simulated(name: str, folder: pathlib.Path, **scale: float) -> Any:
    """Return the prediction of a plan on two processes."""
    path = folder / "plan.json"
    path.write_text(json.dumps(PLANS[name]))
    found, _ = predict(read_plan(str(path)), str(path), profile(folder, "profile.json", {"head": 2.0, "embed": 0.5, **scale}))
    assert found is not None and found.timeline is not None
    return found


def happened(plan: Plan, said: Any) -> dict[str, Any]:
    """Return what a run would leave that took half again as long as was said, with spans of its own."""
    ranks = []
    devices = sorted({device for stage in plan.stages for device in stage.devices})
    for k, device in enumerate(devices):
        mine = [i for i, stage in enumerate(plan.stages) if device in stage.devices]
        spans: list[Any] = []
        at = 0.0
        for m, i in itertools.product(range(plan.n_microbatches), mine):
            for phase, length in (("wait", 0.01), ("forward", 0.05), ("wait", 0.02), ("backward", 0.1)):
                spans.append((i, m, phase, at, at + length * (k + 1)))
                at += length * (k + 1)
        spans.append((mine[0], -1, "reduce", at, at + 0.03))
        spans.append((mine[-1], -1, "gather", at + 0.03, at + 0.05))
        ranks.append({
            "device": device, "rank": k, "host": "here", "began_seconds": 5.0 + 0.25 * k, "spans": spans,
            "compute_seconds": {str(i): 0.3 + 0.1 * i + 0.05 * k for i in mine},
            "cpu_seconds": dict.fromkeys(mine, 0.2 + 0.1 * k),
            "peak_bytes": {str(i): 1e6 * (i + 1 + k) for i in mine} if k else {},
        })  # fmt: skip
    seconds = [9.0] + [said.timeline.step_seconds * factor for factor in (1.5, 1.4, 1.9)]
    return {"losses": [3.25, 2.5, float("nan"), 2.0], "gradient_norms": [1.0, float("inf"), 2.0, 3.0], "first_step": 2,
            "step_seconds": seconds, "ranks": ranks}  # fmt: skip


@pytest.mark.parametrize("name", PLANS)
def test_what_happened_stands_beside_what_was_said(name: str, tmp_path: pathlib.Path, recorded: Recorded) -> None:
    said = simulated(name, tmp_path)
    measured = happened(said.plan, said)
    entry = comparison.as_json(said.plan, measured, said, [3.25, 2.5, 2.25, float("inf")])
    text = comparison.lines(entry)
    better = str(tmp_path / "better.json")
    calibration.write(str(tmp_path / "profile.json"), better, said, entry)
    measures = json.loads(pathlib.Path(better).read_text())["measures"]
    recorded([entry, text.splitlines(), [list(one.values())[3:] for one in measures],
              exposed.predicted_seconds(said.plan, said.timeline)])  # fmt: skip
    trace = tmp_path / "trace.json"
    comparison.write_trace(str(trace), measured, said)
    events = json.loads(trace.read_text())["traceEvents"]
    mine = [event for event in events if event["ph"] == "X" and event["pid"] > 1]
    recorded([len(events), [[event[key] for key in ("name", "cat", "pid", "tid", "ts", "dur")] for event in mine[:9]],
              [event["args"] for event in events if event["ph"] == "M"]], "trace")  # fmt: skip


def test_without_steps_or_a_prediction_there_is_nothing_to_compare(recorded: Recorded, tmp_path: pathlib.Path) -> None:
    said = simulated("uneven", tmp_path)
    measured = {**happened(said.plan, said), "step_seconds": [], "losses": [], "gradient_norms": []}
    nothing = comparison.as_json(said.plan, measured, None, None)
    one_step = comparison.as_json(said.plan, {**measured, "step_seconds": [2.0], "losses": [1.0]}, None, [])
    recorded([nothing, comparison.lines(nothing).splitlines(), one_step, comparison.lines(one_step).splitlines()])
    assert "one process" not in comparison.lines({**one_step, "losses": [], "reference_losses": [1.0]})
    elsewhere = {**measured, "ranks": []}
    assert comparison.as_json(said.plan, elsewhere, None, None)["stages"][0]["compute_seconds"]["measured"] is None
    assert comparison.as_json(said.plan, elsewhere, None, None)["bubble_ratio"] == {"measured": None, "predicted": None}


def test_layers_without_figures_stay_as_they_are(tmp_path: pathlib.Path) -> None:
    said = simulated("uneven", tmp_path)
    path, better = str(tmp_path / "profile.json"), str(tmp_path / "better.json")
    pairs = [{"measured": None, "predicted": 1.0}, {"measured": 3.0, "predicted": 2.0}]
    calibration.write(path, better, said, {"stages": [{"compute_seconds": pair} for pair in pairs]})
    before, after = (json.loads(pathlib.Path(file).read_text())["measures"] for file in (path, better))
    for one, other in zip(before, after, strict=True):
        ratio = 1.0 if one["layer"] == "embed" else 1.5
        for field in ("forward_seconds", "backward_input_seconds", "backward_weight_seconds"):
            assert other[field] == pytest.approx(ratio * one[field])
        assert other["saved_bytes"] == one["saved_bytes"]
    assert pathlib.Path(better).read_text().endswith("}\n")


def test_clocks_of_several_machines_are_not_compared() -> None:
    spans = [(0, 0, "forward", 1.0, 2.0)]
    ranks = [{"host": host, "began_seconds": began, "spans": spans} for host, began in (("a", 7.0), ("a", 9.5))]
    assert exposed.on_one_clock(ranks) == [[(0, 0, "forward", 1.0, 2.0)], [(0, 0, "forward", 3.5, 4.5)]]
    ranks[1]["host"] = "b"
    assert exposed.on_one_clock(ranks) == [spans, spans] and exposed.on_one_clock([]) == []


def test_the_second_wait_of_a_micro_batch_is_for_its_gradient() -> None:
    """Three stages; the middle one waits for activations, then gradients, whose senders are done at 1 and 4."""
    plan = Plan(tuple(Stage((i,), (i,)) for i in range(3)), n_microbatches=2, global_batch=2)
    middle = [(1, 0, "wait", 0.0, 1.5), (1, 0, "forward", 1.5, 2.0), (1, 0, "wait", 2.0, 4.25), (1, 0, "backward", 4.25, 5.0),
              (1, 1, "wait", 5.0, 5.5), (1, 1, "wait", 6.0, 6.5)]  # fmt: skip
    told = {0: [(0, 0, "forward", 0.0, 1.0), (0, 0, "wait", 1.0, 6.0)], 1: middle,
            2: [(2, 0, "wait", 0.0, 2.5), (2, 0, "backward_input", 2.5, 4.0), (2, 1, "backward_weight", 4.0, 9.0)]}  # fmt: skip
    ranks = [{"device": i, "host": "a", "began_seconds": 1.0, "spans": spans} for i, spans in told.items()]
    # the first stage's gradient left at 5; of the second micro-batch no sender is known, so that all its waits count
    assert exposed.measured_seconds(plan, ranks) == pytest.approx([1.0, 0.5 + 0.25 + 0.5 + 0.5, 0.5])


class Network:
    """A network of three processes as the first sees it, whose clock goes as messages take."""

    def __init__(self) -> None:
        self.now, self.calls = 50.0, [0] * 5
        self.groups: list[list[int]] = []

    def perf_counter(self) -> float:
        return self.now

    def takes(self, place: int, n_bytes: int, latency_seconds: float, slope: float) -> None:
        self.calls[place] += 1
        self.now += (latency_seconds + slope * n_bytes) * (3.0 if self.calls[place] % 7 == 0 else 1.0)

    def send(self, buffer: Any, other: int) -> None:
        self.takes(0, buffer.nbytes, 1e-5 * other, 1e-9)

    def recv(self, buffer: Any, other: int) -> None:
        self.takes(1, buffer.nbytes, 2e-5 * other, 2e-9)

    def all_reduce(self, buffer: Any, group: Any = None) -> None:
        self.takes(2, buffer.nbytes, 3e-5, 2e-9)

    def gather(self, whole: Any, part: Any, group: Any = None) -> None:
        assert whole.numel() == part.numel() * len(group)
        self.takes(3, whole.nbytes, 4e-5, 1e-9)

    def scatter(self, part: Any, whole: Any, group: Any = None) -> None:
        assert whole.numel() == part.numel() * len(group)
        self.takes(4, whole.nbytes, 5e-5, 1e-9)

    def new_group(self, ranks: list[int]) -> list[int]:
        self.groups.append(ranks)
        return ranks

    def all_gather_object(self, everyone: list[Any], mine: Any) -> None:
        others = [[2.0 * second for second in mine]] * 2 if isinstance(mine, list) else ["b", "a"]
        everyone[:] = ["a" if isinstance(mine, str) else mine, *others]


def test_links_and_collectives_are_measured_by_their_least_median(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], recorded: Recorded
) -> None:
    from meshwright.runtime.profile import links

    network = Network()
    made = SimpleNamespace(
        get_rank=lambda: 0, get_world_size=lambda: 3, barrier=lambda: None, broadcast=lambda value, source: None,
        send=network.send, recv=network.recv, all_reduce=network.all_reduce, all_gather_single=network.gather,
        reduce_scatter_single=network.scatter, new_group=network.new_group, all_gather_object=network.all_gather_object,
    )  # fmt: skip
    monkeypatch.setattr(links, "dist", made)
    monkeypatch.setattr(links, "time", network)
    found = links.measure(torch.device("cpu"))
    assert found is not None and network.groups == [[0, 1], [0, 1, 2]]
    assert network.calls == [4 * 4 * 16] * 2 + [2 * 4 * 16] * 3  # four sizes, a run and three rounds of five
    recorded([found, capsys.readouterr().err.splitlines()])
    made.get_rank = lambda: 2
    assert links.measure(torch.device("cpu")) is None and capsys.readouterr().err == ""


def test_a_line_through_times_is_weighted_by_nearness_and_never_falls() -> None:
    from meshwright.runtime.profile.links import fit

    assert fit([1e3, 2e3], [1e-3, 0.5e-3]) == pytest.approx((0.6e-3, 1e-13), rel=1e-6)
    assert fit([0.0, 1e6, 2e6], [0.0, 1e-3, 2e-3]) == pytest.approx((0.0, 1e-9), abs=1e-12)
    sizes, seconds = [1e3, 1e5, 1e6, 3e6], [1e-5, 1.3e-4, 1.2e-3, 2.8e-3]
    slope, latency_seconds = np.polyfit(sizes, seconds, 1, w=[1.0 / second for second in seconds])
    assert fit(sizes, seconds) == pytest.approx((latency_seconds, slope), rel=1e-9)


@pytest.mark.parametrize(
    ("ranks", "device", "gpus", "told"),
    [
        (2, "tpu", 0, "--device tpu: must be cpu, or cuda where PyTorch sees a GPU"),
        (2, "cuda", 0, "--device cuda: must be cpu, or cuda where PyTorch sees a GPU"),
        (3, "cuda", 2, "--ranks 3: this machine has 2 GPUs; start more machines with torchrun"),
    ],
)
def test_links_are_measured_where_there_are_devices(
    ranks: int, device: str, gpus: int, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from meshwright.runtime.profile import links, measure

    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(links.launch, "under_torchrun", lambda: False)
    monkeypatch.setattr(links.launch, "run_module", lambda *told: told)
    with pytest.raises(InputError, match=re.escape(told)):
        links.among(ranks, device)
    assert links.among(3, "cpu") == ("meshwright.runtime.profile.links", 3, {"device": "cpu"})
    if gpus:
        assert links.among(2, "cuda") == ("meshwright.runtime.profile.links", 2, {"device": "cuda"})
        monkeypatch.setattr(links.launch, "under_torchrun", lambda: True)
        monkeypatch.setattr(links, "join", lambda kind: kind)
        assert links.among(9, "cuda") == "cuda"
    else:
        with pytest.raises(InputError, match=re.escape(told)):
            measure.profile_callable("m:f", [1], [1], sequence_length=0, repeats=1, device=device, seed=0, say=lambda *_: None)


class Blocks(torch.nn.Module):
    """A table, two blocks with a product by columns and one by rows, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(11, 4)
        self.layers = torch.nn.ModuleList(torch.nn.Sequential() for _ in range(2))
        for layer in self.layers:
            layer.add_module("up", torch.nn.Linear(4, 8))
            layer.add_module("act", torch.nn.Tanh())
            layer.add_module("down", torch.nn.Linear(8, 4))
        self.head = torch.nn.Linear(4, 11, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def vectors() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 2))


def test_a_profile_by_a_clock_that_goes_as_told(monkeypatch: pytest.MonkeyPatch, recorded: Recorded) -> None:
    """Every look at the clock is a little later than the one before, by a pattern."""
    from meshwright.runtime.profile import measure

    looks = itertools.count()
    now = 0.0

    def clock(device: Any) -> float:
        nonlocal now
        assert device.type == "cpu"
        now += 1e-3 * (1 + next(looks) * 7 % 11)
        return now

    monkeypatch.setattr(measure, "_clock", clock)
    monkeypatch.setattr(measure.os, "cpu_count", lambda: 6)
    monkeypatch.setattr(measure.os, "sysconf", lambda name: {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1000}[name])
    said: list[Any] = []
    torch.manual_seed(0)
    found = measure.profile_layers(
        Blocks(),
        (torch.zeros(1, 5, dtype=torch.long),),
        [1, 3],
        [1, 2],
        repeats=4,
        say=lambda text, share: said.append([text, share]),
    )
    assert (found.pop("device"), found.pop("n_cores"), found.pop("memory_bytes")) == ("CPU", 6, 4096e3)
    recorded([found, said, next(looks)])


def test_only_the_last_layer_ends_in_a_loss_and_only_the_first_needs_no_input_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    from meshwright.runtime.profile import measure

    ends: list[Any] = []
    cross_entropy = torch.nn.functional.cross_entropy
    monkeypatch.setattr(
        torch.nn.functional, "cross_entropy", lambda out, classes: ends.append(tuple(out.shape)) or cross_entropy(out, classes)
    )
    measure.profile_layers(Blocks(), (torch.zeros(1, 5, dtype=torch.long),), [2], [1], repeats=1, say=lambda *_: None)
    assert set(ends) == {(10, 11)} and len(ends) % 3 == 0 and len(ends) >= 9
    ids, real = torch.tensor([[3, 4]]), torch.zeros(1, 4, dtype=torch.float64)
    assert measure._widen(ids, 3).tolist() == [[3, 4]] * 3 and measure._widen(ids, 3).is_contiguous()
    assert measure._widen(real, 3).shape == (3, 4) and measure._widen(real, 3).dtype == torch.float64
    seen: list[Any] = []

    class Looks(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
            seen.append(x.requires_grad)
            return (self.line(x),)

    for first in (True, False):
        measure._measure(Looks(), [torch.zeros(2, 4)], 1, first=first, last=False)
    assert seen == [False] * 3 + [True] * 3


def test_a_callable_is_measured_with_samples_of_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    from meshwright.runtime.profile import measure

    given: list[Any] = []
    monkeypatch.setattr(
        measure, "profile_layers", lambda model, sample, *rest, **told: given.append((sample, rest)) or {"a": 1}
    )
    told: dict[str, Any] = {"repeats": 1, "device": "cpu", "seed": 0, "say": lambda *_: None}
    found = measure.profile_callable(f"{__name__}:Blocks", [2], [1], sequence_length=7, **told)
    assert found == {"model": f"{__name__}:Blocks", "sequence_length": 7, "a": 1} and given[-1][0][0].shape == (1, 7)
    found = measure.profile_callable(f"{__name__}:vectors", [2], [1], sequence_length=0, **told)
    assert found["sequence_length"] == 1 and given[-1][0][0].shape == (1, 3) and given[-1][1] == ([2], [1])
    found = measure.profile_callable(f"{__name__}:vectors", [2], [1], sequence_length=4, **told)
    assert found["sequence_length"] == 4 and given[-1][0][0].shape == (1, 4, 3)
    with pytest.raises(InputError, match="Blocks: takes tokens; give --sequence-length"):
        measure.profile_callable(f"{__name__}:Blocks", [2], [1], sequence_length=0, **told)


def test_what_is_slower_than_more_rows_or_dearer_than_fewer_is_suspect() -> None:
    from meshwright.runtime.profile.measure import Probe, suspects

    def probe(layer: str, rows: int, tensor: int, seconds: float) -> Probe:
        made = Probe(layer, rows, tensor, lambda _: {})
        made.figures = {"forward_seconds": seconds, "backward_input_seconds": seconds, "backward_weight_seconds": 2 * seconds}
        return made

    probes = [probe("a", 2, 1, 1.1), probe("a", 1, 1, 1.0), probe("a", 4, 1, 1.0), probe("a", 8, 1, 2.6), probe("a", 8, 2, 9.0),
              probe("b", 1, 1, 1.12), probe("b", 2, 1, 1.0), probe("b", 4, 1, 2.6)]  # fmt: skip
    assert [(one.layer, one.rows) for one in suspects(probes)] == [("b", 1)]
    probes[3].figures["forward_seconds"] = probes[7].figures["forward_seconds"] = 2.64
    assert [(one.layer, one.rows) for one in suspects(probes)] == [("a", 8), ("b", 1), ("b", 4)]
