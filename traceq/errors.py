"""Errors for users, each kind with its exit code."""

from __future__ import annotations


class TraceqError(Exception):
    """Error that a user can act on: one line that says where, what is wrong, and what was expected."""

    exit_code = 1


class UnreadableInput(TraceqError):
    """Path without a trace, or trace that cannot be read."""

    where: str
    problem: str
    expected: str

    def __init__(self, where: str, problem: str, expected: str = "") -> None:
        self.where, self.problem, self.expected = where, problem, expected
        super().__init__(f"{where}: {problem}" + (f"; expected {expected}" if expected else ""))

    def __reduce__(self) -> tuple[type[UnreadableInput], tuple[str, str, str]]:
        return type(self), (self.where, self.problem, self.expected)


class Unanswerable(TraceqError):
    """Question that a trace cannot answer, such as a rule of `traceq check`; the message is the reason alone."""


class RecordingFailed(TraceqError):
    """Recording that ended early; the message names the rank that caused it."""


class PeerLeft(RecordingFailed):
    """Recording that ended early on another rank, which told this one why."""


class UsageFault(TraceqError):
    """Invalid argument: an unknown recipe, analysis, rank, step, arm or rule."""

    exit_code = 2


class GateTripped(TraceqError):
    """Violated rule of `traceq check`, or a met `--fail-on` of `traceq diff`."""

    exit_code = 3
