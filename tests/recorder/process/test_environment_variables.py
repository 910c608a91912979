"""A launcher's variables determine a rank, its world and its share of the cores."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from traceq.errors import TraceqError
from traceq.recorder.process.environment_variables import is_launched, rank_variables

PLACE = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR")


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A task of srun: the fifth of seven, the first of the two on the third node."""
    for name in (*PLACE, "MASTER_PORT", "OMP_NUM_THREADS", "KINETO_LOG_LEVEL"):
        monkeypatch.setenv(name, "")  # so that what is set is undone
        monkeypatch.delenv(name)
    job = {"STEP_NUM_TASKS": "7", "STEP_TASKS_PER_NODE": "2(x3),1", "PROCID": "4", "LOCALID": "0", "NODEID": "2"}
    for name, value in job.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setenv("SLURM_STEP_NODELIST", "node7")
    return monkeypatch


def test_a_task_of_srun_has_its_rank_and_the_ranks_of_its_node(slurm: pytest.MonkeyPatch) -> None:
    assert is_launched()
    assert [os.environ[name] for name in PLACE] == ["4", "0", "7", "2", "node7"]
    assert os.environ["OMP_NUM_THREADS"] == str(max(1, (os.cpu_count() or 1) // 2))


def test_the_last_node_has_its_own_number_of_tasks_and_a_task_the_cores_it_was_given(slurm: pytest.MonkeyPatch) -> None:
    slurm.setenv("SLURM_NODEID", "3")
    slurm.setenv("SLURM_CPUS_PER_TASK", "12")
    assert is_launched()
    assert (os.environ["LOCAL_WORLD_SIZE"], os.environ["OMP_NUM_THREADS"]) == ("1", "12")


def test_a_list_of_nodes_that_cannot_be_expanded_is_refused(slurm: pytest.MonkeyPatch, tmp_path: Path) -> None:
    slurm.setenv("SLURM_STEP_NODELIST", "node[7-9]")
    slurm.setenv("PATH", str(tmp_path))
    with pytest.raises(TraceqError, match=r"^srun on node\[7-9\]: .* set MASTER_ADDR"):
        is_launched()
    slurm.setenv("MASTER_ADDR", "node7")
    assert is_launched()


def test_a_rank_of_one_machine_gets_its_variables() -> None:
    variables = rank_variables(1, 4, 4711)
    assert [variables[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT")] == ["1", "1", "4", "4711"]
