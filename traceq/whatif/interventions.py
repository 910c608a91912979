"""Interventions on work, ranks and what is between them: kernels, collectives, stragglers, launches."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceq.errors import UsageFault
from traceq.facts.events.device_work import device_work
from traceq.facts.events.once_per_process import calls_once_per_process
from traceq.facts.timeline.blocking_copies_and_syncs import blocking_calls
from traceq.frozen import frozen
from traceq.intervals import Spans, spans, subtract
from traceq.model import Category, Trace
from traceq.units import format_ranks
from traceq.whatif.intervention import Intervention, change_host
from traceq.whatif.job_replay import JobReplay, communication
from traceq.whatif.named_time import host_change, named_time

__all__ = [
    "CommBandwidth",
    "HiddenComm",
    "NoLaunchLatency",
    "Scaled",
    "WithoutStraggler",
]

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

_NEVER = -(2**60)
_MOST_LINES = 8


@frozen
class Scaled(Intervention):
    """Device work of a name takes `factor` times as long; without any, the host's time in what has that name."""

    pattern: str
    factor: float
    held = "what else runs at the same time keeps its speed"

    @property
    def option(self) -> str:
        return f"--scale '{self.pattern}={self.factor:g}'"

    @property
    def words(self) -> str:
        if self.factor == 0:
            return f"without the time of {self.pattern}"
        return f"with {self.pattern} at {self.factor:g} times its time"

    def apply(self, replay: JobReplay, weight: Ints, *, most: bool) -> None:
        matched = [named_time(part.trace, self.pattern) for part in replay.parts]
        if not any(time.is_any for time in matched):
            nearest = ", ".join(dict.fromkeys(name for time in matched for name in time.nearest))
            raise UsageFault(f"--scale {self.pattern}: nothing has such a name; the nearest: {nearest or 'none'}")
        on_device = any(len(time.work) for time in matched)
        for index, (part, time) in enumerate(zip(replay.parts, matched, strict=True)):
            if on_device:
                edges = np.flatnonzero(np.isin(part.work, time.work) & (part.work >= 0)) + int(replay.first_edge[index])
                weight[edges] = np.rint(weight[edges] * self.factor)
            else:
                change = host_change(part, time.host, np.full(len(time.host), self.factor - 1))
                change_host(replay, weight, index, change)


@frozen
class HiddenComm(Intervention):
    """Transfers of collectives take no time of their own; ranks still wait for the last one to come."""

    held = "computation does not become slower where a transfer runs beside it"

    @property
    def option(self) -> str:
        return "--hide-comm"

    @property
    def words(self) -> str:
        return "with its collectives hidden"

    def apply(self, replay: JobReplay, weight: Ints, *, most: bool) -> None:
        if len(replay.parts) == 1 and not len(device_work(replay.parts[0].trace)):
            raise UsageFault(f"{self.option}: without a device, collectives are replayed only on all ranks together")
        edges = [communication(part) + int(replay.first_edge[index]) for index, part in enumerate(replay.parts)]
        _need_collectives(self.option, sum(map(len, edges)))
        for of_rank in edges:
            weight[of_rank] = np.minimum(weight[of_rank], 0)


@frozen
class CommBandwidth(Intervention):
    """Transfers at `factor` times the bandwidth: at least all beyond the shortest of their kind, at most all of it."""

    factor: float
    held = "of a transfer, at most the shortest of its kind is latency"

    @property
    def option(self) -> str:
        return f"--comm-bandwidth {self.factor:g}x"

    @property
    def words(self) -> str:
        return f"with {self.factor:g} times the bandwidth between ranks"

    def apply(self, replay: JobReplay, weight: Ints, *, most: bool) -> None:
        if len(replay.parts) == 1:
            raise UsageFault(
                f"{self.option}: one rank does not show how long its collectives wait for others; give all ranks"
            )
        _need_collectives(self.option, len(replay.runs))
        transfer = np.maximum(replay.observed[replay.runs], 0)
        shortest = np.full(int(replay.group.max()) + 1, np.iinfo(np.int64).max)
        np.minimum.at(shortest, replay.group, transfer)
        all_is_bytes = most == (self.factor > 1)
        latency = np.zeros_like(transfer) if all_is_bytes else shortest[replay.group]
        changed = latency + np.rint((transfer - latency) / self.factor).astype(np.int64)
        weight[replay.runs] = np.where(transfer > 0, changed, weight[replay.runs])


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

    def apply(self, replay: JobReplay, weight: Ints, *, most: bool) -> None:
        weight[replay.comes[np.isin(replay.member_rank, self.ignored(replay))]] = _NEVER

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
        if len(replay.parts) == 1:
            raise UsageFault(f"{self.option}: there is one rank, {replay.ranks[0]}; a straggler needs others")


@frozen
class NoLaunchLatency(Intervention):
    """As by CUDA graphs: at least launch calls and latency take no time, at most no host time but waits does."""

    held = "the host's waits stay, what a process does once takes as long, and launching the graph takes no time"

    @property
    def option(self) -> str:
        return "--no-launch-latency"

    @property
    def words(self) -> str:
        return "without launch latency"

    def apply(self, replay: JobReplay, weight: Ints, *, most: bool) -> None:
        if not all(len(device_work(part.trace)) for part in replay.parts):
            raise UsageFault(f"{self.option}: without a device nothing is launched")
        for index, part in enumerate(replay.parts):
            first = int(replay.first_edge[index])
            launch = part.launch[part.counted[part.launch]] + first
            weight[launch] = np.minimum(weight[launch], 0)
            counted, once = part.counted[part.host], _once_per_process(part.trace)
            if most:
                stays = host_change(part, once, np.ones(len(once)))
                weight[part.host[counted] + first] = stays[counted]
                continue
            events, work = part.trace.events, device_work(part.trace)
            calls = np.setdiff1d(work.call[work.linked], blocking_calls(part.trace).rows)
            calls = calls[events.category[calls] == Category.RUNTIME]
            launches = subtract(spans(events.ts[calls], events.end[calls]), once)
            change = host_change(part, launches, np.full(len(launches), -1.0))
            change_host(replay, weight, index, np.where(counted, change, 0))


def _once_per_process(trace: Trace) -> Spans:
    """Return when the host starts the device, libraries and kernels for the first time."""
    rows = np.concatenate(calls_once_per_process(trace))
    return spans(trace.events.ts[rows], trace.events.end[rows])


def _need_collectives(option: str, num: int) -> None:
    if not num:
        raise UsageFault(f"{option}: no collective is recorded in these steps")
