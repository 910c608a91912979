"""What a step spends on kernels that only copy elements to another type, as autocast does: by line and module."""

from __future__ import annotations

import numpy as np

from traceq.facts.events.device_work import device_work
from traceq.facts.events.graph_replays import graph_replays
from traceq.facts.events.kernel_labels import kernel_labels
from traceq.facts.events.nesting import tracks
from traceq.facts.memo import once_per_trace
from traceq.facts.timeline.line_parts import lines_of_work, outermost_ops
from traceq.facts.timeline.main_lines import main_lines
from traceq.facts.timeline.modules import modules, modules_of_work
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import step_of_work, steps
from traceq.frozen import frozen
from traceq.grouping import group
from traceq.model import Trace

__all__ = ["Cast", "casts"]


@frozen
class Cast:
    """Kernels that copy elements from one type to another one, of one place; `source` is "" where it is not recorded.

    `op` is the outermost op around the launch: an op of the model, as `aten::linear`, where autocast casts its inputs;
    `aten::to` where the program does. `line` and `module` are of the forward pass, "" where unknown. `steps_num` and
    `steps_ns` are of each counted step, by the step that launched the kernels; ns adds up their own times.
    """

    source: str
    target: str
    phase: str
    op: str
    line: str
    module: str
    steps_num: tuple[int, ...]
    steps_ns: tuple[int, ...]


@once_per_trace
def casts(trace: Trace) -> tuple[Cast, ...]:
    """Return the casts of the counted steps, the longest first; those fused into other kernels cost nothing apart.

    Types are those of the inputs of `aten::copy_`. Where these are not recorded, only the casts count that a kernel's
    name tells, which are those of contiguous tensors.
    """
    work, labels, all_steps = device_work(trace), kernel_labels(trace), steps(trace)
    is_cast = np.array([copied is not None and copied.is_cast for copied in labels.copies], np.bool_)
    counted = np.flatnonzero(all_steps.counted)
    step = np.append(np.where(all_steps.counted, np.cumsum(all_steps.counted) - 1, -1), -1)[step_of_work(trace)]
    chosen = np.flatnonzero((step >= 0) & is_cast[labels.label])
    call = graph_replays(trace).calls(work.call)[chosen]
    op, _ = outermost_ops(trace, np.where(call >= 0, tracks(trace)[call], -1), trace.events.ts[call])
    places = [phases(trace).work_phase[chosen], op, lines_of_work(trace)[chosen], modules_of_work(trace)[chosen]]
    groups = group([labels.label[chosen], *places])
    cell = groups.group_ids * len(counted) + step[chosen]
    num = np.bincount(cell, minlength=len(groups.keys) * len(counted)).reshape(-1, len(counted))
    ns = np.zeros(num.size, np.int64)
    np.add.at(ns, cell, (work.end - work.start)[chosen])
    strings, paths = [*trace.events.strings, ""], [*modules(trace).paths, ""]
    rows = []
    for keys, each_num, each_ns in zip(groups.keys.tolist(), num.tolist(), ns.reshape(num.shape).tolist(), strict=True):
        label, phase, op_name, line, module = keys
        copied = labels.copies[label]
        assert copied is not None
        place = phases(trace).names[phase], strings[op_name], main_lines(trace).texts[line], paths[module]
        rows.append(Cast(copied.source, copied.target, *place, tuple(each_num), tuple(each_ns)))
    return tuple(sorted(rows, key=lambda row: -sum(row.steps_ns)))
