"""Published speeds beside what is said of scripts: torchtitan's and Megatron-Bridge's dense rows, each written as the file
that a person would start, read back as `advise` reads it, and priced.

A row's degrees, batch, precision and recomputation stand in its script; what the publication leaves open (recomputation of
Megatron-Bridge's runs, micro-batches of torchtitan's pipelines) is as said below. Rows and their sources:
src/meshwright/validation/data/torchtitan.csv and megatron_bridge_perf.csv. Nothing is fitted here.
"""

from __future__ import annotations

import csv
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from meshwright import api, frameworks, sim, validation
from meshwright.api.evaluation import evaluate
from meshwright.base.errors import InputError
from meshwright.core.problem import Batch, MixedPrecision
from meshwright.frameworks.megatron import model as megatron_model

DATA = Path(validation.__file__).parent / "data"
SYSTEMS = {"DGX-H100": "dgx-h100", "DGX-B200": "dgx-b200"}
MODELS = {"LLAMA3.1_405B": "llama-3.1-405b", "LLAMA3_70B": "llama-3-70b", "LLAMA3_8B": "llama-3-8b"}


def rows(name: str) -> list[dict[str, str]]:
    """Return the rows of a set."""
    with (DATA / name).open(newline="") as file:
        return list(csv.DictReader(file))


def toml_of(row: Mapping[str, str]) -> str:
    """Return torchtitan's file of a row; that release cuts a batch into as many micro-batches as there are stages."""
    pipeline, virtual = int(row["pp"]), 2 if "interleaved" in row["schedule"] else 1
    schedule = {"1f1b": "1F1B", "interleaved1f1b": "Interleaved1F1B"}.get(row["schedule"], "1F1B")
    selective = row["ac"].startswith("selective")
    micro = max(1, int(row["local_bs"]) // (pipeline * virtual))
    lines = [
        "[model]", 'name = "llama3"', f'flavor = "{row["model"].rpartition("-")[2].upper()}"',
        f"converters = {'[' + chr(34) + 'float8' + chr(34) + ']' if row['float8'] != '0' else '[]'}",
        "[training]", f"local_batch_size = {row['local_bs']}", f"seq_len = {row['seq']}",
        "[parallelism]", f"data_parallel_shard_degree = {row['dp_shard']}", f"tensor_parallel_degree = {row['tp']}",
        f"context_parallel_degree = {row['cp']}", f"pipeline_parallel_degree = {pipeline}",
        *([f'pipeline_parallel_schedule = "{schedule}"', f"pipeline_parallel_microbatch_size = {micro}"]
          if pipeline > 1 else []),
        f"enable_async_tensor_parallel = {str(row['async_tp'] == '1').lower()}",
        "[activation_checkpoint]", f'mode = "{"selective" if selective else "full"}"',
        *(['selective_ac_option = "op"'] if selective else []),
        "[compile]", "enable = true",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def script_of(row: Mapping[str, str]) -> str:
    """Return Megatron-LM's script of a row; its recomputation is not published: none is taken. Releases that name no precision
    publish fp8; ends of the model count as layers where these do not divide."""
    spec, gpus, precision = MODELS[row["model"]], int(row["n_gpus"]), row["precision"].upper()
    length, fsdp = int(row["sequence_length"]), row["fsdp"] not in ("", "0", "n/a")
    graph = api.make_problem(spec, f"{SYSTEMS[row['system']]}:8", batch=Batch(0, 0, length)).graph
    options = [" ".join(entry) for entry in megatron_model.arguments(spec, graph)[0]]
    tensor, ranks, virtual = (row[name] if row[name].isdigit() else "1" for name in ("tp", "pp", "vp"))
    options += [
        f"--tensor-model-parallel-size {tensor}", f"--pipeline-model-parallel-size {ranks}",
        f"--context-parallel-size {row['cp']}",
        f"--micro-batch-size {row['mbs']}", f"--global-batch-size {row['gbs']}", "--bf16", "--grad-reduce-in-bf16",
        *(["--sequence-parallel", "--tp-comm-overlap"] if tensor != "1" else []),
        *([f"--num-virtual-stages-per-pipeline-rank {virtual}"] if virtual != "1" and ranks != "1" else []),
        *(["--use-megatron-fsdp --use-distributed-optimizer", "--ckpt-format fsdp_dtensor"] if fsdp
          else ["--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather"]),
        *(["--fp8-format hybrid --fp8-recipe tensorwise"] if precision.startswith("FP8") or not precision else []),
        *(["--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split"]
          if (len(graph.ops) - 2) % (int(ranks) * int(virtual)) and ranks != "1" else []),
        *(["--fp8-format e4m3 --fp8-recipe mxfp8"] if precision.startswith("MX") else []),
    ]  # fmt: skip
    one = "" if fsdp else "export CUDA_DEVICE_MAX_CONNECTIONS=1\n"
    head = f"torchrun --nnodes {max(1, gpus // 8)} --nproc-per-node {min(gpus, 8)} pretrain_gpt.py"
    return f"{one}{head} \\\n  " + " \\\n  ".join(options) + "\n"


def asked() -> Iterator[tuple[str, str, str, str, float, str]]:
    """Yield framework, what the row is, cluster, model, published seconds of a step, and the file's text."""
    for row in rows("torchtitan.csv"):
        if row["float8"] == "rowwise":
            continue  # that release's kernels with a scale per row ran no faster than bf16; files are priced as fp8
        seconds = int(row["global_bs"]) * int(row["seq"]) / (float(row["tps_per_gpu"]) * int(row["gpus"]))
        degrees = f"tensor {row['tp']}, context {row['cp']}, pipeline {row['pp']}"
        what = f"{row['model']} on {row['gpus']}, {degrees}, {row['seq']} tokens"
        more = f"{', float8' * (row['float8'] != '0')}{', async' * (row['async_tp'] == '1')}, {row['ac']}"
        yield (
            "torchtitan",
            what + more,
            f"hgx-h100-96:{row['gpus']}",
            row["model"].replace("llama3", "llama-3"),
            seconds,
            toml_of(row),
        )
    for row in rows("megatron_bridge_perf.csv"):
        if row["model"] not in MODELS or row["system"] not in SYSTEMS or row["section"] != "Pre-Training Performance":
            continue
        gpus, length = int(row["n_gpus"]), int(row["sequence_length"])
        seconds = int(row["gbs"]) * length / (float(row["tokens_per_sec_per_gpu"].split()[0]) * gpus)
        degrees = f"tensor {row['tp']}, pipeline {row['pp']}"
        what = f"{row['model']} {row['system']} {gpus}, {degrees}, {row['precision'] or 'FP8'}, {row['release']}"
        yield "megatron", what, f"{SYSTEMS[row['system']]}:{gpus}", MODELS[row["model"]], seconds, script_of(row)


def priced(name: str, cluster: str, model: str, text: str, folder: Path) -> tuple[float, bool]:
    """Return the seconds of a step of a file, as `advise` says it, and whether it fits."""
    path = folder / ("run.toml" if name == "torchtitan" else "run.sh")
    path.write_text(text)
    module = frameworks.load(name)
    length = int(
        text.partition("seq_len = ")[2].split()[0] if name == "torchtitan" else text.partition("--seq-length ")[2].split()[0]
    )
    graph = api.make_problem(model, cluster, framework=name, batch=Batch(0, 0, length)).graph
    said = module.read(str(path), graph, int(cluster.rpartition(":")[2]))
    word = f"{name}:{said.variant}" if said.variant else name
    problem = api.make_problem(
        model, cluster, framework=word, batch=Batch(said.plan.global_batch, 0, length),
        training=said.training or MixedPrecision.of(said.precision),
    )  # fmt: skip
    timeline = evaluate(problem, said.plan)[1]
    assert timeline is not None
    return timeline.step_seconds, sim.excess_bytes(problem, said.plan, timeline.peak_bytes) <= 0.0


def table() -> list[tuple[str, str, float, float, bool]]:
    """Return framework, row, published and predicted seconds, and whether it fits; rows that are refused say why on the way."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for name, what, cluster, model, seconds, text in asked():
            try:
                predicted, fits = priced(name, cluster, model, text, Path(folder))
            except InputError as error:
                print(f"left out: {name} {what}: {str(error).replace(folder, '')}")
                continue
            found.append((name, what, seconds, predicted, fits))
    return found


def main() -> None:
    """Print the table and the mean error of each framework."""
    found = table()
    for name, what, seconds, predicted, fits in found:
        error = predicted / seconds - 1.0
        print(f"{name:10} {what:95} {seconds:8.3f} s {predicted:8.3f} s {error:+7.1%}{'' if fits else '  does not fit'}")
    for name in dict.fromkeys(row[0] for row in found):
        errors = [abs(row[3] / row[2] - 1.0) for row in found if row[0] == name]
        print(f"{name}: {len(errors)} rows, mean error {statistics.mean(errors):.1%}, largest {max(errors):.1%}")


if __name__ == "__main__":
    main()
