"""What only a CUDA device can show: copies to the host, device time, memory, and every recipe's way there.

CI has no GPU, so these skip there; `benchmarks/gpu.sh` runs them where there is one.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builder import table
from recording import start

from traceq.facts.events.device_work import device_work
from traceq.runs.read import read

pytest.importorskip("torch", reason="recording needs torch")
pytest.importorskip("accelerate", reason="the recipes gather metrics through accelerate")

import torch
from paths import FIXTURES
from torch.profiler import ProfilerActivity, profile, schedule

from traceq.recorder.spec.catalogue import recipe_names

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def recorded(folder: Path, recipe: str, *options: str, ranks: int = 1) -> Path:
    """A run of few steps on the GPU."""
    few = ("--device", "cuda", "--ranks", str(ranks), "--steps", "2", "--trace-steps", "2")
    done = start(folder, *few, *options, recipe=recipe).finish(seconds=600)
    assert done.code == 0, done.stderr
    return done.out


def syncs(arm: Path, phase: str) -> list[dict[str, Any]]:
    """Rank 0's rows of syncs in a phase."""
    return [row for row in table(read(arm), "syncs") if (row["rank"], row["phase"]) == (0, phase)]


@pytest.fixture(scope="module")
def outliers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the recipe outlier_ab, without the arms that leave the trainer's metrics out."""
    return recorded(tmp_path_factory.mktemp("outliers"), str(FIXTURES / "outlier_ab.py"))


def test_the_check_is_one_copy_to_the_host_a_step_with_its_line_and_off_has_none(outliers: Path) -> None:
    out = outliers
    assert syncs(out / "off", "forward") == syncs(out / "deferred", "forward") == []
    (check,) = syncs(out / "on", "forward")
    assert (check["kind"], check["num"], check["op"]) == ("dtoh", 2, "aten::_local_scalar_dense")
    assert check["line"].startswith("outlier_check.py:")
    assert check["blocked_ns"] > 0


def test_the_timed_steps_have_device_time_and_the_memory_of_their_half(outliers: Path) -> None:
    run = read(outliers / "on")
    assert run.manifest is not None
    facts = run.manifest.environment
    assert (facts["device"], facts["backend"]) == ("cuda", "nccl")
    (pairs,) = [pairs for pairs in run.pairs if pairs.b == "on"]
    assert pairs.first_cpu_ns is None  # the host's time decides nothing here
    assert np.all(pairs.first_ns > 0)
    (trace,) = run.traces
    assert trace.device == facts["device_name"]


def test_every_nanosecond_of_a_recorded_step_is_on_one_account(outliers: Path) -> None:
    run = read(outliers / "on")
    windows = {row["step"]: row["window_ns"] for row in table(run, "steps")}
    totals = dict.fromkeys(windows, 0)
    for row in table(run, "partition"):
        totals[row["step"]] += row["dur_ns"]
    assert totals == windows


def test_a_step_lasts_as_long_between_its_device_windows_as_between_cuda_events(tmp_path: Path) -> None:
    num_warmup, num_steps = 2, 5
    factor = torch.randn(4096, 4096, device="cuda")
    ends = [torch.cuda.Event(enable_timing=True) for _ in range(num_warmup + num_steps)]
    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
        schedule=schedule(wait=0, warmup=num_warmup, active=num_steps, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(tmp_path / "rank0.json")),
    ) as profiler:
        for end in ends:
            for _ in range(20):
                factor @ factor
            end.record()
            profiler.step()
    torch.cuda.synchronize()
    by_events = [1e6 * before.elapsed_time(end) for before, end in pairwise(ends)][-num_steps + 1 :]
    by_trace = [row["window_ns"] for row in table(read(tmp_path), "steps")][1:]
    assert by_trace == pytest.approx(by_events, rel=0.02, abs=100_000)


def test_two_ranks_share_a_gpu_and_every_metric_is_gathered_and_fetched(tmp_path: Path) -> None:
    out = recorded(tmp_path, "metrics_sync_ab", ranks=2)
    run = read(out / "every")
    assert run.manifest is not None
    assert run.manifest.environment["backend"] == "gloo"
    assert sum(row["num"] for row in syncs(out / "every", "sync_gather")) >= 10
    assert syncs(out / "summed", "sync_gather") == []


def test_all_kernels_of_a_replayed_graph_have_its_one_launch(tmp_path: Path) -> None:
    out = recorded(tmp_path, str(FIXTURES / "cuda_graph.py"), "--replicates", "1")
    launched, graph = (device_work(read(out / arm).traces[0]) for arm in ("launched", "graph"))
    assert len(np.unique(launched.call)) > 40
    kernels = graph.call[graph.linked]
    assert len(kernels) > 40
    assert np.bincount(kernels).max() > len(kernels) // 4  # two replays, beside copies of the batch


@pytest.mark.recipes
@pytest.mark.parametrize("recipe", recipe_names())
def test_every_recipe_runs_on_a_gpu(recipe: str, tmp_path: Path) -> None:
    run = read(recorded(tmp_path, recipe, ranks=2 if recipe in ("scaling_ab", "sharding") else 1))
    assert run.manifest is not None
    assert run.manifest.status == "complete"
    assert run.manifest.environment["device"] == "cuda"
