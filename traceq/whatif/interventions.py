"""Interventions on work, ranks and what is between them: kernels, collectives, stragglers, launches."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceq.errors import UsageFault
from traceq.facts.events.device_work import device_work
from traceq.facts.events.once_per_process import calls_once_per_process
from traceq.facts.timeline.blocking_copies_and_syncs import blocking_calls
from traceq.frozen import frozen
from traceq.intervals import intersect, subtract
from traceq.model import Category, Trace
from traceq.units import format_ranks
from traceq.whatif.intervention import Intervention
from traceq.whatif.job_replay import JobReplay, communication
from traceq.whatif.named_time import by_chain, named_time
from traceq.whatif.weights import Weights

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

    def apply(self, replay: JobReplay, weights: Weights, *, most: bool) -> None:
        matched = [named_time(part.trace, self.pattern) for part in replay.parts]
        if not any(time.is_any for time in matched):
            nearest = ", ".join(dict.fromkeys(name for time in matched for name in time.nearest))
            raise UsageFault(f"--scale {self.pattern}: nothing has such a name; the nearest: {nearest or 'none'}")
        on_device = any(len(time.work) for time in matched)
        for index, (part, time) in enumerate(zip(replay.parts, matched, strict=True)):
            if not on_device:
                weights.scale_host(index, time.host, self.factor)
                continue
            view, runs = weights.of_rank(index), np.isin(part.work, time.work) & (part.work >= 0)
            view[runs] = np.rint(view[runs] * self.factor)


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

    def apply(self, replay: JobReplay, weights: Weights, *, most: bool) -> None:
        if len(replay.parts) == 1 and not len(device_work(replay.parts[0].trace)):
            raise UsageFault(f"{self.option}: without a device, collectives are replayed only on all ranks together")
        edges = [communication(part) + int(replay.first_edge[index]) for index, part in enumerate(replay.parts)]
        _need_collectives(self.option, sum(map(len, edges)))
        for of_rank in edges:
            weights.edges[of_rank] = np.minimum(weights.edges[of_rank], 0)


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

    def apply(self, replay: JobReplay, weights: Weights, *, most: bool) -> None:
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

    def apply(self, replay: JobReplay, weights: Weights, *, most: bool) -> None:
        if not all(len(device_work(part.trace)) for part in replay.parts):
            raise UsageFault(f"{self.option}: without a device nothing is launched")
        for index, part in enumerate(replay.parts):
            launch, view = part.launch[part.counted[part.launch]], weights.of_rank(index)
            view[launch] = np.minimum(view[launch], 0)
            once = by_chain(part.trace, np.concatenate(calls_once_per_process(part.trace)))
            times = [part.counted_windows] * len(once) if most else by_chain(part.trace, _launches(part.trace))
            free = [intersect(subtract(*each), part.counted_windows) for each in zip(times, once, strict=True)]
            weights.scale_host(index, free, 0)


def _launches(trace: Trace) -> Ints:
    """Return the rows of calls that launch work and wait for none."""
    work = device_work(trace)
    calls = np.setdiff1d(work.call[work.linked], blocking_calls(trace).rows)
    launches: Ints = calls[trace.events.category[calls] == Category.RUNTIME]
    return launches


def _need_collectives(option: str, num: int) -> None:
    if not num:
        raise UsageFault(f"{option}: no collective is recorded in these steps")
