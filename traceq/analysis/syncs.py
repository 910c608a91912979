"""Where does the host wait for the device, what does it cost, and which line of Python causes it?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

import numpy as np

from traceq.analysis import sentences
from traceq.analysis._basis import in_vain, job_gain, mean_step_ns, recurs, slack_by_rank, step_lengths
from traceq.analysis._rank_rows import each_of, of_all
from traceq.analysis._wording import in_traced_steps, more_rows, over_ranks, per_step, values_words, with_step_headings
from traceq.causes.removed_waits import (
    alike_syncs,
    is_of_measurement,
    saved_without_alike,
    saved_without_place,
    sync_keys,
)
from traceq.causes.savings import Saving
from traceq.claims.claim import BY_JOB_REPLAY, BY_REPLAY, Basis, Claim, Subject, by_step, in_some_steps, measured
from traceq.claims.limits import NOTABLE, NOTHING
from traceq.claims.saying import plain_phase
from traceq.facts.events.device_work import lacks_device_rows
from traceq.facts.ranks.job import Job
from traceq.facts.stalls.syncs import (
    SYNC_KINDS,
    allocates_once,
    blocked_on_record,
    is_in_graph_capture,
    num_returned_before,
    syncs,
)
from traceq.facts.timeline.modules import modules
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import steps
from traceq.frozen import frozen
from traceq.grouping import group
from traceq.intervals import span_index
from traceq.model import Trace
from traceq.report import Report, Table, column
from traceq.units import Unit
from traceq.whatif.interventions import WithoutSyncs
from traceq.whatif.predict import is_replayed

_TOP = 8
_MOST_FINDINGS = 3
_FREE_PART = 0.1
"""Part of a wait that its removal may save at most if it is called free."""
_COSTLY, _MAY_COST, _FREE, _HARMLESS, _UNKNOWN = "costly", "may_cost", "waits_but_free", "harmless", "unknown"
_SCALAR, _ALLOC = "scalar", "alloc"
_CAPTURE, _MEASUREMENT = "graph_capture", "measurement"
_VIEW = (
    *("kind", "line", "op", "module", "phase", "num"),
    *("step_blocked_ns", "step_unrecorded_ns", "replay_ns", "most_replay_ns", "label"),
)


@frozen
class SyncRow:
    """Syncs of one kind, op, line, module and phase."""

    key: str = column("key")
    rank: int = column("rank", Unit.COUNT)
    kind: str = column("kind")
    """`dtoh`, `htod`, `stream`, `event`, `device`, `alloc`, `scalar`."""
    op: str = column("op")
    call: str = column("call")
    phase: str = column("phase")
    line: str = column("line")
    module: str = column("module")
    num: int = column("num", Unit.COUNT)
    bytes: int = column("bytes", Unit.BYTES)
    blocked_ns: int = column("blocked in all", Unit.NS)
    wait_ns: int = column("waited", Unit.NS)
    """Until the awaited work ended."""
    return_ns: int = column("returned", Unit.NS)
    """From then until the call returns."""
    starved_ns: int = column("starved", Unit.NS)
    """Idle time of the device after it."""
    cost_ns: int = column("device idle after", Unit.NS)
    """Part of `starved_ns` that the host causes."""
    step_blocked_ns: int = column("blocked", Unit.NS, is_per_step=True)
    step_unrecorded_ns: int = column("unrecorded", Unit.NS, is_per_step=True)
    """Of `step_blocked_ns`, waits for unrecorded work."""
    replay_ns: int | None = column("saves", Unit.NS, is_per_step=True)
    """Cost: a step without it is at least this much shorter."""
    most_replay_ns: int | None = column("at most", Unit.NS, is_per_step=True)
    label: str = column("effect")
    """`costly`, `may_cost`, `waits_but_free`, `harmless`; `unknown` where too little is recorded."""
    once: str = column("once")
    """Why it does not recur: `graph_capture`, `pool_growth`, `pool_refill`, `first_use`, `measurement`, or ""."""
    num_steps: int = column("steps with one", Unit.COUNT)
    num_returned: int = 0
    """Times that the rank returned memory to the driver before them."""
    of_place: Saving | None = None
    """What a step saves without all syncs of this kind and phase at this line, or by this op or call; None: unknown."""
    steps_num: tuple[int, ...] = ()
    """By step, as the others."""
    steps_blocked_ns: tuple[int, ...] = ()
    steps_recorded_ns: tuple[int, ...] = ()
    """Blocked, without waits for unrecorded work."""
    steps_saved_ns: tuple[int, ...] = ()

    @property
    def saved_ns(self) -> int:
        """What is known to be saved without them, ns per step."""
        return self.replay_ns or 0

    @property
    def recorded_ns(self) -> int:
        """For how long they block the host without waits for unrecorded work, ns per step."""
        return self.step_blocked_ns - self.step_unrecorded_ns


@frozen
class StepRow:
    """Syncs of one kind issued in one step, None between steps."""

    rank: int = column("rank", Unit.COUNT)
    step: int | None = column("step", Unit.COUNT)
    kind: str = column("kind")
    num: int = column("num", Unit.COUNT)
    bytes: int = column("bytes", Unit.BYTES)
    blocked_ns: int = column("blocked", Unit.NS)


@frozen
class _PerStep:
    """Syncs of one place in a counted step of the rank where they matter most."""

    kind: str = column("kind")
    line: str = column("where")
    phase: str = column("phase")
    num: str = column("syncs", Unit.COUNT)
    step_blocked_ns: int = column("blocks", Unit.NS)
    replay_ns: int | None = column("saves", Unit.NS)


@frozen
class _Rank:
    rows: tuple[SyncRow, ...]
    steps: tuple[StepRow, ...]


def summarize(trace: Trace) -> _Rank:
    """Return syncs by kind, op, line and phase, what a step without each row saves, and syncs by step."""
    return _Rank(tuple(_rows(trace)), tuple(_step_rows(trace)))


def merge(job: Job, parts: Sequence[_Rank]) -> Report:
    """Return the rows of all ranks; people see each sync on the rank where it matters most, as findings do."""
    rows = of_all(parts)
    tables = (
        Table.of("syncs", "Syncs", SyncRow, rows),
        Table.of("syncs_steps", "Syncs by step", StepRow, each_of(parts, lambda part: part.steps)),
    )
    views, first = (_view(job, rows),) if rows else (), (_per_step(job, rows),) if job.ranks else ()
    return Report("syncs", tables, views, tuple(_findings(job, rows)), first=first)


def _step_rows(trace: Trace) -> Iterator[StepRow]:
    waits, all_steps = syncs(trace), steps(trace)
    groups = group([all_steps.issued(waits.start), waits.kind])
    sums = zip(groups.count(), groups.sum(waits.bytes), groups.sum(waits.blocked), strict=True)
    for (index, kind), (num, size_bytes, blocked_ns) in zip(groups.keys.tolist(), sums, strict=True):
        number = int(all_steps.number[index]) if index >= 0 else None
        yield StepRow(trace.rank, number, SYNC_KINDS[kind], num, size_bytes, blocked_ns)


def _rows(trace: Trace) -> list[SyncRow]:
    waits, names, strings = syncs(trace), phases(trace).names, trace.events.strings
    texts, paths = waits.origin.texts, modules(trace).paths
    groups, keys = alike_syncs(trace), sync_keys(trace)
    host = steps(trace).host[steps(trace).counted]
    step = span_index(host, waits.start)
    in_steps = step >= 0
    cell, num_cells = groups.group_ids[in_steps] * len(host) + step[in_steps], len(groups.keys) * len(host)
    steps_num = np.bincount(cell, minlength=num_cells).reshape(-1, len(host))
    num_steps = np.count_nonzero(steps_num, axis=1).tolist()
    num, size, savings = groups.count(), groups.sum(waits.bytes), saved_without_alike(trace)
    of_places = saved_without_place(trace)
    blocked_ns, wait_ns = groups.sum(waits.blocked), groups.sum(waits.wait)
    starved_ns, cost_ns = groups.sum(waits.starved), groups.sum(waits.cost)
    on_record = blocked_on_record(trace)
    recorded_wait_ns = groups.sum(np.minimum(waits.wait, on_record))
    steps_blocked_ns, steps_recorded_ns = (
        np.bincount(cell, ns[in_steps], num_cells).reshape(-1, len(host)).astype(np.int64)
        for ns in (waits.blocked, on_record)
    )
    calls: list[list[str]] = [[] for _ in num]
    by_call = group([groups.group_ids, trace.events.name[waits.rows]])
    for index, name in by_call.keys[np.argsort(by_call.first)].tolist():
        calls[index].append(strings[name])
    allocates, captured_ns = allocates_once(trace), groups.sum(np.where(is_in_graph_capture(trace), waits.blocked, 0))
    measures, num_returned = is_of_measurement(trace), num_returned_before(trace)
    captures = [2 * ns > all_ns for ns, all_ns in zip(captured_ns, blocked_ns, strict=True)]
    rows = []
    for index, (kind_code, op_text, line_text, path, phase_number) in enumerate(groups.keys.tolist()):
        kind, op, line = SYNC_KINDS[kind_code], texts[op_text], texts[line_text]
        module_path, phase = paths[path] if path >= 0 else "", names[phase_number]
        step_ns, step_recorded_ns = (
            round(int(ns[index].sum()) / len(host)) for ns in (steps_blocked_ns, steps_recorded_ns)
        )
        label = _label(trace, recorded_wait_ns[index], step_ns - step_recorded_ns, savings[index])
        rows.append(
            SyncRow(
                key=keys[index],
                rank=trace.rank,
                kind=kind,
                op=op,
                call="" if kind == _SCALAR else ", ".join(calls[index]),
                phase=phase,
                line=line,
                module=module_path,
                num=num[index],
                bytes=size[index],
                blocked_ns=blocked_ns[index],
                wait_ns=wait_ns[index],
                return_ns=blocked_ns[index] - wait_ns[index],
                starved_ns=starved_ns[index],
                cost_ns=cost_ns[index],
                step_blocked_ns=step_ns,
                step_unrecorded_ns=step_ns - step_recorded_ns,
                replay_ns=None if label == _UNKNOWN else savings[index].least_ns,
                most_replay_ns=None if label == _UNKNOWN else savings[index].most_ns,
                label=label,
                once=_once(kind, allocates, is_capture=captures[index], is_measurement=bool(measures[index])),
                num_steps=num_steps[index],
                num_returned=num_returned,
                of_place=None if label == _UNKNOWN else of_places[index],
                steps_num=tuple(steps_num[index].tolist()),
                steps_blocked_ns=tuple(steps_blocked_ns[index].tolist()),
                steps_recorded_ns=tuple(steps_recorded_ns[index].tolist()),
                steps_saved_ns=savings[index].steps_ns,
            )
        )
    return sorted(rows, key=lambda row: (-row.cost_ns, -row.blocked_ns, row.key))


def _once(kind: str, allocates: str, *, is_capture: bool, is_measurement: bool) -> str:
    if kind == _ALLOC and allocates:
        return allocates
    return _CAPTURE if is_capture else _MEASUREMENT if is_measurement else ""


def _label(trace: Trace, wait_ns: int, unrecorded_ns: int, saving: Saving) -> str:
    """Return what removing some syncs saves per step, in a word.

    `wait_ns`: they wait for recorded work, over all steps; `unrecorded_ns`: for other work, per step. Replay keeps such
    a wait, as it is not known what the host would do meanwhile.
    """
    if lacks_device_rows(trace) or not is_replayed(trace):
        return _UNKNOWN
    windows = steps(trace).window
    is_long_wait = wait_ns >= NOTHING * int((windows[:, 1] - windows[:, 0]).sum())
    step_ns = mean_step_ns(steps(trace))
    if saving.least_ns > 0 and saving.least_ns >= NOTHING * step_ns:
        return _COSTLY
    if unrecorded_ns >= NOTABLE * step_ns:
        return _UNKNOWN
    if saving.most_ns - saving.least_ns >= NOTABLE * step_ns:
        return _MAY_COST
    is_free = saving.least_ns * len(windows) < _FREE_PART * wait_ns
    return _FREE if is_long_wait and is_free else _HARMLESS


def _view(job: Job, rows: Sequence[SyncRow]) -> Table:
    """Return rows of one key as one, those that save most first, with the times per step of their worst rank."""
    num: Counter[str] = Counter()
    for row in rows:
        num[row.key] += row.num
    worst = [replace(row, num=num[row.key], op=row.op or row.call) for row in _worst(rows)]
    shown = [replace(row, label=row.label.replace("_", " ")) for row in worst[:_TOP]]
    is_cpu_only = all(row.kind == _SCALAR for row in rows)
    is_lost = any(rank.lacks_device_rows for rank in job.ranks)
    about = sentences.SYNCS_TOGETHER if len(worst) > 1 else ""
    if is_cpu_only:
        about = sentences.READS_UNKNOWN if is_lost else sentences.READS
    note = f"{about.format(num=sum(num.values()))} {more_rows(len(worst) - _TOP)}".strip()
    scope = sentences.SYNCS_OF_RANKS.format(of=over_ranks(job)) if len(job.ranks) > 1 else over_ranks(job)
    view = Table.of("syncs", f"Syncs ({scope})", SyncRow, shown, note=note).select(*_VIEW)
    unknown = ("replay_ns", "most_replay_ns", "label") if is_lost else ("replay_ns", "most_replay_ns")
    step_ns = {rank.rank: mean_step_ns(rank.steps) for rank in job.ranks}
    is_range = any((row.most_replay_ns or 0) - row.saved_ns >= NOTABLE * step_ns[row.rank] for row in shown)
    hidden = unknown if is_cpu_only else () if is_range else ("most_replay_ns",)
    recorded = () if any(row.step_unrecorded_ns for row in shown) else ("step_unrecorded_ns",)
    of_modules = () if _of_several_modules(shown) else ("module",)
    return with_step_headings(view.without(*hidden, *recorded, *of_modules), job)


def _per_step(job: Job, rows: Sequence[SyncRow]) -> Table:
    """Return the syncs of a counted step by place, those that save most first; a title says so where there are none."""
    title = f"Syncs {per_step(job.ranks[0].steps)}" if job.ranks[0].steps.marked else "Syncs"
    if any(rank.lacks_device_rows for rank in job.ranks):
        return Table("syncs", sentences.SYNCS_UNKNOWN.format(title=title), (), ())
    in_steps = [row for row in rows if row.num_steps]
    if not in_steps:
        return Table("syncs", sentences.NONE_RECORDED.format(title=title, in_steps=in_traced_steps(job)), (), ())
    places: dict[tuple[str, str, str], list[SyncRow]] = {}
    for row in _worst(in_steps):
        places.setdefault(_place(row), []).append(row)
    shown = [
        _PerStep(
            *place,
            num=values_words(_sums_by_step(alike), Unit.COUNT),
            step_blocked_ns=sum(row.step_blocked_ns for row in alike),
            replay_ns=max((row.of_place.least_ns for row in alike if row.of_place and not row.once), default=None),
        )
        for place, alike in places.items()
    ]
    shown.sort(key=lambda place: (-(place.replay_ns or 0), -place.step_blocked_ns))
    allocations = [row for row in in_steps if row.kind == _ALLOC]
    total = _num_words(job, [row for row in in_steps if row.kind != _ALLOC])
    is_on_cpu = all(row.kind == _SCALAR for row in in_steps)
    basis = sentences.READS_ON_CPU.format(s="s" * (total != "1")) * is_on_cpu
    if allocations:
        num = _num_words(job, allocations)
        basis = sentences.AND_ALLOCATIONS.format(num=num, s="s" * (num != "1"))
    worst = sentences.ON_WORST_RANK if len(job.ranks) > 1 and len(shown) > 1 else ""
    view = Table.of("syncs", f"{title}: {total}{basis}{worst}", _PerStep, shown)
    return view.without("replay_ns") if is_on_cpu else view


def _place(row: SyncRow) -> tuple[str, str, str]:
    """Return what a reader changes: the kind of a sync, its line, or op or call without one, and its phase."""
    return row.kind, row.line or row.op or row.call, plain_phase(row.phase)


def _by_place(rows: Sequence[SyncRow]) -> list[tuple[SyncRow, tuple[str, ...]]]:
    """Return the rows of each place on a rank as one, with their keys: in its own, what they differ in is empty."""
    places: dict[tuple[int, tuple[str, str, str]], list[SyncRow]] = {}
    for row in rows:
        places.setdefault((row.rank, _place(row)), []).append(row)
    return [(_joined(alike), tuple(row.key for row in alike)) for alike in places.values()]


def _joined(alike: Sequence[SyncRow]) -> SyncRow:
    longest = max(alike, key=lambda row: row.step_blocked_ns)
    saving = next((row.of_place for row in alike if row.of_place is not None), None)
    if len(alike) == 1 or saving is None:
        return longest
    named = zip(*((row.kind, row.op, row.line, row.module, row.phase) for row in alike), strict=True)

    def by_step(of_rows: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
        return tuple(map(sum, zip(*of_rows, strict=True)))

    steps_num = by_step(row.steps_num for row in alike)
    return replace(
        longest,
        key="|".join(texts[0] if len(set(texts)) == 1 else "" for texts in named),
        num=sum(row.num for row in alike),
        step_blocked_ns=sum(row.step_blocked_ns for row in alike),
        step_unrecorded_ns=sum(row.step_unrecorded_ns for row in alike),
        replay_ns=saving.least_ns,
        most_replay_ns=saving.most_ns,
        num_steps=sum(num > 0 for num in steps_num),
        steps_num=steps_num,
        steps_blocked_ns=by_step(row.steps_blocked_ns for row in alike),
        steps_recorded_ns=by_step(row.steps_recorded_ns for row in alike),
        steps_saved_ns=saving.steps_ns,
    )


def _num_words(job: Job, rows: Sequence[SyncRow]) -> str:
    """Return how many syncs some rows are in a step of a rank: `4`, `4 or 10`, `none`."""
    of_ranks = ([row for row in rows if row.rank == rank.rank] for rank in job.ranks)
    return (
        values_words([num for alike in of_ranks for num in _sums_by_step(alike) or [0]], Unit.COUNT) if rows else "none"
    )


def _sums_by_step(rows: Sequence[SyncRow]) -> list[int]:
    """Return how many syncs some rows have together in each counted step of a rank."""
    return [sum(nums) for nums in zip(*(row.steps_num for row in rows), strict=False)]


def _of_several_modules(rows: Sequence[SyncRow]) -> set[str]:
    """Return the keys of rows that only the module tells from another one."""
    keys: dict[tuple[str, str, str, str, str], set[str]] = {}
    for row in rows:
        keys.setdefault((row.kind, row.line, row.op, row.call, row.phase), set()).add(row.key)
    return {key for alike in keys.values() if len(alike) > 1 for key in alike}


def _worst(
    rows: Iterable[SyncRow],
    slack_ns: Mapping[int, float] | None = None,
    *,
    of: Callable[[SyncRow], object] = attrgetter("key"),
) -> list[SyncRow]:
    """Return the row of each key, or `of` each place, on the rank where it saves most, by savings, then time blocked.

    With `slack_ns`, by rank, savings count as far as they exceed what the rank waits for others anyway.
    """
    worst, slack_ns = dict[object, SyncRow](), slack_ns or {}

    def order(row: SyncRow) -> tuple[float, int, str, int]:
        return slack_ns.get(row.rank, 0.0) - row.saved_ns, -row.step_blocked_ns, row.key, row.rank

    for row in sorted(rows, key=order):
        worst.setdefault(of(row), row)
    return list(worst.values())


def _findings(job: Job, rows: Sequence[SyncRow]) -> list[Claim]:
    """Return syncs whose removal shortens a step, then a long wait that may stay; each on its worst rank.

    Those of one place are one. Both hold in most steps; of what a process does once the finding says that it does not
    recur.
    """
    of_places = _by_place(rows)
    rows, keys = [row for row, _ in of_places], {(row.rank, row.key): keys for row, keys in of_places}
    step_ns = {rank.rank: mean_step_ns(rank.steps) for rank in job.ranks}
    lengths_of = {rank.rank: step_lengths(rank.steps) for rank in job.ranks}

    def recurs_in_steps(row: SyncRow, steps_ns: Sequence[int], least_part: float) -> bool:
        in_most = 2 * row.num_steps > len(steps_ns)  # what one step loses, a replay may save in the next
        return bool(row.once) or (in_most and recurs(steps_ns, lengths_of[row.rank], 100 * least_part))

    slack_ns = slack_by_rank(job)
    saving = [row for row in rows if row.saved_ns > 0 and row.saved_ns >= NOTHING * step_ns[row.rank]]
    costly_places = set(map(_place, saving))
    blocking = _worst((row for row in rows if row.once != _MEASUREMENT), of=_place)
    blocking.sort(key=lambda row: -row.recorded_ns)
    replayed = (row for row in blocking if row.kind != _SCALAR and _place(row) not in costly_places)  # with a device
    free = [
        row
        for row in replayed
        if row.recorded_ns >= NOTABLE * step_ns[row.rank]
        and row.label not in (_MAY_COST, _UNKNOWN)
        and recurs_in_steps(row, row.steps_recorded_ns, NOTABLE)
    ]
    steady = (row for row in saving if recurs_in_steps(row, row.steps_saved_ns, NOTHING))
    most = _worst(steady, slack_ns, of=_place)[:_MOST_FINDINGS]
    costly = (_costly(job, row, keys[row.rank, row.key], slack_ns.get(row.rank, 0.0)) for row in most)
    return [*costly, *(_claim("free_sync", job, row) for row in free[:1])]


def _costly(job: Job, row: SyncRow, keys: tuple[str, ...], slack_ns: float) -> Claim:
    """Return the claim on syncs of some rows: what all ranks gain, or its own where those cannot be replayed together.

    There a rank that others do not wait for would only wait longer itself.
    """
    claim = _claim("costly_allocation" if row.kind == _ALLOC else "costly_sync", job, row)
    if (gain := job_gain(job, WithoutSyncs(keys=keys))) is not None:
        return replace(claim, gain=gain.saved_ns, gain_by=BY_JOB_REPLAY)
    return in_vain(claim, slack_ns) if slack_ns >= row.saved_ns else claim


def _claim(code: str, job: Job, row: SyncRow) -> Claim:
    """Return a claim on a sync, with what its rank alone gains without it."""
    steps_of = next(rank.steps for rank in job.ranks if rank.rank == row.rank)
    counted, window_ns = int(steps_of.counted.sum()), round(mean_step_ns(steps_of))
    subject = Subject(
        rank=row.rank if len(job.ranks) > 1 else None,
        phase=row.phase,
        line=row.line,
        op=row.op or row.call,
        kind=row.kind,
        key=row.key,
    )
    measures = measured(
        blocked_ns=row.step_blocked_ns,
        unrecorded_ns=row.step_unrecorded_ns or None,
        window_ns=None if steps_of.marked or row.step_blocked_ns <= window_ns else window_ns,
        num_returned=row.num_returned or None,
        once=row.once,
        **by_step("blocked", row.steps_blocked_ns),
        **in_some_steps(row.num_steps, counted),
    )
    gain = row.saved_ns, max(row.most_replay_ns or 0, row.saved_ns)
    return Claim(code, row.saved_ns, subject, measures, gain, BY_REPLAY, basis=Basis(counted * steps_of.marked))
