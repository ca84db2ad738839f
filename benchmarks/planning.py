"""Seconds and memory of the commands people wait for, as whole processes, and the gap of each answer.

Run it on a quiet machine after ``meshwright compile``: ``python benchmarks/planning.py``. Each line is one fresh process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

CASES = (
    (("--help",), 0.4),
    (("plan", "llama-3.1-70b", "--cluster", "dgx-h100:64"), 5.0),
    *(
        (("plan", "llama-3.1-405b", "--cluster", f"dgx-h100:{n}", "--global-batch", str(n // 8), "--no-what-if"), target)
        for n, target in ((1024, 20.0), (4096, 20.0), (16384, 20.0), (32768, 60.0), (65536, 60.0), (131072, 60.0))
    ),
    (("plan", "deepseek-v3", "--cluster", "dgx-h100:2048", "--global-batch", "15360", "--no-what-if"), 20.0),
    (("plan", "gpt2", "--cluster", "dgx-h100:8", "--global-batch", "16", "--set", "evaluations=1", "--no-what-if"), 1.5),
)


def measure(arguments: tuple[str, ...]) -> tuple[float, float, float, dict[str, object]]:
    """Return wall seconds, CPU seconds, peak bytes and the JSON answer of one process."""
    wants_json = arguments[0] == "plan"
    command = [sys.executable, "-m", "meshwright", *arguments, *(["--json"] if wants_json else [])]
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        text = process.stdout.read()
        _, _, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - started
    return wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024.0, json.loads(text) if wants_json else {}


def main() -> None:
    """Print one line per command."""
    print(f"{'command':95} {'wall s':>8} {'CPU s':>8} {'target':>7} {'MiB':>7} {'gap':>8}")
    for arguments, target in CASES:
        wall, cpu, peak, answer = measure(arguments)
        bound = answer.get("bound") or {}
        gap = f"{bound['gap_ratio']:.2%}" if isinstance(bound, dict) and "gap_ratio" in bound else "-"
        print(f"{' '.join(arguments):95} {wall:8.2f} {cpu:8.2f} {target:7.1f} {peak / 2**20:7.0f} {gap:>8}", flush=True)


if __name__ == "__main__":
    main()
