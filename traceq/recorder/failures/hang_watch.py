"""Ranks that traceq did not start, and of which none makes progress: it says where each stands, and ends none.

Under an external launcher a process on each host watches them, which also sees a rank that was stopped.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from traceq.errors import TraceqError
from traceq.facts.timeline.call_sites import user_line
from traceq.recorder.failures.hang_diagnosis import STACK_LINES, frames_of, innermost_user_line
from traceq.recorder.process.child_processes import cpu_s, is_alive, stat_fields, state
from traceq.recorder.process.progress_counters import ProgressCounters, SeenRank, WatchedRank, read_stacks, seen_ranks
from traceq.runs.run_folder import RunFolder, atomic_write
from traceq.units import name_ranks

if TYPE_CHECKING:
    from traceq.recorder.process.world import World
    from traceq.recorder.spec.plan import Plan

_LOOK_EVERY_S = 0.5

_POLL_S = 1.0


class HangWatch:
    """Says where the ranks stand if none has ended a step or begun a phase for `hang_s` seconds; 0: never.

    `ranks`: the folder through which they are watched (`WatchedRank`). While they stand it says so again whenever the
    time has doubled, and `folder.hang` holds what it said last: the reason, if the job then ends.
    """

    def __init__(self, ranks: Path, folder: RunFolder, hang_s: float) -> None:
        self._ranks, self._folder, self._hang_s = ranks, folder, hang_s
        self._seen: list[SeenRank] = []
        self._last_look = self._since = time.monotonic()
        self._next_s = hang_s
        self._last_stands: list[str] = []

    def look(self) -> list[str]:
        """Look at the ranks, at most once a second, and return the lines to print."""
        now = time.monotonic()
        if not self._hang_s or now - self._last_look < min(_POLL_S, self._hang_s / 4):
            return []
        self._last_look = now
        seen, before = seen_ranks(self._ranks), {rank.pid: rank.num_events for rank in self._seen}
        stood_s, self._seen = now - self._since, seen
        if any(rank.num_events != before.get(rank.pid) for rank in seen) or not seen:
            has_reported = self._next_s > self._hang_s
            self._since, self._next_s, self._last_stands = now, self._hang_s, []
            if not has_reported or not seen:  # ranks that left made no progress
                return []
            forget_hang(self._folder)
            return [f"traceq: steps go on after {stood_s:.0f} s"]
        if stood_s < self._next_s:
            return []
        self._next_s = 2 * stood_s
        stands_before, self._last_stands = self._last_stands, describe_stands(rank_stands(seen))
        line, *stacks = self._last_stands
        line = f"no step for {stood_s:.0f} s: {line}"
        self._keep("\n".join([line, *stacks, ""]))
        if stands_before == self._last_stands:
            return [f"traceq: {line}"]
        return [f"traceq: {line}", *stacks, "traceq: the job may be slow, and is not ended; Ctrl-C ends it"]

    def _keep(self, text: str) -> None:
        with suppress(OSError):
            self._folder.hang.parent.mkdir(exist_ok=True)
            with atomic_write(self._folder.hang) as part:
                part.write_text(text, encoding="utf-8")


def forget_hang(folder: RunFolder) -> None:
    """Take back what was said of ranks that made no progress: they did."""
    with suppress(OSError):
        folder.hang.unlink()
        folder.hang.parent.rmdir()


_MAX_STACKS = 8
_BUSY_SHARE = 0.2  # of a core
_WAITS_FOR_PEERS = re.compile(r"[/\\]torch[/\\]distributed[/\\]|[/\\]recorder[/\\]process[/\\]world\.py")
"""Frames of a collective, or of a recording at the end of some steps."""
_IN_BACKWARD = re.compile(r"\): _engine_run_backward$")
_ENDED = "ended"
_PLURAL = {"waits": "wait", "computes": "compute", "is": "are", "was": "were", "has": "have", "does": "do"}
_WITHOUT_STACK = {"T": "was stopped", "t": "was stopped", _ENDED: "has ended"}


@dataclass(frozen=True, slots=True)
class RankStand:
    """Where a rank stands, in words, and its stack, innermost frame first; "" for one that does not answer.

    `waits`: for the others, as far as the stack tells: a wait of DDP in backward is not seen in it.
    """

    seen: SeenRank
    text: str
    stack: str = ""
    waits: bool = False


def rank_stands(seen: Sequence[SeenRank]) -> list[RankStand]:
    """Return where each rank stands; takes half a second."""
    states = [state(rank.pid) if is_alive(rank.pid) else _ENDED for rank in seen]
    before_s, start = [_cpu_s(rank.pid) for rank in seen], time.monotonic()
    stacks = read_stacks([rank for rank, each in zip(seen, states, strict=True) if each not in _WITHOUT_STACK])
    bound_s = _BUSY_SHARE * (time.monotonic() - start)
    stack = iter(stacks)
    return [
        RankStand(rank, _WITHOUT_STACK[each])
        if each in _WITHOUT_STACK
        else rank_stand(rank, next(stack), is_busy=_cpu_s(rank.pid) - before > bound_s, in_driver=each == "D")
        for rank, each, before in zip(seen, states, before_s, strict=True)
    ]


def rank_stand(seen: SeenRank, stack: str, *, is_busy: bool = False, in_driver: bool = False) -> RankStand:
    """Return where a rank with this stack stands. `in_driver`: it waits for a disk or a driver."""
    frames = frames_of(stack)
    if not frames:
        return RankStand(seen, "does not answer (in a driver or a disk)" if in_driver else "does not answer")
    depth = next((number for number, frame in enumerate(frames) if user_line((frame,))), len(frames))
    in_library = frames[:depth]
    waits = any(_WAITS_FOR_PEERS.search(frame) for frame in in_library)
    in_backward = any(_IN_BACKWARD.search(frame) for frame in in_library)
    what = "waits for the others" if waits else "computes" if is_busy else "is in backward" if in_backward else "is"
    return RankStand(seen, f"{what} at {innermost_user_line(frames)}", stack.rstrip(), waits or in_backward)


def describe_stands(stands: Sequence[RankStand]) -> list[str]:
    """Return a line that names all ranks, then their stacks; ranks that stand alike are one."""
    places = _grouped((each.text, each.seen) for each in stands)
    lines = [", ".join(_sentence(ranks, text) for text, ranks in places) + _late_text(stands)]
    stacks = _grouped((each.stack, each.seen) for each in stands if each.stack)
    for stack, ranks in stacks[:_MAX_STACKS]:
        lines += [f"{name_ranks(ranks)}, most recent call first:", *stack.splitlines()[:STACK_LINES]]
    if len(stacks) > _MAX_STACKS:
        lines.append(f"{len(stacks) - _MAX_STACKS} more stacks")
    return lines


def _late_text(stands: Sequence[RankStand]) -> str:
    """Return for which ranks the others wait: those that are not in a collective, else those with the fewest events."""
    late = [each.seen.rank for each in stands if not each.waits]
    if len(late) in (0, len(stands)):
        fewest = min(each.seen.num_events for each in stands)
        late = [each.seen.rank for each in stands if each.seen.num_events == fewest]
    return "" if len(late) == len(stands) else f"; the others wait for {name_ranks(late)}"


def _sentence(ranks: Sequence[int], text: str) -> str:
    verb, _, rest = text.partition(" ")
    return f"{name_ranks(ranks)} {verb if len(ranks) == 1 else _PLURAL[verb]} {rest}"


def _grouped(of_ranks: Iterable[tuple[str, SeenRank]]) -> list[tuple[str, list[int]]]:
    groups: dict[str, list[int]] = {}
    for text, seen in of_ranks:
        groups.setdefault(text, []).append(seen.rank)
    return list(groups.items())


def _cpu_s(pid: int) -> float:
    return cpu_s(stat_fields(Path(f"/proc/{pid}/stat")))


def _main() -> None:
    """Print on stderr where the ranks stand, whenever they have made no progress for long."""
    rank_pid, ranks, run, hang_s = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    watch = HangWatch(Path(ranks), RunFolder(Path(run)), float(hang_s))
    while os.getppid() == int(rank_pid):  # named, as it may have ended before this line
        for line in watch.look():
            sys.stderr.write(f"{line}\n")
        time.sleep(_LOOK_EVERY_S)
    shutil.rmtree(ranks, ignore_errors=True)


_WATCHER = "traceq.recorder.failures.hang_watch"


@contextmanager
def watched_loop(plan: Plan, world: World) -> Iterator[ProgressCounters]:
    """Yield this rank's counters, of which its host's watcher says on stderr when they stand still; see `HangWatch`.

    All ranks call it. The first rank of each host starts the watcher, which ends with that rank.
    """
    if not plan.hang_s:
        yield ProgressCounters()
        return
    host = world.peers[world.rank].host
    leader = next(rank for rank, peer in enumerate(world.peers) if peer.host == host)
    folders = world.gather(tempfile.mkdtemp(prefix="traceq-") if leader == world.rank else "")
    watched = WatchedRank(folders[leader], world.rank)
    watcher = _start(folders[leader], plan) if leader == world.rank else None

    process = os.getpid()

    def close() -> None:
        if os.getpid() != process:  # a child that the loop forked
            return
        atexit.unregister(close)
        watched.close()
        if watcher is not None:
            watcher.kill()
            watcher.wait()
            shutil.rmtree(folders[leader], ignore_errors=True)
            with suppress(TraceqError):  # the folder may be gone
                if plan.folder.is_complete:
                    forget_hang(plan.folder)

    atexit.register(close)  # a trainer's callback may never be told that the training ended
    try:
        yield watched.counters
    finally:
        close()


def _start(folder: str, plan: Plan) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", _WATCHER, str(os.getpid()), folder, str(plan.folder.path), str(plan.hang_s)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )


if __name__ == "__main__":
    _main()
