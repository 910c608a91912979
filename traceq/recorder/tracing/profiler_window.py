"""A profiled window: warm-up steps, then the recorded steps or calls, exported when the last one ends."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile, schedule, supported_activities

from traceq.errors import RecordingFailed
from traceq.locations import open_binary
from traceq.model import Category, Trace
from traceq.recorder.spec.phases import Phases
from traceq.recorder.tracing.line_marks import PREFIX, mark_running_line, marked_lines
from traceq.runs.embedded_recording import KEY
from traceq.runs.read import read
from traceq.runs.run_folder import atomic_write

_MARK = re.compile(rf"^{PREFIX}\d+ (?P<file>.*):(?P<line>\d+) (?P<function>.*)$")

WARMUP_STEPS = 2
_SETTLE_S = 0.05


@dataclass(frozen=True, slots=True)
class Window:
    """Settings of one trace. `embedded`: the text that the trace carries under the key `traceq`.

    `stacks`: record Python functions; `marks`: record Python lines (`line_marks`). `memory`: record allocations, and
    the last warm-up step, too, as the profiler tells when a block is freed only if it saw it allocated; torch prints a
    warning of others. `is_part`: the file is plain JSON, as the profiler writes it, to be joined with others.
    """

    path: Path
    num_steps: int
    embedded: str = ""
    stacks: bool = False
    marks: bool = False
    memory: bool = False
    is_part: bool = False

    @property
    def total_steps(self) -> int:
        """Steps to run, warm-up included."""
        return WARMUP_STEPS + self.num_steps


def check_no_profiler() -> None:
    """Raise RecordingFailed if a profiler is running: torch has one at a time."""
    if torch._C._autograd._profiler_enabled():
        raise RecordingFailed("another profiler is running, the loop's own? Disable it, or record without traces")


def profiled_steps(
    window: Window, device: torch.device, phases: Phases, is_wanted: Callable[[], bool] = lambda: True
) -> Generator[int, None, None]:
    """Yield the index of each step to run, warm-up included; the trace is on disk when the iterator ends.

    `is_wanted` is asked once the steps have run: without it nothing is written, which takes minutes for a step that
    evaluated. An iterator that is closed before stops the profiler, and writes nothing: its last step has no end.
    """
    check_no_profiler()
    profiler = _profiler(window, device, is_wanted)
    phases.profiling = True
    try:
        with profiler, marked_lines() if window.marks else nullcontext():
            try:
                for index in range(window.total_steps):
                    if window.marks:
                        mark_running_line()
                    yield index
                    profiler.step()
            except BaseException:
                profiler.on_trace_ready = None
                raise
    finally:
        phases.profiling = False


class _SettledProfile(profile):
    """A profiler that waits 50 ms before it starts and stops, so that other threads are idle.

    The profiler's Python tracer visits the thread states of the whole process. If a gloo thread enters or leaves a
    Python callback meanwhile, its thread state disappears and the process dies of SIGSEGV: 2 of 35 recordings did.
    """

    def start_trace(self) -> None:
        time.sleep(_SETTLE_S)
        super().start_trace()

    def stop_trace(self) -> None:
        time.sleep(_SETTLE_S)
        super().stop_trace()


def _profiler(window: Window, device: torch.device, is_wanted: Callable[[], bool]) -> profile:
    seen: set[ProfilerActivity] = supported_activities()  # type: ignore[no-untyped-call]
    sees_device = device.type == "cuda" and ProfilerActivity.CUDA in seen  # else torch would record an event at each op
    profiler = _SettledProfile(
        activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if sees_device else [])],
        schedule=schedule(
            wait=0, warmup=WARMUP_STEPS - window.memory, active=window.num_steps + window.memory, repeat=1
        ),
        on_trace_ready=lambda profiler: _export(profiler, window) if is_wanted() else None,
        record_shapes=not window.stacks,
        with_stack=window.stacks,
        profile_memory=window.memory,
        experimental_config=_experimental_config(device),
    )
    if window.embedded:
        profiler.preset_metadata_json(KEY, json.dumps(window.embedded))
    return profiler


def _experimental_config(device: torch.device) -> Any:
    """Enable sync events, which name the stream that a call waited for, if this torch supports them."""
    if device.type != "cuda":
        return None
    try:
        return torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True)
    except TypeError:  # an older torch
        return None


def _export(profiler: profile, window: Window) -> None:
    """Export, validate, compress and move the trace into place.

    Kineto writes invalid JSON if its path contains a quote, so it exports into a temporary folder.
    """
    window.path.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="traceq-") as folder:
        plain = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(plain))
        if window.is_part:
            shutil.move(plain, window.path)
            return
        if read_document(plain, window.path).get(KEY, "") != window.embedded:
            raise RecordingFailed(f"{window.path}: the profiler dropped the embedded metadata")
        with atomic_write(window.path) as part, open_binary(plain) as source, gzip.open(part, "wb", 5) as target:
            shutil.copyfileobj(source, target, 1 << 20)


def read_document(plain: Path, path: Path) -> dict[str, Any]:
    """Return what the profiler wrote of the trace at `path`; RecordingFailed if that is invalid JSON."""
    try:
        with open_binary(plain) as file:
            document: dict[str, Any] = json.load(file)
    except ValueError as error:
        raise RecordingFailed(f"{path}: the profiler wrote invalid JSON: {error}") from error
    return document


def profiled_calls(function: Callable[[], object], num_calls: int, path: Path) -> Trace:
    """Return the trace of `num_calls` calls after two warm-up calls; it is also written to `path`.

    Every line of user code is marked: counts and lines are exact, durations include the overhead of the marks.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with closing(profiled_steps(Window(path, num_calls, marks=True), device, Phases())) as calls:
        for _ in calls:
            function()
    (trace,) = read(path, strict=True).traces
    return _with_frames(trace)


def _with_frames(trace: Trace) -> Trace:
    """Return the trace with each mark as a Python frame until the next mark; all marks are on one thread."""
    events = trace.events
    frames = [_MARK.sub(r"\g<file>(\g<line>): \g<function>", text) for text in events.strings]
    is_mark = np.array([bool(_MARK.match(text)) for text in events.strings], np.bool_)
    rows = np.flatnonzero(is_mark[events.name])
    rows = rows[np.argsort(events.ts[rows], kind="stable")]
    category, dur = events.category.copy(), events.dur.copy()
    category[rows] = Category.PYTHON
    dur[rows] = np.diff(events.ts[rows], append=events.end.max())
    return replace(trace, events=replace(events, strings=tuple(frames), category=category, dur=dur))
