"""``meshwright profile``: measure layers or links on this machine, for ``--costs profiled``."""

from __future__ import annotations

from typing import Any

import typer

from meshwright.base import units

__all__ = ["register"]


def counts(text: str, option: str) -> list[int]:
    """Return whole numbers from ``1,2,4``.

    Raises `InputError` when one is none.
    """
    from meshwright.base.errors import InputError

    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        found = []
    if not found or found[0] < 1:
        raise InputError(f"{option} {text}: give whole numbers from 1 on, for example 1,2,4")
    return found


def existing(path: str) -> dict[str, Any]:
    """Return the profile that a file holds already; an empty one where there is no file.

    Raises `InputError` when the file is something else.
    """
    from pathlib import Path

    from meshwright.base import fields, files
    from meshwright.costs.profiled.readers.profile_json import FORMAT

    if not Path(path).exists():
        return {"format": FORMAT, "model": "links only", "sequence_length": 1, "device": "CPU", "n_cores": 1,
                "memory_bytes": 1e9,
                "optimizer_seconds_per_byte": 0.0, "layers": [], "measures": []}  # fmt: skip
    return fields.of_format(files.read_json(path, "name another file"), f"--out {path}", FORMAT, "a profile")


def tell(text: str, done_ratio: float) -> None:
    """Draw a bar of what is done on stderr: one that grows in place on a terminal, lines elsewhere."""
    import sys

    width = 24
    bar = ("#" * round(width * done_ratio)).ljust(width, ".")
    if sys.stderr.isatty():
        print(f"\r[{bar}] {text}\x1b[K", end="\n" if done_ratio >= 1.0 else "", file=sys.stderr, flush=True)
    else:
        print(f"[{bar}] {text}", file=sys.stderr, flush=True)


def register(app: typer.Typer) -> None:
    """Add the command to the program."""

    @app.command()
    def profile(
        kind: str = typer.Argument(help="package.module:callable that returns the torch.nn.Module, or the word links."),
        out: str = typer.Option(..., help="The profile; where it exists, what is measured now is added to it or replaces it."),
        rows: str = typer.Option("1,2,4", help="Samples per micro-batch to measure, with commas."),
        tensor: str = typer.Option("1", help="Tensor degrees to measure, with commas."),
        sequence_length: int = typer.Option(
            0, parser=units.tokens, metavar="N", help="Tokens of a sample, for models of tokens; needed there."
        ),
        ranks: int = typer.Option(2, help="Processes among which links are measured; under torchrun, those it started."),
        repeats: int = typer.Option(
            9, help="Runs of each layer, dealt out over three rounds; the least median of a round counts."
        ),
        device: str = typer.Option("cpu", help="cpu or cuda; links of GPUs are measured with NCCL."),
        seed: int = typer.Option(0, help="Seed of the weights."),
    ) -> int:
        """Measure layers (forward, backward, memory) or links (pairs, collectives) on this machine."""
        import json
        import sys

        from meshwright.base import files
        from meshwright.base.errors import InputError
        from meshwright.runtime.job import launch
        from meshwright.runtime.model import source

        source.require_torch()
        files.check_target(out, "--out")
        entry = existing(out)
        if repeats < 1 or not 0 <= sequence_length <= 10**9:
            raise InputError("--repeats must be at least 1, and --sequence-length between 0 and 10^9")
        if kind == "links":
            if not 2 <= ranks <= 64:
                raise InputError(f"--ranks {ranks}: links are measured among 2 to 64 processes")
            from meshwright.runtime.profile import links

            measured = links.among(ranks, device)
            if measured is None:  # another process of torchrun writes the file
                return 0
            if isinstance(measured, launch.Failure):
                print(f"meshwright: measuring links failed on rank {measured.rank}: {measured.text}", file=sys.stderr)
                return 1
            entry["links"] = measured
        else:
            from meshwright.runtime.profile.measure import profile_callable

            degrees, n_rows = counts(tensor, "--tensor"), counts(rows, "--rows")
            entry |= profile_callable(
                kind, n_rows, degrees, sequence_length=sequence_length, repeats=repeats, device=device, seed=seed,
                say=tell,
            )  # fmt: skip
        files.write(out, json.dumps(entry, indent=1) + "\n")
        print(
            f"{out}: {len(entry['layers'])} layers, {len(entry['measures'])} measures, "
            f"{'links' if entry.get('links') else 'no links'}"
        )
        return 0
