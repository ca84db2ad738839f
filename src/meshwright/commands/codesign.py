"""``meshwright codesign``: plan and network topology together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from meshwright.commands import _early, _options
from meshwright.commands.plan import settings_of
from meshwright.commands.profile import tell

if TYPE_CHECKING:
    from meshwright.planners.topoopt.design import Design

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to the program."""

    @app.command()
    def codesign(
        model: str = typer.Argument(help="workloads.json#dlrm16, topoopt:dlrm,tables=16, a task graph, or a model."),
        servers: int = typer.Option(..., help="Number of servers."),
        degree: int = typer.Option(0, help="Interfaces of a server."),
        link_bandwidth: str = typer.Option(..., help="Of one interface, one direction: '100 Gbit/s'."),
        link_latency: str = typer.Option("1 us", help="Of one link."),
        measures: str = typer.Option("", help="Measured operators (FlexFlow's JSON); without: estimated."),
        measure: str = typer.Option("", metavar="DEVICE", help="Measure operators on this machine first: cpu or cuda."),
        import_: str = typer.Option("", "--import", help="A plan as FlexNet's strategy file; only networks are searched."),
        topology: str = typer.Option("topoopt", help="Topologies, separated by commas; the fastest is the answer."),
        budget: int = typer.Option(1000, help="Plans to simulate on each topology."),
        time_limit: str = typer.Option("", metavar="SECONDS", help="Stop the search then, with the best plans so far (30s)."),
        export: str = typer.Option("", help="Write the plan as FlexNet's strategy file."),
        taskgraph: str = typer.Option("", help="Write the task graph (FlatBuffers) to this file."),
        chakra: str = typer.Option("", help="Write Chakra execution traces, one per server, to PATH.<server>.et."),
        astra_network: str = typer.Option("", help="Write the network for ASTRA-sim (YAML) to this file."),
        dot: str = typer.Option("", help="Write the topology in DOT (or as a picture, .svg) to this file."),
        wiring: str = typer.Option("", help="Write what to plug where, every cable with its ports, to this CSV file."),
        trace: str = typer.Option("", help="Write a Chrome trace of the step to this file."),
        report: str = typer.Option("", help="Write a page with picture, times, costs, plan and cables (HTML) to this file."),
        measures_out: str = typer.Option("", help="Write all operator times, measured or estimated, as FlexFlow's JSON."),
        file_format: _options.FileFormat = "",
        set_: list[str] = typer.Option([], "--set", metavar="KEY=VALUE", help="An option; may be repeated."),
        seed: _options.Seed = 0,
        out: str = typer.Option("", help="Write the answer to this file."),
        json_: _options.AsJson = False,
    ) -> int:
        """Search plan and network topology together; say how fast, what it costs and how far from the bound."""
        import json

        from meshwright import api
        from meshwright.base import files
        from meshwright.core.problem import Stop
        from meshwright.planners.topoopt import text
        from meshwright.planners.topoopt.writers import codesign_json
        from meshwright.report import text as reports

        outputs = {
            "--out": out, "--export": export,
            "--taskgraph": taskgraph, "--chakra": chakra, "--astra-network": astra_network, "--dot": dot,
            "--wiring": wiring, "--trace": trace, "--report": report, "--measures-out": measures_out,
        }  # fmt: skip
        files.check_targets([*outputs.items()], (model.partition("#")[0], measures, import_))
        seconds = _early.seconds_of(time_limit)
        with reports.progress(f"designing for {model}"), _early.interruptible(True) as asked:
            design = api.codesign(
                model, servers=servers, degree=degree, link_bandwidth=link_bandwidth, link_latency=link_latency,
                measures=measures, measure=measure, say=tell, strategy=import_,
                topologies=tuple(name.strip() for name in topology.split(",") if name.strip()), budget=budget,
                settings=settings_of(set_), seed=seed, file_format=file_format,
                stop=Stop(seconds=seconds, asked=asked),
            )  # fmt: skip
        _refuse_shapes(design, outputs)
        with _early.interruptible(True, _early.WRITING):
            answer = codesign_json.as_json(design)
            if out:
                codesign_json.write(design, out, answer)
            print(json.dumps(answer) if json_ else text.explain(design, answer))
            _write_all(design, outputs)
        return 0 if design.entries else 3


def _refuse_shapes(design: Design, outputs: dict[str, str]) -> None:
    """Refuse files that need the axes of operators, of which a task graph says nothing."""
    from meshwright.base.errors import InputError

    for option in ("--export", "--measures-out"):
        if outputs[option] and not design.workload.global_batch:
            raise InputError(f"{option} {outputs[option]}: a task graph does not say the axes of its operators; leave it out")


def _write_all(design: Design, outputs: dict[str, str]) -> None:
    """Write what was asked for beside the answer, where there is one."""
    if not design.entries:
        return
    from meshwright.base import registry
    from meshwright.planners.topoopt import choices
    from meshwright.planners.topoopt.given import strategy as strategy_file
    from meshwright.planners.topoopt.writers import flexflow_measures

    if outputs["--export"]:
        strategy_file.write(design.step, design.entry.found.placement, outputs["--export"])
    if outputs["--measures-out"]:
        flexflow_measures.write(choices.measurements(design.step.space), outputs["--measures-out"])
    for option, writer in (
        ("--taskgraph", "taskgraph_fbuf"),
        ("--chakra", "chakra"),
        ("--dot", "topology_dot"),
        ("--wiring", "wiring_csv"),
        ("--trace", "codesign_trace"),
        ("--report", "codesign_html"),
        ("--astra-network", "astra_network"),  # last: it cannot say every network
    ):
        if outputs[option]:
            registry.load("writers", writer, "export").write(design, outputs[option])
