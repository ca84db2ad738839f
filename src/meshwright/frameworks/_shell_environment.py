"""What a shell script puts to the environment of the commands that it starts, itself or by what it asks of Slurm."""

from __future__ import annotations

import re
from collections.abc import Mapping

from meshwright.frameworks._shell_words import Value

__all__ = ["ShellEnvironment", "asked_of_slurm"]


class ShellEnvironment:
    """Which variables of a script its commands find."""

    def __init__(self) -> None:
        self.exported: set[str] = set()
        self.taken_out: dict[str, int] = {}
        self.takes_all = False  # set -a

    def take_out(self, name: str, line: int) -> None:
        """Note that a variable is unset, and where."""
        self.exported.discard(name)
        self.taken_out[name] = line

    def found(self, variables: Mapping[str, Value]) -> dict[str, tuple[str, int]]:
        """Return what a command that starts now finds, each with its line; empty text for what was taken out."""
        held = {name: variables[name][0] for name in sorted(self.exported) if variables.get(name)}
        return {name: ("", line) for name, line in self.taken_out.items()} | held


def asked_of_slurm(text: str) -> tuple[dict[str, tuple[str, int]], set[str]]:
    """Return the variables that Slurm makes of a script's own requests, each with its line (0: none), and which it exports."""
    asked = dict(re.findall(r"^#SBATCH\s+(-N|--[\w-]+)[= ]\s*(\S+)", text, re.M))
    gpus = asked.get("--gpus-per-node") or asked.get("--gres") or ""
    known = {
        "SLURM_NNODES": asked.get("--nodes") or asked.get("-N"), "SLURM_NTASKS_PER_NODE": asked.get("--ntasks-per-node"),
        "SLURM_GPUS_PER_NODE": gpus.rpartition(":")[2],
    }  # fmt: skip
    known |= {"SLURM_JOB_NUM_NODES": known["SLURM_NNODES"], "SLURM_GPUS_ON_NODE": known["SLURM_GPUS_PER_NODE"]}
    found = {name: (word, 0) for name, word in known.items() if word and word.isdigit()}
    if {"SLURM_NNODES", "SLURM_NTASKS_PER_NODE"} <= set(found):
        found["SLURM_NTASKS"] = (str(int(found["SLURM_NNODES"][0]) * int(found["SLURM_NTASKS_PER_NODE"][0])), 0)
    own: dict[str, tuple[str, int]] = {}
    for said in re.finditer(r"^#SBATCH\s+--export[= ](\S+)", text, re.M):
        line = text.count("\n", 0, said.start()) + 1
        own |= {name: (value, line) for name, value in re.findall(r"(?:^|,)([A-Za-z_]\w*)=([^,]*)", said[1])}
    return found | own, set(own)
