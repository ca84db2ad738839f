"""A training loop of one's own, started by Meshwright: ``meshwright run own_script.py --plan plan.json -- --steps 30``."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import meshwright

LENGTH, WORDS = 32, 64


class Names(Dataset):
    """Every number has another name to be learned; sequences have unlike lengths."""

    def __len__(self) -> int:
        return 512

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(i)
        numbers = torch.randint(WORDS, (LENGTH,), generator=generator)
        labels = (5 * numbers + 1) % WORDS
        labels[int(torch.randint(LENGTH // 4, LENGTH, (), generator=generator)) :] = -100
        return {"tokens": numbers, "labels": labels}


class Block(nn.Module):
    """Two linear layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    """A word table, four blocks, a head."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(4))
        self.head = nn.Linear(width, WORDS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def token_loss(logits: torch.Tensor, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sum over labelled tokens, and their number: Meshwright divides by the number of all replicas and parts."""
    labels = batch["labels"]
    value = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum")
    return value, (labels != -100).sum()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--out", default="")
    options = parser.parse_args()

    engine = meshwright.parallelize(Model, clip_norm=1.0)  # the plan is that of --plan
    engine.optimizer(
        lambda groups: torch.optim.AdamW(groups, lr=1e-2, weight_decay=0.1),
        groups={"*norm*": {"weight_decay": 0.0}, "*.bias": {"weight_decay": 0.0}},
    )
    engine.schedule(lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps))
    data = Names()
    batches = DataLoader(data, batch_sampler=engine.batch_sampler(len(data)))  # only the samples of this process
    step = 0
    while step < options.steps:
        for batch in batches:
            loss = engine.step(batch, token_loss)
            step += 1
            if engine.rank == 0 and step % 10 == 1:
                print(f"step {step}: loss {loss:.3f}, gradient norm {engine.gradient_norm:.2f}")
            if step == options.steps:
                break
    first = next(iter(DataLoader(data, batch_sampler=engine.batch_sampler(len(data), shuffle=False))))
    loss = engine.evaluate(first, token_loss)  # no gradients, layers as in evaluation
    state = engine.state_dict()  # of the whole model, in process 0
    if engine.rank == 0:
        print(f"evaluated: {loss:.3f}")
        if options.out:
            torch.save(state, options.out)


if __name__ == "__main__":
    main()
