"""How does the optimizer step, and what would fusing it give back?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceq.analysis._parts import Part, of_all
from traceq.analysis._worst_rank import on_the_worst_rank
from traceq.facts.events.device_work import device_work
from traceq.facts.events.name_patterns import matching
from traceq.facts.events.nesting import tracks
from traceq.facts.memo import once_per_trace
from traceq.facts.ranks.job import Job
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import IDLE, TimeCategory, activity, in_counted_steps
from traceq.intervals import Spans, contains, spans
from traceq.model import Category, Trace
from traceq.report import Cell, Column, Finding, Report, Table
from traceq.units import Unit, format_value

POSITION = 66

_TELLING_PCT = 10.0
_COLUMNS = (
    Column("rank", "rank", Unit.COUNT),
    Column("name", "optimizer"),
    Column("implementation", "implementation"),
    Column("num", "calls", Unit.COUNT),
    Column("host_ns", "host", Unit.NS),
    Column("num_gpu_ops", "GPU ops", Unit.COUNT),
    Column("window_ns", "of the steps", Unit.NS),
)
_STEP = re.compile(r"^Optimizer\.step#(?P<name>.*?)(\.step)?$")
_IMPLEMENTATIONS = (
    ("fused", re.compile(r"^aten::_fused_|fused_?(adam|sgd|adagrad|lamb)|multi_tensor_(adam|sgd|lamb)", re.IGNORECASE)),
    ("compiled", re.compile(r"Torch-Compiled Region|CompiledFxGraph|TorchDynamo|^triton_")),
    ("foreach", re.compile(r"^aten::_foreach_")),
)
_UNFUSED = ("foreach", "for-loop")
_CAN_FUSE = ("Adam", "AdamW", "SGD", "Adagrad")
"""Optimizers of torch that know `fused=True`."""


@dataclass(frozen=True, slots=True)
class _Optimizer:
    """One optimizer of one rank; `window_ns` is its part of the counted steps' windows."""

    rank: int
    name: str
    implementation: str
    num: int
    host_ns: int
    num_gpu_ops: int
    window_ns: int

    @property
    def cells(self) -> tuple[Cell, ...]:
        return tuple(getattr(self, column.key) for column in _COLUMNS)


def summarize(trace: Trace) -> Part[tuple[Cell, ...]]:
    """Optimizers of a rank, by `Optimizer.step#*` ranges: fused, compiled, foreach or a loop over tensors."""
    return Part(tuple(found.cells for found in _optimizers(trace)), _unfused(trace))


def merge(job: Job, parts: Sequence[Part[tuple[Cell, ...]]]) -> Report:
    """The optimizers of all ranks, and the rank that fusing gives most."""
    table = Table("optimizers", "Optimizers", _COLUMNS, of_all(parts))
    return Report("optimizer", (table,), findings=on_the_worst_rank(job, (part.finding for part in parts)))


@once_per_trace
def _optimizers(trace: Trace) -> tuple[_Optimizer, ...]:
    events = trace.events
    rows = events.rows(Category.ANNOTATION, Category.CPU_OP)
    rows = rows[matching(events, rows, _STEP)]
    names, first = np.unique(events.name[rows], return_index=True)
    return tuple(_optimizer(trace, rows[events.name[rows] == name]) for name in names[np.argsort(first)].tolist())


def _optimizer(trace: Trace, rows: NDArray[np.int64]) -> _Optimizer:
    events, work = trace.events, device_work(trace)
    track = int(tracks(trace)[rows[0]])
    inside = spans(events.ts[rows], events.end[rows])
    launched = work.linked & (tracks(trace)[work.call] == track) & contains(inside, events.ts[work.call])
    ops = events.rows(Category.CPU_OP, Category.ANNOTATION)
    ops = ops[(tracks(trace)[ops] == track) & contains(inside, events.ts[ops])]
    ran = np.r_[np.setdiff1d(ops, rows, assume_unique=True), work.rows[launched]]
    found = _STEP.match(events.text(int(rows[0])))
    name = found["name"] if found else ""
    return _Optimizer(
        rank=trace.rank,
        name=name,
        implementation="fused" if name.startswith("Fused") else _implementation(trace, ran),
        num=len(rows),
        host_ns=int(events.dur[rows].sum()),
        num_gpu_ops=int(launched.sum()),
        window_ns=_window_ns(trace, inside, launched),
    )


def _implementation(trace: Trace, ran: NDArray[np.int64]) -> str:
    """By the ops and kernels that ran."""
    kinds = [name for name, pattern in _IMPLEMENTATIONS if matching(trace.events, ran, pattern).any()]
    return kinds[0] if kinds else "for-loop" if len(ran) else "unknown"


def _window_ns(trace: Trace, inside: Spans, launched: NDArray[np.bool_]) -> int:
    """Time of the counted windows in which work of the optimizer runs, or nothing runs while the host is in it."""
    done = activity(trace)
    idle = done.among(*(code for code in IDLE if code is not TimeCategory.LAUNCH_LATENCY)) | (done.owner < 0)
    of_work = launched[done.owner] if len(launched) else np.zeros(len(idle), np.bool_)
    mine = np.where(idle, contains(inside, done.parts[:, 0]), of_work)
    return int(done.ns[mine & in_counted_steps(trace)].sum())


def _unfused(trace: Trace) -> Finding | None:
    """One that torch could fuse takes more than 10 % of the step, and is not fused."""
    known = steps(trace)
    window = known.window[known.counted]
    slow = [found for found in _optimizers(trace) if found.name in _CAN_FUSE and found.implementation in _UNFUSED]
    found, whole_ns = max(slow, key=lambda each: each.window_ns, default=None), int(np.diff(window).sum())
    if not known.marked or found is None or 100 * found.window_ns <= _TELLING_PCT * whole_ns:
        return None
    each_ns = round(found.window_ns / len(window))
    share = format_value(100 * found.window_ns / whole_ns, Unit.PERCENT)
    text = (
        f"unfused optimizer: {found.name} takes {format_value(each_ns, Unit.NS)} a step ({share}) and runs as "
        f"{found.implementation}: {found.name}(..., fused=True) gives back a part of that at most"
    )
    return Finding("unfused_optimizer", "medium", text, each_ns)
