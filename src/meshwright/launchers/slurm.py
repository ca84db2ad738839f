"""Slurm: a script for ``sbatch`` that puts the hosts in the order of the plan and starts one launcher on each.

References
----------
.. [1] SchedMD, sbatch and srun: ``--segment`` (nodes of one block together), ``--distribution=arbitrary`` (tasks in the order
   of the file that SLURM_HOSTFILE names), ``--cpu-bind``, SLURM_TOPOLOGY_ADDR (the switches or blocks above a node, and it).
"""

from __future__ import annotations

import shlex

from meshwright.core.launch import LaunchJob
from meshwright.launchers import _shell

__all__ = ["SUFFIX", "text"]

SUFFIX = ".sbatch"

_ORDER = """\
# Host k of the plan is line k of HOSTFILE, where that is set; else the k-th host of the job.
hosts=()
if [ -n "${HOSTFILE:-}" ]; then
  mapfile -t hosts < <(tr -d '\\r' < "$HOSTFILE" | grep -v '^[[:space:]]*$')
elif command -v scontrol > /dev/null; then
  mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
else
  echo "no scontrol and no HOSTFILE: hosts stay in the order that Slurm gives tasks" >&2
fi
"""

_BLOCKS = """\
# An NVLink domain has several hosts: those of one block follow each other, and no domain of the plan crosses blocks.
if [ -z "${{HOSTFILE:-}}" ] && [ "${{#hosts[@]}}" -gt 0 ]; then
  mapfile -t places < <(srun --nodes={n} --ntasks={n} bash -c 'echo "${{SLURM_TOPOLOGY_ADDR:-}} $SLURMD_NODENAME"' | sort -V)
  if [ "${{#places[@]}}" -eq {n} ] && [[ "${{places[0]}}" == *.* ]]; then
    for k in "${{!places[@]}}"; do
      hosts[k]=${{places[k]##* }}
      block=${{places[k]%% *}} first=${{places[k - k % {segment}]%% *}}
      if [ "${{block%.*}}" != "${{first%.*}}" ]; then
        echo "hosts ${{hosts[k - k % {segment}]}} and ${{hosts[k]}} share an NVLink domain in the plan, but lie under" \\
          "${{first%.*}} and ${{block%.*}}; give HOSTFILE, or more hosts of one block" >&2
        exit 1
      fi
    done
  else
    echo "Slurm tells no topology: hosts stay in its order; check that {segment} in a row share an NVLink domain" >&2
  fi
fi
"""

_START = """\
placed=()
MASTER_ADDR=$(hostname)  # of the first host of the job, where this script runs
if [ "${{#hosts[@]}}" -gt 0 ]; then
  if [ "${{#hosts[@]}}" -ne {n} ]; then
    echo "there are ${{#hosts[@]}} hosts; the plan has {n}" >&2
    exit 1
  fi
  SLURM_HOSTFILE=$(mktemp)
  export SLURM_HOSTFILE
  printf '%s\\n' "${{hosts[@]}}" > "$SLURM_HOSTFILE"
  placed=(--distribution=arbitrary)
  MASTER_ADDR=${{hosts[0]}}
fi
export MASTER_ADDR MASTER_PORT=$((20000 + ${{SLURM_JOB_ID:-0}} % 20000))
# One task on every host, bound to no core: it starts the host's processes, which need them all.
exec srun --nodes={n} --ntasks={n} --kill-on-bad-exit=1 --cpu-bind=none "${{placed[@]}}" \\
  bash -c {command} bash "$@"
"""


def text(job: LaunchJob) -> str:
    """Return the script; hosts of different kinds need a HOSTFILE, which it asks for."""
    hosts = job.hosts
    n, segment = len(hosts.devices), hosts.per_domain
    uneven = segment == 0 and n > len(set(hosts.nodes))
    asked = [
        f"--job-name={job.name}", f"--nodes={n}", "--ntasks-per-node=1", f"--gpus-per-node={hosts.per_host}", "--exclusive",
        *([f"--segment={segment}"] if segment > 1 else []),
    ]  # fmt: skip
    unlike = len(set(hosts.kinds)) > 1
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {word}" for word in asked),
        *_shell.comments([
            f"{job.title}.",
            f"Submit it where {job.file} lies: 'sbatch {job.stem}{SUFFIX}'; what follows that name is passed on.",
            *(f"{remark}." for remark in job.remarks),
            *(["Its hosts are of several kinds: HOSTFILE names them, one a line, in this order:"] if unlike else []),
            *([f"host {k}: {_shell.devices_of(job, k)}" for k in range(n)] if unlike else []),
            *([f"--segment: {segment} hosts of every NVLink domain take part, and are of one block of topology/block."]
              if segment > 1 else []),
            *(["Hosts of NVLink domains take part in different numbers: HOSTFILE names them in the plan's order."]
              if uneven else []),
        ]),
        "set -euo pipefail",
        *_shell.settings(job),
        *([': "${HOSTFILE:?a file with the hosts in the order above}"'] if unlike or uneven else []),
    ]  # fmt: skip
    body = [_ORDER] if n > 1 else ["hosts=()\n"]
    body += [_BLOCKS.format(n=n, segment=segment)] if segment > 1 else []
    command = f"export NODE_RANK=$SLURM_PROCID; exec {job.program.command}"
    body.append(_START.format(n=n, command=shlex.quote(command)))
    return "\n".join(lines) + "\n" + "".join(body)
