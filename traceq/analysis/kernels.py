"""Which kernels take most of the device's time?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from traceq.analysis import sentences
from traceq.analysis._basis import holds_in_steps, on_the_worst_rank
from traceq.analysis._rank_rows import largest_sums, of_all
from traceq.analysis._wording import more_rows, over_ranks
from traceq.claims.claim import AT_MOST, Claim, Subject, measured
from traceq.claims.limits import MODERATE
from traceq.facts.events.device_work import device_work
from traceq.facts.events.graph_replays import graph_replays
from traceq.facts.events.kernel_names import kernel_labels, short_kernel
from traceq.facts.events.kernels import launched_kernels
from traceq.facts.events.nesting import tracks
from traceq.facts.memo import once_per_trace
from traceq.facts.ranks.job import Job
from traceq.facts.timeline.main_lines import lines_of_work, main_lines, outermost_ops
from traceq.facts.timeline.modules import modules, modules_of_work
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import step_of_work, steps
from traceq.facts.timeline.time_partition import share_base
from traceq.frozen import frozen
from traceq.grouping import group
from traceq.model import Trace
from traceq.report import Report, Table, column
from traceq.units import Unit, format_value

_TOP, _MANY_TINY = 6, 0.1


@frozen
class KernelRow:
    """Kernels of one name that one phase launched."""

    key: str = column("key")
    rank: int = column("rank", Unit.COUNT)
    phase: str = column("phase")
    name: str = column("kernel")
    short: str = column("short name")
    """What it does: `copy fp32->bf16`."""
    num: int = column("num", Unit.COUNT)
    gpu_ns: int = column("GPU time", Unit.NS)


@frozen
class _Sum:
    """Variants of one kernel in one phase, over all ranks; without a share, as claims have that of a step."""

    phase: str = column("phase")
    name: str = column("kernel")
    num: int = column("num", Unit.COUNT)
    gpu_ns: int = column("GPU time", Unit.NS)


@frozen
class _Rank:
    """One rank's rows, the number of its kernels, and of those that are tiny; its claim on casts."""

    rows: tuple[KernelRow, ...]
    num: int
    num_tiny: int
    casts: Claim | None


def summarize(trace: Trace) -> _Rank:
    """Return kernels by phase and name, longest first, over the whole trace."""
    tiny = launched_kernels(trace).tiny
    return _Rank(tuple(_rows(trace)), len(tiny), int(tiny.sum()), _casts(trace))


def merge(job: Job, parts: Sequence[_Rank]) -> Report:
    """Return the rows of all ranks; people see sums over them, with variants of one kernel as one."""
    rows = of_all(parts)
    table = Table.of("kernels", "Kernels", KernelRow, rows)
    claims = on_the_worst_rank(job, (part.casts for part in parts))
    return Report("kernels", (table,), (_view(job, rows, parts),) if rows else (), claims)


def _casts(trace: Trace) -> Claim | None:
    """Return the claim that kernels which only cast elements take a part of most steps, with the longest of a place."""
    all_casts = casts(trace)
    if not all_casts:
        return None
    by_step = np.array([cast.steps_ns for cast in all_casts], np.float64).sum(axis=0)
    base, ns = share_base(trace), round(float(by_step.mean()))
    if by_step.sum() < MODERATE * base.ns.sum() or not holds_in_steps(by_step, base.ns, 100 * MODERATE):
        return None
    longest = all_casts[0]
    measures = measured(
        time_ns=ns,
        share_pct=100 * float(by_step.sum() / base.ns.sum()),
        share_of=base.share_of,
        casts_mean=float(np.mean([sum(num) for num in zip(*(cast.steps_num for cast in all_casts), strict=True)])),
        longest_ns=round(float(np.mean(longest.steps_ns))) if longest.line or longest.module else None,
        cast=f"{longest.source} to {longest.target}".strip(),
    )
    subject = Subject(phase=longest.phase, line=longest.line, op=longest.op, module=longest.module)
    return Claim("casts", ns, subject, measures, (0, ns), AT_MOST)


def _rows(trace: Trace) -> list[KernelRow]:
    kernels, events, labels, does = launched_kernels(trace), trace.events, phases(trace), kernel_labels(trace)
    name = events.name[device_work(trace).rows[kernels.work]]
    groups = group([labels.work_phase[kernels.work], name, does.label[kernels.work]])
    rows = []
    for keys, *sums in zip(groups.keys.tolist(), groups.count(), groups.sum(kernels.ns), strict=True):
        phase, full, short = labels.names[keys[0]], events.strings[keys[1]], does.names[keys[2]]
        key = f"{phase}|{full}" if short == short_kernel(full).strip() else f"{phase}|{full}|{short}"
        rows.append(KernelRow(key, trace.rank, phase, full, short, *sums))
    return sorted(rows, key=lambda row: (-row.gpu_ns, row.phase, row.name))


def _view(job: Job, rows: Sequence[KernelRow], parts: Sequence[_Rank]) -> Table:
    """Return the longest kernels, and how many are tiny."""
    longest = largest_sums(rows, lambda row: (row.phase, row.short), lambda row: (row.num, row.gpu_ns))
    shown = [_Sum(*names, num, ns) for names, (num, ns) in longest[:_TOP]]
    note = f"{_tiny(parts)} {more_rows(len(longest) - _TOP)}".strip()
    return Table.of("kernels", f"Kernels ({over_ranks(job)})", _Sum, shown, note=note)


def _tiny(parts: Sequence[_Rank]) -> str:
    """Return the share of tiny kernels; "" where they are few."""
    num, num_tiny = sum(part.num for part in parts), sum(part.num_tiny for part in parts)
    if not num or num_tiny / num < _MANY_TINY:
        return ""
    share = format_value(100 * num_tiny / num, Unit.PERCENT)
    return sentences.TINY.format(share=share, num=num)


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
