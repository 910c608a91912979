"""Whether the workers of a data loader had made a batch before the loop asked for it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

__all__ = ["BatchWaits"]


class BatchWaits:
    """Batches that a loop received from workers, and how many of them it waited for.

    A batch that is there may still take long: this process opens the shared memory of each tensor, with the help of a
    thread of the worker.
    """

    __slots__ = ("_is_waiting", "num", "num_waited")

    def __init__(self) -> None:
        self.num = self.num_waited = 0
        self._is_waiting = False

    def reads(self, iterator: Any) -> None:
        """Note that an iterator is about to read from its workers: it waits if nothing is there.

        It reads more than once where another worker's batch comes first.
        """
        with suppress(Exception):
            self._is_waiting |= iterator._data_queue.empty()

    def received(self) -> None:
        """Count a batch, read now or put aside before."""
        self.num += 1
        self.num_waited += self._is_waiting
        self._is_waiting = False

    def counts(self) -> tuple[int, int]:
        """Return the number of batches, and how many of them were waited for."""
        return self.num, self.num_waited
