"""Runs that are disturbed at random: ``python benchmarks/chaos.py --n 200 --seed 0`` prints a line for each fault.

With ``--forked`` launchers and workers are forked from this process, which has imported everything: a fault takes seconds.

A training of a small model is started again and again with ``--resume auto``, each time under another plan, and something is
done to it: a process or the launcher is killed, stopped or asked to end, a checkpoint is damaged, files cannot grow (as on a
full disk), a loss is no number. After each fault no process may be left, the exit status must be the one told, and no step may
be lost but those since the last checkpoint. At the end every loss that was ever logged must be that of a plain loop in one
process.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
PATHS = [str(ROOT / "src"), str(ROOT / "examples"), str(ROOT / "benchmarks"), str(ROOT / "tests" / "unit" / "runtime")]
sys.path[:0] = PATHS

from forked_commands import Child, preload, run_forked  # noqa: E402

PATIENCE_SECONDS, TOLERANCE, N_SAMPLES = 400.0, 1e-5, 16
FAULTS = (
    "kill a process", "kill the launcher", "kill the launcher of a stopped process", "terminate the launcher", "interrupt",
    "terminate a process", "a slow process", "a damaged checkpoint", "files cannot grow", "a loss that is no number",
)  # fmt: skip


def broken_loss(output: Any, target: Any) -> Any:
    """Return the default loss, or NaN from the first step on, after as many as the environment says."""
    import torch

    value = torch.nn.functional.cross_entropy(output.flatten(0, -2), target.flatten())
    return value * float("nan") if os.environ.get("CHAOS_NAN") else value


def samples(step: int, n_samples: int) -> tuple[Any, Any]:
    """Return tokens, and those that follow them; slowly, so that faults come in the middle."""
    import torch

    drawn = torch.randint(101, (n_samples, 17), generator=torch.Generator().manual_seed(step))
    time.sleep(0.05)
    return drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()


def plans() -> list[dict[str, Any]]:
    """Return plans of one to three processes."""
    from runtime_processes import plan_of

    stages: list[list[Any]] = [
        [(8, [0], {})],
        [(3, [0], {}), (5, [1], {})],
        [(8, [0, 1, 2], {"shard": 1})],
        [(8, [0, 1], {"shard": 3})],
        [(2, [0], {}), (6, [1, 2], {"shard": 2})],
        [(8, [0, 1], {"tensor": 2})],
    ]
    return [plan_of(found) for found in stages]


class Launcher(Child):
    """``meshwright run`` in a process forked from this one, and what it says."""

    def __init__(self, words: list[str], environment: dict[str, str], limit: Callable[[], None] | None) -> None:
        said, end = os.pipe()
        self.said = os.fdopen(said)
        super().__init__(os.fork())
        if not self.pid:
            self.said.close()
            os.environ.update(environment)
            os.dup2(end, 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            if limit is not None:
                limit()
            run_forked(words)
        os.close(end)

    def communicate(self, timeout: float) -> tuple[str, str]:
        """Return nothing, and what it said, once it and its workers have ended.

        Raises `subprocess.TimeoutExpired` when they have not in time.
        """

        def late(*_: object) -> None:
            raise subprocess.TimeoutExpired("meshwright run", timeout)

        signal.signal(signal.SIGALRM, late)
        signal.alarm(int(timeout))
        with self.said:
            error = self.said.read()
        self.wait()
        signal.alarm(0)
        return "", error


class Training:
    """The folder of a training that goes on through all faults."""

    def __init__(self, folder: pathlib.Path, seed: int, forked: bool = False) -> None:
        self.folder, self.drawn, self.forked = folder, random.Random(seed), forked
        self.saved, self.log, self.mark = folder / "saved", folder / "log.jsonl", f"chaos-{os.getpid()}-{folder.name}"
        self.told: list[str] = []

    def lines(self) -> list[dict[str, Any]]:
        """Return what was logged; a last line that was cut off when its process was killed is none."""
        found = []
        for line in self.log.read_text().splitlines() if self.log.exists() else []:
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return found

    def checkpoints(self) -> list[int]:
        """Return the steps of complete checkpoints, newest first."""
        return sorted((int(path.parent.name[5:]) for path in self.saved.glob("step-*/done.json")), reverse=True)

    def processes(self) -> list[int]:
        """Return the processes that train and are no launchers: they have our mark in their environment, or our session and,
        where they are forked, their name.
        """
        found = []
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                name, _, rest = (entry / "stat").read_text().rpartition(") ")
                if "(forked worker" in name and rest.split()[0] != "Z" and int(rest.split()[3]) == os.getsid(0):
                    found.append(int(entry.name))
                ours = self.mark.encode() in (entry / "environ").read_bytes()
                if ours and b"runtime.job.worker" in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def start(self, n_steps: int, fault: str = "") -> subprocess.Popen[str] | Launcher:
        """Start the training under one of the plans."""
        plan = self.drawn.choice(plans())
        (self.folder / "plan.json").write_text(json.dumps(plan))
        environment = {**os.environ, "CHAOS": self.mark, "PYTHONPATH": os.pathsep.join(PATHS), "OMP_NUM_THREADS": "1"}
        environment |= {"CHAOS_NAN": "1"} if fault == "a loss that is no number" else {}
        command = [
            sys.executable, "-W", "ignore", "-m", "meshwright", "run", str(self.folder / "plan.json"),
            "--model", "models:small",
            "--data", "chaos:samples", "--loss", "chaos:broken_loss", "--steps", str(n_steps), "--save", str(self.saved),
            "--save-every", "1", "--keep", "3", "--resume", "auto", "--log", str(self.log), "--json",
        ]  # fmt: skip
        limit = (lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))) if "grow" in fault else None
        if self.forked:
            return Launcher(command[5:], environment, limit)
        return subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, preexec_fn=limit
        )

    def until(self, what: Any, run: subprocess.Popen[str] | Launcher | None = None) -> None:
        """Wait until something is so, or a run has ended."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not what() and (run is None or run.poll() is None):
            if time.monotonic() > deadline:
                raise AssertionError("it never came about")
            time.sleep(0.02)

    def fault(self, fault: str) -> str:
        """Start the training, disturb it, and return what is wrong; nothing where all is as it should be."""
        before = self.lines()
        reached = self.checkpoints()
        if fault == "a damaged checkpoint" and len(reached) > 1:
            victim = self.drawn.choice([p for p in (self.saved / f"step-{reached[0]}").iterdir() if p.stat().st_size])
            content = bytearray(victim.read_bytes())
            place = self.drawn.randrange(len(content))
            content[place] ^= 1 << self.drawn.randrange(8)
            victim.write_bytes(bytes(content[: place + 1] if self.drawn.random() < 0.3 else content))
            reached = reached[1:]
        run = self.start(10**6, fault)
        wanted = len(before) + self.drawn.randint(1, 3)
        if fault not in ("files cannot grow", "a loss that is no number"):
            self.until(lambda: len(self.lines()) >= wanted, run)
            time.sleep(self.drawn.uniform(0.0, 0.3))
            if run.poll() is not None:
                return f"ended before it was disturbed, with status {run.returncode}: {run.communicate(timeout=9.0)[1][-600:]}"
        status = self.disturb(fault, run)
        try:
            error = run.communicate(timeout=PATIENCE_SECONDS)[1]
        except subprocess.TimeoutExpired:
            left = self.processes()
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            run.kill()
            return f"launcher (status {run.poll()}) and {len(left)} processes had not ended after {PATIENCE_SECONDS:g} s"
        self.until(lambda: not self.processes())
        told = [line["step"] for line in self.lines()[len(before) :]]
        newest = self.checkpoints()
        lost = max([line["step"] for line in self.lines()], default=1) - 1
        checks = {
            f"exit status {run.returncode}, not {status}": run.returncode not in status,
            f"a traceback: {error[-600:]}": "Traceback" in error,
            f"began at step {told[:1]}, not after {reached[:1]}": bool(told and reached and told[0] not in (reached[0] + 1,)),
            f"newest checkpoint {newest[:1]}, though step {lost} was done": lost > 0 and (not newest or newest[0] < lost),
            "a damaged checkpoint was passed over without a word": fault.startswith("a dam")
            and len(self.told) > 1
            and "is not what was written" not in error
            and len(reached) > 0
            and bool(told),
        }
        return "; ".join(text for text, wrong in checks.items() if wrong)

    def disturb(self, fault: str, run: subprocess.Popen[str] | Launcher) -> tuple[int, ...]:
        """Do what is to be done; return the exit statuses that are right after it."""
        found = self.processes()
        victim = self.drawn.choice(found) if found else run.pid
        if fault == "kill a process":
            os.kill(victim, signal.SIGKILL)
            return (1,)
        if fault.startswith("kill the launcher"):
            if "stopped" in fault:
                os.kill(victim, signal.SIGSTOP)
            run.kill()
            return (-signal.SIGKILL,)
        if fault == "files cannot grow":
            return (2,)
        if fault == "a loss that is no number":
            return (1,)
        if fault == "terminate a process":
            os.kill(victim, signal.SIGTERM)
            return (128 + signal.SIGTERM,)
        if fault == "a slow process":
            os.kill(victim, signal.SIGSTOP)
            time.sleep(1.0)
            os.kill(victim, signal.SIGCONT)
            wanted = len(self.lines()) + 1
            self.until(lambda: len(self.lines()) >= wanted, run)
        number = signal.SIGINT if fault == "interrupt" else signal.SIGTERM
        run.send_signal(number)
        return (128 + number,)


def alone(n_steps: int) -> list[float]:
    """Return the losses of a plain loop in one process."""
    import models
    import torch

    torch.manual_seed(0)
    model = models.small().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(n_steps):
        inputs, targets = samples(step, N_SAMPLES)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def main() -> int:
    """Disturb, and compare; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=600.0, help="no fault begins later than this")
    parser.add_argument("--forked", action="store_true", help="fork processes, where else each starts a Python")
    told = parser.parse_args()
    if told.forked:
        preload()
    wrong, ends = 0, time.monotonic() + 60.0 * told.minutes
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        training = Training(pathlib.Path(folder), told.seed, told.forked)
        for i in range(told.n):
            if time.monotonic() > ends:
                break
            fault = FAULTS[i % len(FAULTS)] if i < len(FAULTS) else training.drawn.choice(FAULTS)
            began = time.monotonic()
            said = training.fault(fault)
            training.told.append(fault)
            wrong += bool(said)
            print(f"{i + 1} {fault}: {said or 'right'} ({time.monotonic() - began:.0f} s)", flush=True)
        lines = [line for line in training.lines() if line["loss"] is not None]
        expected = alone(max(line["step"] for line in lines))
        furthest = max(abs(line["loss"] - expected[line["step"] - 1]) for line in lines)
        print(
            f"{len(training.told)} faults, {wrong} wrong; {len(lines)} losses up to step {len(expected)} differ by at most "
            f"{furthest:.1e}"
        )
    return int(wrong > 0 or furthest > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
