"""What ranks drop: the same of what several hold, other of what each has of its own, the same again when it is made again."""

from __future__ import annotations

import itertools
import pathlib
from typing import Any

import pytest
from runtime_processes import plan_of

torch = pytest.importorskip("torch", reason="running plans needs PyTorch: pip install 'meshwright[torch]'")
pytestmark = pytest.mark.torch

import dropping  # noqa: E402

from meshwright.runtime.ranks.random_numbers import LayerNumbers, own_number  # noqa: E402

INSIDE = [f"{i}.{name}" for i in range(2) for name in ("between", "again", "after")]
ENDS = ["begin", "end", "loss"]


def case(*stages: Any, **options: Any) -> dict[str, Any]:
    """Return a case of four layers in stages; four micro-batches unless it is said otherwise."""
    own = {name: options.pop(name) for name in ("schedule", "n_microbatches") if name in options}
    plan = plan_of(list(stages), **{"n_microbatches": 4, "sequence_length": 8} | own)
    return {"plan": plan, **options}


def masks(rank: dict[str, Any], place: str, step: int = 0) -> list[Any]:
    """Return what one rank dropped at one place of the model in one step, one after the other."""
    return [kept for name, kept in rank["seen"][step] if name == place]


def alike(one: Any, other: Any) -> bool:
    return bool(torch.equal(one, other))


def all_unlike(found: list[Any]) -> bool:
    return not any(alike(a, b) for a, b in itertools.combinations(found, 2))


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """Return what cases of two processes dropped."""
    cases = {
        "data": case((4, [0, 1], {})),
        "data, seeded otherwise": case((4, [0, 1], {}), seeds=1),
        "data, two micro-batches": case((4, [0, 1], {"shard": 3}), n_microbatches=2),
        "tensor": case((4, [0, 1], {"tensor": 2}), seeds=1),
        "tensor, recomputed": case((4, [0, 1], {"tensor": 2, "recompute": ["full"] * 4})),
        "tensor, recomputed in part": case((4, [0, 1], {"tensor": 2, "recompute": ["selective"] * 4})),
        "sequence": case((4, [0, 1], {"tensor": 2, "sequence_parallel": True}), seeds=1),
        "context": case((4, [0, 1], {"context": 2}), seeds=1),
        "context, recomputed": case((4, [0, 1], {"context": 2, "recompute": ["full"] * 4})),
        "stages": case((1, [0], {}), (3, [1], {}), seeds=1),
        "stages, recomputed": case((2, [0], {}), (2, [1], {"recompute": ["full"] * 2}), evaluates=True),
        "zero-bubble": case((2, [0], {}), (2, [1], {"recompute": ["selective"] * 2}), schedule="zb_h1"),
        "virtual": case(*[(1, [i % 2], {}) for i in range(4)], schedule="interleaved_1f1b"),
    }
    return dropping.run(cases, 2, tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what one process dropped."""
    cases = {
        "four": case((4, [0], {})),
        "recomputed": case((4, [0], {"recompute": ["full", "selective"] * 2})),
        "other seed": case((4, [0], {}), seed=6),
    }
    return {name: found[0] for name, found in dropping.run(cases, 1, tmp_path_factory.mktemp("alone")).items()}


def test_layers_steps_and_micro_batches_drop_other_places(alone: dict[str, Any]) -> None:
    found = [masks(alone["four"], place, step) for place in ("begin", "0.after", "1.after", "end") for step in range(2)]
    assert [len(one) for one in found] == [4] * 8
    assert all_unlike([kept for one in found for kept in one])
    assert all_unlike([kept[..., :16] for place in ("0.between", "0.again") for kept in masks(alone["four"], place)])
    assert all_unlike([kept for name in ("four", "other seed") for kept in masks(alone[name], "end")])
    assert all(0.3 < float((kept > 0).float().mean()) < 0.7 for one in found for kept in one)


@pytest.mark.parametrize("name", ["data", "data, seeded otherwise", "data, two micro-batches"])
def test_replicas_drop_other_places_of_their_own_samples(two: dict[str, Any], name: str) -> None:
    for place in (*INSIDE, *ENDS):
        assert all_unlike([kept for rank in two[name] for step in range(2) for kept in masks(rank, place, step)]), place


@pytest.mark.parametrize("name", ["tensor", "tensor, recomputed", "tensor, recomputed in part"])
def test_tensor_ranks_drop_the_same_of_what_all_hold_and_other_of_what_each_has(two: dict[str, Any], name: str) -> None:
    """However the processes were seeded."""
    for place in (*ENDS, "0.after", "1.after"):
        pairs = zip(*(masks(rank, place) for rank in two[name]), strict=True)
        assert all(alike(*pair) for pair in pairs), place
    for place in ("0.between", "0.again", "1.between", "1.again"):
        pairs = list(zip(*(masks(rank, place) for rank in two[name]), strict=True))
        assert pairs and not any(alike(*pair) for pair in pairs), place
    assert all_unlike([kept for rank in two["tensor"] for i in range(2) for kept in masks(rank, f"{i}.again")])
    ends = [kept.flatten()[:64] for place in ("0.between", "0.again") for kept in masks(two["tensor"][0], place)]
    assert all_unlike(ends), "where a rank's own numbers begin twice in a layer, they are others"


@pytest.mark.parametrize("name", ["sequence", "context", "context, recomputed"])
def test_ranks_drop_other_places_of_their_parts_of_a_sequence(two: dict[str, Any], name: str) -> None:
    for place in ENDS:
        assert all(alike(*pair) for pair in zip(*(masks(rank, place) for rank in two[name]), strict=True)), place
    for place in INSIDE:
        pairs = list(zip(*(masks(rank, place) for rank in two[name]), strict=True))
        assert pairs and not any(alike(*pair) for pair in pairs), place


@pytest.mark.parametrize("name", ["tensor, recomputed", "tensor, recomputed in part", "context, recomputed"])
def test_what_is_recomputed_drops_the_same_again(two: dict[str, Any], alone: dict[str, Any], name: str) -> None:
    for rank in (*two[name], alone["recomputed"]):
        for place in (*INSIDE, "begin", "end"):
            found = masks(rank, place)
            assert len(found) == 8, "forward and again"
            for kept in found:
                assert sum(alike(kept, other) for other in found) == 2, place


@pytest.mark.parametrize("name", ["stages", "stages, recomputed", "zero-bubble", "virtual", "data, two micro-batches"])
def test_losses_with_dropout_are_those_of_one_process_with_the_same_micro_batches(
    two: dict[str, Any], alone: dict[str, Any], name: str
) -> None:
    for rank in two[name]:
        assert rank["losses"] == pytest.approx(alone["four"]["losses"], abs=2e-6)
        assert rank["norm"] == pytest.approx(alone["four"]["norm"], rel=1e-5)
    assert alone["recomputed"]["losses"] == pytest.approx(alone["four"]["losses"], abs=2e-6)


@pytest.mark.parametrize("name", ["tensor", "tensor, recomputed", "sequence", "context"])
def test_losses_of_parts_are_those_of_one_process_that_drops_the_same(
    two: dict[str, Any], name: str, tmp_path: pathlib.Path
) -> None:
    """One process is given the masks of the ranks put together; were another one used going back, losses would part."""
    given: dict[str, list[Any]] = {}
    for place in (*INSIDE, "begin", "end"):
        for step in range(2):
            parts = [masks(rank, place, step) for rank in two[name]]
            each = [list(dict.fromkeys(range(len(parts[0]))))[:4]] if "recomputed" not in name else [_first(parts[0])]
            for i in each[0]:
                given.setdefault(place, []).append(_together([own[i] for own in parts], name, place))
    torch.save(given, tmp_path / "given.pt")
    (found,) = dropping.run({"given": case((4, [0], {}), given=str(tmp_path / "given.pt"))}, 1, tmp_path / "one")["given"]
    assert two[name][0]["losses"] == pytest.approx(found["losses"], abs=2e-6)
    assert two[name][0]["norm"] == pytest.approx(found["norm"], rel=1e-5)


def _first(found: list[Any]) -> list[int]:
    """Return where masks stand that were not there before."""
    return [i for i, kept in enumerate(found) if not any(alike(kept, other) for other in found[:i])]


def _together(parts: list[Any], name: str, place: str) -> Any:
    """Return a mask of whole samples out of those of two ranks."""
    if place in ("begin", "end") or (name.startswith("tensor") and place.endswith("after")):
        return parts[0]
    if name.startswith("tensor"):
        return torch.cat(parts, -1)
    if name == "sequence":
        if place.endswith("after"):
            return torch.cat(parts, 1)
        return torch.cat(parts, -1)
    chunks = [part.chunk(2, 1) for part in parts]  # an early and a late one each
    return torch.cat([chunks[0][0], chunks[1][0], chunks[1][1], chunks[0][1]], 1)


def test_a_run_that_goes_on_draws_what_it_would_have_drawn_also_under_another_plan(tmp_path: pathlib.Path) -> None:
    folder = str(tmp_path / "saved")
    (whole,) = dropping.run({"whole": case((4, [0], {}), n_steps=4)}, 1, tmp_path / "a")["whole"]
    begun = dropping.run({"begun": case((2, [0], {}), (2, [1], {}), to=folder)}, 2, tmp_path / "b")["begun"]
    cases = {
        "same": case((2, [0], {}), (2, [1], {}), n_steps=4, **{"from": folder}, seeds=3),
        "other": case((4, [0, 1], {}), n_microbatches=2, n_steps=4, **{"from": folder}),
    }
    found = dropping.run(cases, 2, tmp_path / "c")
    for name in cases:
        for rank, later in enumerate(found[name]):
            losses = begun[rank]["losses"] + later["losses"]
            assert losses == pytest.approx(whole["losses"], abs=2e-6), name


def test_numbers_of_layers_leave_no_trace_and_begin_only_where_samples_are_worked_on() -> None:
    numbers = LayerNumbers(torch.device("cpu"))
    with torch.random.fork_rng([]):
        torch.manual_seed(3)
        numbers.begin(1)
        expected = torch.rand(5)
        torch.manual_seed(3)
        drawn = {}
        for step, first, evaluating, layer in itertools.product(range(2), (0, 8), (False, True), range(2)):
            numbers.n_steps = step
            with numbers.of_samples(first, evaluating=evaluating):
                numbers.begin(layer)
                drawn[step, first, evaluating, layer] = torch.rand(5)
        with numbers.of_samples(8, evaluating=True):
            numbers.begin(1)
            assert torch.equal(torch.rand(5), drawn[1, 8, True, 1])
        with pytest.raises(ValueError, match="wrong"), numbers.of_samples(0):
            torch.rand(5)
            raise ValueError("wrong")
        numbers.seed = 1
        with numbers.of_samples(8, evaluating=True):
            numbers.begin(1)
            drawn["other seed"] = torch.rand(5)
        assert torch.equal(torch.rand(5), expected)
    assert len({tuple(value.tolist()) for value in drawn.values()}) == len(drawn)
    every = [own_number(op, 4, part) for op in range(4) for part in range(4)]
    assert len(set(every)) == 16 and 4 not in every, "that is the loss's"
