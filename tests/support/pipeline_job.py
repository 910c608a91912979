"""Job for tests: ranks on gloo train a small pipeline by each schedule of torch, traced; passes sleep for a known time.

    python pipeline_job.py FOLDER RANKS MICROBATCHES MILLISECONDS SCHEDULE ...

writes FOLDER/SCHEDULE/rankN.json, and actionsN.json: the schedule's list of actions for every rank, and of each traced
step all actions of rank N as (stage, kind, microbatch, begin, end) in ns, timed beside the profiler.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, schedules
from torch.profiler import ProfilerActivity, profile

WIDTH, PER_MICROBATCH, TRACED = 16, 2, 2
V_SHAPED = ("ScheduleZBVZeroBubble", "ScheduleDualPipeV")


class Sleep(torch.autograd.Function):
    """The same tensor, after `forward` seconds, and its gradient after `backward` seconds."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: float, backward: float) -> Tensor:
        time.sleep(forward)
        ctx.backward_seconds = backward
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        time.sleep(ctx.backward_seconds)
        return gradient.clone(), None, None


class Layer(nn.Module):
    """Sleeps in forward, in backward for its input, and in backward for its weight."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds, self.weight = seconds, nn.Parameter(torch.eye(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = Sleep.apply(x, self.seconds, self.seconds)
        return x @ Sleep.apply(self.weight, 0.0, self.seconds)


Action = tuple[int, str, int, int, int]


def time_actions(stage: PipelineStage, actions: list[Action]) -> None:
    """Append what the stage computes to `actions`."""
    names = {"forward_one_chunk": "F", "backward_one_chunk": "B", "backward_weight_one_chunk": "W"}
    for name, kind in names.items():
        setattr(stage, name, timed(getattr(stage, name), stage.stage_index, kind, actions))


def timed(compute: Callable[..., Any], stage: int, kind: str, actions: list[Action]) -> Callable[..., Any]:
    def call(microbatch: int, *args: Any, **more: Any) -> Any:
        begin = time.time_ns()
        result = compute(microbatch, *args, **more)
        of_input = kind == "B" and not more.get("full_backward", True)
        actions.append((stage, "I" if of_input else kind, microbatch, begin, time.time_ns()))
        return result

    return call


def record(folder: Path, name: str, rank: int, num_ranks: int, num_microbatches: int, seconds: float) -> None:
    kind = getattr(schedules, name)
    has_chunks = issubclass(kind, schedules.PipelineScheduleMulti)
    num_stages = num_ranks * (1 + has_chunks)
    numbers = [rank, num_stages - 1 - rank] if name in V_SHAPED else range(rank, num_stages, num_ranks)
    stages = [PipelineStage(Layer(seconds), number, num_stages, torch.device("cpu")) for number in numbers]
    schedule = kind(stages if has_chunks else stages[0], num_microbatches, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD([weight for stage in stages for weight in stage.submod.parameters()], 1e-3)
    batch = torch.randn(num_microbatches * PER_MICROBATCH, WIDTH)
    inputs = (batch,) if any(stage.is_first for stage in stages) else ()
    target = {"target": batch} if any(stage.is_last for stage in stages) else {}
    actions: list[Action] = []
    steps: list[list[Action]] = []
    for stage in stages:
        time_actions(stage, actions)
    torch.manual_seed(0)
    plan = torch.profiler.schedule(wait=0, warmup=1, active=TRACED, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, schedule=plan) as profiler:
        for _ in range(1 + TRACED):
            actions.clear()
            optimizer.zero_grad()
            schedule.step(*inputs, **target)
            optimizer.step()
            steps.append(list(actions))
            dist.barrier()
            profiler.step()
    to = folder / name
    to.mkdir(parents=True, exist_ok=True)
    profiler.export_chrome_trace(str(to / f"rank{rank}.json"))
    order = schedule.pipeline_order if has_chunks else schedule._get_pipeline_order()
    texts = [[str(action) for action in order[each] if action is not None] for each in range(num_ranks)]
    (to / f"actions{rank}.txt").write_text(json.dumps({"order": texts, "steps": steps[1:]}))


def run(rank: int, folder: Path, num_ranks: int, num_microbatches: int, seconds: float, names: list[str]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=num_ranks)
    for name in names:
        record(folder, name, rank, num_ranks, num_microbatches, seconds)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    folder, *numbers = Path(sys.argv[1]), *map(int, sys.argv[2:5])
    ranks, microbatches, milliseconds = numbers
    arguments = (folder, ranks, microbatches, milliseconds / 1000, sys.argv[5:])
    mp.start_processes(run, arguments, nprocs=ranks, start_method="fork")  # torch is imported once
