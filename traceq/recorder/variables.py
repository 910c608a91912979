"""Environment variables: those by which a launcher gives a process its rank, and those that ranks inherit."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["inherited", "is_launched"]


def is_launched() -> bool:
    """torchrun, accelerate launch or srun gave this process a rank. Call it before torch is imported."""
    if "RANK" not in os.environ and int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        _adopt_slurm()
    if not {"RANK", "LOCAL_RANK", "WORLD_SIZE"} <= os.environ.keys():
        return False
    os.environ.update(_wanted(int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))
    return True


@contextmanager
def inherited(num_ranks: int) -> Iterator[None]:
    """In the block, processes that are started inherit what ranks need."""
    added = _wanted(num_ranks)
    os.environ.update(added)
    try:
        yield
    finally:
        for key in added:
            del os.environ[key]


def _wanted(num_ranks: int) -> dict[str, str]:
    """A rank's share of the cores, and a profiler that does not talk; what the user has set stays."""
    wanted = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // num_ranks)), "KINETO_LOG_LEVEL": "99"}
    return {key: value for key, value in wanted.items() if key not in os.environ}


def _adopt_slurm() -> None:
    """Give a task of srun the variables torch reads. Its port is the same on every task, and the job's own."""
    nodes = os.environ.get("SLURM_STEP_NODELIST", "localhost")
    hosts = subprocess.run(["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, check=False)
    os.environ["RANK"] = os.environ["SLURM_PROCID"]
    os.environ["LOCAL_RANK"] = os.environ["SLURM_LOCALID"]
    os.environ["WORLD_SIZE"] = os.environ["SLURM_STEP_NUM_TASKS"]
    os.environ["LOCAL_WORLD_SIZE"] = os.environ.get("SLURM_STEP_TASKS_PER_NODE", "1").partition("(")[0]
    os.environ.setdefault("MASTER_ADDR", (hosts.stdout.split() or ["localhost"])[0])
    os.environ.setdefault("MASTER_PORT", str(20_000 + int(os.environ.get("SLURM_JOB_ID", "0")) % 10_000))
