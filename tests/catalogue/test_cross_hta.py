"""HTA (traceinsight) as a second opinion on real traces; a test's name says what differs and why.

HTA is told not to round to microseconds and to keep the last step. Its times are float64 microseconds.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paths import TESTS, TRACES

from traceq.facts.events.device_work import device_work
from traceq.facts.events.kernels import is_communication
from traceq.intervals import Spans, intersect, measure, spans, subtract
from traceq.kineto.read import read_trace
from traceq.model import Category, Trace

SCRIPT = TESTS / "support" / "hta_answers.py"
ALIKE = ("ddp-a100/rank0", "dlrm-v100-8r/rank7", "torchrec-v100-straggler-4r/rank2", "ep-moe-b200-ab/ref")
WHOLE_MICROSECONDS = ("dlrm-v100-8r/rank7", "torchrec-v100-straggler-4r/rank2")
STREAMED_OPS = "nanogpt-h100-8r/rank0"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("hta") is None, reason="no hta: pip install traceinsight"),
    pytest.mark.skipif(not TRACES.exists(), reason=f"no {TRACES}"),
]


def path_of(name: str) -> Path:
    return TRACES / f"{name}.json.gz"


@pytest.fixture(scope="module")
def answers_of() -> dict[str, Any]:
    """What HTA says about each trace."""
    paths = [str(path_of(name)) for name in (*ALIKE, STREAMED_OPS)]
    settings = os.environ | {"HTA_DISABLE_NS_ROUNDING": "1"}
    done = subprocess.run([sys.executable, str(SCRIPT), *paths], capture_output=True, text=True, env=settings)
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout.splitlines()[-1])
    return {name: result[str(path_of(name))] for name in (*ALIKE, STREAMED_OPS)}


def kinds(trace: Trace) -> tuple[Spans, Spans, Spans]:
    """When compute kernels, collectives, and copies or memsets run."""
    work, talks = device_work(trace), is_communication(trace)
    is_kernel = trace.events.category[work.rows] == Category.KERNEL
    chosen = (is_kernel & ~talks, talks, ~is_kernel)
    compute, comm, memory = (spans(work.start[selected], work.end[selected]) for selected in chosen)
    return compute, comm, memory


@pytest.mark.parametrize("name", ALIKE)
def test_compute_other_and_idle_time_agree_to_the_float_that_hta_counts_in(
    answers_of: dict[str, Any], name: str
) -> None:
    trace = read_trace(path_of(name))
    work = device_work(trace)
    busy, compute = measure(spans(work.start, work.end)), measure(kinds(trace)[0])
    span = int(work.end.max() - work.start.min())
    ours = {"span": span, "idle": span - busy, "compute": compute, "other": busy - compute}
    assert {key: answers_of[name][key] for key in ours} == pytest.approx(
        {key: ns / 1000 for key, ns in ours.items()}, abs=1
    )


@pytest.mark.parametrize("name", ALIKE)
def test_the_share_of_communication_behind_compute_agrees(answers_of: dict[str, Any], name: str) -> None:
    compute, comm, _ = kinds(read_trace(path_of(name)))
    assert answers_of[name]["hidden_pct"] == pytest.approx(
        100 * measure(intersect(compute, comm)) / measure(comm), abs=0.01
    )


@pytest.mark.parametrize("name", ALIKE)
def test_what_overlaps_what_agrees_but_that_hta_cuts_every_piece_to_whole_microseconds(
    answers_of: dict[str, Any], name: str
) -> None:
    """So it finds less, by up to a microsecond for each boundary of a piece; nothing where the trace has whole ones."""
    trace = read_trace(path_of(name))
    compute, comm, memory = kinds(trace)
    ours = {
        "COMPUTATION": subtract(subtract(compute, comm), memory),
        "COMMUNICATION": subtract(subtract(comm, compute), memory),
        "MEMORY": subtract(subtract(memory, compute), comm),
        "COMPUTATION overlapping COMMUNICATION": subtract(intersect(compute, comm), memory),
        "COMMUNICATION overlapping MEMORY": subtract(intersect(comm, memory), compute),
        "COMPUTATION overlapping MEMORY": subtract(intersect(compute, memory), comm),
    }
    work = device_work(trace)
    is_whole = not (np.r_[work.start, work.end] % 1000).any()
    assert is_whole == (name in WHOLE_MICROSECONDS)
    reported = {kind: us for kind, us in answers_of[name]["overlaps"].items() if kind in ours}
    assert {"COMPUTATION", "COMMUNICATION", "COMPUTATION overlapping COMMUNICATION"} <= set(reported)
    for kind, theirs in reported.items():
        lost = measure(ours[kind]) / 1000 - theirs
        assert 0 <= lost <= (0 if is_whole else 2 * len(work)), kind


@pytest.mark.parametrize("name", ALIKE)
def test_hta_calls_all_of_a_gap_host_wait_if_its_launch_began_in_it_where_we_split_off_the_launch(
    answers_of: dict[str, Any], name: str
) -> None:
    """By stream: their host wait is the gaps in which the next launch began, from end to start."""
    trace = read_trace(path_of(name))
    work = device_work(trace)
    for stream in np.unique(work.stream).tolist():
        selected = np.flatnonzero(work.stream == stream)
        before, after = selected[:-1], selected[1:]
        gap = work.start[after] - work.end[before]
        launched_within = work.linked[after] & (trace.events.ts[work.call[after]] > work.end[before])
        theirs = answers_of[name]["gaps"].get(f"{stream % 2**32} host_wait", 0.0)
        assert theirs == pytest.approx(int(gap[launched_within].sum()) / 1000, rel=1e-4, abs=1), stream


def test_hta_takes_host_ops_with_a_stream_for_kernels_and_drops_what_was_launched_before_the_window(
    answers_of: dict[str, Any],
) -> None:
    """Both in one trace of 2025: so its compute time exceeds what kernels cover, and its collectives are too few."""
    trace = read_trace(path_of(STREAMED_OPS))
    work, rows = device_work(trace), dict(answers_of[STREAMED_OPS]["rows"])
    assert rows.pop("cpu_op") == 1460
    linked = trace.events.category[work.rows[work.linked]]
    ours = {"kernel": Category.KERNEL, "gpu_memcpy": Category.MEMCPY, "gpu_memset": Category.MEMSET}
    assert rows == {key: int((linked == category).sum()) for key, category in ours.items()}
    assert len(work) - int(work.linked.sum()) == 354
    assert answers_of[STREAMED_OPS]["compute"] * 1000 > measure(kinds(trace)[0])
