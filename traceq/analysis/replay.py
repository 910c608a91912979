"""How long would a step be without its syncs, its wait for the data loader, communication, or host time?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from traceq.analysis import sentences
from traceq.analysis._basis import in_vain, job_gain, played_job, recurs, slack_by_rank, step_lengths, unplayed_words
from traceq.analysis._rank_rows import of_all
from traceq.analysis._wording import a_step, the_step, until_done
from traceq.causes.removed_waits import LOADER, alike_syncs, kinds_of_waits, saved_without_place
from traceq.causes.replay import replay_of
from traceq.causes.savings import Saving
from traceq.claims.claim import BY_JOB_REPLAY, BY_REPLAY, Basis, Claim, Subject, measured
from traceq.claims.limits import FAR_MORE, FEW, MOST, NOTABLE, SHOWN
from traceq.facts.events.device_work import device_work, lacks_host_ops
from traceq.facts.ranks.job import Job
from traceq.facts.ranks.rank_outline import Outline
from traceq.facts.stalls.host_waits import host_waits
from traceq.facts.stalls.syncs import SYNC_KINDS, allocates_once, syncs
from traceq.facts.timeline.blocking_copies_and_syncs import SyncKind
from traceq.facts.timeline.call_sites import is_at_line
from traceq.facts.timeline.steps import steps
from traceq.frozen import frozen
from traceq.intervals import span_index
from traceq.model import Caveat, Run, Trace
from traceq.report import Report, Table, column
from traceq.units import Unit, format_range, format_value, name_ranks
from traceq.whatif.answers import change_table
from traceq.whatif.interventions import WithoutSyncs
from traceq.whatif.job_replay import CannotReplay, job_replay
from traceq.whatif.limits import MOST_UNREPLAYED
from traceq.whatif.predict import Change, best_changes, is_replayed, least_unreplayed_share, unreplayed_share

_NOTHING, _ALL, _LOADER, _BOTH = "nothing", "all syncs", "data loader", "syncs and data loader"
_AT_LINE = "--without sync:"
_COMMUNICATION, _HOST_TIME = "communication", "host time"

_GRAIN_PCT = 0.1
"""Percentage of a step from which the ends of what cannot be replayed are told apart."""


@frozen
class ReplayRow:
    """The mean counted step, replayed without some of its time."""

    rank: int = column("rank", Unit.COUNT, is_hidden=True)
    removed: str = column("without")
    """`nothing`, a kind of sync, `all syncs`, `data loader`, `communication`, `host time`."""
    num: int = column("num", Unit.COUNT)
    """Waits, collectives, or pieces of host time."""
    blocked_ns: int = column("takes", Unit.NS)
    saved_ns: int = column("saves", Unit.NS)
    """At least; for `nothing`: what replay cannot explain."""
    most_saved_ns: int = column("at most", Unit.NS)
    step_ns: int = column("remains", Unit.NS)
    steps_saved_ns: tuple[int, ...] = ()

    @property
    def observed_ns(self) -> int:
        """The step as it was, ns."""
        return self.saved_ns + self.step_ns


@frozen
class _Rank:
    """One rank's rows, ns by which its step is shorter without the syncs of the one place that saves most, and changes.

    These are those that would gain most, of a rank that is replayed alone; none if it cannot be replayed.
    `unreplayed_share` of its step cannot, at least `least_unreplayed_share`. `sync_lines` are those of the rows of
    `syncs`. `allocates_once`: why its allocations do not recur, "" where they may.
    """

    rows: tuple[ReplayRow, ...]
    largest_alone_ns: int
    changes: tuple[Change, ...]
    unreplayed_share: float
    least_unreplayed_share: float
    sync_lines: tuple[str, ...]
    allocates_once: str


def summarize(trace: Trace) -> _Rank:
    """Return step times by replay; the first row removes `nothing` and shows how well replay explains the trace."""
    largest_alone_ns = max((saving.least_ns for saving in saved_without_place(trace)), default=0)
    shares = unreplayed_share(trace), least_unreplayed_share(trace)
    lines = tuple(syncs(trace).origin.texts[line] for _, _, line, *_ in alike_syncs(trace).keys.tolist())
    return _Rank(tuple(_rows(trace)), largest_alone_ns, _changes(trace), *shares, lines, allocates_once(trace))


def merge(job: Job, parts: Sequence[_Rank]) -> Report:
    """Return the rows of all ranks; people see one of those on which removing something saves time.

    It is the one that waits least for others, whose own work makes the step as long as it is; where the waits are not
    known, the slowest.
    """
    table, caveats = Table.of("replay", "Replay", ReplayRow, of_all(parts)), _refused(job, parts)
    gains = parts[0].changes if len(parts) == 1 else ()
    if (replay := played_job(job)) is not None:  # of several ranks, that can be replayed together
        gains = tuple(prediction.together for prediction in best_changes(replay))
    changes = (_view_of_changes(job, parts, gains),) if gains else ()
    saving = [
        (rank, part)
        for rank, part in zip(job.ranks, parts, strict=True)
        if any(row.saved_ns >= SHOWN * row.observed_ns for row in part.rows[1:])
    ]
    if not saving:
        return Report("replay", (table,), changes, caveats=caveats)
    slack_ns = slack_by_rank(job)
    rank, part = min(saving, key=lambda pair: (slack_ns.get(pair[0].rank, inf), -pair[1].rows[0].observed_ns))
    claim, view = _claim(job, rank, part, slack_ns.get(rank.rank, 0.0)), _view(job, rank, part.rows, slack_ns)
    return Report("replay", (table,), (*changes, view), () if claim is None else (claim,), caveats)


def _refused(job: Job, parts: Sequence[_Rank]) -> tuple[Caveat, ...]:
    """Return a caveat on ranks of whose steps too much cannot be replayed: nothing is said of what they would save."""
    refused = [
        (part.least_unreplayed_share, part.unreplayed_share, rank)
        for rank, part in zip(job.ranks, parts, strict=True)
        if part.unreplayed_share > MOST_UNREPLAYED
    ]
    if not refused:
        return ()
    least, share, rank = max(refused, key=lambda each: each[:2])
    part = format_range(100 * least, 100 * share, Unit.PERCENT, grain=_GRAIN_PCT)
    most = f"{100 * MOST_UNREPLAYED:.0f} %"
    on_ranks = f" of {name_ranks([each.rank for *_, each in refused])}" if len(job.ranks) > 1 else ""
    text = sentences.NOT_REPLAYED.format(share=part, the_step=the_step(rank.steps), on_ranks=on_ranks, most=most)
    return (Caveat("not_replayed", text),)


def _rows(trace: Trace) -> list[ReplayRow]:
    replay, holds, counted = replay_of(trace), host_waits(trace), steps(trace).counted
    step_ns, unexplained_ns = round(float(replay.step_ns[counted].mean())), replay.unexplained_ns()
    in_steps = span_index(steps(trace).host[counted], holds.start) >= 0
    rows = [_row(trace.rank, _NOTHING, 0, 0, Saving(unexplained_ns, unexplained_ns), step_ns)]
    if not is_replayed(trace):
        return rows
    cases = _cases(trace)
    if cases:
        removed = np.array([selected for _, selected in cases])
        for (name, selected), saving in zip(cases, replay.saved_per_step(removed), strict=True):
            blocked_ns = round(int(holds.saves[selected & in_steps].sum()) / int(counted.sum()))
            rows.append(_row(trace.rank, name, int(selected.sum()), blocked_ns, saving, step_ns))
    if not len(device_work(trace)):
        return rows
    bounds = [(_COMMUNICATION, replay.communication, replay.without_communication)]
    if not lacks_host_ops(trace):  # else what the host does between its calls is unknown
        bounds.append((_HOST_TIME, replay.host_time, replay.without_host_time))
    for name, edges, without in bounds:
        taken_ns = round(int(replay.weight[edges].sum()) / int(counted.sum()))
        if taken_ns:
            rows.append(_row(trace.rank, name, len(edges), taken_ns, without, step_ns))
    return rows


def _changes(trace: Trace) -> tuple[Change, ...]:
    """Return the changes that would gain most on a rank alone, of one whose job has no others."""
    if trace.world_size > 1:
        return ()
    try:
        return tuple(prediction.together for prediction in best_changes(job_replay(Run(trace.path, (trace,)))))
    except CannotReplay:
        return ()


def _view_of_changes(job: Job, parts: Sequence[_Rank], changes: Sequence[Change]) -> Table:
    """Return what changes gain; a heading says where one removes several rows of `syncs`, which save less each."""
    together = [words for change in changes if (words := _rows_together(parts, change.option))]
    of_rows = f" ({'; '.join(together)})" if together else ""
    whole = a_step(job.ranks[0].steps).capitalize()
    return change_table(changes, sentences.CHANGES.format(whole=whole, of_rows=of_rows))


def _rows_together(parts: Sequence[_Rank], option: str) -> str:
    """Return `sync:train.py:9 is 2 rows of syncs together` for an option that removes more than one; "" for others."""
    line = option.removeprefix(_AT_LINE)
    num = max(sum(is_at_line(text, line) for text in part.sync_lines) for part in parts) if line != option else 0
    return sentences.ROWS_TOGETHER.format(line=line, num=num) if num > 1 else ""


def _row(rank: int, removed: str, num: int, blocked_ns: int, saving: Saving, step_ns: int) -> ReplayRow:
    remains_ns = step_ns - saving.least_ns
    return ReplayRow(rank, removed, num, blocked_ns, saving.least_ns, saving.most_ns, remains_ns, saving.steps_ns)


def _cases(trace: Trace) -> list[tuple[str, NDArray[np.bool_]]]:
    """Return what is removed together, as (name, which of the graph's holds).

    That is each kind of sync, all, the loader, and all of these.
    """
    kind = kinds_of_waits(trace)
    kinds = [(f"{name} syncs", kind == code) for code, name in enumerate(SYNC_KINDS) if (kind == code).any()]
    together = [(_ALL, kind >= 0)] if len(kinds) > 1 else []
    loader = [(_LOADER, kind == LOADER)] if (kind == LOADER).any() else []
    both = [(_BOTH, (kind >= 0) | (kind == LOADER))] if kinds and loader else []
    return [*kinds, *together, *loader, *both]


def _claim(job: Job, rank: Outline, part: _Rank, slack_ns: float) -> Claim | None:
    """Return a claim if all syncs together save far more than those of any one place.

    Often the host waits, without one, for the same work in the next.
    """
    removed = [row for row in part.rows[1:] if row.removed.endswith("syncs")]
    if not removed or not (together_ns := removed[-1].saved_ns):  # of all, the last row
        return None
    if together_ns < FEW * part.rows[0].observed_ns or together_ns < FAR_MORE * part.largest_alone_ns:
        return None
    if not recurs(removed[-1].steps_saved_ns, step_lengths(rank.steps), 100 * FEW):
        return None
    saved_ns = {row.removed: row.saved_ns for row in part.rows if row.removed != _BOTH or row.saved_ns > together_ns}
    of_kind, kind_ns = max(((row.removed, row.saved_ns) for row in removed if row.removed != _ALL), key=itemgetter(1))
    are_allocations = of_kind == f"{SYNC_KINDS[SyncKind.ALLOC]} syncs" and kind_ns >= MOST * together_ns
    measures = measured(
        together_ns=together_ns, alone_ns=part.largest_alone_ns, alone_pct=100 * part.largest_alone_ns / together_ns,
        of_kind=None if are_allocations else of_kind, kind_ns=kind_ns, kind_pct=100 * kind_ns / together_ns,
        allocations_pct=100 * kind_ns / together_ns if are_allocations else None,
        with_loader_ns=saved_ns.get(_BOTH), once=part.allocates_once if are_allocations else "",
    )  # fmt: skip
    subject = Subject(rank=rank.rank if len(job.ranks) > 1 else None)
    basis = Basis(int(rank.steps.counted.sum()) * rank.steps.marked)
    claim = Claim("joint_syncs", together_ns, subject, measures, basis=basis)
    if (gain := job_gain(job, WithoutSyncs())) is not None:
        of_job = {name: value for name, value in measures.items() if name != "with_loader_ns"}  # which is of this rank
        return replace(claim, measures=of_job, gain=gain.saved_ns, gain_by=BY_JOB_REPLAY)
    claim = replace(claim, gain=(together_ns, removed[-1].most_saved_ns), gain_by=BY_REPLAY)
    return in_vain(claim, slack_ns) if slack_ns >= together_ns else claim


def _which(rank: Outline, slack_ns: Mapping[int, float]) -> str:
    """Return why people see this rank: `which waits least for others`, or where that is not so, `the slowest`."""
    if not slack_ns:
        return sentences.WHICH_RANK["slowest"]
    return sentences.WHICH_RANK["waits least" if slack_ns.get(rank.rank) == 0 else "saves"]


def _view(job: Job, rank: Outline, rows: Sequence[ReplayRow], slack_ns: Mapping[int, float]) -> Table:
    on_rank = f" (rank {rank.rank}, {_which(rank, slack_ns)})" if len(job.ranks) > 1 else ""
    title = sentences.REPLAY.format(whole=a_step(rank.steps).capitalize(), on_rank=on_rank)
    is_range = any(row.most_saved_ns - row.saved_ns >= NOTABLE * row.observed_ns for row in rows)
    note = " ".join(filter(None, (_accuracy(rank, rows[0]), sentences.REPLAY_RANGE * is_range, unplayed_words(job))))
    view = Table.of("replay", title, ReplayRow, rows[1:], note=note).visible
    return view if is_range else view.without("most_saved_ns")


def _accuracy(rank: Outline, as_is: ReplayRow) -> str:
    """Return what limits the replay's accuracy, or why its step is longer than in the other tables."""
    if as_is.saved_ns >= NOTABLE * as_is.observed_ns:
        explained, observed = (format_value(ns, Unit.NS) for ns in (as_is.step_ns, as_is.observed_ns))
        return sentences.EXPLAINED.format(explained=explained, observed=observed)
    return until_done(rank, as_is.observed_ns)
