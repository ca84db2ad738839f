"""By hand: a script to be run on every host, with the rank of each in the order of the plan.

Ranks follow ``--node-rank``. A rendezvous (``--rdzv-backend c10d``) would number hosts as they come.
"""

from __future__ import annotations

from meshwright.core.launch import LaunchJob
from meshwright.launchers import _shell

__all__ = ["SUFFIX", "text"]

SUFFIX = ".torchrun.sh"

_HOSTS = """\
if [ -n "${HOSTFILE:-}" ]; then
  mapfile -t hosts < <(tr -d '\\r' < "$HOSTFILE" | grep -v '^[[:space:]]*$')
  if [ "${#hosts[@]}" -ne N_HOSTS ]; then
    echo "HOSTFILE names ${#hosts[@]} hosts; the plan has N_HOSTS" >&2
    exit 1
  fi
  MASTER_ADDR=${hosts[0]}
  for k in "${!hosts[@]}"; do
    if [ "${hosts[k]}" = "$(hostname)" ]; then NODE_RANK=$k; fi
  done
fi
"""


def text(job: LaunchJob) -> str:
    """Return the script; it lists the hosts in order."""
    n, me = len(job.hosts.devices), f"{job.stem}{SUFFIX}"
    several = [
        "Run it on every host, in this order:",
        *(f"  NODE_RANK={k} MASTER_ADDR=HOST bash {me}  # {_shell.devices_of(job, k)}" for k in range(n)),
        "HOST is the host of rank 0. With HOSTFILE=FILE, which names the hosts in this order, one a line as 'hostname'",
        "prints it, both are taken from there.",
    ]  # fmt: skip
    domain = job.hosts.per_domain
    lines = [
        "#!/bin/bash",
        *_shell.comments([
            f"{job.title}; run it where {job.file} lies, what follows its name is passed on.",
            *(f"{remark}." for remark in job.remarks),
        ]),
        *([f"# {line}" for line in several] if n > 1 else []),
        *_shell.comments([f"Every {domain} hosts in a row share one NVLink domain."] if domain > 1 else []),
        "set -eu",
        *_shell.settings(job),
    ]  # fmt: skip
    rest = [_HOSTS.replace("N_HOSTS", str(n))] if n > 1 else []
    rest.append(
        'export NODE_RANK="${NODE_RANK:?the place of this host in the list above, from 0 on}"\n'
        'export MASTER_ADDR="${MASTER_ADDR:?the host of rank 0}" MASTER_PORT="${MASTER_PORT:-29500}"\n'
        if n > 1 else
        'export NODE_RANK=0 MASTER_ADDR="${MASTER_ADDR:-localhost}" MASTER_PORT="${MASTER_PORT:-29500}"\n'
    )  # fmt: skip
    return "\n".join(lines) + "\n" + "".join(rest) + f"exec {job.program.command}\n"
