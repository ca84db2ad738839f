"""What launchers write, run under stand-ins for Slurm, torchrun and the operator: ranks and hosts come as the plan has them."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import yaml

import meshwright as mw
from meshwright import api, frameworks, launchers
from meshwright.base.errors import ExportError, InputError, UnknownNameError
from meshwright.core.launch import StartCommand, hosts_of
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Batch
from meshwright.core.result import Answer, Result
from meshwright.core.strategy import Strategy
from meshwright.launchers import _groups, _network

FILES = {
    "megatron": "train.sh", "torchtitan": "plan.py", "fsdp2": "train.py", "accelerate": "plan.yaml", "deepspeed": "plan.json",
    "meshwright": "run.json",
}  # fmt: skip

RECORD = """#!PYTHON -I
import json, os, sys
names = ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "PYTORCH_CUDA_ALLOC_CONF", "NCCL_CROSS_NIC", "NCCL_COLLNET_ENABLE",
         "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_MAX_CONNECTIONS")
said = {name: os.environ[name] for name in names if name in os.environ}
with open(os.environ["RECORDS"], "a") as file:
    file.write(json.dumps({"words": [os.path.basename(sys.argv[0]), *sys.argv[1:]], "said": said}) + "\\n")
"""
"""Stands in for torchrun and accelerate: writes down what it was given."""

SRUN = """#!PYTHON -I
import os, subprocess, sys
words = sys.argv[1:]
options = [word for word in words[: words.index("bash")]]
command = words[words.index("bash"):]
said = dict(word.lstrip("-").split("=", 1) for word in options)
hosts = os.environ["ALLOCATED"].split()
if said.get("distribution") == "arbitrary":
    hosts = open(os.environ["SLURM_HOSTFILE"]).read().split()
assert int(said["nodes"]) == int(said["ntasks"]) == len(hosts), (said, hosts)
for k, host in enumerate(hosts):
    own = {"SLURM_PROCID": str(k), "SLURMD_NODENAME": host, "SLURM_TOPOLOGY_ADDR": os.environ.get("TOPOLOGY", "") + host}
    if "BLOCKS" in os.environ:
        own["SLURM_TOPOLOGY_ADDR"] = f"{dict(pair.split(':') for pair in os.environ['BLOCKS'].split())[host]}.{host}"
    subprocess.run(command, env=os.environ | own | {"HOST": host}, check=True)
"""
SCONTROL = '#!/bin/sh\n[ "$1 $2 $3" = "show hostnames some" ] && printf "%s\\n" $ALLOCATED\n'


def answered(name: str, cluster: str, strategy: Strategy, n_ranks: int = 1, **said: Any) -> Result:
    """Return a plan of Llama 3.1 8B for a framework, its stages on devices in order from `first` on."""
    n, first = int(said.get("n", 4)), int(said.get("first", 0))
    model = said.get("model", "llama-3.1-8b")
    problem = api.make_problem(
        model, cluster, framework=name, batch=Batch(n * strategy.data, 1, int(said.get("length", 4096))),
    )  # fmt: skip
    last, size, stages = len(problem.graph.ops) - 1, strategy.n_devices, []
    cuts = [1 + r * (last - 1) // n_ranks for r in range(n_ranks + 1)]
    for r in range(n_ranks):
        ops = [0] * (r == 0) + list(range(cuts[r], cuts[r + 1])) + [last] * (r == n_ranks - 1)
        devices = tuple(range(first + r * size, first + (r + 1) * size))
        stages.append(Stage(tuple(ops), devices, strategy, ("none",) * len(ops)))
    return Result(problem, "best", 0, Answer(Plan(tuple(stages), n, 1, "1f1b", n * strategy.data)))


def exported(result: Result, name: str, launch: str, folder: pathlib.Path) -> pathlib.Path:
    path = str(folder / FILES[name])
    mw.export(result, name, path, launch=launch)
    from meshwright.api import export

    return pathlib.Path(export.launch_path(path, launch))


@pytest.fixture
def stubs(tmp_path: pathlib.Path) -> dict[str, str]:
    """Return an environment whose PATH begins with stand-ins."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in (("torchrun", RECORD), ("accelerate", RECORD), ("srun", SRUN), ("scontrol", SCONTROL)):
        (folder / name).write_text(text.replace("PYTHON", sys.executable))
        (folder / name).chmod(0o755)
    names = ("PATH", "HOME", "LANG")
    own = {name: os.environ[name] for name in names if name in os.environ}
    return own | {
        "PATH": f"{folder}:{os.environ['PATH']}", "RECORDS": str(tmp_path / "records"), "MODEL": "here", "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "some",
    }  # fmt: skip


def run(script: pathlib.Path, environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(script), *words], cwd=script.parent, env=environment, capture_output=True, text=True, check=False
    )


def records(environment: dict[str, str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in pathlib.Path(environment["RECORDS"]).read_text().splitlines()]


def two_hosts(name: str) -> Result:
    strategy = Strategy(8, 2, shard=1, sequence_parallel=True) if name == "megatron" else Strategy(16, shard=3)
    return answered(name, "dgx-a100:16", strategy)


@pytest.mark.parametrize("name", FILES)
def test_slurm_starts_every_host_in_the_order_of_the_host_file(
    name: str, tmp_path: pathlib.Path, stubs: dict[str, str]
) -> None:
    script = exported(two_hosts(name), name, "slurm", tmp_path)
    directives = [line.removeprefix("#SBATCH ") for line in script.read_text().splitlines() if line.startswith("#SBATCH")]
    assert {"--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=8", "--exclusive"} <= set(directives)
    assert not any("segment" in line for line in directives)
    (tmp_path / "hosts").write_text("zebra\n\nant\n")
    done = run(script, stubs | {"ALLOCATED": "ant zebra", "HOSTFILE": "hosts"}, "--lr", "3e-4")
    assert done.returncode == 0, done.stderr
    found = records(stubs)
    assert [one["said"]["NODE_RANK"] for one in found] == ["0", "1"]
    assert {one["said"]["MASTER_ADDR"] for one in found} == {"zebra"} and {one["said"]["MASTER_PORT"] for one in found} == {
        "20007"
    }
    for k, one in enumerate(found):
        words = one["words"]
        assert words[-2:] == ["--lr", "3e-4"]
        if name == "accelerate":
            at = {words[i]: words[i + 1] for i in range(len(words) - 1)}
            assert (at["--machine_rank"], at["--main_process_ip"], at["--main_process_port"]) == (str(k), "zebra", "20007")
            assert (
                at["--config_name"] == "here"
                and yaml.safe_load((tmp_path / at["--config_file"]).read_text())["num_machines"] == 2
            )
            continue
        at = {words[i]: words[i + 1] for i in range(len(words) - 1)}
        assert words[0] == "torchrun" and (at["--nnodes"], at["--nproc-per-node"], at["--node-rank"]) == ("2", "8", str(k))
        assert (at["--master-addr"], at["--master-port"]) == ("zebra", "20007") and "--rdzv-backend" not in words
        assert ("PYTORCH_CUDA_ALLOC_CONF" in one["said"]) == frameworks.plain(name).expandable_segments
    del found[0]["said"]["NODE_RANK"], found[1]["said"]["NODE_RANK"]
    assert found[0]["said"] == found[1]["said"]


def test_without_a_host_file_the_hosts_of_the_job_are_taken_and_a_wrong_number_is_told(
    tmp_path: pathlib.Path, stubs: dict[str, str]
) -> None:
    script = exported(answered("fsdp2", "dgx-a100:16", Strategy(16, shard=3)), "fsdp2", "slurm", tmp_path)
    assert run(script, stubs | {"ALLOCATED": "a b"}).returncode == 0
    assert {one["said"]["MASTER_ADDR"] for one in records(stubs)} == {"a"}
    done = run(script, stubs | {"ALLOCATED": "a b c"})
    assert done.returncode == 1 and "there are 3 hosts; the plan has 2" in done.stderr
    bare = stubs | {"PATH": str(tmp_path / "other"), "ALLOCATED": "a b"}
    (tmp_path / "other").mkdir()
    for word in ("bash", "hostname"):
        os.symlink(str(shutil.which(word)), tmp_path / "other" / word)
    for word in ("srun", "torchrun"):
        os.symlink(tmp_path / "bin" / word, tmp_path / "other" / word)
    done = run(script, bare)
    assert done.returncode == 0 and "no scontrol and no HOSTFILE" in done.stderr


def test_by_hand_a_host_file_of_another_number_of_hosts_is_refused(tmp_path: pathlib.Path, stubs: dict[str, str]) -> None:
    script = exported(two_hosts("fsdp2"), "fsdp2", "torchrun", tmp_path)
    (tmp_path / "hosts").write_text("a\nb\nc\n")
    done = run(script, stubs | {"HOSTFILE": "hosts"})
    assert done.returncode == 1 and "HOSTFILE names 3 hosts; the plan has 2" in done.stderr


def trays(result: Result) -> Result:
    """Return a plan on nodes whose eight devices are of two hosts."""
    cluster = result.problem.cluster
    assert cluster is not None
    return replace(result, problem=replace(result.problem, cluster=replace(cluster, devices_per_host=4)))


def test_hosts_of_one_nvlink_domain_are_a_segment_and_follow_each_other(tmp_path: pathlib.Path, stubs: dict[str, str]) -> None:
    text = exported(answered("fsdp2", "gb200-nvl72:144", Strategy(144, shard=3)), "fsdp2", "slurm", tmp_path).read_text()
    assert "#SBATCH --nodes=36\n" in text and "#SBATCH --segment=18\n" in text and "#SBATCH --gpus-per-node=4\n" in text
    script = exported(trays(two_hosts("fsdp2")), "fsdp2", "slurm", tmp_path)
    assert "#SBATCH --nodes=4\n" in script.read_text() and "#SBATCH --segment=2\n" in script.read_text()
    told = stubs | {"ALLOCATED": "n0 n1 n2 n10", "BLOCKS": "n0:top.a n1:top.b n2:top.a n10:top.b"}
    started = tmp_path / "bin" / "torchrun"
    started.write_text('#!/bin/sh\necho "$NODE_RANK $HOST $MASTER_ADDR" >> "$RECORDS"\n')
    done = run(script, told)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in pathlib.Path(stubs["RECORDS"]).read_text().splitlines()]
    assert rows == [["0", "n0", "n0"], ["1", "n2", "n0"], ["2", "n1", "n0"], ["3", "n10", "n0"]]
    done = run(script, told | {"BLOCKS": "n0:top.a n1:top.b n2:top.a n10:top.a"})
    assert (
        done.returncode == 1
        and "hosts n10 and n1 share an NVLink domain in the plan, but lie under top.a and top.b" in done.stderr
    )
    plain = run(script, {name: value for name, value in told.items() if name != "BLOCKS"})
    assert plain.returncode == 0 and "check that 2 in a row share an NVLink domain" in plain.stderr


@pytest.mark.parametrize("name", FILES)
def test_by_hand_every_host_has_its_rank_or_finds_it_in_the_host_file(
    name: str, tmp_path: pathlib.Path, stubs: dict[str, str]
) -> None:
    script = exported(two_hosts(name), name, "torchrun", tmp_path)
    done = run(script, stubs)
    assert done.returncode != 0 and "NODE_RANK" in done.stderr
    assert run(script, stubs | {"NODE_RANK": "1", "MASTER_ADDR": "first"}).returncode == 0
    me = subprocess.run(["hostname"], capture_output=True, text=True, check=True).stdout.strip()
    (tmp_path / "hosts").write_bytes(f"other\r\n{me}\r\n".encode())  # as Windows ends lines
    assert run(script, stubs | {"HOSTFILE": "hosts"}).returncode == 0
    by_hand, by_file = (one["said"] for one in records(stubs))
    assert (by_hand["NODE_RANK"], by_hand["MASTER_ADDR"], by_hand["MASTER_PORT"]) == ("1", "first", "29500")
    assert (by_file["NODE_RANK"], by_file["MASTER_ADDR"]) == ("1", "other")
    listed = [line for line in script.read_text().splitlines() if "NODE_RANK=" in line and line.startswith("#")]
    assert [line.partition("# ")[2].partition("# ")[2] for line in listed] == [
        "devices 0 to 7, A100-SXM-80GB", "devices 8 to 15, A100-SXM-80GB"
    ]  # fmt: skip


SPEC = {"nprocPerNode", "runPolicy", "pytorchReplicaSpecs", "elasticPolicy"}
REPLICA = {"replicas", "restartPolicy", "template"}


@pytest.mark.parametrize("name", FILES)
def test_a_pytorchjob_has_the_operators_fields_and_its_pods_run_the_plan(
    name: str, tmp_path: pathlib.Path, stubs: dict[str, str]
) -> None:
    script = exported(two_hosts(name), name, "k8s", tmp_path)
    entry = yaml.safe_load(script.read_text())
    assert (entry["apiVersion"], entry["kind"], entry["metadata"]["name"]) == ("kubeflow.org/v1", "PyTorchJob", "llama-3-1-8b")
    assert set(entry["spec"]) <= SPEC and entry["spec"]["nprocPerNode"] == "8"
    replicas = entry["spec"]["pytorchReplicaSpecs"]
    assert {kind: one["replicas"] for kind, one in replicas.items()} == {"Master": 1, "Worker": 1}
    assert (
        all(set(one) == REPLICA for one in replicas.values())
        and replicas["Master"]["template"] == replicas["Worker"]["template"]
    )
    (container,) = replicas["Master"]["template"]["spec"]["containers"]
    assert container["name"] == "pytorch" and container["ports"] == [{"name": "pytorchjob-port", "containerPort": 23456}]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8} and container["command"] == ["bash", "-c"]
    pod = tmp_path / "pod"
    pod.mkdir()
    told = stubs | {"RANK": "1", "MASTER_ADDR": "llama-3-1-8b-master-0", "MASTER_PORT": "23456"}
    subprocess.run(["bash", "-c", *container["args"]], cwd=pod, env=told, check=True)
    assert (pod / FILES[name]).read_text().rstrip() == (tmp_path / FILES[name]).read_text().rstrip()
    (found,) = records(stubs)
    assert found["said"]["NODE_RANK"] == "1" and found["said"]["MASTER_ADDR"] == "llama-3-1-8b-master-0"


def test_a_configuration_longer_than_an_argument_lies_in_a_map_of_the_cluster(
    tmp_path: pathlib.Path, stubs: dict[str, str]
) -> None:
    """Linux takes no argument of 128 KiB: a large model on 65,536 devices has more, and no container would start."""
    result = two_hosts("meshwright")
    job = launchers.job_of(result, frameworks.load("meshwright").program(result, "run.json"), "run.json", "")
    long = "[\n" + ",\n".join(["  65535"] * 20_000) + "\n]\n"
    text = launchers.load("k8s").text(replace(job, text=long))
    assert "kubectl apply --server-side -f" in text
    held, started = yaml.safe_load_all(text)
    assert held["kind"] == "ConfigMap" and held["data"] == {"configuration": long}
    spec = started["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    (container,) = spec["containers"]
    (argument,) = container["args"]
    assert len(argument.encode()) < 4096
    assert {"name": "configuration", "configMap": {"name": held["metadata"]["name"]}} in spec["volumes"]
    (mount,) = (one for one in container["volumeMounts"] if one["name"] == "configuration")
    (tmp_path / "configuration").write_text(held["data"]["configuration"])
    environment = stubs | {"RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "1", "MODEL": "a:b"}
    here = argument.replace(mount["mountPath"], str(tmp_path))
    subprocess.run(["bash", "-c", here], cwd=tmp_path, env=environment, check=True)
    assert (tmp_path / "run.json").read_text() == long
    for n in (100, 2**17):  # what fits stays in the command
        short = launchers.load("k8s").text(replace(job, text="x" * n))
        (one,) = list(yaml.safe_load_all(short))[-1]["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"]
        assert len(one["args"][0].encode()) < 2**17 and ("ConfigMap" in short) == (n > 100)


def test_pods_of_nvlink_domains_lie_in_one_or_are_dealt_out_by_kueue(tmp_path: pathlib.Path, stubs: dict[str, str]) -> None:
    one = yaml.safe_load(
        exported(trays(answered("fsdp2", "dgx-a100:8", Strategy(8, shard=3))), "fsdp2", "k8s", tmp_path).read_text()
    )
    (term,) = one["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["affinity"]["podAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]  # fmt: skip
    assert term["topologyKey"] == "nvidia.com/gpu.clique"
    assert term["labelSelector"]["matchLabels"] == {"training.kubeflow.org/job-name": "llama-3-1-8b"}
    several = exported(trays(two_hosts("fsdp2")), "fsdp2", "k8s", tmp_path)
    two = yaml.safe_load(several.read_text())
    (kind,) = two["spec"]["pytorchReplicaSpecs"]
    worker = two["spec"]["pytorchReplicaSpecs"][kind]
    assert (kind, worker["replicas"]) == ("Worker", 4)
    assert worker["template"]["metadata"]["annotations"] == {
        "kueue.x-k8s.io/podset-slice-required-topology": "nvidia.com/gpu.clique", "kueue.x-k8s.io/podset-slice-size": "2",
    }  # fmt: skip
    (container,) = worker["template"]["spec"]["containers"]
    subprocess.run(["bash", "-c", *container["args"]], cwd=tmp_path, env=stubs | {"REPLICA": "5"}, check=True)
    assert records(stubs)[0]["said"]["NODE_RANK"] == "5"
    assert records(stubs)[0]["said"]["MASTER_ADDR"] == "llama-3-1-8b-worker-0"


def test_groups_stay_in_the_nodes_that_they_were_planned_in_or_the_launch_is_refused(tmp_path: pathlib.Path) -> None:
    inside = answered("megatron", "dgx-h100:16", Strategy(1, 8, sequence_parallel=True), 2)
    notes = mw.export(inside, "megatron", str(tmp_path / "a.sh"), launch="slurm")
    assert "tensor groups of 8: each stays inside one node or NVLink domain, as planned" in notes
    across = answered("megatron", "dgx-h100:16", Strategy(1, 16, sequence_parallel=True))
    notes = mw.export(across, "megatron", str(tmp_path / "b.sh"), launch="slurm")
    assert "tensor groups of 16: each crosses up to 2 nodes or NVLink domains, as planned" in notes
    plan, cluster = inside.plan, inside.problem.cluster
    with pytest.raises(ExportError, match=r"tensor group of devices .* was planned in 1 node"):
        _groups.checked(plan, cluster, ("pipeline", "tensor", "context", "data"))
    axes = ("tensor", "context", "data", "pipeline")
    first, last = Stage((0,), (0, 1), Strategy(tensor=2)), Stage((1,), (2, 3, 4, 5), Strategy(data=2, tensor=2))
    other = replace(last, devices=(2, 3), strategy=Strategy(2))
    for unlike in ((first, last), (last, replace(first, devices=(6, 7))), (first, other)):
        with pytest.raises(ExportError, match="stages of different degrees have no one numbering of ranks"):
            _groups.checked(replace(plan, stages=unlike), cluster, axes)
    mixed = answered("megatron", "dgx-h100:16", Strategy(16, expert=8, shard=1), model="mixtral-8x7b")
    assert _groups.checked(mixed.plan, mixed.problem.cluster, ("tensor", "context", "data", "pipeline")) == (
        "expert groups of 8: each stays inside one node or NVLink domain, as planned",
    )


def test_only_settings_that_were_priced_are_set(tmp_path: pathlib.Path, stubs: dict[str, str]) -> None:
    rails = answered("fsdp2", "rail-only:16,per_node=8", Strategy(16, shard=3))
    run(exported(rails, "fsdp2", "torchrun", tmp_path), stubs | {"NODE_RANK": "0", "MASTER_ADDR": "a"})
    sharp = replace(rails, problem=replace(rails.problem, cluster=replace(
        answered("fsdp2", "dgx-h100:16", Strategy(16, shard=3)).problem.cluster, reduces_in_switch=True)))  # fmt: skip
    run(exported(sharp, "fsdp2", "torchrun", tmp_path), stubs | {"NODE_RANK": "0", "MASTER_ADDR": "a"})
    second = answered("meshwright", "dgx-h100:8", Strategy(4, shard=3), first=4)
    run(exported(second, "meshwright", "torchrun", tmp_path), stubs)
    found = [
        {name: value for name, value in one["said"].items() if name.startswith(("NCCL", "CUDA_V"))} for one in records(stubs)
    ]
    assert found == [{"NCCL_CROSS_NIC": "0"}, {"NCCL_COLLNET_ENABLE": "1"}, {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}]
    hosts = hosts_of(second.plan, second.problem.cluster)
    with pytest.raises(ExportError, match="different devices of theirs, from number 0, 4 on"):
        _network.with_environment(StartCommand("x"), None, replace(hosts, first=(4, 0)))
    for name in ("dgx-h100:64", "fat-tree:64", "gb200-nvl72:144", "flat:4"):
        from meshwright import clusters

        assert not _network._only_rails(clusters.cluster(name)), name


def test_torchrun_leaves_what_the_user_adds_to_our_run(tmp_path: pathlib.Path, stubs: dict[str, str]) -> None:
    """Also what is the beginning of options of its own, as ``--log`` is."""
    torch_run = pytest.importorskip("torch.distributed.run", reason="torchrun's own parser comes with PyTorch")
    script = exported(answered("meshwright", "dgx-h100:8", Strategy(8, shard=3)), "meshwright", "torchrun", tmp_path)
    added = ["--log", "steps.jsonl", "--max-restarts", "5", "--no"]
    run(script, stubs, *added)
    ((_, *words),) = (one["words"] for one in records(stubs))
    read = torch_run.parse_args(words)
    assert read.module and read.training_script == "meshwright" and read.max_restarts == 0
    assert read.training_script_args[:2] == ["run", "run.json"] and read.training_script_args[-len(added) :] == added


def test_hosts_of_several_kinds_are_named_by_the_user(tmp_path: pathlib.Path, stubs: dict[str, str]) -> None:
    result = answered("meshwright", "dgx-h100:16", Strategy(16, shard=3))
    cluster = result.problem.cluster
    assert cluster is not None
    kinds = (cluster.kinds[0], replace(cluster.kinds[0], name="B200"))
    unlike = replace(cluster, kinds=kinds, kind_of_device=cluster.node_of_device)
    result = replace(result, problem=replace(result.problem, cluster=unlike))
    script = exported(result, "meshwright", "slurm", tmp_path)
    assert "host 1: devices 8 to 15, B200" in script.read_text()
    done = run(script, stubs | {"ALLOCATED": "a b"})
    assert done.returncode != 0 and "HOSTFILE" in done.stderr
    with pytest.raises(ExportError, match="all alike"):
        exported(result, "meshwright", "k8s", tmp_path)


def test_what_cannot_be_launched_is_one_line_and_leaves_no_file(tmp_path: pathlib.Path) -> None:
    result = answered("deepspeed", "dgx-a100:16", Strategy(16, shard=3))

    def refused(kind: type[Exception], said: str, to: str, file: str, launch: str, one: Result = result) -> None:
        with pytest.raises(kind, match=said) as caught:
            mw.export(one, to, str(tmp_path / file), launch=launch)
        assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())

    refused(ExportError, "name a file ending in .json", "deepspeed", "a.sh", "slurm")
    refused(UnknownNameError, "no launcher called 'slrum'", "deepspeed", "a.json", "slrum")
    refused(ExportError, "starts a framework", "dot", "a.dot", "slurm")
    refused(InputError, "give another ending", "deepspeed", "a.sbatch", "slurm")
    some = replace(result.plan.stages[0], devices=tuple(range(12)), strategy=Strategy(12, shard=3))
    ragged = replace(result, answer=Answer(replace(result.plan, stages=(some,), global_batch=48)))
    refused(ExportError, "different sizes", "deepspeed", "a.json", "slurm", ragged)


@pytest.mark.parametrize(("hosts", "asks"), [((0, 1, 2), True), ((0, 1, 2, 3), False), ((0, 1), False)])
def test_domains_that_take_part_with_different_numbers_of_hosts_need_a_host_file(
    hosts: tuple[int, ...], asks: bool, tmp_path: pathlib.Path, stubs: dict[str, str]
) -> None:
    """Of nodes of two hosts each: both of one and one of another have no segments, so the order is the user's to give."""
    result = trays(answered("fsdp2", "dgx-a100:16", Strategy(4 * len(hosts), shard=3)))
    devices = tuple(4 * host + i for host in hosts for i in range(4))
    stages = tuple(replace(stage, devices=devices) for stage in result.plan.stages)
    result = replace(result, answer=replace(result.answer, plan=replace(result.plan, stages=stages)))
    script = exported(result, "fsdp2", "slurm", tmp_path)
    names = [f"n{host}" for host in hosts]
    done = run(script, stubs | {"ALLOCATED": " ".join(names)})
    assert ("take part in different numbers" in script.read_text()) == asks
    assert (done.returncode != 0 and "HOSTFILE" in done.stderr) == asks
    (tmp_path / "hosts").write_text("\n".join(names) + "\n")
    assert run(script, stubs | {"ALLOCATED": " ".join(names), "HOSTFILE": "hosts"}).returncode == 0
