"""PyTorch's schedule file: its own runtime accepts every schedule of ours, and trains by it as one process does."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from meshwright import schedules
from meshwright.base.errors import ExportError, InputError
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import ModelSpec, Problem
from meshwright.core.result import Answer, Result
from meshwright.core.strategy import Strategy
from meshwright.frameworks.torchtitan.writers import pytorch_schedule
from meshwright.models.readers import huggingface

SOURCE = pathlib.Path(schedules.__file__).parents[2]  # the package that is tested, wherever it lies
N_RANKS, N_MICROBATCHES = 4, 8


def result_of(plan: Plan) -> Result:
    """Return a result that holds a plan and nothing else."""
    fields = {"model_type": "gpt2", "n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 128, "vocab_size": 512}
    graph = huggingface.graph_of(fields, "small", sequence_length=128)
    return Result(Problem(ModelSpec("small", "huggingface", "small", graph), None, "analytic"), "", 0, Answer(plan=plan))


def plan_of(name: str, n_ranks: int = N_RANKS) -> Plan:
    """Return a plan of one layer per stage under a schedule, with the virtual stages that it asks for."""
    module = schedules.load(name)
    for n_chunks in (1, 2):
        try:
            placed = [int(rank) for rank in module.placement(n_ranks, n_chunks)]
            module.order(n_ranks, n_chunks, N_MICROBATCHES)
        except InputError:  # asks for another number of stages per rank
            continue
        return Plan(tuple(Stage((i,), (rank,)) for i, rank in enumerate(placed)), N_MICROBATCHES, 1, name, N_MICROBATCHES)
    raise AssertionError(f"{name} has no order for one or two stages per rank")


@pytest.mark.torch
@pytest.mark.parametrize("name", schedules.words())
def test_pytorchs_runtime_accepts_the_file(name: str, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("torch", reason="needs PyTorch: pip install 'meshwright[torch]'")
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

    plan = plan_of(name)
    path = tmp_path / "schedule.csv"
    pytorch_schedule.write(result_of(plan), str(path))
    runtime = _PipelineScheduleRuntime.__new__(_PipelineScheduleRuntime)
    runtime.pp_group_size, runtime._num_stages, runtime._n_microbatches = N_RANKS, len(plan.stages), N_MICROBATCHES
    runtime._stages, runtime.pipeline_order = [], {}
    runtime._defer_pp_recv = False
    runtime._load_csv(str(path))
    assert [runtime.stage_index_to_group_rank[i] for i in range(len(plan.stages))] == list(plan.rank_of_stage())
    assert all(runtime.pipeline_order_with_comms[rank] for rank in range(N_RANKS))


@pytest.mark.slow
@pytest.mark.torch
def test_pytorch_trains_by_the_file_as_one_process_does(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("torch", reason="needs PyTorch: pip install 'meshwright[torch]'")
    pytorch_schedule.write(result_of(plan_of("zb_h1", 2)), str(tmp_path / "schedule.csv"))
    script = """
import sys, torch, torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
torch.manual_seed(0)
parts = [nn.Sequential(nn.Linear(8, 16), nn.Tanh()), nn.Linear(16, 4)]
x, y = torch.randn(8, 8), torch.randn(8, 4)
(nn.functional.mse_loss(parts[1](parts[0](x)), y)).backward()
expected = [p.grad.clone() for p in parts[rank].parameters()]
parts[rank].zero_grad()
stage = PipelineStage(parts[rank], rank, 2, torch.device("cpu"))
runtime = _PipelineScheduleRuntime([stage], 8, loss_fn=nn.functional.mse_loss)
runtime._load_csv(f"{folder}/schedule.csv")
runtime.step(*([x] if rank == 0 else []), **({"target": y, "losses": []} if rank == 1 else {}))
for parameter, gradient in zip(parts[rank].parameters(), expected):
    torch.testing.assert_close(parameter.grad, gradient)
dist.barrier()
dist.destroy_process_group()
"""
    variables = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE)}
    words = [sys.executable, "-W", "ignore", "-c", script]
    processes = [
        subprocess.Popen([*words, str(rank), str(tmp_path)], env=variables, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    told = [process.communicate(timeout=200)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], told


def test_stages_of_unlike_width_are_refused(tmp_path: pathlib.Path) -> None:
    plan = Plan((Stage((0,), (0,)), Stage((1,), (1, 2), Strategy(data=2))), 2, 1, "1f1b", 4)
    with pytest.raises(ExportError, match="equal stages"):
        pytorch_schedule.write(result_of(plan), str(tmp_path / "schedule.csv"))
    assert not list(tmp_path.iterdir())
