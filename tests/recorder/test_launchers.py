"""Whoever starts the ranks, on one node or on two: the run has the same files, and says where each rank ran."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from launching import LOOP, accelerate, free_port, start_process, torchrun, wait_for_all
from recording import LINEAR, Fault

from traceq.runs.run_folder import RunFolder
from traceq.runs.step_log import read_pairs

pytest.importorskip("torch", reason="recording needs torch")
pytest.importorskip("accelerate", reason="loops of accelerate's users are recorded here")
pytestmark = pytest.mark.torch

RECORD = ("-m", "traceq", "record", "--recipe", str(LINEAR), "--device", "cpu", "--out", "run")
SHORT = ("--steps", "2", "--trace-steps", "1")
HOSTS = ("one", "one", "other", "other")
no_deepspeed = pytest.mark.skipif(find_spec("deepspeed") is None, reason="deepspeed is not installed")


def files(run: RunFolder) -> set[str]:
    return {str(path.relative_to(run.path)) for path in run.path.rglob("*") if path.is_file()}


def expected(arms: tuple[str, ...], num_ranks: int) -> set[str]:
    kinds = ("json.gz", "stacks.json.gz", "flight.json")
    traces = {f"{arm}/rank{rank}.{kind}" for arm in arms for rank in range(num_ranks) for kind in kinds}
    return {"run.json", *traces, *(f"steps/rank{rank}.jsonl" for rank in range(num_ranks))}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "arms"),
    [
        pytest.param((*RECORD, *SHORT), ("fast", "slow"), id="recipe"),
        pytest.param((str(LOOP), "run"), ("run",), id="loop", marks=pytest.mark.faults),
    ],
)
def test_two_nodes_write_one_run_with_the_host_of_each_rank(
    tmp_path: Path, words: tuple[str, ...], arms: tuple[str, ...]
) -> None:
    port = free_port()
    nodes = [
        start_process(
            torchrun(2, *words, node=node, num_nodes=2, port=port), tmp_path, {"TRACEQ_TEST_HOST": HOSTS[2 * node]}
        )
        for node in (0, 1)
    ]
    done = wait_for_all(nodes)
    assert [code for code, _, _ in done] == [0, 0], done
    run = RunFolder(tmp_path / "run")
    manifest = run.read_manifest()
    assert (manifest.status, manifest.num_ranks) == ("complete", 4)
    assert sorted(manifest.hosts) == sorted(HOSTS)  # which node is first is torchrun's choice
    assert manifest.hosts[0] == manifest.hosts[1]
    assert files(run) == expected(arms, 4)
    assert {pairs.first_ns.shape[0] for pairs in read_pairs(run.steps)} == {4}
    headings = [line for _, stdout, _ in done for line in stdout.splitlines() if line.startswith("traceq ")]
    assert len(headings) == (4 if len(arms) > 1 else 0)  # by one rank of four


@pytest.mark.faults
@pytest.mark.parametrize("config", ["ddp", "fsdp", pytest.param("deepspeed", marks=no_deepspeed)])
@pytest.mark.parametrize("what", ["recipe", "loop"])
def test_accelerate_leaves_what_torchrun_leaves_and_a_configuration_that_was_dropped_is_reported(
    tmp_path: Path, config: str, what: str
) -> None:
    words, arms = ((*RECORD, *SHORT), ("fast", "slow")) if what == "recipe" else ((str(LOOP), "run"), ("run",))
    ((code, _, stderr),) = wait_for_all([start_process(accelerate(config, *words), tmp_path)])
    assert code == 0, stderr
    run = RunFolder(tmp_path / "run")
    manifest = run.read_manifest()
    assert (manifest.status, manifest.num_ranks) == ("complete", 2)
    assert files(run) == expected(arms, 2)
    assert manifest.environment["wrapper"] == "DistributedDataParallel"  # on a CPU, whatever was configured
    warnings = [line for line in stderr.splitlines() if "accelerate was configured for" in line]
    configured = {"ddp": "", "fsdp": "FSDP", "deepspeed": "DeepSpeed"}[config]
    assert manifest.environment.get("accelerate_config", "") == configured
    assert len(warnings) == (1 if configured else 0)


@pytest.mark.slow
def test_tasks_of_srun_on_two_nodes_meet_by_its_variables(tmp_path: Path) -> None:
    """Two nodes with 2 and 1 tasks; the list of nodes is expanded by scontrol."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    (bin_folder / "scontrol").write_text('#!/bin/sh\n[ "$*" = "show hostnames n[1-2]" ] && echo 127.0.0.1\necho n2\n')
    (bin_folder / "scontrol").chmod(0o755)
    places = [(0, 0, 0), (1, 1, 0), (2, 0, 1)]
    job = {
        "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
        "SLURM_JOB_ID": str(free_port() - 20_000),
        "SLURM_STEP_NUM_TASKS": "3",
        "SLURM_STEP_NODELIST": "n[1-2]",
        "SLURM_STEP_TASKS_PER_NODE": "2,1",
    }
    tasks = [
        start_process(
            [sys.executable, *RECORD, *SHORT],
            tmp_path,
            {**job, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(local), "SLURM_NODEID": str(node)},
        )
        for rank, local, node in places
    ]
    done = wait_for_all(tasks)
    assert [code for code, _, _ in done] == [0, 0, 0], done
    run = RunFolder(tmp_path / "run")
    assert run.read_manifest().num_ranks == 3
    assert files(run) == expected(("fast", "slow"), 3)


@pytest.mark.faults
def test_ranks_that_do_not_share_a_folder_are_refused_by_name(tmp_path: Path) -> None:
    port = free_port()
    nodes = []
    for node in (0, 1):
        folder = tmp_path / str(node)
        folder.mkdir()
        words = torchrun(1, *RECORD, *SHORT, node=node, num_nodes=2, port=port)
        nodes.append(start_process(words, folder, {"TRACEQ_TEST_HOST": f"host{node}"}))
    done = wait_for_all(nodes)
    assert all(code != 0 for code, _, _ in done)
    assert all("rank 1 on host1 cannot see" in stderr for _, _, stderr in done)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("SIGKILL", "rank 1: exited without reporting an "),
        pytest.param("raise", "rank 1: ValueError: an injected fault", marks=pytest.mark.faults),
        pytest.param("_exit0", "rank 1: exited without reporting an ", marks=pytest.mark.faults),
        pytest.param("exit", "rank 1: SystemExit: 0", marks=pytest.mark.faults),
    ],
)
@pytest.mark.parametrize("what", ["recipe", pytest.param("loop", marks=pytest.mark.faults)])
def test_under_torchrun_the_surviving_ranks_name_the_one_that_failed(
    tmp_path: Path, what: str, how: str, message: str
) -> None:
    words = (*RECORD, "--steps", "10000") if what == "recipe" else (str(LOOP), "run", "10000")
    fault = Fault(
        1, 1.0, how, after=str(tmp_path / "run/steps/rank0.jsonl"), program=words[1 if what == "recipe" else 0]
    )
    process = start_process(torchrun(3, *words), tmp_path, fault.variables(tmp_path))
    ((code, _, stderr),) = wait_for_all([process])
    assert code != 0
    manifest = RunFolder(tmp_path / "run").read_manifest()
    fault, _, arm = manifest.fault.partition(" (in a step of arm ")
    assert manifest.status == "failed", stderr
    assert fault.startswith(message)
    assert arm in (("fast)", "slow)") if what == "recipe" and how == "raise" else ("",))
    shown = start_process([sys.executable, "-m", "traceq", "show", "run"], tmp_path)
    ((_, stdout, stderr),) = wait_for_all([shown])
    assert f"the recording is incomplete (failed): {fault}" in stdout + stderr


@pytest.mark.faults
def test_under_torchrun_a_recording_that_is_ended_says_by_which_signal(tmp_path: Path) -> None:
    process = start_process(torchrun(2, *RECORD, "--steps", "10000"), tmp_path)
    while not (tmp_path / "run/steps/rank0.jsonl").exists():
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    wait_for_all([process])
    manifest = RunFolder(tmp_path / "run").read_manifest()
    assert (manifest.status, manifest.fault) == ("interrupted", "ended by SIGTERM")


@pytest.mark.faults
def test_under_torchrun_a_desync_is_reported_with_both_collectives_and_both_lines(tmp_path: Path) -> None:
    recipe = ("--recipe", "branch_sync_ab", "--set", "batch_size=1", "--set", "fault=desync")
    words = ("-m", "traceq", "record", *recipe, "--device", "cpu", "--out", "run", "--steps", "64")
    process = start_process(torchrun(2, *words), tmp_path, {"TRACEQ_TEST_PATIENCE": "20"})
    ((code, _, stderr),) = wait_for_all([process])
    assert code != 0
    fault = RunFolder(tmp_path / "run").read_manifest().fault
    assert re.match(r"desync at collective \d+", fault), stderr
    assert re.search(r"rank 0: all_reduce float32 x [\d,]+; rank 1: all_gather float32 x \d+; ", fault)
    assert re.search(r"rank 1 waits at rank_agreement\.py:\d+ gather_alone$", fault)
    assert f"traceq: run: {fault}" in stderr.splitlines()


@pytest.mark.faults
def test_under_torchrun_a_full_disk_is_named(full_disk: Path, tmp_path: Path) -> None:
    ((code, _, stderr),) = wait_for_all([start_process(torchrun(2, *RECORD, "--steps", "10000"), tmp_path)])
    assert code != 0
    manifest = RunFolder(full_disk).read_manifest()
    assert manifest.status == "failed"
    assert re.match(r"rank [01]: OSError: \[Errno 28\] No space left on device", manifest.fault), stderr


@pytest.mark.faults
def test_under_torchrun_a_rank_that_hangs_is_named_and_again_when_its_peers_give_up(tmp_path: Path) -> None:
    fault = Fault(1, 1.0, "hang", after=str(tmp_path / "run/steps/rank0.jsonl"), program="traceq", patience_s=15)
    words = torchrun(3, *RECORD, "--steps", "10000", "--hang-after", "3")
    ((code, _, stderr),) = wait_for_all([start_process(words, tmp_path, fault.variables(tmp_path))], seconds=170)
    assert code != 0
    manifest = RunFolder(tmp_path / "run").read_manifest()
    assert manifest.fault.startswith("rank 1: stopped responding; "), stderr
    assert "; no step for " in manifest.fault
    assert "; the others wait for rank 1" in manifest.fault
    assert "traceq: no step for 3 s: " in stderr
