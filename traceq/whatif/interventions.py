"""Interventions: on what the host waits for, on work, ranks and what is between them, and by the command's words."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

import numpy as np
from numpy.typing import NDArray

from traceq.causes.removed_waits import LOADER, alike_syncs, is_for_pageable_copy, kinds_of_waits, sync_keys
from traceq.errors import UsageFault
from traceq.facts.events.device_work import device_work
from traceq.facts.events.kernel_names import kernel_labels
from traceq.facts.events.name_patterns import unique_names
from traceq.facts.events.nesting import surroundings, tracks
from traceq.facts.events.self_time import ops_on_cpu
from traceq.facts.stalls.host_waits import host_waits
from traceq.facts.stalls.syncs import SYNC_KINDS, syncs
from traceq.facts.timeline.active_thread import thread_chains
from traceq.facts.timeline.blocking_copies_and_syncs import SyncKind, blocking_calls
from traceq.facts.timeline.call_sites import is_at_line
from traceq.facts.timeline.once import once, recurring_loader_waits
from traceq.frozen import frozen
from traceq.intervals import Spans, contains, intersect, sorted_unique, span_index, spans, subtract, union
from traceq.model import Category, Trace
from traceq.units import format_ranks
from traceq.whatif.intervention import Intervention, RankIntervention, RankWeights, Weights
from traceq.whatif.job_replay import NEVER_NS, JobReplay
from traceq.whatif.rank_part import RankPart
from traceq.whatif.sentences import HELD, HOST_BETWEEN_CALLS, NO_LINES, OF_ALLOCATIONS, REFUSALS, WORDS

_TIMES = re.compile(r"^(\d+(?:\.\d+)?)x?$")

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

_MOST_LINES = 8


@frozen
class WithoutSyncs(RankIntervention):
    """No wait of the host for the device, or none at one line; a copy stays, and costs what a launch does.

    With `keys`, none of some rows of the table `syncs`; with `kind`, none of one of the SYNC_KINDS; with `is_pageable`,
    none for a copy from pageable memory to the device.
    """

    line: str = ""
    keys: tuple[str, ...] = ()
    kind: str = ""
    is_pageable: bool = False
    held = HELD["syncs"]

    @property
    def option(self) -> str:
        return f"--without sync:{self.line}" if self.line else "--without syncs"

    @property
    def words(self) -> str:
        return WORDS["sync"].format(line=self.line) if self.line else WORDS["syncs"]

    def is_in(self, part: RankPart) -> bool:
        return bool(self._removed(part).any())

    def nearest(self, part: RankPart) -> tuple[str, ...]:
        texts, line = _sync_lines(part)
        of_syncs = np.unique(line[(kinds_of_waits(part.trace) >= 0) & (line >= 0)])
        return tuple(dict.fromkeys(texts[number].partition(" ")[0] for number in of_syncs.tolist() if texts[number]))

    def nothing(self, nearest: Sequence[str]) -> str:
        if not self.line:
            return REFUSALS["no_syncs"]
        return REFUSALS["no_sync_at"].format(line=self.line, syncs=", ".join(nearest[:_MOST_LINES]) or NO_LINES)

    def change(self, part: RankPart, weights: RankWeights, *, most: bool) -> None:
        _remove_waits(part, weights, self._removed(part))

    def _removed(self, part: RankPart) -> Mask:
        """Return bool[H]: the waits of a rank that are removed."""
        if self.is_pageable:
            return is_for_pageable_copy(part.trace)
        kinds = kinds_of_waits(part.trace)
        is_sync = kinds >= 0 if not self.kind else kinds == SYNC_KINDS.index(self.kind)
        if self.keys:
            call = host_waits(part.trace).call
            is_row = np.array([key in self.keys for key in sync_keys(part.trace)], np.bool_)
            selected: Mask = is_sync & np.r_[is_row[alike_syncs(part.trace).group_ids], False][call]
            return selected
        if not self.line:
            return is_sync
        texts, line = _sync_lines(part)
        is_there = np.array([*(is_at_line(text, self.line) for text in texts), False], np.bool_)
        return is_sync & is_there[line]

    def allocations(self, part: RankPart) -> Counter[str]:
        events, waits = part.trace.events, syncs(part.trace)
        removed = np.flatnonzero(self._removed(part) & _in_counted_step(part))
        rows = waits.rows[host_waits(part.trace).call[removed]]
        names = events.name[rows[np.isin(rows, waits.rows[waits.kind == SyncKind.ALLOC])]]
        return Counter(events.strings[name] for name in names.tolist())

    def held_with(self, allocations: Mapping[str, int]) -> str:
        """Return what is held fixed, and which of the waits are calls of the allocator."""
        num = sum(allocations.values())
        if not num:
            return self.held
        are = "is an allocation" if num == 1 else "are allocations"
        return OF_ALLOCATIONS.format(held=self.held, num=num, are=are, names=", ".join(sorted(allocations)))


@frozen
class WithoutLoader(RankIntervention):
    """No wait for the data loader."""

    option = "--without loader"
    words = WORDS["loader"]
    refusal = "no_loader_wait"
    held = HELD["loader"]

    def is_in(self, part: RankPart) -> bool:
        return len(recurring_loader_waits(part.trace)) > 0

    def change(self, part: RankPart, weights: RankWeights, *, most: bool) -> None:
        _remove_waits(part, weights, kinds_of_waits(part.trace) == LOADER)
        if not len(part.held):
            weights.scale_host([recurring_loader_waits(part.trace)], 0)


@frozen
class BalancedLoader(Intervention):
    """Each rank's wait for the data loader takes as long as the mean of all ranks' in that step."""

    option = "--balance-loader"
    words = WORDS["balanced_loader"]
    held = HELD["balanced_loader"]

    def apply(self, replay: JobReplay, weights: Weights, *, most: bool) -> None:
        scaled = self.of_ranks(replay.ranks, [loader_waits_by_step(part) for part in replay.parts])
        for part, of_rank, change in zip(replay.parts, weights.ranks, scaled, strict=True):
            change.change(part, of_rank, most=most)

    def of_ranks(self, ranks: Sequence[int], waits: Sequence[Mapping[int, tuple[int, int]]]) -> list[ScaledLoader]:
        """Return the change of each rank, by the waits for its data loader. Raises UsageFault."""
        if len(ranks) == 1:
            raise UsageFault(REFUSALS["needs_all_ranks"].format(option=self.option, rank=ranks[0]))
        common = sorted(set.intersection(*(set(of_rank) for of_rank in waits)))
        if not common:
            raise UsageFault(REFUSALS["no_common_wait"].format(option=self.option))
        wait = np.array([[of_rank[number] for number in common] for of_rank in waits])
        duration = wait[:, :, 1] - wait[:, :, 0]
        factors = duration.mean(axis=0) / duration
        return [
            ScaledLoader(tuple(map(tuple, spans.tolist())), tuple(factor.tolist()))
            for spans, factor in zip(wait, factors, strict=True)
        ]


@frozen
class ScaledLoader(RankIntervention):
    """Some waits of one rank for its data loader, (start, end) ns each, take `factors` of their time."""

    waits: tuple[tuple[int, ...], ...]
    factors: tuple[float, ...]
    option = BalancedLoader.option
    words = BalancedLoader.words
    refusal = "no_loader_wait"
    held = BalancedLoader.held

    def is_in(self, part: RankPart) -> bool:
        return len(self.waits) > 0

    def change(self, part: RankPart, weights: RankWeights, *, most: bool) -> None:
        waits, factors = np.array(self.waits), np.array(self.factors)
        if len(part.held):
            _scale_waits(part, weights.edges, waits[:, 0], factors)
        else:
            weights.scale_host([waits], factors)


@frozen
class Scaled(RankIntervention):
    """Device work of a name takes `factor` times as long; on a rank without any, the host's time in what has it."""

    pattern: str
    factor: float
    held = HELD["scaled"]
    speeds_device = True

    @property
    def option(self) -> str:
        return f"--scale '{self.pattern}={self.factor:g}'"

    @property
    def words(self) -> str:
        if self.factor == 0:
            return WORDS["removed_time"].format(pattern=self.pattern)
        return WORDS["scaled"].format(pattern=self.pattern, factor=self.factor)

    def is_in(self, part: RankPart) -> bool:
        return named_time(part.trace, self.pattern).is_any

    def nearest(self, part: RankPart) -> tuple[str, ...]:
        return named_time(part.trace, self.pattern).nearest

    def nothing(self, nearest: Sequence[str]) -> str:
        return REFUSALS["no_such_name"].format(pattern=self.pattern, nearest=", ".join(nearest) or "none")

    def change(self, part: RankPart, weights: RankWeights, *, most: bool) -> None:
        time = named_time(part.trace, self.pattern)
        weights.scale_host(time.host, self.factor)
        runs = np.flatnonzero(np.isin(part.work, time.work) & (part.work >= 0) & (weights.edges > 0))
        weights.edges[runs] = np.rint(weights.edges[runs] * self.factor)


@frozen
class HiddenComm(RankIntervention):
    """Transfers of collectives take no time of their own; ranks still wait for the last one to come."""

    option = "--hide-comm"
    words = WORDS["hidden_comm"]
    refusal = "no_collective"
    held = HELD["hidden_comm"]
    speeds_device = True

    def apply(self, replay: JobReplay, weights: Weights, *, most: bool) -> None:
        if len(replay.facts) == 1 and not replay.facts[0].has_device:
            raise UsageFault(REFUSALS["one_rank_on_host"].format(option=self.option))
        RankIntervention.apply(self, replay, weights, most=most)

    def is_in(self, part: RankPart) -> bool:
        return len(part.communication) > 0

    def change(self, part: RankPart, weights: RankWeights, *, most: bool) -> None:
        weights.edges[part.communication] = np.minimum(weights.edges[part.communication], 0)


@frozen
class CommBandwidth(Intervention):
    """Transfers at `factor` times the bandwidth: at least all beyond the shortest of their kind, at most all of it."""

    factor: float
    held = HELD["bandwidth"]
    speeds_device = True

    @property
    def option(self) -> str:
        return f"--comm-bandwidth {self.factor:g}x"

    @property
    def words(self) -> str:
        return WORDS["bandwidth"].format(factor=self.factor)

    def apply(self, replay: JobReplay, weights: Weights, *, most: bool) -> None:
        if len(replay.facts) == 1:
            raise UsageFault(REFUSALS["one_rank_waits"].format(option=self.option))
        if not len(replay.runs):
            raise UsageFault(REFUSALS["no_collective"].format(option=self.option))
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
    held = HELD["straggler"]

    @property
    def option(self) -> str:
        return "--without-straggler" + (f"={','.join(map(str, self.ranks))}" if self.ranks else "")

    @property
    def words(self) -> str:
        if not self.ranks:
            return WORDS["straggler"]
        return WORDS["ranks"].format(s="s" * (len(self.ranks) > 1), ranks=format_ranks(self.ranks))

    def apply(self, replay: JobReplay, weights: Weights, *, most: bool) -> None:
        weights.edges[replay.comes[np.isin(replay.member_rank, self.ignored(replay))]] = NEVER_NS

    def ignored(self, replay: JobReplay) -> tuple[int, ...]:
        self._need_others(replay)
        if not self.ranks:
            raise ValueError("unresolved")
        if not set(self.ranks) <= set(replay.ranks):
            plural, ranks = "s" * (len(self.ranks) > 1), format_ranks(replay.ranks)
            raise UsageFault(REFUSALS["no_such_rank"].format(option=self.option, s=plural, ranks=ranks))
        if set(self.ranks) == set(replay.ranks):
            raise UsageFault(REFUSALS["these_are_all"].format(option=self.option))
        return tuple(replay.ranks.index(rank) for rank in self.ranks)

    def resolved(self, replay: JobReplay) -> WithoutStraggler:
        """Return the same with its ranks: the stragglers that `show` names. Raises UsageFault where none is one."""
        if self.ranks:
            return self
        self._need_others(replay)
        if not replay.stragglers.ranks:
            why = replay.stragglers.why_none
            raise UsageFault(REFUSALS["no_straggler"].format(option=self.option, why=why))
        return WithoutStraggler(tuple(sorted(replay.stragglers.ranks)))

    def _need_others(self, replay: JobReplay) -> None:
        if len(replay.facts) == 1:
            raise UsageFault(REFUSALS["needs_others"].format(option=self.option, rank=replay.ranks[0]))


@frozen
class NoLaunchLatency(RankIntervention):
    """As by CUDA graphs: at least launch calls and latency take no time, at most no host time that can be for them.

    Waits, ops that compute on the CPU, what a process does once and the start of the profiler are for no launch.
    """

    option = "--no-launch-latency"
    words = WORDS["no_launch_latency"]
    refusal = "no_device"
    held = HELD["no_launch_latency"]

    def held_in(self, replay: JobReplay) -> str:
        if not any(facts.lacks_host_ops for facts in replay.facts):
            return self.held
        return HOST_BETWEEN_CALLS.format(held=self.held)

    def is_in(self, part: RankPart) -> bool:
        return part.facts.has_device

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
    of_host, place = unique_names(events, host.rows)
    names = [events.strings[name] for name in of_host.tolist()]
    rows = host.rows[np.array([fnmatchcase(name, pattern) for name in names], np.bool_)[place]]
    in_op = rows[events.category[rows] == Category.CPU_OP]
    if len(work) and len(in_op):
        chosen[np.flatnonzero(work.linked)[host.within_rows(in_op)]] = True
    if chosen.any():
        return NamedTime(np.flatnonzero(chosen))
    on_host = NamedTime(np.empty(0, np.int64), by_chain(trace, rows))
    if on_host.is_any:
        return on_host
    return NamedTime(np.empty(0, np.int64), nearest=_nearest(pattern, list(dict.fromkeys([*does.names, *names]))))


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


def _sync_lines(part: RankPart) -> tuple[tuple[str, ...], Ints]:
    """Return (lines; int64[H] that of each wait of the host, -1 for the data loader's)."""
    call, origin = host_waits(part.trace).call, syncs(part.trace).origin
    return origin.texts, np.where(call >= 0, np.r_[origin.line, -1][call], -1)


def _remove_waits(part: RankPart, weights: RankWeights, removed: Mask) -> None:
    """Take time from the waits that begin in a counted step."""
    chosen = removed & _in_counted_step(part)
    is_removed = chosen[part.hold]
    edges = part.held[is_removed]
    weights.edges[edges] = np.minimum(weights.edges[edges], part.without[is_removed])


def _in_counted_step(part: RankPart) -> Mask:
    """Return bool[H]: the waits of the host that begin in a counted step."""
    return contains(part.counted_on_host, host_waits(part.trace).start)


def _scale_waits(part: RankPart, view: Ints, start: Ints, factor: NDArray[np.float64]) -> None:
    """Multiply the waits of a rank that begin at some times."""
    wait = np.searchsorted(start, host_waits(part.trace).start)
    is_one = np.r_[start, -1][wait] == host_waits(part.trace).start
    of_wait = np.where(is_one & (host_waits(part.trace).call < 0), np.r_[factor, 1.0][wait], 1.0)
    edges = part.held
    view[edges] = np.rint(np.maximum(view[edges], 0) * of_wait[part.hold]) + np.minimum(view[edges], 0)
    view[edges[(part.source[edges] == 0) & is_one[part.hold]]] = NEVER_NS  # batches come at other times


def loader_waits_by_step(part: RankPart) -> dict[int, tuple[int, int]]:
    """Return (start, end) of the wait for the data loader of each counted step that has one, and not several."""
    waits = recurring_loader_waits(part.trace)
    numbers, first, num = np.unique(
        span_index(part.counted_on_host, waits[:, 0]), return_index=True, return_counts=True
    )
    alone = (numbers >= 0) & (num == 1)
    rows = zip(numbers[alone].tolist(), first[alone].tolist(), strict=True)
    return {number: (int(waits[row, 0]), int(waits[row, 1])) for number, row in rows}


def without(words: Sequence[str]) -> list[Intervention]:
    """Return what `--without` removes: syncs, sync:FILE:LINE or loader. Raises UsageFault."""
    removed: list[Intervention] = []
    for word in words:
        kind, _, line = word.partition(":")
        if word == "syncs":
            removed.append(WithoutSyncs())
        elif word == "loader":
            removed.append(WithoutLoader())
        elif kind == "sync" and line.strip():
            removed.append(WithoutSyncs(line.strip()))
        else:
            raise UsageFault(f"--without {word}: expected syncs, sync:FILE:LINE or loader")
    return removed


def scaled(words: Sequence[str]) -> list[Intervention]:
    """Return what `--scale NAME=FACTOR` changes. Raises UsageFault."""
    result: list[Intervention] = []
    for word in words:
        name, _, text = word.rpartition("=")
        try:
            factor = float(text)
        except ValueError:
            factor = math.nan
        if not name.strip() or not math.isfinite(factor) or factor < 0:
            raise UsageFault(f"--scale {word}: expected a name and a factor of its time, like 'nvjet_*=0.5'")
        result.append(Scaled(name.strip(), factor))
    return result


def bandwidth(text: str) -> Intervention:
    """Return the change of bandwidth that `--comm-bandwidth 2x` asks for. Raises UsageFault."""
    match = _TIMES.match(text.strip())
    if match is None or not float(match[1]):
        raise UsageFault(f"--comm-bandwidth {text}: expected how many times the bandwidth, like 2x")
    return CommBandwidth(float(match[1]))


def straggler(text: str) -> Intervention:
    """Return which ranks `--without-straggler` is about; without a text, those that are late. Raises UsageFault."""
    ranks = text.split(",") if text else []
    if not all(rank.isdecimal() for rank in ranks):
        raise UsageFault(f"--without-straggler={text}: expected a rank, like 3, or several, like 0,6")
    return WithoutStraggler(tuple(sorted(set(map(int, ranks)))))
