"""Training loops of a user's own, in several processes and in one: ``python own_loops.py FOLDER N_PROCESSES ...``.

The processes are forked once everything is imported; each runs every case of ``FOLDER/cases.json``, one after another.
"""

from __future__ import annotations

import copy
import json
import os
import pathlib
import signal
import sys
import traceback
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1])]

GROUPS = {"*norm*": {"weight_decay": 0.0}, "*bias": {"weight_decay": 0.0}}
CLIP, N_STEPS, PATIENCE_SECONDS = 0.5, 2, 300


def batch(step: int, n_samples: int, length: int = 16) -> dict[str, torch.Tensor]:
    """Return a step's samples: tokens, and labels of which the samples have very unlike numbers that count."""
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(50, (n_samples, length + 1), generator=generator)
    labels = tokens[:, 1:].clone()
    for i, count in enumerate(torch.randint(0, length + 1, (n_samples,), generator=generator).tolist()):
        labels[i, count:] = -100  # none at all of some samples
    return {"tokens": tokens[:, :-1].contiguous(), "labels": labels}


def padded(step: int, n_samples: int) -> dict[str, torch.Tensor]:
    """Return a step's samples as Hugging Face has them, padded on the left by unlike lengths."""
    given = batch(step, n_samples)
    mask = torch.ones_like(given["tokens"])
    for i in range(n_samples):
        mask[i, : (3 * i + step) % 9] = 0
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    labels = given["labels"].masked_fill(mask == 0, -100)
    return {"input_ids": given["tokens"], "attention_mask": mask, "position_ids": positions, "labels": labels}


def next_token_loss(output: torch.Tensor, part: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return sum and number of what counts: labels are the tokens, of which the next one is to be said."""
    return token_loss(output[:, :-1], {"labels": part["labels"][:, 1:]})


def token_loss(output: torch.Tensor, part: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return sum and number of what counts."""
    labels = part["labels"]
    value = nn.functional.cross_entropy(output.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum")
    return value, (labels != -100).sum()


def mean_loss(output: torch.Tensor, part: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the mean over samples of their mean over all tokens."""
    return nn.functional.cross_entropy(output.flatten(0, 1), part["tokens"].flatten())


def optimizer(groups: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, lr=3e-3, weight_decay=0.1, eps=1e-4)


def warming(made: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.LambdaLR(made, lambda step: min(1.0, (step + 1) / 3))


def build() -> nn.Module:
    """Return a transformer of two layers."""
    import zoo

    return zoo.double()


def llama() -> nn.Module:
    """Return a Llama of two layers with grouped heads."""
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=128,
        vocab_size=102, max_position_embeddings=64, tie_word_embeddings=False, use_cache=False,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def mixture() -> nn.Module:
    """Return a mixture whose routers add to its loss."""
    import transformers

    config = transformers.MixtralConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48, vocab_size=50,
        max_position_embeddings=64, num_local_experts=4, num_experts_per_tok=2, output_router_logits=True,
        router_aux_loss_coef=0.5, use_cache=False,
    )  # fmt: skip
    return transformers.MixtralForCausalLM(config)


class Adapter(nn.Module):
    """A linear layer that is frozen, and the product of two small ones beside it, with the names of peft."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.base_layer = linear.requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(linear.in_features, 4, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(4, linear.out_features, bias=False)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base_layer(x) + self.lora_B["default"](self.lora_A["default"](x)) * 20.0


def adapted() -> nn.Module:
    """Return a Llama of which adapters alone are trained, in all layers but the first."""
    model = llama().requires_grad_(False)
    for layer in model.model.layers[1:]:
        layer.self_attn.q_proj, layer.mlp.down_proj = Adapter(layer.self_attn.q_proj), Adapter(layer.mlp.down_proj)
    return model


def t5(n_encoder: int = 1, n_decoder: int = 2) -> nn.Module:
    """Return an encoder and a decoder of so many layers."""
    import transformers

    config = transformers.T5Config(
        d_model=32, d_kv=8, d_ff=64, num_layers=n_encoder, num_decoder_layers=n_decoder, num_heads=4, vocab_size=50,
        dropout_rate=0.0, decoder_start_token_id=0, use_cache=False,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config)


def pairs(step: int, n_samples: int) -> dict[str, torch.Tensor]:
    """Return a step's sentences for an encoder, padded on the right, and shorter ones for a decoder."""
    given = padded(step, n_samples)
    labels = given["labels"][:, :10].contiguous()
    decoded = torch.cat([torch.zeros_like(labels[:, :1]), labels[:, :-1].clamp(min=0)], 1)
    mask = given["attention_mask"].flip(1)
    return {"input_ids": given["input_ids"], "attention_mask": mask, "decoder_input_ids": decoded, "labels": labels}


class OddLayer(nn.Module):
    """Changes what its products give in place, drops nothing, since that was set to evaluation, and has a scalar weight."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc1, self.fc2, self.drop = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16), nn.Dropout(0.5)
        self.scale = nn.Parameter(torch.tensor(0.7))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.fc2(nn.functional.relu_(self.fc1(self.norm(x))))
        y += x
        return x + self.scale * self.drop(y)


class Odd(nn.Module):
    """Runs its second layer when it trains only."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(50, 16), nn.Linear(16, 50)
        self.layers = nn.ModuleList(OddLayer() for _ in range(2))
        for layer in self.layers:
            layer.drop.eval()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.layers[0](self.embed(tokens))
        return self.head(self.layers[1](x) if self.training else x)


KINDS = {"masked": llama, "routers": mixture, "adapters": adapted, "sequences": t5}


def parts_of(case: dict[str, Any]) -> tuple[Any, Any, Any, tuple[str, ...]]:
    """Return what builds a case's model, its batches, its loss, and the names of its inputs."""
    if case["loss"] == "sequences":
        return t5, pairs, token_loss, ("input_ids", "attention_mask", "decoder_input_ids")
    if case["loss"] == "odd":
        return Odd, batch, token_loss, ("tokens",)
    if case["loss"] in KINDS:
        return KINDS[case["loss"]], padded, next_token_loss, ("input_ids", "attention_mask", "position_ids")
    return build, batch, token_loss if case["loss"] == "token" else mean_loss, ("tokens",)


def alone(case: dict[str, Any]) -> dict[str, Any]:
    """Return what a plain loop in one process gives: nothing of the package in it."""
    build_one, batches, loss, names = parts_of(case)
    n_samples = case["plan"]["schedule"]["global_batch"]
    torch.manual_seed(0)
    model = build_one()

    def value_of(step: int) -> torch.Tensor:
        whole, total, counted = batches(step, n_samples), 0.0, 0
        n_parts = case["plan"]["schedule"]["n_microbatches"] if case["loss"] == "routers" else 1
        for given in ({key: value.tensor_split(n_parts)[i] for key, value in whole.items()} for i in range(n_parts)):
            output = model(**{name: given[name] for name in names})
            found = loss(getattr(output, "logits", output), given)
            if not isinstance(found, tuple):
                return found
            routers = 0.5 * output.aux_loss * found[1] if case["loss"] == "routers" else 0.0
            total, counted = total + found[0] + routers, counted + found[1]
        return total / counted

    trained = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    plain = [p for n, p in trained if "norm" in n or n.endswith("bias")]
    rest = [p for n, p in trained if not ("norm" in n or n.endswith("bias"))]
    made = optimizer([{"params": rest}, *([{"params": plain, "weight_decay": 0.0}] if plain else [])])
    schedule = warming(made)
    losses, norms = [], []
    for step in range(N_STEPS):
        made.zero_grad()
        value = value_of(step)
        value.backward()
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), CLIP)))
        made.step()
        schedule.step()
        losses.append(float(value))
    model.eval()
    with torch.no_grad():
        evaluated = float(value_of(99))
    remembered = get_optimizer_state_dict(model, made)
    return {"losses": losses, "norms": norms, "evaluated": evaluated, "state": model.state_dict(), "remembered": remembered}


def written(case: dict[str, Any], folder: pathlib.Path) -> str:
    """Write the weights that training begins with; return their folder."""
    build_one, *_ = parts_of(case)
    torch.manual_seed(0)
    model, place = build_one(), folder / build_one.__name__
    if not place.exists():
        if hasattr(model, "save_pretrained"):
            model.save_pretrained(place)
        else:
            torch.distributed.checkpoint.save(model.state_dict(), checkpoint_id=place, no_dist=True)
    return str(place)


def under_a_plan(case: dict[str, Any]) -> dict[str, Any]:
    """Return what the same loop gives in this process of a plan."""
    import meshwright

    build_one, batches, loss, names = parts_of(case)
    n_samples = case["plan"]["schedule"]["global_batch"]
    example = {name: batches(0, n_samples)[name] for name in reversed(names)}
    how = {"clip_norm": CLIP, "loss_parallel": case["loss_parallel"], "weights": case.get("files")}
    engine = meshwright.parallelize(build_one, case["plan"], example=example, **how)
    groups = {name: told for name, told in GROUPS.items() if name != "*bias" or case["loss"] not in KINDS}  # a Llama has none
    engine.optimizer(optimizer, groups=groups if case["loss"] != "adapters" else None)
    schedule = engine.schedule(warming)
    loss = None if case["loss"] in KINDS else loss  # that of `labels` is the engine's own
    losses, norms = [], []
    for step in range(N_STEPS):
        mine = engine.own(batches(step, n_samples)) if engine.needs_data else None
        losses.append(engine.forward_backward(mine, loss))
        if case["plan"]["stages"][0].get("shard") == 3:
            engine.evaluate(engine.own(batches(99, n_samples)), loss)  # what it gathers must not outlive the update
        engine.update()
        norms.append(engine.gradient_norm)
    evaluated = engine.evaluate(engine.own(batches(99, n_samples)), loss)
    groups = [{key: group[key] for key in ("lr", "weight_decay")} for group in engine.trainer.optimizer.param_groups]
    told = {"data_rank": engine.data_rank, "n_data_ranks": engine.n_data_ranks, "rows": engine.rows, "notes": engine.notes}
    told |= {"losses": losses, "norms": norms, "evaluated": evaluated, "groups": groups}
    told |= {"training": all(module.training for module in engine.modules)}
    state, remembered = engine.state_dict(), engine.optimizer_state_dict()
    kept = copy.deepcopy((state, remembered, schedule.state_dict()))
    again = [one_more(engine, engine.own(batches(N_STEPS, n_samples)), loss)]
    engine.load_state_dict(kept[0] or None)  # of process 0
    engine.load_optimizer_state_dict(kept[1])
    schedule.load_state_dict(kept[2])
    again.append(one_more(engine, engine.own(batches(N_STEPS, n_samples)), loss))
    return {**told, "state": state, "remembered": remembered, "again": again}


def one_more(engine: Any, batch: Any, loss: Any) -> list[float]:
    """Return the loss of one more step, the norm of its gradient, and the sum of squares of the weights after it."""
    value = engine.step(batch, loss)
    return [value, engine.gradient_norm, sum(float(held.double().square().sum()) for held in engine.state_dict().values())]


def compared(found: dict[str, Any], expected: dict[str, Any]) -> dict[str, Any]:
    """Return what both gave, and how far apart their weights are."""
    state, other = found.pop("state"), expected["state"]
    assert list(state) == list(other), (list(state), list(other))
    far = max(float((state[name] - other[name]).abs().max()) for name in state)
    mine, theirs = found.pop("remembered"), expected["remembered"]
    assert sorted(mine["state"]) == sorted(theirs["state"])
    for name, held in theirs["state"].items():
        assert sorted(held) == sorted(mine["state"][name])
        far = max(far, *(float((mine["state"][name][key] - value).abs().max()) for key, value in held.items()))
    groups = [
        sorted((g["weight_decay"], g["lr"], sorted(g["params"])) for g in told["param_groups"]) for told in (mine, theirs)
    ]
    found["groups_alike"] = [g[::2] for g in groups[0]] == [g[::2] for g in groups[1]]
    return {**found, "weights": far, "expected": {key: expected[key] for key in ("losses", "norms", "evaluated")}}


def be(rank: int, n_ranks: int, folder: pathlib.Path, known: dict[str, Any], cases: dict[str, Any]) -> None:
    """Be one of the processes."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=n_ranks)
    results = {}
    for name, case in cases.items():
        found = under_a_plan(case)
        everyone: list[Any] = [None] * n_ranks
        dist.all_gather_object(everyone, {key: found[key] for key in ("data_rank", "rows", "groups", "losses")})
        if rank == 0:
            results[name] = compared(found, known[name]) | {"everyone": everyone}
    if rank == 0:
        (folder / "results.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


def main(folder: pathlib.Path, n_ranks: int) -> int:
    """Fork the processes; return how many failed."""
    import runtime_processes
    import torch._dynamo  # what takes long to import, once for all
    import transformers  # noqa: F401
    import zoo  # noqa: F401

    import meshwright.runtime.open.building  # noqa: F401

    runtime_processes.settle()
    torch.set_num_threads(1)
    cases = json.loads((folder / "cases.json").read_text())
    known: dict[str, Any] = {}
    by_question: dict[tuple[Any, ...], Any] = {}
    for name, case in cases.items():
        schedule = case["plan"]["schedule"]
        if case["read"]:
            case["files"] = written(case, folder)
        question = (case["loss"], schedule["global_batch"], schedule["n_microbatches"] if case["loss"] == "routers" else 1)
        if question not in by_question:
            by_question[question] = alone(case)
        known[name] = by_question[question]
    children = []
    for rank in range(n_ranks):
        child = os.fork()
        if child:
            children.append(child)
            continue
        signal.alarm(PATIENCE_SECONDS)
        try:
            be(rank, n_ranks, folder, known, cases)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    failed = 0
    while children:
        ended, status = os.wait()
        children.remove(ended)
        failed += status != 0
        for other in children if status else ():  # they wait for it
            os.kill(other, signal.SIGKILL)
    return failed


if __name__ == "__main__":
    asked = zip(sys.argv[1::2], sys.argv[2::2], strict=True)
    sys.exit(sum(main(pathlib.Path(folder), int(n_ranks)) for folder, n_ranks in asked))
