"""What causes the idle time of the device, and the time in which it only waits in a kernel?"""

from __future__ import annotations

from collections.abc import Sequence

from traceq.analysis import sentences
from traceq.analysis._basis import mean_step_ns
from traceq.analysis._rank_rows import of_all
from traceq.analysis._wording import a_step, more_rows, python_or_host, python_place, with_step_headings
from traceq.claims.limits import FEW
from traceq.facts.ranks.job import Job
from traceq.facts.stalls.idle_time import IdleCause, idleness
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import TimeCategory
from traceq.frozen import frozen
from traceq.grouping import group
from traceq.model import Trace
from traceq.report import Report, Table, column
from traceq.units import Unit, format_value

_TOP, _ALL_ELSE = 6, "all else"
_ONCE = IdleCause.ONCE.name.lower()


@frozen
class IdleRow:
    """Idle time of counted steps with one cause, op, line and phase."""

    key: str = column("key")
    rank: int = column("rank", Unit.COUNT)
    cause: str = column("cause")
    """`sync`, `allocation`, `data loader`, `host op`, `python`, `launch queue`, `end`, `spin wait`, `host`,
    `compiling`, `once`, `host pause`.
    """
    category: str = column("category")
    phase: str = column("phase")
    op: str = column("op")
    line: str = column("line")
    num: int = column("gaps", Unit.COUNT)
    dur_ns: int = column("time", Unit.NS)
    step_ns: int = column("", Unit.NS, is_per_step=True)
    longest_ns: int = column("longest", Unit.NS)


@frozen
class _Mean:
    """Rows of one cause, op, line and phase, mean over ranks; `num` is their sum, `share` in percent of the step.

    The last row may be all others, of which `num` is None.
    """

    cause: str = column("cause")
    op: str = column("op")
    line: str = column("line")
    phase: str = column("phase")
    num: int | None = column("gaps", Unit.COUNT)
    step_ns: float = column("", Unit.NS, is_per_step=True)
    longest_ns: int = column("longest", Unit.NS)
    share: float = column("share", Unit.PERCENT)


@frozen
class _Rank:
    """One rank's rows, and the mean length of its counted steps."""

    rows: tuple[IdleRow, ...]
    step_ns: float


def summarize(trace: Trace) -> _Rank:
    """Return idle time by cause, op, line and phase; it adds up to the idle categories of the partition.

    A gap in which several things happen counts for each, with the part that each fills.
    """
    return _Rank(tuple(_rows(trace)), mean_step_ns(steps(trace)))


def merge(job: Job, parts: Sequence[_Rank]) -> Report:
    """Return the rows of all ranks; people see the mean over them, but not the host's of a device that is missing."""
    rows = of_all(parts)
    step_ns, idle_ns = sum(part.step_ns for part in parts), sum(row.step_ns for row in rows)
    is_lost = any(rank.lacks_device_rows for rank in job.ranks) and not any(rank.has_device for rank in job.ranks)
    is_shown = rows and idle_ns >= FEW * step_ns and not is_lost and not job.is_foreign
    view = (_view(job, rows, idle_ns, step_ns),) if is_shown else ()
    return Report("idle", (Table.of("idle", "Idle time", IdleRow, rows),), view)


def _rows(trace: Trace) -> list[IdleRow]:
    idle, phase_names = idleness(trace), phases(trace).names
    ns = idle.parts[:, 1] - idle.parts[:, 0]
    groups = group([idle.cause, idle.category, idle.phase, idle.name, idle.line])
    num, longest = groups.by_part(idle.gap, ns)
    num_steps = int(steps(trace).counted.sum())
    rows = []
    for index, total_ns in enumerate(groups.sum(ns)):
        cause, category, phase, op, line = groups.keys[index].tolist()
        names = (
            IdleCause(cause).name.lower().replace("_", " "),
            TimeCategory(category).name.lower(),
            phase_names[phase],
            idle.texts[op],
            idle.texts[line],
        )
        step_ns = round(total_ns / num_steps)
        rows.append(IdleRow("|".join(names), trace.rank, *names, num[index], total_ns, step_ns, longest[index]))
    return sorted(rows, key=lambda row: (-row.dur_ns, row.key))


def _with_all_else(
    largest: Sequence[tuple[tuple[str, str, str, str], Sequence[int]]],
) -> list[tuple[tuple[str, str, str, str], tuple[int | None, int, int]]]:
    """Return the first rows, and one for all others, so that they add up to the idle time.

    Several of these may have a part in one gap: how many gaps they fill is not their sum.
    """
    num_named = _TOP if len(largest) <= _TOP else _TOP - 1
    named = [(identity, (num, ns, longest_ns)) for identity, (num, ns, longest_ns) in largest[:num_named]]
    if not (rest := [sums for _, sums in largest[num_named:]]):
        return list(named)
    _, ns, longest_ns = zip(*rest, strict=True)
    return [*named, ((_ALL_ELSE, "", "", ""), (None, sum(ns), max(longest_ns)))]


def _view(job: Job, rows: Sequence[IdleRow], idle_ns: float, step_ns: float) -> Table:
    """Return the largest rows, mean over ranks; `idle_ns` and `step_ns` are sums over ranks."""
    sums: dict[tuple[str, str, str, str], list[int]] = {}
    for row in rows:
        op, cause = row.op, row.cause
        if cause == "python":
            op, cause = python_place(op), python_or_host(row.line)
        total = sums.setdefault((cause, op, row.line, row.phase), [0, 0, 0])
        total[:] = total[0] + row.num, total[1] + row.step_ns, max(total[2], row.longest_ns)
    largest = sorted(sums.items(), key=lambda item: -item[1][1])
    num_ranks = len(job.ranks)
    shown = [
        _Mean(*identity, num, ns / num_ranks, longest_ns, 100 * ns / step_ns)
        for identity, (num, ns, longest_ns) in _with_all_else(largest)
    ]
    more = more_rows(len(largest) - _TOP + 1) if len(largest) > _TOP else ""
    once_ns = sum(row.step_ns for row in rows if row.cause == _ONCE)  # work of the device and ops, too
    text = sentences.IDLE["device" if any(rank.has_device for rank in job.ranks) else "host"]
    idle = format_value((idle_ns - once_ns) / num_ranks, Unit.NS)
    share = format_value(100 * (idle_ns - once_ns) / step_ns, Unit.PERCENT) + sentences.BESIDE_ONCE * bool(once_ns)
    note = f"{text.format(idle=idle, a_step=a_step(job.ranks[0].steps), share=share)} {more}".strip()
    mean = " (mean of ranks)" if num_ranks > 1 else ""
    return with_step_headings(Table.of("idle", f"Idle time by cause{mean}", _Mean, shown, note=note), job)
