"""The space of search best by its definition, in plain Python: small random problems, and plans of theirs played one by one.

Nothing of the search is used: meshes, devices, splits, recomputation and schedules are listed here again. The cost model and
the simulator judge. `docs/explanation/best.md` defines the space.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import pathlib
import random
from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from meshwright import api, sim
from meshwright.core.cluster import Host
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Batch, Problem
from meshwright.core.result import Answer
from meshwright.core.strategy import CONTEXT_EXCHANGES, OFFLOADS, ON_HOST, Strategy
from meshwright.costs import analytic
from meshwright.schedules import zb_h1, zb_h2
from questions import fused

TOLERANCE = 1e-9
"""By which share a bound may exceed a plan: what rounding may do."""

WHOLE_SPLITS = ("1f1b", "gpipe", "zb_h1", "zb_h2", "early_backward_b")
IN_A_V = ("zb_v", "v_half", "v_min", "dualpipe_v", "combined_dualpipe_v")
KINDS = ("a100-pcie-80gb", "h100-pcie-80gb", "l4-24gb", "v100-pcie-16gb")
SCHEDULES = (
    "1f1b", "zb_h1", "interleaved_1f1b", "zb_v", "gpipe", "1f1b,gpipe", "1f1b,zb_v", "zb_h2", "early_backward_b", "looped_bfs",
    "v_half", "v_min", "zb_h1,zb_h2", "early_backward_b,looped_bfs",
)  # fmt: skip
BUILT_IN = (
    "dgx-v100:8", "dgx-h100:12", "dgx-a100:6", "pcie-a100:8", "torus:2x3", "mesh:2x2", "ring:5,bandwidth=2 GB/s",
    "rail-only:8,bandwidth=1 GB/s", "two-level:6,per_node=2,bandwidth=0.5 GB/s",
    "two-level:9,per_node=3,device=a100-pcie-80gb,bandwidth=0.2 GB/s", "flat:7", "random-regular:6,degree=3",
)  # fmt: skip

OPTIMIZERS = ("muon", "adafactor", "adam-8bit", "sgd")


class Question(NamedTuple):
    """A problem for search best, with its options."""

    problem: Problem
    settings: dict[str, str]
    name: str


class Shape(NamedTuple):
    """All of a plan but its split and what it recomputes."""

    devices: tuple[tuple[int, ...], ...]  # of each pipeline rank, in mesh order
    strategy: Strategy
    micro_batch: int
    schedule: str
    n_chunks: int
    layout: str


class Played(NamedTuple):
    """A plan and what became of it."""

    step_seconds: float
    plan: Plan
    shape: Shape


class Verdict(NamedTuple):
    """What search best said of a question, and what the enumerator found."""

    question: Question
    answer: Answer | None  # None where it refused
    best: Played | None  # of the plans played that fit
    n_played: int
    fitting: list[Played]  # all plans played that fit

    @property
    def false_refusal(self) -> bool:
        """Whether it said, as proven, that nothing fits, and something does."""
        return self.answer is None and self.best is not None

    @property
    def excess_ratio(self) -> float:
        """By which share the bound exceeds the best plan played; not positive where it holds."""
        if self.answer is None or self.best is None or self.answer.bound is None:
            return -1.0
        return self.answer.bound.value / self.best.step_seconds - 1.0


def ask(family: str, seed: int, folder: pathlib.Path, n_played: int) -> Verdict:
    """Ask search best a random question of a family, and the enumerator."""
    return judge(FAMILIES[family](seed, folder), n_played, seed)


def is_small(question: Question, seed: int) -> bool:
    """Return whether a question is of those that tests ask: few devices and shapes, and every eighth whatever its size."""
    return seed % 8 == 0 or (
        question.problem.required_cluster.n_devices <= 6 and len(shapes(question.problem, question.settings)) <= 400
    )


def searched(question: Question, seed: int) -> api.Result:
    """Return what search best says of a question; three in four are asked for no runners-up, which take longer than the
    proof and add nothing to it.
    """
    return api.plan(question.problem, search="best", settings=question.settings | ({"alternatives": "1"} if seed % 4 else {}))


def judge(question: Question, n_played: int, seed: int = 0, *, whole: bool = False) -> Verdict:
    """Ask search best a question, and play plans of its space: so many, or all splits of all shapes."""
    answer: Answer | None = None
    all_shapes = shapes(question.problem, question.settings)
    if all_shapes:
        answer = searched(question, seed).answer
    player = Player(question, n_played, seed)
    if whole:
        for shape in all_shapes:
            for counts in splits(question.problem, shape, player.dice, 1000):
                player.split(shape, counts, 1000)
    else:
        player.run(all_shapes)
    unproven = answer is not None and any("not proven" in note for note in answer.notes)
    fits = answer is not None and (answer.plan is not None or unproven)
    return Verdict(question, answer if fits else None, player.best, n_played - player.left, player.fitting)


def with_memory(problem: Problem, memory_bytes: float) -> Problem:
    """Return the problem on devices with another memory."""
    assert problem.cluster is not None
    kinds = tuple(dataclasses.replace(kind, memory_bytes=memory_bytes) for kind in problem.cluster.kinds)
    return dataclasses.replace(problem, cluster=dataclasses.replace(problem.cluster, kinds=kinds))


def random_question(seed: int, folder: pathlib.Path, *, named: bool = False) -> Question:
    """Return a small problem: unlike links and devices, odd memories, large vocabularies, mixtures.

    `named`: whether the runtime must be one that a file can name.
    """
    dice = random.Random(seed)
    model, spec = folder / f"m{seed}.json", folder / f"c{seed}.yaml"
    model.write_text(json.dumps(_random_model(dice)))
    cluster = dice.choice(BUILT_IN)
    if dice.random() < 0.6:
        spec.write_text(_random_cluster(dice))
        cluster = str(spec)
    batch = dice.choice((2, 3, 4, 6, 8, 12, 16))
    micro_batch = dice.choice((0, 0, 0, 1))
    problem = api.make_problem(
        str(model), cluster, batch=Batch(batch, micro_batch, dice.choice((512, 2048, 4096))), memory_risk=0.5
    )
    if not named and random.Random(~seed).random() < 0.5:  # half of them where the host is never waited for
        problem = fused(problem)
    settings: dict[str, str] = {}
    if dice.random() < 0.6:
        settings["schedules"] = dice.choice(SCHEDULES)
        settings["schedules"] += "" if "1f1b" in settings["schedules"].split(",") else dice.choice(("", ",1f1b"))
    if dice.random() < 0.3:
        settings["shard"] = dice.choice(("0", "1,3", "3", "2", "0,3"))
    if dice.random() < 0.15:
        settings["recompute"] = dice.choice(("none", "none,full", "full,none", "selective"))
    if dice.random() < 0.7:
        problem = with_memory(problem, _tight_memory(problem, settings, dice))
    return Question(problem, settings, f"seed {seed}: {cluster}, {settings}")


def tiny_question(seed: int, folder: pathlib.Path) -> Question:
    """Return a problem of few layers on two or three devices, small enough to play all of its plans that recompute nothing."""
    dice = random.Random(seed)
    model = folder / f"tiny{seed}.json"
    model.write_text(json.dumps(_random_model(dice) | {"num_hidden_layers": 3, "n_layer": 3}))
    cluster = dice.choice(("flat:2", "ring:3,bandwidth=1 GB/s", "dgx-a100:2"))
    return Question(
        api.make_problem(str(model), cluster, batch=Batch(4, 0, 1024), memory_risk=0.5), {}, f"tiny {seed}: {cluster}"
    )


def context_question(seed: int, folder: pathlib.Path) -> Question:
    """Return a problem of long sequences on slow links, whose framework exchanges keys and values over a context axis in some
    ways, beside attention or not, evenly or not.
    """
    dice = random.Random(seed)
    config = _random_model(dice) | {"max_position_embeddings": 131072, "n_positions": 131072}
    heads, vocabulary = dice.choice((2, 4, 4, 8)), dice.choice((1000, 8000))
    for names, value in (
        (("num_attention_heads", "n_head"), heads), (("num_key_value_heads",), dice.choice((heads, max(1, heads // 2)))),
        (("hidden_size", "n_embd"), heads * 64), (("vocab_size",), vocabulary),
    ):  # fmt: skip
        config |= {name: value for name in names if name in config}
    model, spec = folder / f"context{seed}.json", folder / f"context{seed}.yaml"
    model.write_text(json.dumps(config))
    cluster = dice.choice(
        ("dgx-h100:4", "dgx-a100:6", "flat:4", "rail-only:8,bandwidth=1 GB/s", "two-level:6,per_node=2,bandwidth=5 GB/s")
    )
    if dice.random() < 0.4:
        spec.write_text(_random_cluster(dice))
        cluster = str(spec)
    alone = random.Random(~seed)  # whether a context axis is all that there may be
    is_alone = alone.random() < 0.4
    if is_alone:
        cluster = f"{alone.choice(('ring', 'flat'))}:4,bandwidth={alone.choice((2, 5, 10, 20, 40))} GB/s"
    batch = Batch(dice.choice((1, 2, 4)), dice.choice((0, 1)), dice.choice((4096, 8192, 32768, 32768)))
    problem = api.make_problem(str(model), cluster, batch=batch, memory_risk=0.5)
    problem = fused(problem) if alone.random() < 0.5 else problem
    kinds = dice.choice(
        (CONTEXT_EXCHANGES[:3], ("ring", "all_to_all"), ("all_gather", "all_to_all"), ("all_to_all",), ("all_gather",))
    )
    framework = dataclasses.replace(
        problem.framework,
        limits=dataclasses.replace(problem.framework.limits, context_exchanges=kinds),
        overlaps_ring=dice.random() < 0.5,
        overlaps_gather=dice.random() < 0.5,
        ring_imbalance_ratio=dice.choice((0.0, 0.0, 0.5, 1.0)),
    )
    problem = dataclasses.replace(problem, framework=framework)
    settings: dict[str, str] = {}
    if dice.random() < 0.4:
        settings["context_exchange"] = ",".join(dice.sample(kinds, dice.randint(1, len(kinds))))
    if is_alone:
        settings |= {"tensor": "1", "pipeline": "1", "data": "1"}
    elif dice.random() < 0.5:
        settings["schedules"] = dice.choice(("1f1b", "1f1b,zb_h1", "1f1b,interleaved_1f1b"))
    if dice.random() < 0.3:
        settings["recompute"] = dice.choice(("none", "full", "none,full", "selective"))
    if dice.random() < 0.6:
        problem = with_memory(problem, _tight_memory(problem, settings, dice))
    return Question(problem, settings, f"context {seed}: {cluster}, {kinds}, {settings}")


def both_ways_question(seed: int, folder: pathlib.Path) -> Question:
    """Return a problem as of `context_question` whose context axis may be split by heads and by queries at once."""
    asked = context_question(seed, folder)
    dice = random.Random(f"both ways {seed}")
    limits = asked.problem.framework.limits
    kinds = (*limits.context_exchanges, "all_to_all+ring")
    limits = dataclasses.replace(limits, context_exchanges=kinds)
    problem = dataclasses.replace(asked.problem, framework=dataclasses.replace(asked.problem.framework, limits=limits))
    words = dice.choice((kinds, ("all_to_all+ring",), (kinds[0], "all_to_all+ring"), ()))
    settings = {name: word for name, word in asked.settings.items() if name != "context_exchange"}
    settings |= {"context_exchange": ",".join(words)} if words else {}
    return Question(problem, settings, f"both ways {seed}: {asked.name}, {words}")


def offload_question(seed: int, folder: pathlib.Path) -> Question:
    """Return a small problem of tight memory on devices with hosts, slow or quick, small or large, whose framework lets the
    optimizer's state lie there with some shardings.
    """
    asked = random_question(seed, folder)
    dice = random.Random(seed * 104729 + 7)
    cluster = asked.problem.required_cluster
    hosts = [
        Host(dice.choice((1e9, 8e9, 50e9)), dice.choice((5e9, 50e9, 300e9)), dice.choice((1e7, 1e8, 5e8, 1e12)))
        for _ in cluster.kinds
    ]
    kinds = tuple(dataclasses.replace(kind, host=host) for kind, host in zip(cluster.kinds, hosts, strict=True))
    levels = dice.choice(((0, 1, 2, 3), (0, 1, 2, 3), (1,), (2, 3), (0,)))
    limits = dataclasses.replace(asked.problem.framework.limits, offloads=OFFLOADS, offload_shards=levels)
    problem = dataclasses.replace(
        asked.problem,
        cluster=dataclasses.replace(cluster, kinds=kinds),
        framework=dataclasses.replace(asked.problem.framework, limits=limits),
    )
    settings = asked.settings | {"offload": dice.choice(("none,optimizer", "none,optimizer", "optimizer"))}
    if dice.random() < 0.8 and shapes(problem, settings):
        problem = with_memory(problem, _tight_memory(problem, settings, dice))
    return Question(problem, settings, f"offload {seed}: {asked.name}, {settings}, {levels}, {hosts}")


def activations_question(seed: int, folder: pathlib.Path) -> Question:
    """Return a problem as of `offload_question` where activations may lie on the host, told for each layer or for the plan;
    beside what else may be chosen, or alone.
    """
    asked = offload_question(seed, folder)
    dice = random.Random(f"activations {seed}")
    choices = ("none,activations", "activations", "none,optimizer,activations", "activations,optimizer")
    away = dice.choice((choices[0], *choices))
    cluster, quick = asked.problem.required_cluster, Host(dice.choice((50e9, 400e9)), 500e9, 1e12)
    kinds = tuple(dataclasses.replace(kind, host=kind.host if dice.random() < 0.3 else quick) for kind in cluster.kinds)
    limits = dataclasses.replace(asked.problem.framework.limits, offloads=ON_HOST)
    if dice.random() < 0.5:
        limits = dataclasses.replace(
            limits, recompute=("none", "full"), recompute_scope="plan", block_recompute=dice.random() < 0.7
        )
    problem = dataclasses.replace(
        asked.problem,
        cluster=dataclasses.replace(cluster, kinds=kinds),
        framework=dataclasses.replace(asked.problem.framework, limits=limits),
    )
    settings = {name: value for name, value in asked.settings.items() if name == "shard"} | {"offload": away}
    if dice.random() < 0.3:
        settings["recompute"] = dice.choice(("none", "none,full"))
    if dice.random() < 0.6:
        settings["pipeline"] = "1"
    first, layers, last = chain(problem)
    if len(layers) < 2 or {problem.graph.ops[i].kind for i in (*first, *last)} - {"embedding", "head"}:
        settings["offload"] = "none"
    elif shapes(problem, settings):
        problem = with_memory(problem, _tight_memory(problem, settings, dice))
    if analytic.no_host(problem) or analytic.unknown_host(problem):
        settings["offload"] = "none"
    return Question(problem, settings, f"activations {seed}: {asked.name}, {settings}, {limits.recompute_scope}")


def optimizer_question(seed: int, folder: pathlib.Path) -> Question:
    """Return a problem as of `random_question` under another optimizer than Adam."""
    asked, optimizer = random_question(seed, folder), OPTIMIZERS[seed % len(OPTIMIZERS)]
    problem = dataclasses.replace(asked.problem, training=asked.problem.training.updated_by(optimizer))
    return asked._replace(problem=problem, name=f"{optimizer}, {asked.name}")


def virtual_question(seed: int, folder: pathlib.Path) -> Question:
    """Return a problem of up to 11 layers, mostly on two or three pipeline ranks with several stages each; the head of many
    costs as much as layers do.
    """
    dice = random.Random(7 * seed + 1)
    config, n_layers = _random_model(dice), dice.randint(4, 11)
    config |= {name: n_layers for name in ("n_layer", "num_hidden_layers") if name in config}
    if "mlp_only_layers" in config:
        config["mlp_only_layers"] = [i for i in range(n_layers) if dice.random() < 0.3]
    model, spec, cluster = folder / f"virtual{seed}.json", folder / f"virtual{seed}.yaml", dice.choice(BUILT_IN)
    model.write_text(json.dumps(config))
    if dice.random() < 0.4:
        spec.write_text(_random_cluster(dice))
        cluster = str(spec)
    batch = Batch(dice.choice((4, 6, 8, 12, 16)), dice.choice((0, 1)), dice.choice((512, 2048)))
    problem = api.make_problem(str(model), cluster, batch=batch, memory_risk=0.5)
    problem = fused(problem) if dice.random() < 0.5 else problem
    v_shaped = ("zb_v", "v_half", "v_min", "dualpipe_v", "dualpipe_v")  # our own runtime runs no pairs of tasks
    settings = {"schedules": dice.choice((*v_shaped, "interleaved_1f1b", "looped_bfs", "interleaved_1f1b,1f1b"))}
    if dice.random() < 0.6:
        settings["pipeline"] = dice.choice(("2", "2", "3"))
    if dice.random() < 0.3:
        settings["shard"] = dice.choice(("0", "3", "0,3"))
    if dice.random() < 0.2:
        settings["recompute"] = dice.choice(("none", "none,full", "selective"))
    if dice.random() < 0.6 and shapes(problem, settings):
        problem = with_memory(problem, _tight_memory(problem, settings, dice))
    return Question(problem, settings, f"virtual {seed}: {cluster}, {settings}")


def unlike_question(seed: int, folder: pathlib.Path) -> Question:
    """Return a problem of dense and expert layers on ranks of little memory, under schedules of virtual stages or split
    backward passes: which layers recompute decides.
    """
    dice = random.Random(31 * seed + 5)
    n_layers, heads = dice.randint(3, 8), dice.choice((2, 4))
    hidden = heads * 64 * dice.choice((1, 2))
    dense = [i for i in range(n_layers) if dice.random() < 0.5]
    config = {
        "model_type": "qwen3_moe", "hidden_size": hidden, "intermediate_size": hidden * dice.choice((2, 4, 8)),
        "num_hidden_layers": n_layers, "num_attention_heads": heads, "num_key_value_heads": heads,
        "vocab_size": dice.choice((1000, 8000)), "max_position_embeddings": 131072, "tie_word_embeddings": False,
        "num_experts": 4, "num_experts_per_tok": dice.choice((1, 2)), "moe_intermediate_size": hidden, "head_dim": 64,
        "mlp_only_layers": dense,
    }  # fmt: skip
    model = folder / f"unlike{seed}.json"
    model.write_text(json.dumps(config))
    cluster = dice.choice(
        ("flat:2", "flat:3", "dgx-a100:4", "ring:4,bandwidth=5 GB/s", "two-level:4,per_node=2,bandwidth=2 GB/s")
    )
    batch = Batch(dice.choice((4, 6, 8)), dice.choice((0, 1)), dice.choice((1024, 2048, 4096)))
    problem = api.make_problem(str(model), cluster, batch=batch, memory_risk=0.5)
    problem = fused(problem) if dice.random() < 0.5 else problem
    kinds = ("zb_v", "dualpipe_v", "v_half", "interleaved_1f1b", "looped_bfs", "zb_h1", "zb_h2", "v_min")
    settings = {"schedules": dice.choice(kinds)}
    if dice.random() < 0.8:
        settings["pipeline"] = "2"
    if dice.random() < 0.6:
        settings["shard"] = dice.choice(("0", "1", "3"))
    dice.random()
    if shapes(problem, settings):
        problem = with_memory(problem, _tight_memory(problem, settings, dice) * dice.choice((0.8, 0.9, 0.95, 1)))
    return Question(problem, settings, f"unlike {seed}: {cluster}, {settings}")


def two_layers_question(settings: dict[str, str], folder: pathlib.Path) -> Question:
    """Return a problem of one dense and one expert layer: nothing repeats, and still embedding and head recompute nothing."""
    config = {
        "model_type": "qwen3_moe", "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 8000, "max_position_embeddings": 131072,
        "tie_word_embeddings": False, "head_dim": 64, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 256,
        "mlp_only_layers": [0],
    }  # fmt: skip
    model = folder / "two.json"
    model.write_text(json.dumps(config))
    problem = api.make_problem(str(model), "flat:2", batch=Batch(4, 0, 1024), memory_risk=0.5)
    return Question(problem, settings, f"two layers: {settings}")


def paired_question(seed: int, folder: pathlib.Path) -> Question:
    """Return a problem of expert layers, some dense ones among them, on quick or slow links, whose framework runs forward tasks
    beside backward tasks.
    """
    dice = random.Random(f"paired {seed}")
    n_layers, heads = dice.randint(4, 9), dice.choice((2, 4))
    hidden = heads * 64 * dice.choice((1, 2))
    config = {
        "model_type": "qwen3_moe", "hidden_size": hidden, "intermediate_size": hidden * dice.choice((2, 4, 8)),
        "num_hidden_layers": n_layers, "num_attention_heads": heads, "num_key_value_heads": heads,
        "vocab_size": dice.choice((1000, 8000, 32000)), "max_position_embeddings": 131072,
        "tie_word_embeddings": dice.random() < 0.3,
        "num_experts": 4, "num_experts_per_tok": dice.choice((1, 2, 4)), "moe_intermediate_size": hidden * dice.choice((1, 4)),
        "head_dim": 64,
        "mlp_only_layers": [i for i in range(n_layers) if dice.random() < dice.choice((0.0, 0.3, 0.6))][: n_layers - 1],
    }  # fmt: skip
    model, spec = folder / f"paired{seed}.json", folder / f"paired{seed}.yaml"
    model.write_text(json.dumps(config))
    rate = dice.choice((0.2, 1, 5, 20, 100))
    cluster = dice.choice(
        ("dgx-a100:4", "dgx-h100:8", f"flat:4,bandwidth={rate} GB/s", f"ring:4,bandwidth={rate} GB/s",
         f"two-level:8,per_node=2,bandwidth={rate} GB/s", f"two-level:6,per_node=3,bandwidth={rate} GB/s")
    )  # fmt: skip
    if dice.random() < 0.25:
        spec.write_text(_random_cluster(dice))
        cluster = str(spec)
    batch = Batch(dice.choice((8, 12, 16, 24)), dice.choice((0, 1, 1)), dice.choice((1024, 2048, 4096)))
    problem = api.make_problem(str(model), cluster, batch=batch, memory_risk=0.5)
    problem = fused(problem) if dice.random() < 0.7 else problem
    limits = dataclasses.replace(problem.framework.limits, paired_tasks=True)
    once = dice.random() < 0.3
    problem = dataclasses.replace(
        problem, framework=dataclasses.replace(problem.framework, limits=limits, dispatches_once=once)
    )
    words = ("combined_1f1b", "combined_1f1b", "combined_dualpipe_v", "combined_1f1b,interleaved_1f1b")
    words += ("combined_1f1b,combined_dualpipe_v", "1f1b,zb_v,combined_1f1b", "combined_dualpipe_v,dualpipe_v")
    settings = {"schedules": dice.choice(words), "expert": dice.choice(("2", "2,4", "1,2,4"))}
    if dice.random() < 0.6:
        settings["pipeline"] = dice.choice(("2", "2", "3"))
    if dice.random() < 0.4:
        settings["shard"] = dice.choice(("0", "1", "3", "0,1"))
    if dice.random() < 0.3:
        settings["recompute"] = dice.choice(("none", "none,full", "selective", "none,selective"))
    if dice.random() < 0.6 and shapes(problem, settings):
        problem = with_memory(problem, _tight_memory(problem, settings, dice))
    return Question(problem, settings, f"paired {seed}: {cluster}, {settings}")


def frozen_question(seed: int, folder: pathlib.Path) -> Question:
    """Return a small problem of which the first layers are frozen, and mostly the embedding too."""
    dice = random.Random(seed * 7919 + 13)
    config = _random_model(dice)
    n_layers = max(4, int(str(config.get("n_layer") or config["num_hidden_layers"])))
    config |= {name: n_layers for name in ("n_layer", "num_hidden_layers") if name in config}
    model, spec, cluster = folder / f"frozen{seed}.json", folder / f"frozen{seed}.yaml", dice.choice(BUILT_IN)
    model.write_text(json.dumps(config))
    if dice.random() < 0.5:
        spec.write_text(_random_cluster(dice))
        cluster = str(spec)
    frozen = [f"layers.{i}" for i in range(dice.randint(1, n_layers - 1))] + ["*embed*"] * (dice.random() < 0.8)
    batch = Batch(dice.choice((2, 4, 6, 8)), dice.choice((0, 0, 1)), dice.choice((512, 2048)))
    problem = api.make_problem(str(model), cluster, batch=batch, memory_risk=0.5, freeze=tuple(frozen))
    settings: dict[str, str] = {"schedules": dice.choice(SCHEDULES)} if dice.random() < 0.6 else {}
    if dice.random() < 0.4:
        settings["shard"] = dice.choice(("0", "1,3", "3", "2", "0,3"))
    if dice.random() < 0.8 and shapes(problem, settings):
        problem = with_memory(problem, _tight_memory(problem, settings, dice))
    return Question(problem, settings, f"frozen {seed}: {cluster}, {settings}, {frozen}")


def gathered_question(seed: int, folder: pathlib.Path) -> Question:
    """Return a problem as of `random_question` or `paired_question` whose framework, in a pipeline, reduces gradients of ZeRO-2
    once a step, whole ones beside shards: levels of all kinds together, experts that few ranks share, little memory.
    """
    dice = random.Random(f"gathered {seed}")
    asked = (random_question, random_question, paired_question, virtual_question)[seed % 4](seed, folder)
    framework = dataclasses.replace(
        asked.problem.framework, keeps_gathered=True, reduces_once=True, copies_gathered=dice.random() < 0.8
    )
    problem = dataclasses.replace(asked.problem, framework=framework)
    settings = asked.settings | {"shard": dice.choice(("2", "0,2", "0,2,3", "1,2", "0,1,2,3"))}
    if dice.random() < 0.6:
        settings["pipeline"] = dice.choice(("2", "1", "2"))
    if dice.random() < 0.6 and shapes(problem, settings):
        problem = with_memory(problem, _tight_memory(problem, settings, dice))
    return Question(problem, settings, f"gathered {seed}: {asked.name}, {settings}")


def tied_question(schedule: str, folder: pathlib.Path) -> Question:
    """Return a problem of a model whose embedding and head are one large table, under one schedule, where memory is tight."""
    dice = random.Random(schedule)
    model = folder / f"tied-{schedule}.json"
    table = {"tie_word_embeddings": True, "vocab_size": dice.choice((32000, 128000))}
    n_layers = 4 if schedule in IN_A_V else 3
    model.write_text(json.dumps(_random_model(dice) | table | {"num_hidden_layers": n_layers, "n_layer": n_layers}))
    cluster = dice.choice(("flat:2", "ring:3,bandwidth=1 GB/s", "dgx-a100:2"))
    problem = api.make_problem(str(model), cluster, batch=Batch(8, 1, 1024), memory_risk=0.5)
    settings = {"schedules": ",".join(dict.fromkeys(("1f1b", schedule)))}
    return Question(with_memory(problem, _tight_memory(problem, settings, dice)), settings, f"tied {schedule}: {cluster}")


def _random_model(dice: random.Random) -> dict[str, object]:
    """Return a configuration file of few layers."""
    n_layers, heads = dice.randint(2, 6), dice.choice((1, 2, 3, 4))
    hidden, vocabulary = heads * dice.choice((64, 128)), dice.choice((1000, 8000, 32000, 128000, 256000))
    family = dice.choice(("gpt2", "llama", "llama", "qwen3_moe"))
    if family == "gpt2":
        positions = dice.choice((5000, 5000, 400000))
        return {
            "model_type": "gpt2",
            "n_embd": hidden,
            "n_layer": n_layers,
            "n_head": heads,
            "n_positions": positions,
            "vocab_size": vocabulary,
        }
    config: dict[str, object] = {
        "model_type": family, "hidden_size": hidden, "intermediate_size": hidden * dice.choice((2, 4)),
        "num_hidden_layers": n_layers, "num_attention_heads": heads, "num_key_value_heads": heads, "vocab_size": vocabulary,
        "max_position_embeddings": 131072, "tie_word_embeddings": dice.random() < 0.5,
    }  # fmt: skip
    if family == "qwen3_moe":
        dense = [i for i in range(n_layers) if dice.random() < 0.3]
        config |= {
            "num_experts": 4,
            "num_experts_per_tok": dice.choice((1, 2)),
            "moe_intermediate_size": hidden,
            "head_dim": 64,
        }
        config |= {"mlp_only_layers": dense}
    return config


def _random_cluster(dice: random.Random) -> str:
    """Return a cluster file: a few nodes with a switch each, behind one core; nodes may differ in everything."""
    n_nodes, kinds = dice.randint(1, 3), [dice.choice(KINDS)]
    if dice.random() < 0.3:
        kinds.append(dice.choice(KINDS))
    lines = ["format: meshwright/cluster/1", "name: random", "source: made up", "nodes:"]
    for i in range(n_nodes):
        kind, count = dice.choice(kinds), dice.randint(1, 4)
        rate = dice.choice((0.5, 4, 50, 200))
        lines += [f"- name: n{i}", f"  devices: [{', '.join([kind] * count)}]"]
        lines += [f"  switch: {{bandwidth: {rate} GB/s, latency: 3 us}}"]
    lines += ["switches: [core]", "links:"]
    lines += [
        f"- {{from: n{i}/*, to: core, bandwidth: {dice.choice((0.2, 1, 10, 50))} GB/s, latency: 5 us}}" for i in range(n_nodes)
    ]
    return "\n".join(lines)


def _tight_memory(problem: Problem, settings: dict[str, str], dice: random.Random) -> float:
    """Return a memory in which some plans fit and some do not: the peak of a random plan, or a little more or less."""
    found = shapes(problem, settings)
    peaks = []
    for shape in dice.sample(found, min(6, len(found))):
        for plan in itertools.islice(_bare_plans(problem, shape, dice), 1):
            peaks.append(max(sim.simulate(problem, plan, analytic.stage_costs(problem, plan)).peak_bytes))
    return dice.choice(sorted(peaks)[:3] or [80e9]) * dice.choice((0.97, 0.999, 1.0, 1.03))


def chain(problem: Problem) -> tuple[list[int], list[int], list[int]]:
    """Return what is pinned to the first stage, the layers from the first that repeats to the last (where none does, all but
    embedding and head), what is pinned to the last.
    """
    order = list(problem.graph.topological_order())
    row = {i: problem.graph.ops[i].like if problem.graph.ops[i].like >= 0 else i for i in order}
    often = [sum(row[i] == row[j] for j in order) > 1 for i in order]
    if not any(often):  # then only embedding and head are pinned
        often = [problem.graph.ops[i].kind not in ("embedding", "head") for i in order]
    first, last = often.index(True), len(often) - 1 - often[::-1].index(True)
    return order[:first], order[first : last + 1], order[last + 1 :]


def _words(settings: dict[str, str]) -> tuple[str, ...]:
    allowed = settings.get("recompute", "none,selective,full").split(",")
    return tuple(word for word in ("none", "selective", "full") if word in allowed)


def shapes(problem: Problem, settings: dict[str, str]) -> list[Shape]:
    """Return every shape of the space."""
    cluster, n_layers = problem.cluster, len(chain(problem)[1])
    assert cluster is not None
    schedules = tuple(settings.get("schedules", "1f1b,interleaved_1f1b,zb_h1,zb_v").split(","))
    levels = tuple(int(level) for level in settings.get("shard", "0,1,2,3").split(","))
    exchanges = _exchanges(problem, settings)
    experts = {int(degree) for degree in settings.get("expert", "").split(",") if degree}
    fixed = {name: int(settings[name]) for name in ("tensor", "context", "pipeline", "data", "micro_batch") if name in settings}
    found: dict[Shape, None] = {}
    for devices, all_ranks in _orders(problem):
        for data, context, tensor, expert in _degrees(problem, len(devices[0]) if len(devices) == 1 else cluster.n_devices):
            if experts and expert not in experts:
                continue
            size = data * context * tensor
            most = sum(len(own) // size for own in devices)
            for pipeline in range(1, min(most, n_layers) + 1):
                if all_ranks and pipeline != most:
                    continue
                for micro_batch in range(1, 9):
                    if problem.batch.global_batch % (data * micro_batch):
                        continue
                    given = {
                        "tensor": tensor,
                        "context": context,
                        "pipeline": pipeline,
                        "data": data,
                        "micro_batch": micro_batch,
                    }
                    if any(given[name] != value for name, value in fixed.items()):
                        continue
                    if problem.batch.micro_batch not in (0, micro_batch):
                        continue
                    n_microbatches = problem.batch.global_batch // (data * micro_batch)
                    forms = list(_schedules(schedules, pipeline, n_layers, n_microbatches))
                    if expert == 1:  # nothing for pairs of tasks to hide
                        forms = [form for form in forms if not form[0].startswith("combined")]
                    for exchange in exchanges if context > 1 else ("ring",):
                        base = Strategy(data, tensor, context, expert, tensor > 1, context_exchange=exchange)
                        if analytic.illegal(problem, base, micro_batch):
                            continue
                        for schedule, n_chunks in forms:
                            for layout, ranks in _ranks(devices, pipeline, data, context * tensor, apart=expert == 1):
                                for strategy in _offloaded(problem, settings, _shardings(problem, base, levels)):
                                    found[Shape(ranks, strategy, micro_batch, schedule, n_chunks, layout)] = None
    return list(found)


def _offloaded(problem: Problem, settings: dict[str, str], strategies: Iterator[Strategy]) -> Iterator[Strategy]:
    """Yield strategies with all that may lie on the host beside activations, where the framework has it with their sharding."""
    words = [word for word in settings.get("offload", "none").split(",") if word != "activations"]
    for strategy in strategies:
        for offload in words or ["none"]:
            several = strategy.data * strategy.context > 1
            if offload == "none" or not several or strategy.shard in problem.framework.limits.offload_shards:
                yield dataclasses.replace(strategy, offload=offload)


def _exchanges(problem: Problem, settings: dict[str, str]) -> tuple[str, ...]:
    """Return how keys and values may be exchanged over a context axis: what is asked for, or a ring and by heads; what the
    framework has of it, and where it has no ring, gathering.
    """
    has = problem.framework.limits.context_exchanges
    if "context_exchange" in settings:
        return tuple(kind for kind in settings["context_exchange"].split(",") if kind in has)
    return tuple(kind for kind in has if kind != "all_to_all+ring" and (kind != "all_gather" or "ring" not in has))


def _orders(problem: Problem) -> Iterator[tuple[list[list[int]], bool]]:
    """Yield devices by kind in pipeline order, and whether all ranks must be used."""
    cluster = problem.cluster
    assert cluster is not None
    kinds = [np.flatnonzero(cluster.kind_of_device == kind).tolist() for kind in range(len(cluster.kinds))]
    kinds = [own for own in kinds if own]
    if len(kinds) == 1:
        node = {device: tuple(level[device] for level in cluster.groups[::-1]) for device in kinds[0]}
        in_order = sorted(kinds[0], key=lambda device: (*node[device], device))
        yield [in_order], False
        sorts = {device: _sort_of_node(problem, device) for device in in_order}
        if not cluster.periods and not cluster.forwards and len(set(sorts.values())) <= 4:
            for sort in set(sorts.values()) - {sorts[in_order[0]]}:
                yield [[i for i in in_order if sorts[i] == sort] + [i for i in in_order if sorts[i] != sort]], False
        return
    yield kinds, True
    yield kinds[::-1], True
    for own in kinds:
        yield [own], False


def _sort_of_node(problem: Problem, device: int) -> tuple[tuple[float, ...], ...]:
    """Return the rates of the links out of every device of a device's node, sorted."""
    cluster = problem.cluster
    assert cluster is not None
    members = [i for i in range(cluster.n_devices) if cluster.node_of_device[i] == cluster.node_of_device[device]]
    links = list(zip(cluster.links.source.tolist(), cluster.links.bytes_per_second.tolist(), strict=True))
    return tuple(sorted(tuple(sorted(rate for source, rate in links if source == member)) for member in members))


def _degrees(problem: Problem, n_devices: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield data, context, tensor and expert degree."""
    n_experts = [
        operator.size("experts") for op in problem.graph.ops for operator in op.body if operator.kind == "grouped_matmul"
    ]
    for data, context, tensor in itertools.product(range(1, n_devices + 1), (1, 2, 4, 8), range(1, n_devices + 1)):
        if data * context * tensor > n_devices or problem.batch.global_batch % data:
            continue
        if context > max(1, problem.graph.sequence_length // 1024):
            continue
        for expert in range(1, (n_experts or [1])[0] + 1):
            over_tensor = data * context * tensor % expert == 0 and expert % tensor == 0  # each whole on its device
            if data * context % expert == 0 or over_tensor:
                yield data, context, tensor, expert


def _schedules(allowed: tuple[str, ...], pipeline: int, n_layers: int, n_microbatches: int) -> Iterator[tuple[str, int]]:
    """Yield schedules with stages per rank; virtual stages need enough micro-batches, and layers."""
    if pipeline == 1:
        if "1f1b" in allowed:
            yield "1f1b", 1
        return
    for schedule in allowed:
        if schedule in WHOLE_SPLITS:
            yield schedule, 1
        elif schedule in IN_A_V:
            if n_layers >= 2 * pipeline and n_microbatches >= 2 * pipeline:
                yield schedule, 2
        elif n_microbatches % pipeline == 0 or schedule == "looped_bfs":
            for n_chunks in range(2, (n_layers + 2) // pipeline + 1):
                n_stages = n_chunks * pipeline
                if n_chunks <= 4 or n_layers % n_stages == 0 or (n_layers + 2) % n_stages == 0:
                    yield schedule, n_chunks


def _ranks(
    devices: list[list[int]], pipeline: int, data: int, width: int, *, apart: bool
) -> Iterator[tuple[str, tuple[tuple[int, ...], ...]]]:
    """Yield the devices of every rank: ranks as blocks of neighbours, or, without experts between them, replicas of the
    pipeline.
    """
    size = data * width
    blocks = [tuple(own[i * size : (i + 1) * size]) for own in devices for i in range(len(own) // size)]
    yield "pipeline", tuple(blocks[:pipeline])
    if apart and len(devices) == 1 and pipeline > 1 and data > 1:
        own = devices[0]
        yield (
            "data",
            tuple(
                tuple(own[d * pipeline * width + r * width + i] for d in range(data) for i in range(width))
                for r in range(pipeline)
            ),
        )


def _shardings(problem: Problem, base: Strategy, levels: tuple[int, ...]) -> Iterator[Strategy]:
    """Yield the shardings of a strategy; where nothing can be sharded, none."""
    cluster = problem.cluster
    assert cluster is not None
    if base.data * base.context == 1:
        yield base
        return
    in_node = int((cluster.groups[0] == cluster.groups[0][0]).sum()) // (base.tensor * base.context)
    for level in levels:
        yield dataclasses.replace(base, shard=level)
        if level == 3 and 1 < in_node < base.data and base.data % in_node == 0:
            yield dataclasses.replace(base, shard=3, shard_degree=in_node)


def splits(problem: Problem, shape: Shape, dice: random.Random, n_most: int) -> Iterator[tuple[int, ...]]:
    """Yield numbers of layers per stage: all splits, or some random ones beside the even one."""
    prefix, layers, suffix = chain(problem)
    n_stages, n_layers = len(shape.devices) * shape.n_chunks, len(layers)
    quotient, rest = divmod(n_layers, n_stages)
    even = [quotient] * n_stages
    for stage in (*range(1, n_stages - 1), *sorted({0, n_stages - 1}))[:rest]:
        even[stage] += 1
    yield tuple(even)
    if shape.n_chunks > 1:  # up to two layers fewer on the last stage, and then one on the first; the others share what is left
        others = [
            (even[0] - fewer, even[-1] - less)
            for fewer, less in itertools.product((0, 1), (1, 2))
            if (not fewer or even[0] - fewer >= (0 if prefix else 1)) and even[-1] - less >= (0 if suffix else 1)
        ]
        dice.shuffle(others)
        for first, last in others:
            between = [0] * (n_stages - 2)
            for i in range(n_layers - first - last):
                between[i % len(between)] += 1
            yield (first, *between, last)
    if shape.schedule not in WHOLE_SPLITS:
        return
    every = math.comb(n_layers + n_stages - 1, n_stages - 1) <= 4 * n_most
    cuts: list[tuple[int, ...]] = (
        list(itertools.combinations_with_replacement(range(n_layers + 1), n_stages - 1)) if every else []
    )
    if not every:
        cuts = [tuple(sorted(dice.randint(0, n_layers) for _ in range(n_stages - 1))) for _ in range(n_most)]
    dice.shuffle(cuts)
    for cut in cuts[:n_most]:
        counts = tuple(b - a for a, b in itertools.pairwise((0, *cut, n_layers)))
        held = [
            count + (len(prefix) if i == 0 else 0) + (len(suffix) if i == n_stages - 1 else 0) for i, count in enumerate(counts)
        ]
        if min(held) > 0:
            yield counts


def make(problem: Problem, shape: Shape, counts: tuple[int, ...], words: list[list[str]], pinned: str = "none") -> Plan | None:
    """Return a plan; `words` are what the layers of each stage recompute, what is pinned left out: that recomputes `pinned`,
    but for embedding and head. None with an empty stage, or where no pair of tasks repeats it.
    """
    if shape.schedule.startswith("combined") and any(word == "full" for own in words for word in own):
        return None  # what repeats the exchange of experts is not run beside another task
    prefix, layers, suffix = chain(problem)
    n_ranks, n_stages, start, stages = len(shape.devices), len(counts), 0, []
    at_ends = {i: "none" if problem.graph.ops[i].kind in ("embedding", "head") else pinned for i in (*prefix, *suffix)}
    for i, count in enumerate(counts):
        ops, how = layers[start : start + count], list(words[i])
        start += count
        if i == 0:
            ops, how = prefix + ops, [at_ends[op] for op in prefix] + how
        if i == n_stages - 1:
            ops, how = ops + suffix, how + [at_ends[op] for op in suffix]
        if not ops:
            return None
        stages.append(Stage(tuple(ops), shape.devices[_rank(shape, i, n_ranks)], shape.strategy, tuple(how)))
    n_microbatches = problem.batch.global_batch // (shape.strategy.data * shape.micro_batch)
    return Plan(tuple(stages), n_microbatches, shape.micro_batch, shape.schedule, problem.batch.global_batch)


def _rank(shape: Shape, stage: int, n_ranks: int) -> int:
    turn, place = divmod(stage, n_ranks)
    return n_ranks - 1 - place if shape.schedule in IN_A_V and turn == 1 else place


def _bare_plans(problem: Problem, shape: Shape, dice: random.Random, n_most: int = 1, word: str = "none") -> Iterator[Plan]:
    for counts in splits(problem, shape, dice, n_most):
        plan = make(problem, shape, counts, [[word] * count for count in counts])
        if plan is not None:
            yield plan


class Player:
    """Plays plans of one question and remembers the best that fits.

    Parameters
    ----------
    question : Question
        The problem and its options.
    budget : int
        How many plans are played.
    seed : int
        Of what is random.
    """

    def __init__(self, question: Question, budget: int, seed: int = 0) -> None:
        told = question.problem.framework.limits
        self.problem, self.scope = question.problem, told.recompute_scope
        self.words = tuple(word for word in _words(question.settings) if word in told.recompute)
        self.pinned = self.words[0] if len(self.words) == 1 else "none"  # one word allowed is that of all layers
        asked = question.settings.get("offload", "none").split(",")
        self.away, self.only_away = "activations" in asked, asked == ["activations"]
        self.ratio = float(question.settings.get("memory_ratio", "1"))
        self.dice, self.left = random.Random(seed), budget
        self.best: Played | None = None
        self.fitting: list[Played] = []

    def play(self, plan: Plan, shape: Shape) -> tuple[float, list[bool], list[float]]:
        """Return the step, whether each rank fits, and how long each rank works for a micro-batch."""
        self.left -= 1
        cluster = self.problem.cluster
        assert cluster is not None
        stage_costs = analytic.stage_costs(self.problem, plan)
        timeline = sim.simulate(self.problem, plan, stage_costs)
        limits = [self.ratio * cluster.device(own[0]).memory_bytes for own in plan.ranks()]
        peaks = list(timeline.peak_bytes)
        module = {"zb_h1": zb_h1, "zb_h2": zb_h2}.get(plan.schedule)
        if module is not None:  # the space asks that it fits with as many micro-batches as the schedule allows
            allowed = module.in_flight(len(plan.stages), 1, plan.n_microbatches)
            held = [
                load.static_bytes + load.reserved_bytes + load.working_bytes + int(n) * load.activation_bytes
                for load, n in zip(stage_costs, allowed, strict=True)
            ]
            assert all(most >= peak * (1 - 1e-12) for most, peak in zip(held, peaks, strict=True))
            peaks = held
        fits = [peak <= limit for peak, limit in zip(peaks, limits, strict=True)]
        for rank, own in enumerate(plan.ranks()):
            hosts = [cluster.device(i).host for i in own]
            away = sum(load.host_bytes for load, of in zip(stage_costs, plan.rank_of_stage(), strict=True) if of == rank)
            fits[rank] &= not away or all(host is not None and away <= 0.9 * host.memory_bytes for host in hosts)
        if all(fits):
            own = Played(timeline.step_seconds, plan, shape)
            self.fitting.append(own)
            if self.best is None or own.step_seconds < self.best.step_seconds:
                self.best = own
        busy = [0.0] * len(fits)
        for rank, load in zip(plan.rank_of_stage(), stage_costs, strict=True):
            busy[rank] += load.forward_total_seconds + load.backward_total_seconds
        return timeline.step_seconds, fits, busy

    def split(self, shape: Shape, counts: tuple[int, ...], most_mixtures: int) -> float:
        """Play a split with as little recomputed as allowed, and, where that does not fit, with what fits each rank; the first
        step.
        """
        least = self.words[0]
        if self.away and len(shape.devices) == 1:
            self.send_away(shape, counts[0])
        if self.only_away:
            return math.inf
        plan = make(self.problem, shape, counts, [[least] * count for count in counts], self.pinned)
        if plan is None:
            return math.inf
        step, fits, busy = self.play(plan, shape)
        if all(fits) or len(self.words) == 1:
            return step
        if self.scope == "plan":
            for word in self.words[1:]:
                alike = make(self.problem, shape, counts, [[word] * count for count in counts], word)
                if alike is not None and self.left > 0:
                    self.play(alike, shape)
            return step
        of_rank: list[list[int]] = [[] for _ in shape.devices]  # its stages
        for stage in range(len(counts)):
            of_rank[_rank(shape, stage, len(shape.devices))].append(stage)
        chosen: list[tuple[float, list[str]] | None] = [
            (seconds, [least] * sum(counts[i] for i in own)) if good else None
            for good, seconds, own in zip(fits, busy, of_rank, strict=True)
        ]
        mixtures = [_mixtures(sum(counts[i] for i in own), self.words, self.dice, most_mixtures) for own in of_rank]
        for trial in range(max(len(own) for own in mixtures)):
            words = [own[min(trial, len(own) - 1)] for own in mixtures]
            plan = make(self.problem, shape, counts, _by_stage(words, of_rank, counts), self.pinned)
            if plan is None or self.left <= 0:
                return step
            _, good, seconds = self.play(plan, shape)
            for rank, own in enumerate(words):
                known = chosen[rank]
                if good[rank] and (known is None or seconds[rank] < known[0]):
                    chosen[rank] = (seconds[rank], own)
        if all(own is not None for own in chosen):
            words = [own[1] for own in chosen if own is not None]
            plan = make(self.problem, shape, counts, _by_stage(words, of_rank, counts), self.pinned)
            assert plan is not None
            self.play(plan, shape)
        return step

    def send_away(self, shape: Shape, n_layers: int) -> None:
        """Play what has the activations of the first layers on the host, of all but one at most."""
        for n_first in range(0 if self.only_away else 1, n_layers):
            plan = make(self.problem, shape, (n_layers,), [["offload"] * n_first + ["none"] * (n_layers - n_first)])
            if plan is None or self.left <= 0:
                return
            self.play(plan, shape)

    def run(self, all_shapes: list[Shape]) -> None:
        """Play: the even split of many shapes, then splits and mixtures of the quickest and of some others."""
        order = list(all_shapes)
        self.dice.shuffle(order)
        tried = []
        for shape in order[: self.left // 3]:
            counts = next(splits(self.problem, shape, self.dice, 1))
            tried.append((self.split(shape, counts, 0), len(tried), shape))
        tried.sort()
        while tried and self.left > 0:
            n_splits = max(4, self.left // 8)
            _, _, shape = tried.pop(0 if self.dice.random() < 0.8 else self.dice.randrange(len(tried)))
            for counts in splits(self.problem, shape, self.dice, n_splits):
                if self.left <= 0:
                    break
                self.split(shape, counts, 12)


def _mixtures(n_layers: int, words: tuple[str, ...], dice: random.Random, n_most: int) -> list[list[str]]:
    """Return mixtures of what layers recompute: the strongest for all, numbers of strong and weak ones, in random order of
    layers.
    """
    found = [[words[-1]] * n_layers]
    pairs = [(strong, weak) for strong in range(n_layers + 1) for weak in range(n_layers + 1 - strong) if strong or weak]
    dice.shuffle(pairs)
    for strong, weak in pairs[:n_most]:
        if weak and len(words) < 3:
            continue
        own = [words[-1]] * strong + [words[min(1, len(words) - 1)]] * weak + [words[0]] * (n_layers - strong - weak)
        if dice.random() < 0.5:
            dice.shuffle(own)
        found.append(own)
    return found


def _by_stage(words: list[list[str]], of_rank: list[list[int]], counts: tuple[int, ...]) -> list[list[str]]:
    """Return the words of every rank as those of every stage."""
    found: list[list[str]] = [[] for _ in counts]
    for own, stages in zip(words, of_rank, strict=True):
        start = 0
        for stage in stages:
            found[stage] = own[start : start + counts[stage]]
            start += counts[stage]
    return found


FAMILIES: MappingProxyType[str, Callable[[int, pathlib.Path], Question]] = MappingProxyType({
    "random": random_question, "context": context_question, "both_ways": both_ways_question, "offload": offload_question,
    "virtual": virtual_question, "unlike": unlike_question, "paired": paired_question, "frozen": frozen_question,
    "optimizer": optimizer_question, "activations": activations_question,
    "gathered": gathered_question,
})  # fmt: skip
"""Random questions by what is special about them."""
