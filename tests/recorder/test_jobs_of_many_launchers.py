"""An unedited job is one recording however its ranks are started: nodes, tasks, spawned processes, sharded models."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest
from launching import free_port, start_process, torchrun, wait_for_all
from recording import MAIN

pytest.importorskip("torch", reason="recording needs torch")

import traceq
from traceq.runs.run_folder import RunFolder

pytestmark = [pytest.mark.torch, pytest.mark.slow]

SCRIPT = """
import gc
import os
import sys
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

class Config:
    repeat = 1

config = Config()
WRAPPERS = {
    "ddp": torch.nn.parallel.DistributedDataParallel,
    "fsdp": lambda model: FullyShardedDataParallel(model, device_id=torch.device("cpu")),
    "fsdp2": fully_shard,
}

def train(rank, wrapper):
    os.environ["RANK"] = os.environ.get("RANK", str(rank))
    dist.init_process_group("gloo")
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    model = WRAPPERS[wrapper](model)
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in torch.utils.data.DataLoader(torch.randn(100_000, 64), batch_size=1):
        for _ in range(config.repeat):
            torch.sin(batch)
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

if __name__ == "__main__":
    how, wrapper = sys.argv[1:3]
    if how == "spawned":
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": sys.argv[3], "WORLD_SIZE": "2"}
        torch.multiprocessing.spawn(train, (wrapper,), nprocs=2)
    else:
        train(0, wrapper)
"""
QUICK = ("--steps", "16", "--trace-steps", "1")
TOGGLE = ("--toggle", "main.config.repeat=1,30")
HOSTS = {"OMP_NUM_THREADS": "1"}


def start_all(
    folder: Path, jobs: Sequence[tuple[Sequence[str], dict[str, str]]], options: Sequence[str] = TOGGLE
) -> tuple[RunFolder, list[str]]:
    """Start `traceq record -- JOB` once per job, and return the run they all are, and what each said on stderr."""
    (folder / "train.py").write_text(SCRIPT)
    record = [*MAIN[:-2], *QUICK, *options, "--out", "run", "--"]
    processes = [start_process([*record, *words], folder, {**HOSTS, **variables}) for words, variables in jobs]
    done = wait_for_all(processes)
    assert [code for code, _, _ in done] == [0] * len(jobs), done
    runs = [path for path in folder.iterdir() if RunFolder(path).is_begun]
    assert runs == [folder / "run"] or len(runs) == 1
    return RunFolder(runs[0]), [stderr for _, _, stderr in done]


def check(run: RunFolder, num_ranks: int) -> None:
    """The run is complete, and each of its ranks found the change."""
    manifest = run.read_manifest()
    assert (manifest.status, manifest.num_ranks) == ("complete", num_ranks)
    (diff,) = traceq.diff(run.path).diffs
    assert any("aten::sin" in cause.name and cause.delta_num == 29 for cause in diff.causes)
    for rank in range(num_ranks):
        assert run.trace("repeat=30", rank).is_file()


def test_the_launchers_of_two_nodes_write_one_run(tmp_path: Path) -> None:
    port = free_port()
    nodes = [torchrun(1, "train.py", "started", "ddp", node=node, num_nodes=2, port=port) for node in (0, 1)]
    run, messages = start_all(tmp_path, [(words, {"TRACEQ_TEST_HOST": f"n{node}"}) for node, words in enumerate(nodes)])
    check(run, 2)
    assert sorted(run.read_manifest().hosts) == ["n0", "n1"]
    assert sum(f"are in {run.path}" in each for each in messages) == 1
    assert sum("per step" in each for each in messages) == 1


def test_tasks_of_srun_that_are_each_recorded_write_one_run(tmp_path: Path) -> None:
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    tasks = [([sys.executable, "train.py", "started", "ddp"], {**meeting, "RANK": str(rank)}) for rank in (0, 1)]
    run, _ = start_all(tmp_path, tasks)
    check(run, 2)


def test_arms_with_processes_of_their_own_run_on_two_nodes(tmp_path: Path) -> None:
    port = free_port()
    nodes = [torchrun(1, "train.py", "started", "{arm}", node=node, num_nodes=2, port=port) for node in (0, 1)]
    arms = ["--arm", "ddp=ddp", "--arm", "fsdp2=fsdp2", "--replicates", "1"]
    run, _ = start_all(tmp_path, [(words, {"TRACEQ_TEST_HOST": f"n{node}"}) for node, words in enumerate(nodes)], arms)
    manifest = run.read_manifest()
    assert (manifest.status, manifest.num_ranks) == ("complete", 2)
    assert [arm.status for arm in manifest.arms] == ["", ""]
    for arm in ("ddp", "fsdp2"):
        assert run.trace(arm, 0).is_file()
        assert run.trace(arm, 1).is_file()


def test_processes_of_mp_spawn_are_ranks(tmp_path: Path) -> None:
    job = [sys.executable, "train.py", "spawned", "ddp", str(free_port())]
    run, _ = start_all(tmp_path, [(job, {})], ("--toggle", "__mp_main__.config.repeat=1,30"))
    check(run, 2)


@pytest.mark.parametrize("wrapper", ["fsdp", "fsdp2"])
def test_a_sharded_model_is_recorded_on_two_ranks(wrapper: str, tmp_path: Path) -> None:
    run, _ = start_all(tmp_path, [(torchrun(2, "train.py", "started", wrapper), {})])
    check(run, 2)


@pytest.mark.skipif(find_spec("deepspeed") is None, reason="deepspeed is not installed")
def test_the_launcher_of_deepspeed_starts_ranks(tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "deepspeed.launcher.runner", "--num_gpus", "2", "train.py", "started", "ddp"]
    run, _ = start_all(tmp_path, [(launcher, {"DS_ACCELERATOR": "cpu"})])
    check(run, 2)
