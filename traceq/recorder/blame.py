"""Which rank's failure is the cause: peers of a dead rank fail too, and often louder."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Cause", "Failure", "find_cause"]

_OF_A_PEER = re.compile(
    r"connection (closed|reset|refused)|connection was (closed|reset)|broken pipe|timed out waiting|watchdog|"
    r"collective operation timeout|socket timeout|remote process exited|ncclRemoteError|ncclSystemError|"
    r"DistBackendError|DistNetworkError|no response from peer|recvbytes|sendbytes|"
    r"read from .* failed|timed out after \d+ ?(ms|seconds)",
    re.IGNORECASE,
)
_ENDED_BY_LAUNCHER = {-signal.SIGTERM, -signal.SIGINT}


@dataclass(frozen=True, slots=True)
class Failure:
    """How one rank ended. `exit_code` < 0 is a signal; `message` is its exception, if it told one."""

    rank: int
    exit_code: int
    message: str = ""
    log_tail: str = ""

    @property
    def is_secondary(self) -> bool:
        """A peer or the launcher is the reason. SIGABRT is a watchdog's as often as a rank's own: its log tells."""
        if self.exit_code in _ENDED_BY_LAUNCHER:
            return True
        if self.exit_code < 0 and self.exit_code != -signal.SIGABRT:
            return False
        return bool(_OF_A_PEER.search(self.message or self.log_tail))

    @property
    def text(self) -> str:
        """How it ended, in a few words."""
        last = next((line.strip() for line in reversed(self.message.splitlines()) if line.strip()), "")
        if last:
            return last
        if self.exit_code < 0:
            return f"killed by {signal.Signals(-self.exit_code).name}"
        return f"left with exit code {self.exit_code}"


@dataclass(frozen=True, slots=True)
class Cause:
    """The rank to look at first, and why."""

    rank: int
    text: str


def find_cause(failures: Sequence[Failure], beats: Mapping[int, int]) -> Cause:
    """A signal or an exception of a rank's own comes first; if there are only waiters, the rank they waited for.

    `beats`: phases entered by each rank. A hang ends in its peers' timeouts: the rank with the fewest beats is late.
    """
    own = [failure for failure in failures if not failure.is_secondary]
    if own:
        signalled = [failure for failure in own if failure.exit_code < 0]
        first = min(signalled or own, key=lambda failure: beats.get(failure.rank, 0))
        return Cause(first.rank, first.text)
    waiting = {failure.rank for failure in failures if failure.exit_code not in _ENDED_BY_LAUNCHER}
    late = min(beats, key=lambda rank: (beats[rank], rank in waiting))
    if waiting and late not in waiting:
        return Cause(late, "stopped answering; the other ranks waited for it until they gave up")
    first = min(failures, key=lambda failure: beats.get(failure.rank, 0))
    return Cause(first.rank, first.text)
