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
from traceq.recorder.tracing.line_marks import function_name, is_own_code, is_user_code
from traceq.short_texts import without_module

_PERIOD_S = 0.01
_LONG = 1.25
"""Multiple of a usual step from which one is sampled."""

_Places = list[tuple[CodeType, int]]


class StepSamples:
    """A thread that samples another one. While steps take as long as usual it sleeps, at least 10 ms.

    Lines are where the work departs from the loop: below the frames that run where a step begins, in the job's own
    files if it comes to them, else in the library that does it.
    """

    def __init__(self, account: WallAccount) -> None:
        """Sample the calling thread, which is where a step begins, and whose steps are those of the account."""
        self._account = account
        self._thread = get_ident()
        self._loop = _places(sys._getframe())
        self._departed_ns = 0  # when the step began that last went over to other work
        self._sampled_ns = 0  # when the step began of which the lines are
        self._lines: Counter[str] = Counter()
        self._stopped = Event()
        Thread(target=self._run, name="traceq-step-samples", daemon=True).start()

    def depart(self) -> None:
        """Note, on the thread that is sampled, that the step goes over to other work: what was met before is usual."""
        if self._departed_ns != self._account.at_ns:
            self._departed_ns = self._sampled_ns = self._account.at_ns
            self._lines = Counter([line] if (line := self._line(sys._getframe())) else [])

    def take(self, began_ns: int) -> Counter[str]:
        """Return how often each line was met in the step that began then."""
        return self._lines if self._sampled_ns == began_ns else Counter()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(max(_PERIOD_S, self._rest_ns() * 1e-9)):
            began_ns = self._account.at_ns
            if self._account.is_running and self._rest_ns() <= 0:
                if self._sampled_ns != began_ns:
                    self._sampled_ns, self._lines = began_ns, Counter()
                frame = sys._current_frames().get(self._thread)
                if line := self._line(frame):
                    self._lines[line] += 1
                del frame  # it would keep what its locals hold

    def _rest_ns(self) -> float:
        """Return how long the step that runs, if any, is none that is to be sampled."""
        began_ns = self._account.at_ns
        usual_ns = 0 if self._departed_ns == began_ns else self._account.usual_ns
        return began_ns + _LONG * usual_ns - perf_counter_ns() if self._account.is_running else 0.0

    def _line(self, frame: FrameType | None) -> str:
        """Return `file.py:17 function` of a stack; "" where it has only the loop's frames, and none of the user's."""
        places = [place for place in _places(frame) if is_user_code(place[0].co_filename)]
        loop = [place for place in self._loop if is_user_code(place[0].co_filename)]
        num_common = next((i for i, pair in enumerate(zip(places, loop, strict=False)) if pair[0] != pair[1]), None)
        departed = places[num_common:] if num_common is not None else places[min(len(loop), len(places)) :]
        of_job = [place for place in departed if is_own_code(place[0].co_filename)]
        chosen = of_job[-1:] or departed[:1] or places[-1:]
        lines = (f"{Path(code.co_filename).name}:{line} {function_name(code)}" for code, line in chosen)
        return "".join(map(without_module, lines))


@contextmanager
def sampled_steps(account: WallAccount, tracker: StepTracker) -> Iterator[None]:
    """Let an account know lines that run in this thread while a step lasts longer than others, in the block."""
    samples = StepSamples(account)
    account.take_lines, tracker.on_other_work = samples.take, samples.depart
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
