"""Which rank's failure is the cause: peers of a dead rank fail too, and often louder."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Failed", "Failure", "RootCause", "find_cause", "is_of_a_peer"]

_OF_A_PEER = re.compile(
    r"connection (closed|reset|refused)|connection was (closed|reset)|broken pipe|timed out waiting|watchdog|"
    r"collective operation timeout|socket timeout|remote process exited|ncclRemoteError|ncclSystemError|"
    r"DistBackendError|DistNetworkError|DistStoreError|no response from peer|recvbytes|sendbytes|"
    r"connectFullMesh|read from .* failed|timed out after \d+ ?(ms|seconds)|^ended by SIG\w+$",
    re.IGNORECASE,
)
_REFUSED = re.compile(r"ncclInvalid(Usage|Argument)|Duplicate GPU detected")  # what the rank itself asked of nccl
_WAITED = re.compile(r"timed out|timeout", re.IGNORECASE)
_OUT_OF_MEMORY = re.compile(r"out of ?memory|MemoryError|can(no|')t allocate memory|bad_alloc", re.IGNORECASE)
_SKIP = "Skip: "
_NAMES = {int(number): number.name for number in signal.Signals}
_OF_A_LIBRARY = {1, -signal.SIGABRT}  # a rank's own as often as what a library makes of a lost peer: its log tells


@dataclass(frozen=True, slots=True)
class Failure:
    """How one rank ended: `exit_code` < 0 is a signal, None a rank that went on until the launcher ended it.

    `message` is its exception, if it told one, at `at_ns`, in a step of `arm`.
    """

    rank: int
    exit_code: int | None
    message: str = ""
    log_tail: str = ""
    at_ns: int = 0
    arm: str = ""

    @property
    def is_secondary(self) -> bool:
        """A peer or the launcher is the reason."""
        if self.message:
            return is_of_a_peer(self.message)
        if self.exit_code in _OF_A_LIBRARY:
            return is_of_a_peer(self.log_tail)
        return self.exit_code is None

    @property
    def text(self) -> str:
        """How it ended, in a few words."""
        last = next((line.strip() for line in reversed(self.message.splitlines()) if line.strip()), "")
        if last:
            return last
        if self.exit_code is None:
            return "stopped answering; the other ranks waited for it until they gave up"
        if self.exit_code < 0:
            return f"killed by {_NAMES.get(-self.exit_code, f'signal {-self.exit_code}')}"
        return f"left with exit code {self.exit_code}" + ("" if self.exit_code else ", before the recording was over")


@dataclass(frozen=True, slots=True)
class RootCause:
    """The rank to look at first, and why; `told` is all it said, in a step of `arm`."""

    rank: int
    text: str
    told: str = ""
    arm: str = ""

    @property
    def of_arm(self) -> tuple[str, str]:
        """Status and fault of an arm that ran alone, where it is no fault of the recording's; "" and "" else."""
        if self.told.startswith(_SKIP):
            return "skipped", self.told.removeprefix(_SKIP)
        short = next((line.strip() for line in self.told.splitlines() if _OUT_OF_MEMORY.search(line)), "")
        return ("out of memory", f"rank {self.rank}: {short}") if short else ("", "")


@dataclass(frozen=True, slots=True)
class Failed:
    """Ranks that did not come to their end: what the manifest says, what the user is told, the `of_arm` of it, and in a
    step of which arm it was.
    """

    fault: str
    text: str
    of_arm: tuple[str, str] = ("", "")
    arm: str = ""


def is_of_a_peer(text: str) -> bool:
    """The words are those of a rank that lost its peers, or waited for them in vain."""
    return bool(_OF_A_PEER.search(text)) and not _REFUSED.search(text)


def find_cause(failures: Sequence[Failure], beats: Mapping[int, int]) -> RootCause:
    """A rank that ended on its own account comes first; if there are only waiters, the rank they waited for.

    Of several, one that died without a word: it cannot have waited for anybody. Then who told its fault first.
    `beats`: phases entered by each rank. A hang ends in its peers' timeouts: the rank with the fewest beats is late.
    """
    own = [failure for failure in failures if not failure.is_secondary]
    first = min(own, key=_precedence) if own else _late(failures, beats)
    return RootCause(first.rank, first.text, first.message or first.log_tail, first.arm)


def _precedence(failure: Failure) -> tuple[int, int]:
    if failure.message:
        return 1, failure.at_ns
    return (2 if failure.exit_code in _OF_A_LIBRARY else 0), 0


def _late(failures: Sequence[Failure], beats: Mapping[int, int]) -> Failure:
    """Of ranks that only waited, or never answered: the one that the others waited for."""
    silent = [failure for failure in failures if failure.exit_code is None and not failure.message]
    if not silent and not any(_WAITED.search(failure.message) for failure in failures):
        return min(failures, key=lambda failure: failure.at_ns)  # connections were lost: the first to say so knows
    return min(silent or failures, key=lambda failure: (beats.get(failure.rank, 0), failure.at_ns))
