"""Options that several commands take, each written once: the question, what is trained and how, and who plans."""

from __future__ import annotations

from typing import Annotated

import typer

from meshwright.base import units

__all__ = [
    "AsJson",
    "Backend",
    "Base",
    "Batching",
    "ClusterName",
    "CostsName",
    "EndAt",
    "FileFormat",
    "For",
    "Freeze",
    "Lengths",
    "Lora",
    "MicroBatch",
    "ModelName",
    "Objective",
    "OptimizerName",
    "Precision",
    "Scheduler",
    "Seed",
    "SequenceLength",
    "Settings",
    "StatePrecision",
]

ModelName = Annotated[str, typer.Argument(help="A built-in name, a config.json, or a file of any known format.")]
ClusterName = Annotated[str, typer.Option(help="A built-in kind (dgx-h100:64), a topology (torus:4x4x4) or a YAML file.")]
CostsName = Annotated[str, typer.Option(help="The cost model; default: the one the input asks for.")]
EndAt = Annotated[str, typer.Option("--time-limit", metavar="T", help="End the command then (30s), without an answer.")]
FileFormat = Annotated[str, typer.Option("--format", help="Format of MODEL where it should not be recognised.")]
MicroBatch = Annotated[
    int,
    typer.Option(parser=units.samples, metavar="N", help="Samples per micro-batch and replica; 0: left to the search."),
]
SequenceLength = Annotated[int, typer.Option(parser=units.tokens, metavar="N", help="Tokens per sample; 0: the model's own.")]
Freeze = Annotated[list[str], typer.Option(metavar="PATTERN", help="Names whose weights are not trained: embed, layers.[0-9].")]
Lora = Annotated[str, typer.Option(metavar="r=N,targets=...", help="Train adapters only: r=16,targets=query,value.")]
Base = Annotated[str, typer.Option(metavar="4bit", help="What --lora's frozen products are held in (QLoRA).")]
Objective = Annotated[
    str,
    typer.Option(
        metavar="dpo[,reference=...]", help="Pairs beside a reference: copy, adapters-off or precomputed; default: next token."
    ),
]
Lengths = Annotated[
    str, typer.Option(metavar="FILE|lognormal:MEDIAN,SIGMA", help="Tokens of documents: one a line, or lognormal:2k,1.")
]
Batching = Annotated[
    str, typer.Option(show_default="pack", help="How documents of --lengths become samples: pad, bucket, pack or mask.")
]
Precision = Annotated[
    str, typer.Option(help="Of matrix products: bf16, fp16, fp8, fp32; default: of bf16, fp16, fp32 the first on all devices.")
]
OptimizerName = Annotated[
    str,
    typer.Option(
        "--optimizer", show_default="adamw", help="adam, adamw, adam-8bit, sgd, sgd-momentum, adafactor, muon or lion."
    ),
]
StatePrecision = Annotated[
    str,
    typer.Option(
        metavar="KEY=VALUE,...", help="Of moments and gradients (fp32, bf16), and the fp32 copy: moments=bf16,copy=none."
    ),
]
Settings = Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help="An option of the search; may be repeated.")]
For = Annotated[str, typer.Option("--for", help="The framework that will run the plan (list frameworks), or a TOML file.")]
Seed = Annotated[int, typer.Option(help="Seed of everything random.")]
Backend = Annotated[str, typer.Option(help="Where they are planned: loky (this machine), dask, ray.")]
Scheduler = Annotated[str, typer.Option(help="Address of a Dask scheduler or Ray cluster; default: one on this machine.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print exactly one JSON object.")]
