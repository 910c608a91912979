"""Interventions on work, ranks and what is between them: kernels, collectives, stragglers, launches."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

import numpy as np
from numpy.typing import NDArray

from traceq.errors import UsageFault
from traceq.facts.events.device_work import device_work
from traceq.facts.events.enclosing_rows import surroundings
from traceq.facts.events.kernel_labels import kernel_labels
from traceq.facts.events.name_patterns import unique_names
from traceq.facts.events.nesting import tracks
from traceq.facts.events.ops_on_cpu import ops_on_cpu
from traceq.facts.timeline.blocking_copies_and_syncs import blocking_calls
from traceq.facts.timeline.launch_threads import thread_chains
from traceq.facts.timeline.once import once
from traceq.frozen import frozen
from traceq.intervals import Spans, intersect, sorted_unique, spans, subtract, union
from traceq.model import Category, Trace
from traceq.units import format_ranks
from traceq.whatif.intervention import Intervention, RankIntervention
from traceq.whatif.job_replay import JobReplay
from traceq.whatif.rank_part import RankPart
from traceq.whatif.weights import RankWeights, Weights

__all__ = ["CommBandwidth", "HiddenComm", "NoLaunchLatency", "Scaled", "WithoutStraggler"]

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

_NEVER = -(2**60)
_NO_COLLECTIVE = "no collective is recorded in these steps"


@frozen
class Scaled(RankIntervention):
    """Device work of a name takes `factor` times as long; on a rank without any, the host's time in what has it."""

    pattern: str
    factor: float
    held = "what else runs at the same time keeps its speed"
    speeds_device = True

    @property
    def option(self) -> str:
        return f"--scale '{self.pattern}={self.factor:g}'"

    @property
    def words(self) -> str:
        if self.factor == 0:
            return f"without the time of {self.pattern}"
        return f"with {self.pattern} at {self.factor:g} times its time"

    def is_in(self, part: RankPart) -> bool:
        return named_time(part.trace, self.pattern).is_any

    def nearest(self, part: RankPart) -> tuple[str, ...]:
        return named_time(part.trace, self.pattern).nearest

    def nothing(self, nearest: Sequence[str]) -> str:
        return f"--scale {self.pattern}: nothing has such a name; the nearest: {', '.join(nearest) or 'none'}"

    def change(self, part: RankPart, weights: RankWeights, *, most: bool) -> None:
        time = named_time(part.trace, self.pattern)
        weights.scale_host(time.host, self.factor)
        runs = np.flatnonzero(np.isin(part.work, time.work) & (part.work >= 0) & (weights.edges > 0))
        weights.edges[runs] = np.rint(weights.edges[runs] * self.factor)


@frozen
class HiddenComm(RankIntervention):
    """Transfers of collectives take no time of their own; ranks still wait for the last one to come."""

    held = "computation does not become slower where a transfer runs beside it"
    speeds_device = True

    @property
    def option(self) -> str:
        return "--hide-comm"

    @property
    def words(self) -> str:
        return "with its collectives hidden"

    def apply(self, replay: JobReplay, weights: Weights, *, most: bool) -> None:
        if len(replay.facts) == 1 and not replay.facts[0].has_device:
            raise UsageFault(f"{self.option}: without a device, collectives are replayed only on all ranks together")
        RankIntervention.apply(self, replay, weights, most=most)

    def is_in(self, part: RankPart) -> bool:
        return len(part.communication) > 0

    def nothing(self, nearest: Sequence[str]) -> str:
        return f"{self.option}: {_NO_COLLECTIVE}"

    def change(self, part: RankPart, weights: RankWeights, *, most: bool) -> None:
        weights.edges[part.communication] = np.minimum(weights.edges[part.communication], 0)


@frozen
class CommBandwidth(Intervention):
    """Transfers at `factor` times the bandwidth: at least all beyond the shortest of their kind, at most all of it."""

    factor: float
    held = "of a transfer, at most the shortest of its kind is latency"
    speeds_device = True

    @property
    def option(self) -> str:
        return f"--comm-bandwidth {self.factor:g}x"

    @property
    def words(self) -> str:
        return f"with {self.factor:g} times the bandwidth between ranks"

    def apply(self, replay: JobReplay, weights: Weights, *, most: bool) -> None:
        if len(replay.facts) == 1:
            raise UsageFault(
                f"{self.option}: one rank does not show how long its collectives wait for others; give all ranks"
            )
        if not len(replay.runs):
            raise UsageFault(f"{self.option}: {_NO_COLLECTIVE}")
        transfer = np.maximum(replay.observed[replay.runs], 0)
        shortest = np.full(int(replay.group.max()) + 1, np.iinfo(np.int64).max)
        np.minimum.at(shortest, replay.group, transfer)
        all_is_bytes = most == (self.factor > 1)
        latency = np.zeros_like(transfer) if all_is_bytes else shortest[replay.group]
        part = (latency + (transfer - latency) / self.factor) / np.maximum(transfer, 1)
        now = weights.edges[replay.runs]  # what another change has left of it
        weights.edges[replay.runs] = np.where((transfer > 0) & (now > 0), np.rint(now * part), now)


@frozen
class WithoutStraggler(Intervention):
    """No collective waits for some ranks: they keep up with the others. Without `ranks`, for those that are late."""

    ranks: tuple[int, ...] = ()
    held = "the other ranks are as they were, and no other one becomes late"

    @property
    def option(self) -> str:
        return "--without-straggler" + (f"={','.join(map(str, self.ranks))}" if self.ranks else "")

    @property
    def words(self) -> str:
        if not self.ranks:
            return "without its straggler"
        return f"if no rank waited for rank{'s' * (len(self.ranks) > 1)} {format_ranks(self.ranks)}"

    def apply(self, replay: JobReplay, weights: Weights, *, most: bool) -> None:
        weights.edges[replay.comes[np.isin(replay.member_rank, self.ignored(replay))]] = _NEVER

    def ignored(self, replay: JobReplay) -> tuple[int, ...]:
        self._need_others(replay)
        if not self.ranks:
            raise ValueError("resolve the straggler first")
        if not set(self.ranks) <= set(replay.ranks):
            noun = "such ranks" if len(self.ranks) > 1 else "such rank"
            raise UsageFault(f"{self.option}: no {noun}; the ranks: {format_ranks(replay.ranks)}")
        if set(self.ranks) == set(replay.ranks):
            raise UsageFault(f"{self.option}: these are all ranks; a straggler needs others")
        return tuple(replay.ranks.index(rank) for rank in self.ranks)

    def resolved(self, replay: JobReplay) -> WithoutStraggler:
        """Return the same with its ranks: the stragglers that `show` names. Raises UsageFault where none is one."""
        if self.ranks:
            return self
        self._need_others(replay)
        if not replay.stragglers.ranks:
            why = replay.stragglers.why_none
            raise UsageFault(f"{self.option}: no rank is a straggler: {why}; {self.option}=RANK asks about one")
        return WithoutStraggler(tuple(sorted(replay.stragglers.ranks)))

    def _need_others(self, replay: JobReplay) -> None:
        if len(replay.facts) == 1:
            raise UsageFault(f"{self.option}: there is one rank, {replay.ranks[0]}; a straggler needs others")


@frozen
class NoLaunchLatency(RankIntervention):
    """As by CUDA graphs: at least launch calls and latency take no time, at most no host time that can be for them.

    Waits, ops that compute on the CPU, what a process does once and the start of the profiler are for no launch.
    """

    held = (
        "the host's waits and ops that compute on the CPU stay, what a process does once takes as long, and launching "
        "the graph takes no time"
    )

    def held_in(self, replay: JobReplay) -> str:
        if not any(facts.lacks_host_ops for facts in replay.facts):
            return self.held
        return f"{self.held}; what the host does between its calls is not recorded, and may be for no launch"

    @property
    def option(self) -> str:
        return "--no-launch-latency"

    @property
    def words(self) -> str:
        return "if launches took no time"

    def is_in(self, part: RankPart) -> bool:
        return part.facts.has_device

    def nothing(self, nearest: Sequence[str]) -> str:
        return f"{self.option}: without a device nothing is launched"

    def change(self, part: RankPart, weights: RankWeights, *, most: bool) -> None:
        launch, view = part.launch[part.counted[part.launch]], weights.edges
        view[launch] = np.minimum(view[launch], 0)
        kept = [union(each, once(part.trace).parts) for each in by_chain(part.trace, ops_on_cpu(part.trace))]
        times = [part.counted_windows] * len(kept) if most else by_chain(part.trace, _launches(part.trace))
        weights.scale_host(
            [intersect(subtract(*each), part.counted_windows) for each in zip(times, kept, strict=True)], 0
        )


def _launches(trace: Trace) -> Ints:
    """Return the rows of calls that launch work and wait for none."""
    work = device_work(trace)
    calls = sorted_unique(work.call[work.linked])
    calls = calls[~np.isin(calls, blocking_calls(trace).rows, assume_unique=True)]
    launches: Ints = calls[trace.events.category[calls] == Category.RUNTIME]
    return launches


_MOST_NAMES = 5


@frozen(eq=False)
class NamedTime:
    """What has a name: `work` int64[X] into DeviceWork, or else `host`, when it is open on each chain of threads.

    `nearest`: names that are alike, of a name that nothing has.
    """

    work: Ints
    host: tuple[Spans, ...] = ()
    nearest: tuple[str, ...] = ()

    @property
    def is_any(self) -> bool:
        """Whether anything has the name."""
        return bool(len(self.work) or any(map(len, self.host)))


def named_time(trace: Trace, pattern: str) -> NamedTime:
    """Return what has a name by a pattern, like nvjet_* or aten::mm."""
    events, work, does = trace.events, device_work(trace), kernel_labels(trace)
    ids, number = unique_names(events, work.rows)
    kernels = [events.strings[name] for name in ids.tolist()]
    is_named, is_short = (
        np.array([fnmatchcase(each, pattern) for each in of], np.bool_) for of in (kernels, does.names)
    )
    chosen = is_named[number] | is_short[does.label] if len(work) else np.zeros(0, np.bool_)
    host = surroundings(trace, work.call[work.linked])
    rows = host.rows[np.isin(host.name_index, [i for i, name in enumerate(host.names) if fnmatchcase(name, pattern)])]
    in_op = rows[events.category[rows] == Category.CPU_OP]
    if len(work) and len(in_op):
        chosen[np.flatnonzero(work.linked)[host.within_rows(in_op)]] = True
    if chosen.any():
        return NamedTime(np.flatnonzero(chosen))
    on_host = NamedTime(np.empty(0, np.int64), by_chain(trace, rows))
    if on_host.is_any:
        return on_host
    names = list(dict.fromkeys([*does.names, *host.names]))
    return NamedTime(np.empty(0, np.int64), nearest=_nearest(pattern, names))


def _nearest(pattern: str, names: list[str]) -> tuple[str, ...]:
    """Return the names that are most like a pattern: those that contain a part of it, then those spelt alike."""
    from difflib import get_close_matches  # for a name that is not there alone

    plain = pattern.replace("?", "*").replace("*", "").casefold()
    begin = {name: name.casefold()[: len(plain)] for name in names}
    containing = [name for name in names if plain and plain in name.casefold()]
    alike = get_close_matches(plain, sorted(set(begin.values())), _MOST_NAMES, cutoff=0.5)
    return tuple(dict.fromkeys([*containing, *(name for text in alike for name in names if begin[name] == text)]))[
        :_MOST_NAMES
    ]


def by_chain(trace: Trace, rows: Ints) -> tuple[Spans, ...]:
    """Return when some rows of Events are open on each chain of threads that launch."""
    track, start, end = tracks(trace)[rows], trace.events.ts[rows], trace.events.end[rows]
    of_chains = (np.isin(track, chain, kind="table") for chain in thread_chains(trace))
    return tuple(spans(start[of_chain], end[of_chain]) for of_chain in of_chains)
