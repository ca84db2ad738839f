"""Trainings whose dropout is written down.

The processes are forked from one that has imported everything. What each dropped, and the losses, lie in ``FOLDER/rank-R.pt``.
"""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent)]

WORDS, WIDTH = 20, 16
SEEN: list[tuple[str, torch.Tensor]] = []
GIVEN: dict[str, list[torch.Tensor]] = {}
"""Masks to take in place of drawn ones, by place, in order."""


class Drop(nn.Module):
    """Dropout that remembers what it kept."""

    def __init__(self, place: str) -> None:
        super().__init__()
        self.place = place

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return x
        kept = nn.functional.dropout(torch.ones_like(x), 0.5).detach()
        kept = GIVEN[self.place].pop(0) if GIVEN else kept
        SEEN.append((self.place, kept))
        return x * kept


class Begin(nn.Module):
    """A word table."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.drop = nn.Embedding(WORDS, WIDTH), Drop("begin")

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.drop(self.table(tokens))


class Inner(nn.Module):
    """Two products, with dropout of what each rank has of its own between them, and of what all have after them."""

    def __init__(self, i: int) -> None:
        super().__init__()
        self.up, self.between, self.down = nn.Linear(WIDTH, 2 * WIDTH), Drop(f"{i}.between"), nn.Linear(2 * WIDTH, WIDTH)
        self.gate_up_proj, self.down_proj = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.again, self.after = Drop(f"{i}.again"), Drop(f"{i}.after")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.down(self.between(torch.tanh(self.up(x))))
        gate, up = self.gate_up_proj(x).chunk(2, -1)
        return self.after(y + self.down_proj(self.again(torch.sigmoid(gate) * up)))


class Layer(nn.Module):
    """A norm, such products, and a sum."""

    def __init__(self, i: int) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(WIDTH), Inner(i)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(self.norm(x))


class End(nn.Module):
    """A head."""

    def __init__(self) -> None:
        super().__init__()
        self.drop, self.linear = Drop("end"), nn.Linear(WIDTH, WORDS + 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.drop(x))


class Dropping(nn.Module):
    """Two layers between a table and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layers, self.head = Begin(), nn.ModuleList(Layer(i) for i in range(2)), End()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def loss_of(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return a loss that draws numbers itself."""
    SEEN.append(("loss", torch.rand(3)))
    return nn.functional.cross_entropy(output.flatten(0, 1), targets.flatten())


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 0.3, foreach=False)


def train(case: dict[str, Any]) -> dict[str, Any]:
    """Train one case in this process, one of several; return its losses, and by step what was dropped, in order."""
    from meshwright.runtime.job import checkpoints
    from meshwright.runtime.job.trainer import assemble
    from meshwright.runtime.ranks.layout import layout
    from meshwright.runtime.ranks.plan_file import plan_file_of

    torch.manual_seed(0)
    model = Dropping()
    torch.manual_seed(case.get("seed", 5) + dist.get_rank() * case.get("seeds", 0))
    GIVEN.clear()
    if case.get("given"):
        GIVEN.update(torch.load(case["given"]))
    read = plan_file_of(case["plan"], "p")
    sample = (torch.zeros(1, 8, dtype=torch.long),)
    trainer = assemble(model, read.names, layout(read.plan), sample, optimizer=sgd, loss=loss_of)
    first = checkpoints.load(trainer, case["from"]) if case.get("from") else 0
    losses, seen = [], []
    for step in range(first, case.get("n_steps", 2)):
        generator = torch.Generator().manual_seed(step)
        tokens, targets = (torch.randint(WORDS, (16, 8), generator=generator) for _ in range(2))
        SEEN.clear()
        before = torch.get_rng_state()
        losses.append(trainer.step(tokens, targets))
        assert torch.equal(before, torch.get_rng_state()), "what others draw does not hang on the layers"
        seen.append(list(SEEN))
        if case.get("evaluates"):
            feed = trainer.executor.whole_batch((tokens,), targets)
            trainer.executor.evaluate(feed)
    if case.get("to"):
        checkpoints.save(trainer, case["to"], case.get("n_steps", 2))
    return {"losses": losses, "seen": seen, "norm": trainer.gradient_norm}


def one(rank: int, world: int, folder: pathlib.Path) -> None:
    """Be one of the processes."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world)
    found = {name: train(case) for name, case in json.loads((folder / "cases.json").read_text()).items()}
    torch.save(found, folder / f"rank-{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def run(cases: dict[str, Any], n_ranks: int, folder: pathlib.Path) -> dict[str, list[dict[str, Any]]]:
    """Train cases in several processes; return by case what each rank found."""
    import runtime_processes

    folder.mkdir(exist_ok=True)
    (folder / "cases.json").write_text(json.dumps(cases))
    runtime_processes.work(one, n_ranks, folder)
    found = [torch.load(folder / f"rank-{rank}.pt") for rank in range(n_ranks)]
    return {name: [one[name] for one in found] for name in cases}
