"""The wall time of one rank as a closed account: each ns since the process began is in one part."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from traceq.model import WallPart, WallTime, WorkKind
from traceq.recorder.process.world import World
from traceq.recorder.spec.phases import Phases

_LONG = 4
"""Multiple of a regular step from which one with the usual events holds a pause."""
_FIRST_STEPS = 8
"""Regular steps before which no other is known to be long."""
_NOTABLE = 0.1
"""Part of the training's time that one kind of work takes for its whole cycles to be waited for."""
_BY_CHANCE = {"collection", "pause"}
"""Work without cycles: a busy machine makes pauses, too."""
_MOST_BEFORE_NS = 60 * 10**9
"""Of the time before the first step, the most that a recording waits for the same work to come again."""


@dataclass(slots=True)
class _Work:
    """Steps of a kind, with `size` backward passes; `lines` where the main thread was found in irregular ones.

    Of irregular ones also how many were `met`, profiled ones with them, the numbers of the first and the last among all
    steps, the most from one to the next, and how long the last profiled one took.
    """

    num: int = 0
    size: int = 0
    ns: int = 0
    lines: Counter[str] = field(default_factory=Counter)
    met: int = 0
    first: int = 0
    last: int = 0
    longest: int = 0
    profiled_ns: int = 0

    @property
    def most_ns(self) -> int:
        """How long they take; of those that were profiled alone, at most."""
        return self.ns if self.num else self.profiled_ns

    def meet(self, number: int) -> None:
        """Note that the step of this number is one of them, also when told twice."""
        if number == self.last:
            return
        self.met += 1
        self.first = self.first or number
        self.longest = max(self.longest, number - self.last)
        self.last = number

    def weight(self, num_steps: int, num_timed: int) -> float:
        """Return how many of them so many timed steps, of all, are due for each timed one.

        By the cycles in which they come: the first and the last one need not be whole, and their end may be profiled.
        """
        if self.met == 1:
            return 1.0
        due = min(num_steps * (self.met - 1) / (self.last - self.first), self.met + 1)
        return due * num_timed / num_steps / self.num

    def ns_of(self, size: int) -> int:
        """Return how long steps with so many backward passes take."""
        return self.ns * size // max(self.size, 1)


@dataclass(slots=True)
class WallAccount:
    """Time since `at_ns`, as far as it was charged to a part; whoever ends a part charges it.

    `compiled_ns`: how long torch has compiled since a part was charged that may hold it; it is a part of its own.
    `take_lines` returns where the main thread was found in the step that began at a time, `collected_ns` how long
    garbage collections took so far while steps are timed. A step, which `is_running` since `at_ns`, is as long as
    others of its arm.
    """

    at_ns: int = field(default_factory=time.perf_counter_ns)
    clock: Callable[[], int] = time.perf_counter_ns
    take_lines: Callable[[int], Counter[str]] = lambda _: Counter()
    before_ns: int = 0
    compiled_ns: int = 0
    is_running: bool = False
    collected_ns: Callable[[], int] = int
    _parts: Counter[str] = field(default_factory=Counter)
    _regular: dict[str, _Work] = field(default_factory=lambda: defaultdict(_Work))  # by arm
    _usual: _Work = field(default_factory=_Work)  # of the arm that the step runs
    _works: dict[str, _Work] = field(default_factory=lambda: defaultdict(_Work))
    _num_steps: int = 0  # also profiled ones
    _profiled_ns: int = 0  # of the last profiled step
    _step_ns: int | None = None  # of the step that has ended, and is in no part yet
    _began_collected_ns: int = 0
    _is_closed: bool = False

    def charge(self, part: str) -> None:
        """Add the time since the last charge to a part: `start_up`, `learning`, `recording`."""
        now_ns = self.clock()
        ns, self.at_ns = now_ns - self.at_ns, now_ns
        if part != "recording":
            ns -= self._charge_compiled("compiling", ns)
        self._parts[part] += ns

    def around(self, steps: Generator[str, None, None], phases: Phases) -> Generator[str, None, None]:
        """Yield from `steps`, a recording; what it does between two steps, and profiled ones, are the recording's."""
        with closing(steps):
            for arm in steps:
                if self._step_ns is not None:  # its loop tells no kinds
                    self.classify(None)
                self._usual = self._regular[arm]
                self._began_collected_ns = self.collected_ns()
                now_ns = self.clock()
                self._parts["recording"] += now_ns - self.at_ns
                self.at_ns, self.is_running = now_ns, True
                yield arm
                self.is_running = False
                self._num_steps += not self._is_closed
                if phases.profiling or self._is_closed:
                    self._profiled_ns = self.clock() - self.at_ns
                    self.charge("recording")
                else:
                    now_ns = self.clock()
                    self._step_ns, self.at_ns = now_ns - self.at_ns, now_ns

    @property
    def usual_ns(self) -> int:
        """How long regular steps of the arm that runs take, ns."""
        return self._usual.ns // (self._usual.num or 1)

    def classify(self, kind: WorkKind | None, size: int = 1) -> None:
        """Note what the step that has ended did besides what is usual; None for nothing.

        `size`: its backward passes, to which the time of steps is proportional where their numbers of batches differ.
        """
        if (step_ns := self._step_ns) is None:  # it was profiled
            if kind is not None and not self._is_closed:
                work = self._works["+".join(kind)]
                work.meet(self._num_steps)
                work.profiled_ns = self._profiled_ns
            return
        self._step_ns, ns, work = None, step_ns, self._usual
        if self.compiled_ns:
            ns -= self._charge_compiled("recompiling", ns)
        if kind is None and work.num >= _FIRST_STEPS and ns * work.size > _LONG * work.ns * size:
            is_collection = 2 * (self.collected_ns() - self._began_collected_ns) > ns
            kind = ("collection",) if is_collection else ("pause",)
        if kind is not None:
            work = self._irregular("+".join(kind), self.at_ns - step_ns)
        work.num += 1
        work.size += size
        work.ns += ns

    def close(self) -> None:
        """Leave out what follows: it is the recording's."""
        self._is_closed = True

    @property
    def holds_whole_cycles(self) -> bool:
        """Whether the work that takes most, besides regular steps, has just ended, or will take long to come again.

        Before any notable work: whether steps have taken twice as long as what came before the first of them, since an
        agent that acts before it trains will act again.
        """
        training_ns = self._all_regular.ns + sum(work.ns for work in self._works.values())
        cyclic = self._works.keys() - _BY_CHANCE
        largest = max((self._works[kind] for kind in cyclic), key=lambda work: work.most_ns, default=_Work())
        if largest.most_ns <= _NOTABLE * training_ns:
            return training_ns >= 2 * min(self.before_ns, _MOST_BEFORE_NS)
        num_since = self._num_steps - largest.last
        most = largest.longest if largest.met > 1 else 2 * largest.longest  # the first cycle has begun before
        return (num_since == 0 and largest.num > 0) or num_since > most

    def account(self, rank: int, num_ranks: int, samples_per_step: float, renewed_workers: int) -> WallTime:
        """Return the account so far, of samples of all ranks; the parts add up to the time until the last charge.

        The regular steps have, of each irregular one, as much as a regular one takes.
        """
        irregular, in_irregular_ns, usual = [], 0, self._all_regular
        works = {kind: work for kind, work in self._works.items() if work.num}
        num_timed = usual.num + sum(work.num for work in works.values())
        for kind, work in works.items():
            as_usual_ns = min(usual.ns_of(work.size), work.ns)
            in_irregular_ns += as_usual_ns
            line, num = work.lines.most_common(1)[0] if work.lines else ("", 0)
            pct = 100 * num / max(work.lines.total(), 1)
            weight = 1.0 if kind in _BY_CHANCE else work.weight(self._num_steps, num_timed)
            irregular.append(WallPart(kind, work.ns - as_usual_ns, work.num, line, pct, weight))
        regular = WallPart("regular", usual.ns + in_irregular_ns, usual.num)
        others = [WallPart(name, ns) for name, ns in self._parts.items() if ns]
        return WallTime(
            parts=(regular, *irregular, *others),
            rank=rank,
            num_ranks=num_ranks,
            samples=round(num_timed * samples_per_step),
            regular_samples=round(usual.num * samples_per_step),
            regular_ns=usual.ns,
            renewed_workers=renewed_workers,
        )

    def _irregular(self, name: str, began_ns: int) -> _Work:
        """Return the work of this name, to which the step belongs that began then."""
        work, lines = self._works[name], self.take_lines(began_ns)
        if name != "collection":  # the thread is found nowhere else until one has ended
            work.lines.update(lines)
        work.meet(self._num_steps)
        return work

    @property
    def _all_regular(self) -> _Work:
        works = self._regular.values()
        return _Work(*(sum(getattr(work, part) for work in works) for part in ("num", "size", "ns")))

    def _charge_compiled(self, part: str, ns: int) -> int:
        """Add what torch compiled of the last `ns` to a part, and return it."""
        compiled_ns, self.compiled_ns = min(self.compiled_ns, ns), 0
        self._parts[part] += compiled_ns
        return compiled_ns


def slowest_account(world: World, account: WallTime) -> WallTime:
    """Return the account of the rank with most irregular time, for which the others wait; of rank 0 if it is little."""
    accounts = world.gather(account)
    slowest = max(accounts, key=lambda each: each.irregular_ns)
    return slowest if slowest.is_notable else accounts[0]


def process_began_ns() -> int:
    """Return when this process began, by `time.perf_counter_ns`; now where the system does not say."""
    now_ns = time.perf_counter_ns()
    if not sys.platform.startswith("linux"):
        return now_ns
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return now_ns - time.clock_gettime_ns(time.CLOCK_BOOTTIME) + ticks * 10**9 // os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return now_ns
