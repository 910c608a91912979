"""Environment variables by which a launcher assigns ranks to processes, and those that ranks need."""

from __future__ import annotations

import os
import subprocess

from traceq.errors import TraceqError

KINETO_IS_QUIET = "99"  # above all levels of KINETO_LOG_LEVEL


def is_launched() -> bool:
    """Return True if torchrun, accelerate launch or srun gave this process a rank.

    Sets the thread and profiler variables of such a process. Call it before torch is imported.
    """
    adopt_srun()
    if not {"RANK", "LOCAL_RANK", "WORLD_SIZE"} <= os.environ.keys():
        return False
    os.environ.update(_unset_defaults(number_in("LOCAL_WORLD_SIZE", 1)))
    return True


def rank_of_environment() -> tuple[int, int]:
    """Return the rank of this process and the number of ranks, as its launcher set them.

    TraceqError for variables that are missing or cannot be: a shell may hold those of an earlier job.
    """
    needed = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    if missing := [key for key in needed if not os.environ.get(key)]:
        present = ", ".join(key for key in needed if key not in missing)
        raise TraceqError(
            f"{present} set, but not {', '.join(missing)}; start with torchrun, call init_process_group first, or, if "
            f"{'they are' if ',' in present else 'it is'} left over from another job, unset {present.replace(',', '')}"
        )
    rank, size = number_in("RANK", 0), number_in("WORLD_SIZE", 1)
    number_in("MASTER_PORT", 0)
    if rank >= size:
        raise TraceqError(f"RANK={rank}, WORLD_SIZE={size}: expected a rank below the number of ranks")
    return rank, size


def number_in(name: str, default: int) -> int:
    """Return a variable such as LOCAL_RANK as a number, or the default; TraceqError for what is no number."""
    text = os.environ.get(name) or str(default)
    if not text.isdecimal():
        raise TraceqError(f"{name}={text}: expected a number; left over from another job? Then unset it")
    return int(text)


def adopt_srun() -> None:
    """Set the variables that torch reads, in a task of srun.

    The port is derived from the job id: it is the same in every task, and differs between jobs.
    """
    if "RANK" in os.environ or int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) < 2:
        return
    os.environ["MASTER_ADDR"] = os.environ.get("MASTER_ADDR") or _first_host()
    os.environ["RANK"] = os.environ["SLURM_PROCID"]
    os.environ["LOCAL_RANK"] = os.environ["SLURM_LOCALID"]
    os.environ["WORLD_SIZE"] = os.environ["SLURM_STEP_NUM_TASKS"]
    os.environ["LOCAL_WORLD_SIZE"] = str(_num_local_tasks())
    os.environ.setdefault("MASTER_PORT", str(20_000 + int(os.environ.get("SLURM_JOB_ID", "0")) % 10_000))


def rank_variables(rank: int, num_ranks: int, port: int, sharing: int = 0) -> dict[str, str]:
    """Return the variables of a rank when all ranks run on this machine: rank, rendezvous, and share of the cores.

    `sharing`: the number of ranks that divide the cores, if that is not `num_ranks`.
    """
    variables = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(num_ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the launcher owns the store, so it outlives every rank
    }
    return variables | _unset_defaults(sharing or num_ranks)


def _unset_defaults(num_ranks: int) -> dict[str, str]:
    """Return a rank's number of threads and a quiet profiler, without the variables that the user has set."""
    num_threads = os.environ.get("SLURM_CPUS_PER_TASK") or str(max(1, (os.cpu_count() or 1) // num_ranks))
    defaults = {"OMP_NUM_THREADS": num_threads, "KINETO_LOG_LEVEL": KINETO_IS_QUIET}
    return {key: value for key, value in defaults.items() if key not in os.environ}


def _first_host() -> str:
    """Return the host of the step's first task; TraceqError if the node list cannot be expanded."""
    nodes = os.environ.get("SLURM_STEP_NODELIST", "localhost")
    if not {"[", ","} & set(nodes):
        return nodes
    try:
        hosts = subprocess.run(["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, check=False)
    except OSError:
        hosts = None
    if hosts is None or not hosts.stdout.split():
        raise TraceqError(f"srun on {nodes}: scontrol does not report the first host; set MASTER_ADDR to it")
    return hosts.stdout.split()[0]


def _num_local_tasks() -> int:
    """Return the number of tasks of this step on this node: `2(x3),1` means three nodes with two tasks each."""
    node = int(os.environ.get("SLURM_NODEID", "0"))
    for entry in os.environ.get("SLURM_STEP_TASKS_PER_NODE", "1").split(","):
        tasks, _, times = entry.rstrip(")").partition("(x")
        node -= int(times or 1)
        if node < 0:
            return int(tasks)
    return 1
