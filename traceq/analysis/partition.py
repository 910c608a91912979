"""What is every nanosecond of a step spent on? The cells add up to the step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traceq.analysis import sentences
from traceq.analysis._basis import on_the_worst_rank
from traceq.analysis._lost_time import RankLoss, StepTimes, first_collective_caveats, rank_loss, time_claims
from traceq.analysis._wording import (
    MOST_RANKS,
    a_step,
    category_heading,
    more_rows,
    plain_phase,
)
from traceq.analysis.perturbation import much_longer_words
from traceq.claims.claim import Claim, Measure, in_some_steps, measured
from traceq.claims.limits import LARGE, MODERATE, MUCH
from traceq.facts.events.device_work import device_work
from traceq.facts.events.unrecorded_work import missing_ops_share
from traceq.facts.ranks.exposed_waits import (
    EXPOSED_TRANSFER,
    EXPOSED_WAIT,
    ExposedPieces,
    exposed_pieces,
    exposed_waiting_times,
    waiting_times,
)
from traceq.facts.ranks.job import Job
from traceq.facts.stalls.idle_time import lost_once
from traceq.facts.timeline.data_loading import LOADING
from traceq.facts.timeline.once import OnceKind
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import (
    BUSY,
    TimeCategory,
    activity,
    in_counted_steps,
    lost_once_ns,
    share_base,
)
from traceq.frozen import frozen
from traceq.grouping import group
from traceq.intervals import Spans, measure_within, span_index
from traceq.model import Trace
from traceq.report import Cell, Column, Report, Table, Unknown, column
from traceq.units import Unit, bar

_CATEGORIES = tuple(category.name.lower() for category in TimeCategory)
_EXPOSED = TimeCategory.EXPOSED_COMM.name.lower()
_IN_ORDER = tuple(
    each for name in _CATEGORIES for each in ((name, EXPOSED_WAIT, EXPOSED_TRANSFER) if name == _EXPOSED else (name,))
)

_REST = "rest"
"""Name of the smallest categories together, where there is no room for each."""
_CPU_COMPUTE = TimeCategory.CPU_COMPUTE.name.lower()
_OF_HOST = (_CPU_COMPUTE, TimeCategory.PYTHON.name.lower())
"""Categories of a main thread without a device that waits for nothing."""
_LOADER = TimeCategory.DATALOAD_WAIT.name.lower()
_COMPUTES = (TimeCategory.COMPUTE.name.lower(), _CPU_COMPUTE)
"""Categories that are shown however small they are."""
_SHORT_NAME = 12
"""Characters of a phase's name up to which five columns of times fit beside it."""
_MEASURES = {
    OnceKind.DEVICE_START: ("device_start_ns", "device_start_of"),
    OnceKind.LIBRARY_START: ("library_start_ns", "library_start_of"),
    OnceKind.KERNEL_LOADING: ("kernel_loading_ns", "kernel_loading_of"),
    OnceKind.GRAPH_CAPTURE: ("graph_capture_ns", "graph_capture_of"),
    OnceKind.PROFILER: ("profiler_ns", "profiler_of"),
    OnceKind.FIRST_CALL: ("first_calls_ns", "first_calls_of"),
    OnceKind.COMPILING: ("compiling_ns", "compiling_of"),
    OnceKind.PAUSE: ("pause_ns", "pause_before"),
    OnceKind.LOADER_START: ("loader_start_ns", "loader_start_of"),
}
"""Of a kind its time, and the call or op that has most of it; of a pause what follows."""


@frozen
class PartitionRow:
    """Time of one category in one phase of one step; they add up to its `window_ns`."""

    index: int
    rank: int = column("rank", Unit.COUNT)
    step: int = column("step", Unit.COUNT)
    phase: str = column("phase")
    category: str = column("category")
    """`compute`, `exposed_comm` or with several ranks `exposed_wait` and `exposed_transfer`, `exposed_memcpy`,
    `sync_wait`, `alloc_wait`, `host_bound`, `launch_latency`, `tail`, `unrecorded`, `spin_wait`, `compiling`, `once`;
    on a CPU `cpu_compute`, `exposed_comm`, `dataload_wait`, `python`, `compiling`, `once`.
    """
    dur_ns: int = column("time", Unit.NS)


@frozen
class _Mean:
    """Time of one category in one phase, mean over the counted steps of one rank."""

    rank: int
    phase: str
    category: str
    ns: float


@frozen
class _Rank:
    """One rank's rows, its exposed communication, what is known of its losses, and the claim on what is once.

    `in_order`: its phases in the main thread's order. Of a sample of its events (`is_sample`) the trace does not tell
    when the device is idle, or what runs beside what.
    """

    rows: tuple[PartitionRow, ...]
    exposed: ExposedPieces
    loss: RankLoss
    in_order: tuple[str, ...]
    cold_start: Claim | None
    is_sample: bool


@frozen(eq=False)
class _Matrix:
    """Time by line and category: `ns` float64[L, C]."""

    lines: tuple[str, ...]
    categories: tuple[str, ...]
    ns: NDArray[np.float64]

    def columns(self, job: Job, heading: str) -> tuple[Column, ...]:
        """Columns of the lines' names, the categories and the total; ops may wait for a device without rows."""
        terms = {_CPU_COMPUTE: "in ops"} if any(rank.lacks_device_rows for rank in job.ranks) else {}
        categories = (Column(name, terms.get(name, category_heading(name)), Unit.NS) for name in self.categories)
        return (Column(heading, heading), *categories, Column("total", "total", Unit.NS))

    @property
    def rows(self) -> list[tuple[Cell, ...]]:
        """A row of cells for each line, empty where it has no time."""
        values = zip(self.lines, self.ns.tolist(), strict=True)
        return [(line, *(ns or None for ns in row), sum(row)) for line, row in values]


def summarize(trace: Trace) -> _Rank:
    """Return the exact partition of every window by phase and category."""
    return _Rank(
        rows=tuple(_rows(trace)),
        exposed=exposed_pieces(trace),
        loss=rank_loss(trace),
        in_order=phases(trace).in_order,
        cold_start=_cold_start(trace),
        is_sample=missing_ops_share(trace) > 0,
    )


def merge(job: Job, parts: Sequence[_Rank]) -> Report:
    """Return the rows of all ranks; people see means over them, and ranks that differ."""
    waiting, waiting_first = exposed_waiting_times(job), waiting_times(job, "first")
    rows: list[PartitionRow] = []
    first_waits: list[PartitionRow] = []
    losses, once, order, is_sample = list[RankLoss](), list[Claim | None](), dict[str, None](), False
    for rank, part in zip(job.ranks, parts, strict=True):  # parts may be read anew on each iteration
        rows += _waits_apart(part, waiting.get(rank.rank))
        if (in_first := waiting_first.get(rank.rank)) is not None:
            waits = part.exposed.waits_by_step_and_phase(in_first).items()
            first_waits += [PartitionRow(step, rank.rank, step, phase, EXPOSED_WAIT, ns) for (step, phase), ns in waits]
        losses.append(part.loss)
        once.append(part.cold_start)
        order |= dict.fromkeys(part.in_order)
        is_sample |= part.is_sample
    means = _means(job, rows)
    table = Table.of("partition", "Partition", PartitionRow, tuple(rows))
    if not rows or job.is_foreign:
        return Report("partition", (table,))
    views = (_by_phase(job, means, list(order)), *_by_rank(job, means))
    lacks_kernels = any(rank.lacks_device_rows and not rank.has_counters for rank in job.ranks)
    report = Report(
        "partition",
        (table,),
        views,
        unknown=(Unknown("kernels", "ProfilerActivity.CUDA"),) if lacks_kernels else (),
        first=(_by_phase(job, means, list(order), in_short=True), *_by_rank(job, means, in_short=True)),
    )
    if is_sample:
        return report
    by_step = _by_step(job, rows)
    of_first = _by_step(job, first_waits).get(EXPOSED_WAIT)
    num_steps = max(map(len, by_step.values()), default=0)
    times = StepTimes(by_step, np.zeros(num_steps) if of_first is None else of_first, _by_category_and_rank(job, rows))
    claims = (*on_the_worst_rank(job, once), *time_claims(job, times, losses))
    return replace(report, findings=claims, caveats=first_collective_caveats(job, times))


def _waits_apart(part: _Rank, waiting: Spans | None) -> Iterator[PartitionRow]:
    """Yield a rank's rows, exposed communication as waiting and transfer where it is known when it is `waiting`."""
    if waiting is None:
        yield from part.rows
        return
    waits = part.exposed.waits_by_step_and_phase(waiting)
    for row in part.rows:
        if row.category == _EXPOSED:
            wait_ns = waits.get((row.index, row.phase), 0)
            split = ((EXPOSED_WAIT, wait_ns), (EXPOSED_TRANSFER, row.dur_ns - wait_ns))
            yield from (replace(row, category=category, dur_ns=ns) for category, ns in split if ns)
        else:
            yield row


def _rows(trace: Trace) -> list[PartitionRow]:
    pieces = activity(trace)
    step = span_index(steps(trace).window, pieces.parts[:, 0])
    inside = step >= 0
    cells = group([step[inside], pieces.phase[inside], pieces.category[inside]])
    names, sums = phases(trace).names, cells.sum(pieces.ns[inside])
    number = steps(trace).number.tolist()
    return [
        PartitionRow(index, trace.rank, number[index], names[phase], _CATEGORIES[category], ns)
        for (index, phase, category), ns in zip(cells.keys.tolist(), sums, strict=True)
    ]


def _means(job: Job, rows: Sequence[PartitionRow]) -> list[_Mean]:
    counted = {rank.rank: set(np.flatnonzero(rank.steps.counted).tolist()) for rank in job.ranks}
    sums: dict[tuple[int, str, str], int] = defaultdict(int)
    for row in rows:
        if row.index in counted[row.rank]:
            sums[row.rank, row.phase, row.category] += row.dur_ns
    return [_Mean(rank, phase, category, ns / len(counted[rank])) for (rank, phase, category), ns in sums.items()]


def _by_step(job: Job, rows: Sequence[PartitionRow]) -> dict[str, NDArray[np.float64]]:
    """float64[K] ns by category: the n-th counted steps of all ranks, their mean; of ranks with fewer, as many."""
    counted = {rank.rank: np.flatnonzero(rank.steps.counted).tolist() for rank in job.ranks}
    position = {rank: {step: index for index, step in enumerate(steps_)} for rank, steps_ in counted.items()}
    num_steps = max(map(len, counted.values()), default=0)
    of_ranks = np.zeros(num_steps)
    for steps_ in counted.values():
        of_ranks[: len(steps_)] += 1
    sums: dict[str, NDArray[np.float64]] = defaultdict(lambda: np.zeros(num_steps))
    for row in rows:
        if (index := position[row.rank].get(row.index)) is not None:
            sums[_lost_category(row)][index] += row.dur_ns
    return {category: ns / of_ranks for category, ns in sums.items()}


def _by_category_and_rank(job: Job, rows: Sequence[PartitionRow]) -> dict[str, dict[int, int]]:
    """Ns of each rank's mean counted step, by the categories of `_by_step`."""
    counted = {rank.rank: set(np.flatnonzero(rank.steps.counted).tolist()) for rank in job.ranks}
    sums: dict[str, dict[int, int]] = defaultdict(lambda: dict.fromkeys(counted, 0))
    for row in rows:
        if row.index in counted[row.rank]:
            sums[_lost_category(row)][row.rank] += row.dur_ns
    return {
        name: {rank: round(ns / len(counted[rank])) for rank, ns in of_ranks.items()} for name, of_ranks in sums.items()
    }


def _lost_category(row: PartitionRow) -> str:
    """Return a row's category: what a main thread without a device does in the loader, in ops as well, is its wait."""
    return _LOADER if row.phase in LOADING and row.category in _OF_HOST else row.category


def _by_phase(job: Job, means: Sequence[_Mean], order: Sequence[str], *, in_short: bool = False) -> Table:
    """Ns of a step by phase and category, mean over ranks; with totals and shares where there are several phases.

    `in_short`: the smallest categories are one, the `rest`, such that a terminal of 80 columns has room for all.
    """
    cells = sorted(_in_short(means) if in_short else means, key=lambda mean: order.index(mean.phase))
    name = plain_phase if in_short else str
    matrix = _matrix((name(mean.phase), mean.category, mean.ns / len(job.ranks)) for mean in cells)
    basis = ["mean of ranks"] if len(job.ranks) > 1 else []
    basis += [f"traced steps{longer}"] if (longer := much_longer_words(job)) else []
    in_brackets = f" ({'; '.join(basis)})" if basis else ""
    title = sentences.BY_PHASE.format(whole=_heading(job), basis=in_brackets)
    columns, rows, whole_ns = matrix.columns(job, "phase"), matrix.rows, float(matrix.ns.sum())
    if len(rows) > 1:
        shares = (100 * matrix.ns.sum(axis=1) / whole_ns).tolist()
        columns = (*columns, Column("share", "share", Unit.PERCENT), Column("bar", ""))
        rows = [(*row, share, bar(share)) for row, share in zip(rows, shares, strict=True)]
        rows.append(("total", *matrix.ns.sum(axis=0).tolist(), whole_ns, 100.0, ""))
    view = Table("partition", title, columns, tuple(rows))
    return view.without("bar") if in_short else view


def _in_short(means: Sequence[_Mean]) -> Sequence[_Mean]:
    sums: dict[str, float] = defaultdict(float)
    for mean in means:
        sums[mean.category] += mean.ns
    most = 5 if all(len(plain_phase(mean.phase)) <= _SHORT_NAME for mean in means) else 4
    by_size = sorted((category for category in sums if category not in _COMPUTES), key=lambda category: sums[category])
    smallest = by_size[: len(sums) - most + 1] if len(sums) > most else []
    return [replace(mean, category=_REST) if mean.category in smallest else mean for mean in means]


def _by_rank(job: Job, means: Sequence[_Mean], *, in_short: bool = False) -> tuple[Table, ...]:
    """Ns of a step by rank and category, if ranks differ; `in_short` as by phase."""
    cells = _in_short(means) if in_short else means
    matrix = _matrix((f"rank {mean.rank}", mean.category, mean.ns) for mean in cells)
    if len(matrix.lines) < 2:
        return ()
    total = matrix.ns.sum(axis=1)
    if max(np.ptp(matrix.ns, axis=0).max(), np.ptp(total)) < MODERATE * total.mean():
        return ()
    longest = np.sort(np.argsort(-total, kind="stable")[:MOST_RANKS]).tolist()
    rows = matrix.rows
    note = more_rows(len(rows) - len(longest))
    shown = tuple(rows[index] for index in longest)
    title = sentences.BY_RANK.format(whole=_heading(job))
    return (Table("partition_ranks", title, matrix.columns(job, "rank"), shown, note=note),)


def _heading(job: Job) -> str:
    """Return `A step`, or `A step of the host` where a trace lacks the rows of the job's device."""
    whole = a_step(job.ranks[0].steps).capitalize()
    return f"{whole} of the host" if any(rank.lacks_device_rows for rank in job.ranks) else whole


def _matrix(cells: Iterable[tuple[str, str, float]]) -> _Matrix:
    """Return sums with one line for each first and one column for each second element of (line, category, ns)."""
    sums: dict[tuple[str, str], float] = defaultdict(float)
    for line, category, ns in cells:
        sums[line, category] += ns
    lines = tuple(dict.fromkeys(line for line, _ in sums))
    present = {category for _, category in sums}
    categories = tuple(category for category in (*_IN_ORDER, _REST) if category in present)
    values = np.array([sums.get((line, category), 0.0) for line in lines for category in categories], np.float64)
    return _Matrix(lines, categories, values.reshape(len(lines), len(categories)))


def _cold_start(trace: Trace) -> Claim | None:
    """Return a claim where the counted steps hold a good deal that is once; its ns are those of all of them."""
    if not share_base(trace).is_rest:
        return None
    lost, all_ns = lost_once(trace), lost_once_ns(trace)
    kinds = {each.kind for each in lost}
    windows = steps(trace).window[steps(trace).counted]
    num = int(np.count_nonzero(measure_within(activity(trace).when(TimeCategory.ONCE), *windows.T)))
    of_kinds: dict[str, Measure] = {}
    for each in lost:
        of_kinds |= zip(_MEASURES[each.kind], (each.ns, each.name), strict=True)
    measures = measured(
        what=None if kinds == {OnceKind.PROFILER} else "a pause" if kinds == {OnceKind.PAUSE} else "a cold start",
        once_ns=all_ns,
        **of_kinds,
        **in_some_steps(num, len(windows)),
        **_after(trace),
    )
    return Claim("cold_start", all_ns, measures=measures)


def _after(trace: Trace) -> dict[str, Measure]:
    """Return how busy the device is after the last long part that is once, shorter ones left out.

    Nothing without a device, or where little of what recurs is later.
    """
    if not len(device_work(trace)):
        return {}
    done, inside = activity(trace), in_counted_steps(trace)
    lost = done.parts[inside & (done.category == TimeCategory.ONCE)]
    long = lost[np.diff(lost)[:, 0] >= LARGE * lost_once_ns(trace)]
    recurs = inside & (done.category != TimeCategory.ONCE)
    later = recurs & (done.parts[:, 0] >= long[:, 1].max(initial=0))
    all_ns, ns, busy_ns = (int(done.ns[pieces].sum()) for pieces in (recurs, later, later & done.among(*BUSY)))
    return {"after_ns": ns, "busy_after_pct": 100 * busy_ns / ns} if ns > MUCH * all_ns else {}
