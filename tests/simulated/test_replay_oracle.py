"""Replay against the slow oracle on jobs that are simulated: each row of syncs, each kind, and the loader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import builder
import pytest
from oracle.savings import Savings
from simulator import a_job, simulate
from simulator.kineto import json_of

from traceq.analysis.registry import analyze
from traceq.runs.read import read


def check_savings(path: Path) -> Savings:
    """Each row of both tables saves what the oracle says."""
    run, savings = read(path), Savings(path)
    for row in analyze(run, "syncs").table("syncs").to_dicts():
        assert row["replay_ns"] == pytest.approx(savings.saved_ns("costly_sync", row["key"]), abs=1), row
    for row in analyze(run, "replay").table("replay").to_dicts():
        if row["removed"] == "all syncs":
            assert row["saved_ns"] == pytest.approx(savings.saved_ns("joint_syncs"), abs=1)
        elif row["removed"] == "data loader":
            assert row["saved_ns"] == pytest.approx(savings.replay.saved_ns(lambda hold: hold.is_loader), abs=1)
    return savings


@pytest.mark.parametrize("seed", range(20))
def test_what_a_step_saves_is_what_the_oracle_says(seed: int, tmp_path: Path) -> None:
    job, path = a_job(seed), tmp_path / "trace.json"
    path.write_bytes(json_of(job, simulate(job)[0]))
    check_savings(path)


def crowded(seed: int) -> Iterator[builder.Event]:
    """Steps that launch until a queue of 1,000 is full, read scalars now and then, and end with short kernels."""
    random, now, free, ends = Random(seed), 0, 0, list[int]()
    for step in range(3):
        begin = now
        for number in range(1500):
            launched = now
            if len(ends) >= 1000:
                now = max(now, ends[-1000] + 3)
            now += random.randint(2, 5)
            start = max(now, free)
            free = start + (random.choice([60, 70, 90]) if number < 1250 else random.choice([1, 3]))
            ends.append(free)
            yield builder.launch(launched, now - launched, len(ends))
            yield builder.kernel("k", start, free - start, len(ends))
            if number == 1400 or random.random() < 0.0005:
                copied, start = now, max(now + 4, free)
                free = start + 2
                ends.append(free)
                now = free + 4
                yield builder.call("cudaMemcpyAsync", copied, 3, len(ends))
                yield builder.memcpy("DtoH (Device -> Pinned)", start, 2, len(ends))
                yield builder.call("cudaStreamSynchronize", copied + 4, now - copied - 4)
                now += random.choice([0, 200, 2000])
        yield builder.step(begin, now - begin, step)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_what_a_step_with_a_full_launch_queue_saves_is_what_the_oracle_says(seed: int, tmp_path: Path) -> None:
    savings = check_savings(builder.write(tmp_path / "trace.json", *crowded(seed)))
    assert savings.replay.queue == 999
    assert savings.saved_ns("joint_syncs") > 100_000
