"""Kubernetes: a PyTorchJob of Kubeflow's training operator (``kubeflow.org/v1``), one pod for every host.

The operator gives every pod its place: RANK, 0 for the master and k + 1 for worker k, and MASTER_ADDR and MASTER_PORT. The
framework's configuration lies in the command, so that one file is all; where that is longer than Linux takes an argument, in a
ConfigMap of the same file.

Where the plan has several NVLink domains of several hosts each, pods have to be put into them in order. Kueue does that for the
pods of one kind: all are workers then, and take their place from the operator's label.

References
----------
.. [1] Kubeflow, training-operator, ``pkg/apis/kubeflow.org/v1/pytorch_types.go`` and ``pkg/controller.v1/pytorch/envvar.go``.
.. [2] Kueue, Topology Aware Scheduling: ``podset-slice-required-topology``, ``podset-slice-size``.
.. [3] NVIDIA, GPU Feature Discovery: the label ``nvidia.com/gpu.clique`` of an NVLink domain.
"""

from __future__ import annotations

import json
import shlex

from meshwright.base.errors import ExportError
from meshwright.core.launch import LaunchJob
from meshwright.launchers import _shell

__all__ = ["SUFFIX", "text"]

SUFFIX = ".k8s.yaml"

_MOST_BYTES = 2**20
_MOST_OF_ARGUMENT = 2**17 - 1  # MAX_ARG_STRLEN of Linux, which counts the zero at the end
_MOUNTED = "/etc/meshwright"
_DOMAIN = "nvidia.com/gpu.clique"
_END = "END_OF_CONFIGURATION"


def text(job: LaunchJob) -> str:
    """Return the job, in YAML.

    Raises
    ------
    ExportError
        When hosts are of several kinds or take part in domains in different numbers, which pods that are all alike cannot, or
        when the configuration is larger than an object of Kubernetes may be.
    """
    hosts, n = job.hosts, len(job.hosts.devices)
    if len(set(hosts.kinds)) > 1:
        raise ExportError(
            f"launch k8s: hosts of {len(set(hosts.kinds))} kinds; the workers of a PyTorchJob are all alike. Use --launch slurm"
        )
    if not hosts.per_domain:
        raise ExportError(
            "launch k8s: NVLink domains take part with different numbers of hosts, which no PyTorchJob says; use --launch slurm"
        )
    if len(job.text.encode()) > _MOST_BYTES:
        raise ExportError(
            f"launch k8s: {job.file} has {len(job.text.encode())} bytes, and an object of Kubernetes at most {_MOST_BYTES}; "
            "use --launch torchrun in pods that mount it"
        )
    sliced = hosts.per_domain > 1 and n > hosts.per_domain
    mounted = len("\n".join(_script(job, sliced, mounted=False)).encode()) >= _MOST_OF_ARGUMENT
    lines = [
        *_shell.comments([
            f"{job.title}; for Kubeflow's training operator: kubectl apply{' --server-side' if mounted else ''} -f this file.",
            "Replace IMAGE by an image with the framework, in whose working directory the command runs.",
            *(f"{remark}." for remark in job.remarks),
            *(["Replace QUEUE by a local queue of Kueue whose topology has the level of NVLink domains."] if sliced else []),
            *(["Pods of one NVLink domain need a channel of its IMEX daemons: add the resource claim of a ComputeDomain."]
              if hosts.per_domain > 1 else []),
        ]),
        *(_config_map(job) if mounted else []),
        "apiVersion: kubeflow.org/v1",
        "kind: PyTorchJob",
        "metadata:",
        f"  name: {job.name}",
        *(["  labels:", "    kueue.x-k8s.io/queue-name: QUEUE"] if sliced else []),
        "spec:",
        f'  nprocPerNode: "{hosts.per_host}"',
        "  runPolicy:",
        "    cleanPodPolicy: None",
        "  pytorchReplicaSpecs:",
    ]  # fmt: skip
    replicas = [("Worker", n)] if sliced else [("Master", 1), *([("Worker", n - 1)] if n > 1 else [])]
    for i, (kind, count) in enumerate(replicas):
        lines += [f"    {kind}:", f"      replicas: {count}", "      restartPolicy: Never"]
        lines += [f"      template: {'*pod' if i else '&pod'}", *([] if i else _pod(job, sliced, mounted))]
    return "\n".join(lines) + "\n"


def _config_map(job: LaunchJob) -> list[str]:
    """Return the ConfigMap with the framework's configuration, for files that are too long for an argument."""
    return [
        "apiVersion: v1", "kind: ConfigMap", "metadata:", f"  name: {job.name}", "data:", "  configuration: |2",
        *(f"    {line}" if line else "" for line in job.text.rstrip("\n").split("\n")), "---",
    ]  # fmt: skip


def _pod(job: LaunchJob, sliced: bool, mounted: bool) -> list[str]:
    """Return the lines of the template that all pods share."""
    together = job.hosts.per_domain > 1 and not sliced
    pod = [
        *(["metadata:", "  annotations:", f"    kueue.x-k8s.io/podset-slice-required-topology: {_DOMAIN}",
           f'    kueue.x-k8s.io/podset-slice-size: "{job.hosts.per_domain}"'] if sliced else []),
        "spec:",
        *(["  affinity:  # all in one NVLink domain",
           "    podAffinity:",
           "      requiredDuringSchedulingIgnoredDuringExecution:",
           f"        - topologyKey: {_DOMAIN}",
           "          labelSelector:",
           "            matchLabels:",
           f"              training.kubeflow.org/job-name: {job.name}"] if together else []),
        "  containers:",
        "    - name: pytorch",
        "      image: IMAGE",
        "      ports:",
        "        - name: pytorchjob-port",
        "          containerPort: 23456",
        *_environment(job, sliced),
        "      resources:",
        "        limits:",
        f"          nvidia.com/gpu: {job.hosts.per_host}",
        "      volumeMounts:",
        "        - name: shared-memory",
        "          mountPath: /dev/shm",
        *(["        - name: configuration", f"          mountPath: {_MOUNTED}"] if mounted else []),
        "      command: [bash, -c]",
        "      args:",
        "        - |",
        *(f"          {line}" if line else "" for line in _script(job, sliced, mounted)),
        "  volumes:",
        "    - name: shared-memory  # NCCL's and the data loaders'; a pod's own is 64 MB",
        "      emptyDir:",
        "        medium: Memory",
        *(["    - name: configuration", "      configMap:", f"        name: {job.name}"] if mounted else []),
    ]  # fmt: skip
    return [f"        {line}" if line else "" for line in pod]


def _environment(job: LaunchJob, sliced: bool) -> list[str]:
    """Return ``env`` with its entries; nothing where there are none."""
    lines = []
    for name, what in job.program.needs:
        lines += [f"        - name: {name}  # {what}", '          value: ""']
    for name, value, why in job.program.environment:
        lines += [f"        - name: {name}  # {why}", f"          value: {json.dumps(value)}"]
    if sliced:
        lines += [
            "        - name: REPLICA", "          valueFrom:", "            fieldRef:",
            "              fieldPath: metadata.labels['training.kubeflow.org/replica-index']",
        ]  # fmt: skip
    return ["      env:", *lines] if lines else []


def _script(job: LaunchJob, sliced: bool, mounted: bool) -> list[str]:
    """Return what a pod runs, which first puts the configuration into its folder."""
    if _END in job.text and not mounted:
        raise ExportError(f"launch k8s: {job.file} has the line {_END}, with which its copy in the command ends")
    place = (
        [f"export NODE_RANK=$REPLICA MASTER_ADDR={job.name}-worker-0 MASTER_PORT=23456"]
        if sliced
        else ['export NODE_RANK="${PET_NODE_RANK:-$RANK}"  # the place of the pod; torchrun sets RANK of every process anew']
    )
    needs = [f': "${{{name}:?{what}}}"' for name, what in job.program.needs]
    file = shlex.quote(job.file)
    copied = [f"cat > {file} <<'{_END}'", *job.text.rstrip("\n").split("\n"), _END]
    if mounted:
        copied = [f"cp {_MOUNTED}/configuration {file}"]
    return ["set -eu", *needs, *place, *copied, f"exec {job.program.command}"]
