"""The store by which the ranks of a launcher meet: who waits says for what, and can be interrupted."""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from threading import Thread

from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from traceq.errors import TraceqError
from traceq.recorder.process.environment_variables import rank_of_environment

__all__ = ["meet"]

_NOTE_AFTER_S = 5.0
_POLL_S = 0.05
_VARIABLES = "RANK LOCAL_RANK WORLD_SIZE MASTER_ADDR MASTER_PORT"
_LEFT_OVER = f"if these variables are left over from another job: unset {_VARIABLES}"


def meet(timeout: timedelta) -> tuple[Store, int, int]:
    """Return the store, this rank, and their number, by the variables that the launcher set.

    Writes to stderr what it waits for, if that takes longer than 5 s. Raises TraceqError for variables that cannot be,
    and where not all ranks come in time. torch waits in C++, which hears no signal, so it does that on a thread.
    """
    rank, size = rank_of_environment()
    place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    attempt = _Attempt(timeout)
    attempt.start()
    start = time.monotonic()
    was_noted = False
    while attempt.is_alive():
        attempt.join(_POLL_S)
        if not was_noted and time.monotonic() - start > _NOTE_AFTER_S:
            was_noted = True
            others = "rank 0" if rank else f"the other {size - 1} ranks" if size > 2 else "rank 1"
            sys.stderr.write(f"traceq: rank {rank} of {size} waits for {others} at {place}; {_LEFT_OVER}\n")
    if attempt.store is None:
        waited = f"after {time.monotonic() - start:.0f} s"
        raise TraceqError(f"rank {rank} of {size}: not all ranks came to {place} {waited}; {_LEFT_OVER}")
    return attempt.store, rank, size


class _Attempt(Thread):
    """Waits for the other ranks; `store` is None until all have come."""

    def __init__(self, timeout: timedelta) -> None:
        super().__init__(daemon=True)
        self._timeout = timeout
        self.store: Store | None = None

    def run(self) -> None:
        try:
            store, _, _ = next(rendezvous("env://", timeout=self._timeout))
            store.set_timeout(self._timeout)
        except (RuntimeError, ValueError, OSError):  # torch's own errors are RuntimeErrors
            return
        self.store = PrefixStore("default_pg", store)
