"""Does the step wait for its data?"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from traceq.analysis._parts import Part, of_all
from traceq.analysis._worst_rank import on_the_worst_rank
from traceq.facts.events.device_work import device_work
from traceq.facts.events.name_patterns import matching
from traceq.facts.events.nesting import tracks
from traceq.facts.memo import once_per_trace
from traceq.facts.ranks.job import Job
from traceq.facts.timeline.data_loading import LOADER
from traceq.facts.timeline.steps import main_track, steps
from traceq.facts.timeline.time_partition import IDLE, activity
from traceq.intervals import Spans, intersect, measure_common, measure_within, spans
from traceq.model import Category, Trace
from traceq.report import Column, Finding, Report, Table
from traceq.units import Unit, format_value

POSITION = 25

_STARVED_PCT = 5.0
_LOADS = re.compile(rf"^{LOADER}|^(## )?data_?load", re.IGNORECASE)
_COLUMNS = (
    Column("rank", "rank", Unit.COUNT),
    Column("step", "step", Unit.COUNT),
    Column("wait_ns", "host waits", Unit.NS),
    Column("idle_ns", "device idles meanwhile", Unit.NS),
)

_Row = tuple[int, int, int, int]


def summarize(trace: Trace) -> Part[_Row]:
    """Time of each step that its main thread is in the data loader, and in which of it the device has nothing to do."""
    return Part(tuple(_rows(trace)), _starved(trace))


def merge(job: Job, parts: Sequence[Part[_Row]]) -> Report:
    """The rows of all ranks, and the rank that waits longest."""
    found = on_the_worst_rank(job, (part.finding for part in parts))
    return Report("dataload", (Table("dataload", "Data loader", _COLUMNS, of_all(parts)),), findings=found)


@once_per_trace
def _loading(trace: Trace) -> Spans:
    """When the main thread asks for the next batch."""
    events = trace.events
    rows = events.rows(Category.ANNOTATION, Category.CPU_OP)
    rows = rows[matching(events, rows, _LOADS) & (tracks(trace)[rows] == main_track(trace))]
    return spans(events.ts[rows], events.end[rows])


def _idle(trace: Trace) -> Spans:
    """When nothing runs because of the loader: with a device while that idles, else for as long as it takes."""
    if len(device_work(trace)) == 0:
        return _loading(trace)
    return intersect(_loading(trace), activity(trace).when(*IDLE))


def _rows(trace: Trace) -> list[_Row]:
    if len(_loading(trace)) == 0:
        return []
    host, window = steps(trace).host, steps(trace).window
    wait = measure_within(_loading(trace), host[:, 0], host[:, 1])
    idle = measure_within(_idle(trace), window[:, 0], window[:, 1])
    return [(trace.rank, step, *ns) for step, ns in enumerate(np.column_stack([wait, idle]).tolist())]


def _starved(trace: Trace) -> Finding | None:
    """The loader holds up the step for more than 5 % of it."""
    known = steps(trace)
    window = known.window[known.counted]
    idle_ns, whole_ns = measure_common(_idle(trace), spans(window[:, 0], window[:, 1])), int(np.diff(window).sum())
    if not known.marked or 100 * idle_ns <= _STARVED_PCT * whole_ns:
        return None
    each_ns = round(idle_ns / len(window))
    share = format_value(100 * idle_ns / whole_ns, Unit.PERCENT)
    text = (
        f"starved: the step waits {format_value(each_ns, Unit.NS)} ({share}) for the data loader: more workers, "
        "a larger prefetch_factor, or less work for each sample"
    )
    return Finding("starved", "high", text, each_ns, instead_of=("host_bound", "dataload_wait"))
