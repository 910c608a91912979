"""Python lines at which the loop's thread is found while a step lasts much longer than usual ones."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread, get_ident
from time import perf_counter_ns
from types import CodeType, FrameType

from traceq.recorder.jobs.step_tracker import StepTracker
from traceq.recorder.rank.wall_account import WallAccount
from traceq.recorder.tracing.line_marks import is_own_code, is_user_code

__all__ = ["StepSamples", "sampled_steps"]

_PERIOD_S = 0.01
_LONG = 1.25
"""Multiple of a usual step from which one is sampled."""

_Places = list[tuple[CodeType, int]]


class StepSamples:
    """A thread that samples another one. While steps take as long as usual it sleeps, at least 10 ms.

    Lines are where the work departs from the loop: below the frames that run where a step begins, in the job's own
    files if it comes to them, else in the library that does it.
    """

    def __init__(self, thread: int) -> None:
        self._thread = thread
        self._began_ns: int | None = None  # the step that runs
        self._long_ns = 0.0
        self._has_departed = False
        self._lines: Counter[str] = Counter()
        self._loop: _Places = []
        self._stopped = Event()
        Thread(target=self._run, name="traceq-step-samples", daemon=True).start()

    def begin_step(self, usual_ns: int) -> None:
        """Note that a step begins, on the thread that is sampled."""
        if not self._loop:
            self._loop = _places(sys._getframe())
        if self._lines:
            self._lines = Counter()
        self._long_ns, self._has_departed = _LONG * usual_ns, False
        self._began_ns = perf_counter_ns()

    def depart(self) -> None:
        """Note, on the thread that is sampled, that the step goes over to other work: what was met before is usual."""
        if not self._has_departed:
            self._has_departed, self._long_ns = True, 0.0
            self._lines = Counter([line] if (line := self._line(sys._getframe())) else [])

    def take(self) -> Counter[str]:
        """Return how often each line was met in the step that has ended; no other is sampled until it begins."""
        self._began_ns = None
        lines, self._lines = self._lines, Counter()
        return lines

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._pause_s()):
            began_ns = self._began_ns
            if began_ns is not None and perf_counter_ns() - began_ns >= self._long_ns:
                frame = sys._current_frames().get(self._thread)
                if line := self._line(frame):
                    self._lines[line] += 1
                del frame  # it would keep what its locals hold

    def _pause_s(self) -> float:
        """Return how long nothing is to be sampled: until the step that runs is a long one."""
        began_ns = self._began_ns
        rest_ns = 0.0 if began_ns is None else began_ns + self._long_ns - perf_counter_ns()
        return max(_PERIOD_S, rest_ns * 1e-9)

    def _line(self, frame: FrameType | None) -> str:
        """Return `file.py:17 function` of a stack; "" where it has only the loop's frames, and none of the user's."""
        places = [place for place in _places(frame) if is_user_code(place[0].co_filename)]
        loop = [place for place in self._loop if is_user_code(place[0].co_filename)]
        num_common = next((i for i, pair in enumerate(zip(places, loop, strict=False)) if pair[0] != pair[1]), None)
        departed = places[num_common:] if num_common is not None else places[min(len(loop), len(places)) :]
        of_job = [place for place in departed if is_own_code(place[0].co_filename)]
        chosen = of_job[-1:] or departed[:1] or places[-1:]
        return "".join(f"{Path(code.co_filename).name}:{line} {_function(code)}" for code, line in chosen)


@contextmanager
def sampled_steps(account: WallAccount, tracker: StepTracker) -> Iterator[None]:
    """Let an account know lines that run in this thread while a step lasts longer than others, in the block."""
    samples = StepSamples(get_ident())
    account.begin_step, account.take_lines, tracker.on_other_work = samples.begin_step, samples.take, samples.depart
    try:
        yield
    finally:
        samples.stop()


def _places(frame: FrameType | None) -> _Places:
    """Return code and line of a frame and of those around it, outermost first."""
    places: _Places = []
    while frame is not None:
        places.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return places[::-1]


def _function(code: CodeType) -> str:
    return code.co_qualname.rpartition("<locals>.")[2]
