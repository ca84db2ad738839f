"""How long a capture takes and how much memory: whole processes, one per model of ``examples/capture_models.py``.

    python benchmarks/capture.py [MODEL ...]

CPU seconds are those of the process and count everything: interpreter, PyTorch, transformers, capture, file.
"""

from __future__ import annotations

import json
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
MODELS = ("llama_8b", "llama_70b", "llama_405b", "mixtral_8x7b", "gpt2", "bert_large", "vit_large", "resnet50")
LIMITS_SECONDS = (("llama_70b", 8.0), ("llama_405b", 12.0))


def main() -> None:
    """Print one row per model."""
    limits = dict(LIMITS_SECONDS)
    print(
        f"{'model':14} {'CPU s':>7} {'wall s':>7} {'limit s':>7} {'GB (most so far)':>17} {'parameters':>15} "
        f"{'forward TFLOP':>14} {'nodes':>6}"
    )
    for name in sys.argv[1:] or MODELS:
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "graph.json"
            command = [sys.executable, "-m", "meshwright", "capture", f"examples.capture_models:{name}", "--out", str(out)]
            before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
            subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
            wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            graph = json.loads(out.read_text())
        flops = graph["totals"]["forward_flops"] / 1e12
        limit = limits.get(name, "")
        print(
            f"{name:14} {cpu:7.2f} {wall:7.2f} {limit:>7} {after.ru_maxrss / 1e6:17.2f} {graph['n_parameters']:15,} "
            f"{flops:14.6g} {len(graph['ops']):6}"
        )


if __name__ == "__main__":
    main()
