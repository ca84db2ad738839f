"""A pipeline over four machines in two racks, emulated on one: the planned places against the order in which machines are
numbered.

``sudo env PYTHONPATH=examples python examples/two_racks.py`` measures a small model, plans four stages on `two_racks.yaml`, and
runs the plan twice with the links limited to the rates of that file: as placed, and with stage i on machine i.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent


def meshwright(*words: str) -> str:
    """Run the program and return what it printed."""
    done = subprocess.run([sys.executable, "-m", "meshwright", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"meshwright {' '.join(words)}\n{done.stderr}")
    return done.stdout


def compare(folder: pathlib.Path, n_steps: int = 5) -> dict[str, dict]:
    """Return the runs of both orders, as ``meshwright run --json`` prints them."""
    profile, placed, numbered = (str(folder / f"{name}.json") for name in ("profile", "placed", "numbered"))
    meshwright("profile", "models:small", "--sequence-length", "32", "--rows", "8,16", "--repeats", "3", "--out", profile)
    meshwright(
        "plan", profile, "--cluster", str(HERE / "two_racks.yaml"), "--global-batch", "64", "--set", "pipeline=4",
        "--set", "data=1", "--set", "micro_batch=8", "--set", "schedules=1f1b", "--no-what-if", "--out", placed,
    )  # fmt: skip
    plan = json.loads(pathlib.Path(placed).read_text())
    for machine, stage in enumerate(plan["stages"]):
        stage["devices"] = [machine]
    pathlib.Path(numbered).write_text(json.dumps(plan))
    words = ("--model", "models:small", "--profile", profile, "--steps", str(n_steps), "--emulate", "--json")
    return {name: json.loads(meshwright("run", path, *words)) for name, path in (("placed", placed), ("numbered", numbered))}


def main() -> None:
    """Print both."""
    with tempfile.TemporaryDirectory() as folder:
        runs = compare(pathlib.Path(folder))
    for name, run in runs.items():
        step = run["step_seconds"]
        print(f"{name:9} {step['measured'] * 1e3:6.0f} ms a step, predicted {step['predicted'] * 1e3:6.0f} ms")


if __name__ == "__main__":
    main()
