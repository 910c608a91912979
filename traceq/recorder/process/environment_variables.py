"""Environment variables: those by which a launcher gives a process its rank, and those that ranks need."""

from __future__ import annotations

import os
import subprocess

from traceq.errors import TraceqError

__all__ = ["adopt_srun", "is_launched", "rank_variables"]


def is_launched() -> bool:
    """torchrun, accelerate launch or srun gave this process a rank. Call it before torch is imported."""
    adopt_srun()
    if not {"RANK", "LOCAL_RANK", "WORLD_SIZE"} <= os.environ.keys():
        return False
    os.environ.update(_wanted(int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))
    return True


def adopt_srun() -> None:
    """Give a task of srun the variables torch reads. Its port is the same on every task, and the job's own."""
    if "RANK" in os.environ or int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) < 2:
        return
    os.environ["MASTER_ADDR"] = os.environ.get("MASTER_ADDR") or _first_host()
    os.environ["RANK"] = os.environ["SLURM_PROCID"]
    os.environ["LOCAL_RANK"] = os.environ["SLURM_LOCALID"]
    os.environ["WORLD_SIZE"] = os.environ["SLURM_STEP_NUM_TASKS"]
    os.environ["LOCAL_WORLD_SIZE"] = str(_tasks_here())
    os.environ.setdefault("MASTER_PORT", str(20_000 + int(os.environ.get("SLURM_JOB_ID", "0")) % 10_000))


def rank_variables(rank: int, num_ranks: int, port: int, sharing: int = 0) -> dict[str, str]:
    """What a rank of this machine alone is given: its place, where it meets the others, its share of the cores.

    `sharing`: among how many the cores are divided, if not among these ranks.
    """
    place = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(num_ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store is the launcher's, so it outlives every rank
    }
    return place | _wanted(sharing or num_ranks)


def _wanted(num_ranks: int) -> dict[str, str]:
    """A rank's share of the cores, and a profiler that does not talk; what the user has set stays."""
    share = os.environ.get("SLURM_CPUS_PER_TASK") or str(max(1, (os.cpu_count() or 1) // num_ranks))
    wanted = {"OMP_NUM_THREADS": share, "KINETO_LOG_LEVEL": "99"}
    return {key: value for key, value in wanted.items() if key not in os.environ}


def _first_host() -> str:
    """The host of the step's first task."""
    nodes = os.environ.get("SLURM_STEP_NODELIST", "localhost")
    if not {"[", ","} & set(nodes):
        return nodes
    try:
        hosts = subprocess.run(["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, check=False)
    except OSError:
        hosts = None
    if hosts is None or not hosts.stdout.split():
        raise TraceqError(f"srun on {nodes}: scontrol does not tell the first host; set MASTER_ADDR to it")
    return hosts.stdout.split()[0]


def _tasks_here() -> int:
    """Tasks of this step on this node: of `2(x3),1` three nodes have two."""
    node = int(os.environ.get("SLURM_NODEID", "0"))
    for entry in os.environ.get("SLURM_STEP_TASKS_PER_NODE", "1").split(","):
        tasks, _, times = entry.rstrip(")").partition("(x")
        node -= int(times or 1)
        if node < 0:
            return int(tasks)
    return 1
