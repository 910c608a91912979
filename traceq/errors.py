"""What can go wrong, and the exit code each kind of fault ends with."""

from __future__ import annotations

__all__ = ["GateTripped", "RecordingFailed", "TraceqError", "UnreadableInput", "UsageFault"]


class TraceqError(Exception):
    """A fault a user can act on: one line that says where, what was found, and what was expected."""

    exit_code = 1


class UnreadableInput(TraceqError):
    """A path that holds no trace, or a trace that cannot be read."""

    def __init__(self, where: str, found: str, expected: str = "") -> None:
        self.where, self.found, self.expected = where, found, expected
        super().__init__(f"{where}: {found}" + (f"; expected {expected}" if expected else ""))

    def __reduce__(self) -> tuple[type[UnreadableInput], tuple[str, str, str]]:
        return type(self), (self.where, self.found, self.expected)


class RecordingFailed(TraceqError):
    """A recording that ended early; the message names the rank that caused it."""


class UsageFault(TraceqError):
    """An argument that names nothing: an unknown recipe, analysis, arm or rule."""

    exit_code = 2


class GateTripped(TraceqError):
    """A rule of `traceq check` or a `--fail-on` of `traceq diff` that does not hold."""

    exit_code = 3
