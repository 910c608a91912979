"""The rank whose failure is the root cause: when a rank dies its peers fail too, often with longer messages."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from traceq.recorder.failures.rank_errors import text_in_arm

ABORTED = "aborted by a C++ exception of a library"
"""Message of a rank that gloo or NCCL ended: it received what its peers sent for another collective, or lost them."""

_PEER_ERROR = re.compile(
    rf"{re.escape(ABORTED)}|"
    r"connection (closed|reset|refused)|connection was (closed|reset)|broken pipe|timed out waiting|watchdog|"
    r"collective operation timeout|socket timeout|remote process exited|ncclRemoteError|ncclSystemError|"
    r"DistBackendError|DistNetworkError|DistStoreError|no response from peer|recvbytes|sendbytes|"
    r"connectFullMesh|read from .{1,200} failed|timed out after \d+ ?(ms|seconds)|^ended by SIG\w+$",
    re.IGNORECASE,
)
_OWN_ERROR = re.compile(r"ncclInvalid(Usage|Argument)|Duplicate GPU detected|Too many open files")
"""Errors of the rank itself, also in the words of a library that connects to peers."""
_TIMEOUT = re.compile(r"timed out|timeout", re.IGNORECASE)
_OUT_OF_MEMORY = re.compile(
    r"out of ?memory|MemoryError|can(no|')t allocate memory|bad_alloc|ALLOC_FAILED", re.IGNORECASE
)
_FRAME = re.compile(r"^\s+File ")
_SKIP = "Skip: "
_SIGNAL_NAMES = {int(number): number.name for number in signal.Signals}
_AMBIGUOUS_EXITS = {1, -signal.SIGABRT}
"""Exit codes after an error of the rank itself, or in a library that lost a peer: only the log tells which."""


@dataclass(frozen=True, slots=True)
class RankFailure:
    """How one rank ended: `exit_code` < 0 is a signal, None means that it ran until the launcher ended it.

    `message` is the exception that it wrote, if any, at `at_ns` (ns since the epoch), in a step of `arm`.
    """

    rank: int
    exit_code: int | None
    message: str = ""
    log_tail: str = ""
    at_ns: int = 0
    arm: str = ""

    @property
    def is_secondary(self) -> bool:
        """True if a peer or the launcher caused it."""
        if self.message:
            return is_peer_error(self.message)
        if self.exit_code in _AMBIGUOUS_EXITS:
            return is_peer_error(self.log_tail)
        return self.exit_code is None

    @property
    def text(self) -> str:
        """How it ended: what it raised, else its exit code or signal."""
        if raised := raised_line(self.message):
            return raised
        if self.exit_code is None:
            return "stopped responding; the other ranks waited for it until they gave up"
        if self.exit_code < 0:
            return f"killed by {_SIGNAL_NAMES.get(-self.exit_code, f'signal {-self.exit_code}')}"
        return f"exited with code {self.exit_code}" + ("" if self.exit_code else " before the recording was complete")


@dataclass(frozen=True, slots=True)
class RootCause:
    """The rank to look at first, and why; `message` is its whole message or the end of its log, in a step of `arm`."""

    rank: int
    text: str
    message: str = ""
    arm: str = ""

    @property
    def fault(self) -> str:
        """The rank and why, with the arm, as the manifest has it."""
        return f"rank {self.rank}: {text_in_arm(self.text, self.arm)}"

    @property
    def arm_status(self) -> tuple[str, str]:
        """Status and fault of the arm, if only the arm failed and not the recording; else two empty texts."""
        if self.message.startswith(_SKIP):
            return "skipped", self.message.removeprefix(_SKIP)
        line = out_of_memory_line(self.message)
        return ("out of memory", f"rank {self.rank}: {line}") if line else ("", "")


@dataclass(frozen=True, slots=True)
class LaunchFailure:
    """Why ranks did not complete: `fault` goes into the manifest, `text` to the user.

    `arm_status` and `arm` are those of the root cause.
    """

    fault: str
    text: str
    arm_status: tuple[str, str] = ("", "")
    arm: str = ""


def raised_line(message: str) -> str:
    """Return the first line of what was raised, below the last traceback of another process; "" without words.

    A line that ends in a colon is told with the next one. Later lines are advice, such as where to read on.
    """
    lines = message.splitlines()
    below = max((number + 1 for number, line in enumerate(lines) if _FRAME.match(line)), default=0)
    while below and below < len(lines) and lines[below].startswith(" "):  # its line of code, and marks below that
        below += 1
    words = [line.strip() for line in lines[below:] if re.search(r"\w", line)]
    return " ".join(words[: 2 if words and words[0].endswith(":") else 1])


def out_of_memory_line(message: str) -> str:
    """Return the line of an exception's message that says that memory ran out; "" if none does."""
    return next((line.strip() for line in message.splitlines() if _OUT_OF_MEMORY.search(line)), "")


def is_peer_error(text: str) -> bool:
    """Return True if the message is that of a rank that lost its peers or timed out waiting for them."""
    return bool(_PEER_ERROR.search(text)) and not _OWN_ERROR.search(text)


def find_cause(failures: Sequence[RankFailure], phases_entered: Mapping[int, int]) -> RootCause:
    """Return the rank that failed by itself; if all ranks waited, the one that the others waited for.

    Of several ranks that failed by themselves, one without a message comes first (it cannot have waited for another),
    then the earliest message. `phases_entered`: phases entered by each rank; in a hang the rank with the fewest is
    late.
    """
    primary = [failure for failure in failures if not failure.is_secondary]
    first = min(primary, key=_precedence) if primary else _late_rank(failures, phases_entered)
    return RootCause(first.rank, first.text, first.message or first.log_tail, first.arm)


def _precedence(failure: RankFailure) -> tuple[int, int]:
    if failure.message:
        return 1, failure.at_ns
    return (2 if failure.exit_code in _AMBIGUOUS_EXITS else 0), 0


def _late_rank(failures: Sequence[RankFailure], phases_entered: Mapping[int, int]) -> RankFailure:
    """Return the rank that the others waited for, if every rank waited or stopped responding."""
    silent = [failure for failure in failures if failure.exit_code is None and not failure.message]
    if not silent and not any(_TIMEOUT.search(failure.message) for failure in failures):
        return min(failures, key=lambda failure: failure.at_ns)  # lost connections: the earliest report is the cause
    return min(silent or failures, key=lambda failure: (phases_entered.get(failure.rank, 0), failure.at_ns))
