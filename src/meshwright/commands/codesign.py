"""``meshwright codesign``: plan and network topology together."""

from __future__ import annotations

import typer

from meshwright.commands.plan import settings_of

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to the program."""

    @app.command()
    def codesign(
        model: str = typer.Argument(help="workloads.json#dlrm16, topoopt:dlrm,tables=16, or any model of 'plan'."),
        servers: int = typer.Option(..., help="Number of servers."),
        degree: int = typer.Option(0, help="Interfaces of a server."),
        link_bandwidth: str = typer.Option(..., help="Of one interface, one direction: '100 Gbit/s'."),
        link_latency: str = typer.Option("1 us", help="Of one link."),
        measures: str = typer.Option("", help="Measured operators (FlexFlow's JSON); without: estimated."),
        topology: str = typer.Option("topoopt", help="Topologies, separated by commas; the fastest is the answer."),
        budget: int = typer.Option(1000, help="Plans to simulate on each topology."),
        taskgraph: str = typer.Option("", help="Write the task graph (FlatBuffers) to this file."),
        chakra: str = typer.Option("", help="Write Chakra execution traces, one per server, to PATH.<server>.et."),
        astra_network: str = typer.Option("", help="Write the network for ASTRA-sim (YAML) to this file."),
        dot: str = typer.Option("", help="Write the topology in DOT (or as a picture, .svg) to this file."),
        trace: str = typer.Option("", help="Write a Chrome trace of the step to this file."),
        form: str = typer.Option("", "--format", help="Format of MODEL where it should not be recognised."),
        set_: list[str] = typer.Option([], "--set", metavar="KEY=VALUE", help="An option; may be repeated."),
        seed: int = typer.Option(0, help="Seed of everything random."),
        out: str = typer.Option("", help="Write the answer to this file."),
        json_: bool = typer.Option(False, "--json", help="Print exactly one JSON object."),
    ) -> int:
        """Search plan and network topology together; say how fast, what it costs and how far from the bound."""
        import json

        from meshwright import _files, api
        from meshwright import report as reports
        from meshwright.writers import _codesign_text, codesign_json

        outputs = {
            "--out": out,
            "--taskgraph": taskgraph,
            "--chakra": chakra,
            "--astra-network": astra_network,
            "--dot": dot,
            "--trace": trace,
        }
        for option, path in outputs.items():
            if path:
                _files.check_target(path, option)
        with reports.progress(f"designing for {model}"):
            design = api.codesign(
                model, servers=servers, degree=degree, link_bandwidth=link_bandwidth, link_latency=link_latency, measures=measures,
                topologies=tuple(name.strip() for name in topology.split(",") if name.strip()), budget=budget,
                settings=settings_of(set_), seed=seed, form=form,
            )  # fmt: skip
        if design.entries:
            _write_all(design, outputs)
        if out:
            codesign_json.write(design, out)
        print(json.dumps(codesign_json.as_json(design)) if json_ else _codesign_text.explain(design))
        return 0 if design.entries else 3


def _write_all(design: object, outputs: dict[str, str]) -> None:
    """Write what was asked for beside the answer."""
    from meshwright import _plugins

    for option, writer in (
        ("--taskgraph", "taskgraph_fbuf"),
        ("--chakra", "chakra"),
        ("--astra-network", "astra_network"),
        ("--dot", "topology_dot"),
        ("--trace", "codesign_trace"),
    ):
        if outputs[option]:
            _plugins.load("writers", writer, "export").write(design, outputs[option])
