"""``meshwright capture``: a PyTorch module to a graph, without weights and without a GPU."""

from __future__ import annotations

import typer

from meshwright.base import units
from meshwright.commands import _options

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to the program."""

    @app.command()
    def capture(
        module: str = typer.Argument(metavar="PACKAGE.MODULE:CALLABLE", help="Returns an nn.Module, or (module, inputs)."),
        out: str = typer.Option(..., help="Write the graph to this file."),
        batch: int = typer.Option(0, help="Samples to trace with; 0: those of the inputs, or one."),
        input_: list[str] = typer.Option(
            [],
            "--input",
            metavar="[NAME=]SIZES[:TYPE]",
            help="Shape of an input, samples first: 8,3,224,224 or ids=8,128:int64.",
        ),
        sequence_length: int = typer.Option(
            0, parser=units.tokens, metavar="N", help="Tokens per sample of a language model; 0: its own, at most 4096."
        ),
        level: str = typer.Option("layers", help="What a node is: layers, or every single operator."),
        precision: str = typer.Option("bf16", help="Of weights whose type the callable does not decide: bf16, fp16, fp32."),
        json_: _options.AsJson = False,
    ) -> int:
        """Capture a PyTorch module, forward and backward, as a graph that `meshwright plan` reads."""
        import json

        from meshwright.base import files
        from meshwright.report import text
        from meshwright.runtime.capture import capture as captured
        from meshwright.runtime.capture.document import as_json

        files.check_target(out, "--out")
        with text.progress(f"capturing {module}"):
            found = captured(
                module, batch=batch, sequence_length=sequence_length, shapes=tuple(input_), level=level, precision=precision
            )
        entry = as_json(found, module)
        files.write(out, json.dumps(entry) + "\n")
        if json_:
            short = {key: value for key, value in entry.items() if key not in ("bodies", "ops", "edges")}
            print(json.dumps(short | {"n_ops": len(entry["ops"]), "n_edges": len(entry["edges"]), "out": out}))
        else:
            from meshwright.base.units import format_bytes, format_count

            totals = found.totals
            print(
                f"{found.graph.name}: {format_count(found.graph.n_parameters)} parameters, {len(entry['ops'])} nodes ({level})"
            )
            print(
                f"  per sample: forward {totals.forward_flops / 1e12:.6g} TFLOP, backward {totals.backward_flops / 1e12:.6g} "
                "TFLOP"
            )
            print(
                f"  kept for the backward pass: {format_bytes(totals.saved_bytes)}; operators {totals.n_forward} + "
                f"{totals.n_backward}"
            )
            for note in found.notes:
                print(f"  note: {note}")
            print(f"  written to {out}")
        return 0
