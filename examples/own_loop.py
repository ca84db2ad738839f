"""A training loop of one's own under torchrun: ``torchrun --nproc-per-node 2 own_loop.py plan.json --steps 20``.

A Llama as Hugging Face builds it learns four sonnets: lines of unlike lengths in one batch, labels of -100 behind their ends.
"""

import argparse
import pathlib

import torch
from models import llama
from torch.utils.data import DataLoader, Dataset

import meshwright

LENGTH = 48


class Lines(Dataset):
    """The lines of the sonnets as numbers of letters."""

    def __init__(self) -> None:
        text = (pathlib.Path(__file__).parent / "sonnets.txt").read_text(encoding="utf-8")
        letters = sorted(set(text))
        self.lines = [torch.tensor([letters.index(letter) for letter in line]) for line in text.splitlines() if line]

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        line = self.lines[i][:LENGTH]
        padding = (0, LENGTH - len(line))
        return {
            "input_ids": torch.nn.functional.pad(line, padding),
            "labels": torch.nn.functional.pad(line, padding, value=-100),
        }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("plan")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--save", default="", help="Folder of checkpoints, from the newest of which training goes on.")
    options = parser.parse_args()

    engine = meshwright.parallelize(llama, options.plan, clip_norm=1.0)
    engine.optimizer(
        lambda groups: torch.optim.AdamW(groups, lr=3e-3, weight_decay=0.1),
        groups=lambda name, shape: {"weight_decay": 0.1 if len(shape) > 1 else 0.0},
    )
    engine.heed_signals()
    if engine.rank == 0:
        for note in engine.notes:
            print(f"note: {note}")
    done = engine.resume(options.save) if options.save else 0
    data = Lines()
    sampler = engine.batch_sampler(len(data), seed=1)
    sampler.step = done
    while done < options.steps and not engine.stopping:
        for batch in DataLoader(data, batch_sampler=sampler):
            loss = engine.step(batch)  # the loss of a causal language model: next tokens, labels of -100 left out
            done += 1
            if engine.rank == 0:
                print(f"step {done}: loss {loss:.4f}")
            if done == options.steps or engine.stopping:
                break
    if options.save:
        engine.save(options.save, done)


if __name__ == "__main__":
    main()
