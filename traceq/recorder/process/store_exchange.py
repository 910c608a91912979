"""Values of all ranks by a key-value store: no collective joins those of a job that is being recorded."""

from __future__ import annotations

import base64
import pickle
import time
from contextlib import suppress
from datetime import timedelta
from typing import TypeVar

from torch._C._distributed_c10d import Store

from traceq.errors import RecordingFailed

__all__ = ["StoreExchange"]

T = TypeVar("T")
_POLL_S = 0.001


class StoreExchange:
    """Gathers values of ranks that are at the same point of their loops; call its methods in the same order on all."""

    __slots__ = ("_num_gathered", "_rank", "_size", "_store", "_timeout_s")

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._timeout_s = timeout.total_seconds()
        self._num_gathered = 0

    def announce(self) -> None:
        """Tell the other ranks that this one takes part."""
        self._store.set(f"present/{self._rank}", "")

    def absent_ranks(self, within_s: float) -> list[int]:
        """Return the ranks that have not announced themselves, after at most that long."""
        deadline = time.monotonic() + within_s
        while absent := [rank for rank in range(self._size) if not self._store.check([f"present/{rank}"])]:
            if time.monotonic() >= deadline:
                break
            time.sleep(_POLL_S)
        return absent

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks, by rank.

        Raises RecordingFailed if a rank has left, or does not come in time.
        """
        prefix = f"gather/{self._num_gathered}"
        self._num_gathered += 1
        self._store.set(f"{prefix}/{self._rank}", base64.b64encode(pickle.dumps(value)).decode())
        deadline = time.monotonic() + self._timeout_s
        for rank in range(self._size):
            while not self._store.check([f"{prefix}/{rank}"]):
                self._check_present(rank, f"{prefix}/{rank}", deadline)
                time.sleep(_POLL_S)
        if self._num_gathered > 1:  # all ranks are here, so all have read the values before these
            with suppress(RuntimeError):
                self._store.delete_key(f"gather/{self._num_gathered - 2}/{self._rank}")
        return [pickle.loads(base64.b64decode(self._store.get(f"{prefix}/{rank}"))) for rank in range(self._size)]

    def leave(self, reason: str) -> None:
        """Tell the other ranks that this one takes part no longer, and why."""
        self._store.set(f"left/{self._rank}", reason)

    def wait_until_left(self, within_s: float) -> None:
        """Wait until all other ranks have left, at most that long."""
        others = [f"left/{rank}" for rank in range(self._size) if rank != self._rank]
        deadline = time.monotonic() + within_s
        while not self._store.check(others) and time.monotonic() < deadline:
            time.sleep(_POLL_S)

    def _check_present(self, rank: int, key: str, deadline: float) -> None:
        """Raise RecordingFailed if the rank has left without that value; it may set it just before."""
        if self._store.check([f"left/{rank}"]) and not self._store.check([key]):
            raise RecordingFailed(f"rank {rank}: {self._store.get(f'left/{rank}').decode()}")
        if time.monotonic() >= deadline:
            raise RecordingFailed(f"rank {rank} did not reach this point of its loop within {self._timeout_s:.0f} s")
