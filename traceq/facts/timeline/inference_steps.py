"""Time of each step of an inference engine, on the device where there is one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import device_work
from traceq.facts.events.graph_replays import graph_replays, is_capture_known
from traceq.facts.memo import once_per_trace
from traceq.facts.timeline.inference_marks import inference_marks
from traceq.facts.timeline.steps import steps
from traceq.frozen import frozen
from traceq.intervals import sorted_unique, span_index
from traceq.model import Trace


@frozen(eq=False)
class InferenceSteps:
    """K steps of an inference engine by start.

    `kind` int64[K] into STEP_KINDS; `batch`, `tokens` int64[K], -1 = not told; `ns` int64[K]: until the device has
    finished the step, from when the host began it, or the device had finished what came before, if that is later;
    `host_ns` int64[K] as the host ran it; `gpu_ns`, `replay_ns` int64[K]: sums of the durations of the work launched in
    it, of that part which replays of CUDA graphs launched, and of that part of it whose capture is known
    (`captured_ns`); `num_replays` int64[K]. `counted` bool[K]: not a first
    step that waits for work launched before it.
    """

    kind: NDArray[np.int64]
    batch: NDArray[np.int64]
    tokens: NDArray[np.int64]
    ns: NDArray[np.int64]
    host_ns: NDArray[np.int64]
    gpu_ns: NDArray[np.int64]
    replay_ns: NDArray[np.int64]
    captured_ns: NDArray[np.int64]
    num_replays: NDArray[np.int64]
    counted: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.kind)


@once_per_trace
def inference_steps(trace: Trace) -> InferenceSteps:
    """Return the steps; none in a trace of another kind of program."""
    marks, work, events = inference_marks(trace), device_work(trace), trace.events
    begin, host_end = events.ts[marks.rows], events.end[marks.rows]
    host = np.column_stack([begin, host_end])
    step = np.where(work.linked, span_index(host, events.ts[work.call]), -1)
    inside = np.flatnonzero(step >= 0)
    replays = inside[graph_replays(trace).replayed[inside]]
    captured = replays[is_capture_known(trace)[replays]]
    calls = sorted_unique(work.call[replays])
    duration, size = work.end - work.start, len(marks)
    ends = host_end.copy() if len(work) == 0 else begin.copy()
    np.maximum.at(ends, step[inside], work.end[inside])
    earlier = work.end[work.before_window]
    opens_ns = steps(trace).opens_ns
    first = np.r_[earlier, [] if opens_ns is None else [opens_ns]].max(initial=np.iinfo(np.int64).min)
    since = np.maximum(begin, np.maximum.accumulate(np.r_[np.int64(first), ends])[:-1]) if size else begin
    has_earlier = np.zeros(size, np.bool_)
    has_earlier[:1] = len(earlier) > 0 and size > 1
    return InferenceSteps(
        kind=marks.kind,
        batch=marks.batch,
        tokens=marks.tokens,
        ns=np.maximum(ends - since, 0),
        host_ns=host_end - begin,
        gpu_ns=_sums(step[inside], duration[inside], size),
        replay_ns=_sums(step[replays], duration[replays], size),
        captured_ns=_sums(step[captured], duration[captured], size),
        num_replays=np.bincount(span_index(host, events.ts[calls]), minlength=size).astype(np.int64),
        counted=~has_earlier,
    )


def _sums(step: NDArray[np.int64], ns: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    sums = np.zeros(size, np.int64)
    np.add.at(sums, step, ns)
    return sums
