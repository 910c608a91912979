"""A recording, or watch, of steps that the callbacks of a trainer report, from where training begins to its end."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from traceq.errors import UsageFault
from traceq.recorder.user_loop import Session, Stepper, record
from traceq.recorder.watched_loop import WatchedLoop, watch


class TrainerRecording:
    """What the callbacks of a trainer report to; before `begin` and after `close` reports have no effect.

    `options` are those of `traceq.record`; with `watch=True` besides, those of `traceq.watch`.
    """

    __slots__ = ("_open", "_options", "_out", "_session", "_stepper", "_toggles", "_watches")

    def __init__(self, out: str | Path | None, options: dict[str, Any]) -> None:
        self._watches = options.pop("watch", False)
        self._out, self._options = out, options
        self._open = ExitStack()
        self._session: Session | WatchedLoop | None = None
        self._stepper: Stepper | None = None
        self._toggles: list[Callable[[Session], None]] = []

    @property
    def arm(self) -> str:
        """Arm of the step that runs; the first one before and after the recording."""
        names = self._options.get("arms") or (self._options.get("arm", "run"),)
        return self._session.arm if isinstance(self._session, Session) else str(names[0])

    def toggle(self, owner: Any, name: str, values: dict[str, Any]) -> None:
        """Let the arms change an attribute or item, once the recording begins."""
        if self._watches:
            raise UsageFault(f"toggle {name!r}: a run that is watched has no arms")
        if self._session is not None:
            raise UsageFault(f"toggle {name!r}: the trainer is training already; call it before that")
        self._toggles.append(lambda session: session.toggle(owner, name, **values))

    def begin(self) -> None:
        """Begin the recording and its first step; a later call, as of a second training, has no effect."""
        if self._session is not None:
            return
        session: Session | WatchedLoop
        if self._watches:
            session = self._open.enter_context(watch(self._out, **self._options))
        else:
            session = self._open.enter_context(record(self._out, **self._options))
            for toggle in self._toggles:
                toggle(session)
        self._session, self._stepper = session, self._open.enter_context(session.stepper())
        atexit.register(self.close)  # a trainer does not report that it ended by an exception

    def set_phase(self, phase: str) -> None:
        """End the current phase and begin this one."""
        if self._stepper is not None:
            self._stepper.set_phase(phase)

    def exclude_step(self) -> None:
        """Let the step that runs not count: it evaluates, or saves a checkpoint."""
        if self._session is not None:
            self._session.exclude_step()

    def end_step(self) -> None:
        """End the current step and begin the next one."""
        if self._stepper is not None:
            self._stepper.end_step()

    def close(self, error: BaseException | None = None) -> None:
        """End the recording, with the exception that ended the training, if it is known."""
        atexit.unregister(self.close)
        self._stepper = None
        if error is None:
            self._open.close()
        else:
            self._open.__exit__(type(error), error, error.__traceback__)
