"""Recorded runs of a small trainer as folders: a step whose length is drawn, and a trace with what was added to it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
import numpy as np
from builder import Event, annotation, frame, op, step, write
from numpy.typing import NDArray

from traceq.model import Arm, Manifest
from traceq.runs.run_folder import MANIFEST, STEPS, to_json_bytes
from traceq.runs.step_log import StepLine

__all__ = ["BEGIN", "NUM_STEPS", "run_noise", "write_run"]

NUM_STEPS = 64
BEGIN = datetime(2026, 11, 2, 9)
STEP_US, WORK_US = 40_000, 1_200
SHARES = {"forward": 0.35, "backward": 0.5, "optimizer": 0.12}


def run_noise(rng: np.random.Generator, num: int, *, sd: float = 0.004, ar: float = 0.3) -> NDArray[np.float64]:
    """float64[N]: factor of each run, as machines differ from run to run, and resemble the run before."""
    drawn = rng.normal(size=num)
    for index in range(1, num):
        drawn[index] = ar * drawn[index - 1] + np.sqrt(1 - ar**2) * drawn[index]
    return 1 + sd * drawn


def write_run(
    folder: Path,
    rng: np.random.Generator,
    *,
    number: int,
    factor: float = 1.0,
    has_sync: bool = False,
    has_work: bool = False,
    commit: str = "",
) -> Path:
    """A run with 64 unprofiled steps, whose noise of 1 % is of each step, and three traced ones."""
    manifest = Manifest(
        version=1,
        run_id=f"run-{number}-{rng.integers(1 << 40):x}",
        recipe="",
        question="",
        parameters={},
        arms=(Arm("run", "the job as it is", baseline=True),),
        phases=tuple(SHARES),
        num_ranks=1,
        seed=1,
        status="complete",
        environment={"device": "cpu", "cpu": "AMD EPYC", "torch": "2.13.0", "host": "ci", "git": commit},
        started=f"{BEGIN + timedelta(days=number):%Y-%m-%dT%H:%M:%SZ}",
        hosts=("ci",),
    )
    (folder / STEPS).mkdir(parents=True)
    (folder / MANIFEST).write_bytes(to_json_bytes(manifest))
    times = 1000 * factor * (1 + 0.01 * rng.normal(size=NUM_STEPS))
    lines = [_line(index, float(each), WORK_US * has_work) for index, each in enumerate(times)]
    (folder / STEPS / "rank0.jsonl").write_bytes(b"\n".join(map(msgspec.json.encode, lines)) + b"\n")
    length = STEP_US + WORK_US * has_work
    rows = [row for index in range(3) for row in _traced(index * length, index, has_sync, has_work)]
    write(folder / "run" / "rank0.json", *rows)
    return folder


def _line(index: int, ns_per_us: float, extra_us: int) -> StepLine:
    phases = {
        name: round(ns_per_us * (share * STEP_US + extra_us * (name == "forward"))) for name, share in SHARES.items()
    }
    ns = round(ns_per_us * (STEP_US + extra_us))
    return StepLine("run", "", "", index, 0, 0, phases, ns, ns, 0, 1 << 30)


def _traced(begin: int, number: int, has_sync: bool, has_work: bool) -> Sequence[Event]:
    """A step on a CPU: forward, which may have an op more, perhaps a read of the loss, backward and the optimizer."""
    extra = WORK_US * has_work
    forward, backward = begin + 14_000 + extra, begin + 34_000 + extra
    rows = [
        step(begin, STEP_US + extra, number),
        frame("train.py(60): main", begin, STEP_US + extra - 1),
        annotation("forward", begin, 14_000 + extra),
        frame("model.py(40): forward", begin + 10, 13_900),
        op("aten::mm", begin + 20, 13_800),
        annotation("backward", forward + 100, 19_800),
        op("aten::mm", forward + 120, 19_700),
        annotation("optimizer", backward, 5_000),
        op("aten::_fused_adam_", backward + 20, 4_900),
    ]
    if has_work:
        rows += [frame("model.py(41): forward", begin + 13_920, extra + 40), op("aten::gelu", begin + 13_940, extra)]
    if has_sync:
        rows += [
            frame("train.py(57): log", forward + 20, 60),
            op("aten::item", forward + 30, 40),
            op("aten::_local_scalar_dense", forward + 35, 30),
        ]
    return rows
