"""``meshwright size``: how many devices of which kind, for how long and for how much."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from meshwright.base import units
from meshwright.commands import _options

if TYPE_CHECKING:
    from meshwright.sizing.answer import Sizing

__all__ = ["register"]


def _answered(ask: partial[Sizing], model: str, out: str, as_json: bool) -> int:
    """Ask, write and print the answer; return the exit status."""
    import json
    import sys

    from meshwright.base import files
    from meshwright.commands import _early
    from meshwright.report import size_page, sizes
    from meshwright.report.progress import progress
    from meshwright.report.terminal import columns

    files.check_targets([("--out", out)], (model, ask.keywords["framework"]))
    with progress(f"sizing {model}") as told:
        answer = ask(done=lambda done, n: told.count(done, n, "sizes"), keep=True)
    with _early.interruptible(True, _early.WRITING):
        if not answer.complete:
            print("meshwright: stopped; what was planned until then follows", file=sys.stderr)
        if out:
            files.write(out, size_page.page(answer))
        print(json.dumps(answer.to_dict()) if as_json else sizes.explain(answer, columns=columns()))
    return 0 if answer.feasible else 3


_Mtbf = Annotated[
    str,
    typer.Option(
        metavar="T", help="Time between failures of a device (50000h), or device=T,node=T,switch=T,software=T, or none."
    ),
]
_Checkpoint = Annotated[
    str, typer.Option(help="blocking (as default) or async: whether training goes on while one is written.")
]

_Spares = Annotated[
    str, typer.Option(metavar="N", help="Spare nodes; default with --repair: so that 1% of the time is waited.")
]
_Devices = Annotated[str, typer.Option(metavar="N,...", help="256,512 or FIRST:LAST:STEP; default: powers of two, 8 to 16384.")]


def register(app: typer.Typer) -> None:
    """Add the command to the program."""

    @app.command()
    def size(
        model: str = typer.Argument(help="A built-in name, a config.json, or a captured graph."),
        tokens: str = typer.Option(metavar="Q", help="Tokens of the whole run: 15T, 300B."),
        within: str = typer.Option("", metavar="T", help="The longest it may take: 30d, 2 weeks."),
        budget: str = typer.Option("", metavar="Q", help="The most it may cost, in US dollars: '2 M$', 500k."),
        devices: _Devices = "",
        kinds: str = typer.Option("", metavar="KIND,...", help="Clusters: h100,b200,p5-h100; default: all with a known price."),
        global_batch: int = typer.Option(
            0, parser=units.samples, metavar="N", help="Samples per step on every size; 0: what makes about 4 Mi tokens."
        ),
        sequence_length: _options.SequenceLength = 0,
        file_format: _options.FileFormat = "",
        freeze: _options.Freeze = [],  # noqa: B006  typer copies it
        lora: _options.Lora = "",
        base: _options.Base = "",
        objective: _options.Objective = "",
        precision: _options.Precision = "",
        optimizer: _options.OptimizerName = "",
        state_precision: _options.StatePrecision = "",
        set_: list[str] = typer.Option([], "--set", metavar="KEY=VALUE", help="An option of search best; may be repeated."),
        for_: _options.For = "",
        price: list[str] = typer.Option([], metavar="[KIND=]Q", help="US dollars a device and hour: h100=2.49."),
        pricing: str = typer.Option("on-demand", help="Which of the built-in prices: on-demand or reserved."),
        power: list[str] = typer.Option([], metavar="[KIND=]W", help="Watts a device with its share of the node: h100=1.3kW."),
        pue: float = typer.Option(0.0, show_default="a published average", help="Watts at the site for each of its machines."),
        mtbf: _Mtbf = "",
        restart: str = typer.Option("", metavar="T", help="From a failure until the checkpoint is read: 10min."),
        storage: str = typer.Option("", metavar="Q", help="What all devices together write checkpoints to: 200 GB/s."),
        checkpoint: _Checkpoint = "",
        repair: str = typer.Option("", metavar="T", help="For how long a broken node is away; default: replaced at once."),
        spares: _Spares = "",
        replan: str = typer.Option("", metavar="T", help="Plan again for the nodes left, in this time, where spares run out."),
        time_limit: str = typer.Option("", metavar="T", help="Stop the search of each size then, with its best plan (30s)."),
        seed: _options.Seed = 0,
        jobs: int = typer.Option(-1, help="Sizes planned at once; -1: every core."),
        backend: _options.Backend = "loky",
        scheduler: _options.Scheduler = "",
        out: str = typer.Option("", help="Write the answer as one HTML page to this file."),
        json_: _options.AsJson = False,
    ) -> int:
        """Find which sizes of which clusters are worth having for a run: days, money and energy, each with its plan."""
        from meshwright.api import training_states
        from meshwright.api.sizes import sizing
        from meshwright.commands import _early
        from meshwright.commands.plan import settings_of

        told = {
            "restart": restart, "storage": storage, "checkpoint": checkpoint, "repair": repair, "spares": spares,
            "replan": replan,
        }  # fmt: skip
        ask = partial(
            sizing.size, model, tokens, within=within, budget=budget, devices=devices, kinds=kinds, global_batch=global_batch,
            sequence_length=sequence_length, training=precision, framework=for_, file_format=file_format, freeze=freeze,
            lora=training_states.adapters(lora, base), objective=objective, optimizer=optimizer,
            state_precision=state_precision, prices=price, pricing=pricing, powers=power, pue=pue, mtbf=mtbf,
            recovery=told, settings=settings_of(set_), seed=seed, jobs=jobs, backend=backend, scheduler=scheduler,
            time_limit_seconds=_early.seconds_of(time_limit),
        )  # fmt: skip
        return _answered(ask, model, out, json_)
