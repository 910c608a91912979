"""Pauses of Python's garbage collector in each step, and how many objects the step allocated for it to count."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from time import perf_counter_ns
from types import CodeType, FrameType
from typing import Any

from traceq.recorder.tracing.line_marks import is_user_code
from traceq.runs.step_log import pause_kind

__all__ = ["GcPauses", "PausesSoFar", "StepPauses"]

_CALL_BYTES = 40
"""Bytecode before a call in which the function is loaded that it calls: of gc.collect(2) 30 bytes on Python 3.11."""
_COLLECT = "collect"


@dataclass(slots=True)
class StepPauses:
    """Collections of one step: number and ns by kind; `allocated`: objects that the collector counted, less freed ones.

    Of a step at whose end the collector is disabled `allocated` is 0: no automatic collection is due to it.
    """

    kinds: dict[str, tuple[int, int]] = field(default_factory=dict)
    allocated: int = 0

    @classmethod
    def between(cls, began: PausesSoFar, ended: PausesSoFar) -> StepPauses:
        """Return the collections between two moments."""
        kinds = {}
        for kind, (num, ns) in ended[0].items():
            num_before, before_ns = began[0].get(kind, (0, 0))
            if num > num_before:
                kinds[kind] = num - num_before, ns - before_ns
        return cls(kinds, ended[1] - began[1] if ended[2] else 0)


PausesSoFar = tuple[dict[str, tuple[int, int]], int, bool]
"""Collections up to a moment, as in `StepPauses`, and whether the collector is enabled."""


class GcPauses:
    """Measures the collections of the whole process between `start` and `stop`, whichever thread they run on.

    They hold the interpreter's lock, so every thread that runs Python waits. The collector itself stays as it is.
    `collected_ns`: how long all of them took.
    """

    __slots__ = ("_began_ns", "_is_measuring", "_kind", "_kinds", "_num_counted", "collected_ns")

    def __init__(self) -> None:
        self.collected_ns = 0
        self._kinds: dict[str, tuple[int, int]] = {}  # replaced, not changed: what `so_far` returned stays
        self._num_counted = 0  # objects until the last collection, from which the collector counts anew
        self._began_ns = 0
        self._kind = ""
        self._is_measuring = False

    def start(self) -> None:
        """Measure the collections from now on."""
        gc.callbacks.append(self._on_collection)

    def stop(self) -> None:
        """Measure no more collections."""
        if self._on_collection in gc.callbacks:  # the job may have removed it
            gc.callbacks.remove(self._on_collection)

    def so_far(self) -> PausesSoFar:
        """Return the collections so far."""
        return self._kinds, self._num_counted + gc.get_count()[0], gc.isenabled()

    def _on_collection(self, event: str, info: dict[str, Any]) -> None:
        if event == "start":
            caller, count = sys._getframe().f_back, gc.get_count()[0]
            line = _user_line(caller) if _is_explicit(caller, count) else ""
            self._num_counted += count
            self._kind, self._is_measuring = pause_kind(info["generation"], line), True
            self._began_ns = perf_counter_ns()
        elif self._is_measuring:  # else it had begun before the start
            ns = perf_counter_ns() - self._began_ns
            num, total_ns = self._kinds.get(self._kind, (0, 0))
            self._kinds = {**self._kinds, self._kind: (num + 1, total_ns + ns)}
            self.collected_ns += ns
            self._is_measuring = False


def _is_explicit(caller: FrameType | None, count: int) -> bool:
    """Return whether the program asks for the collection that begins, rather than the number of its objects.

    An automatic one begins when the count exceeds its threshold. Since Python 3.12 it begins a little later, when
    objects may have been freed, hence the half. Of a count above that the call that runs decides.
    """
    if not gc.isenabled() or 2 * count < gc.get_threshold()[0]:
        return True
    return caller is not None and _COLLECT in caller.f_code.co_names and _calls_collect(caller.f_code, caller.f_lasti)


@lru_cache(maxsize=64)
def _calls_collect(code: CodeType, offset: int) -> bool:
    """Return whether the instruction at this offset is a call of something named `collect`."""
    import dis  # for such collections alone

    before = [each for each in dis.get_instructions(code) if offset - _CALL_BYTES <= each.offset <= offset]
    loaded = [each.argval for each in before if each.opname.startswith("LOAD")]
    return before[-1].opname.startswith("CALL") and _COLLECT in loaded[-3:]


def _user_line(frame: FrameType | None) -> str:
    """Return `file.py:10`, the innermost line of user code that runs; of the innermost frame where there is none."""
    line = next((each for each in _frames(frame) if is_user_code(each.f_code.co_filename)), frame)
    return f"{Path(line.f_code.co_filename).name}:{line.f_lineno}" if line else "?"


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back
