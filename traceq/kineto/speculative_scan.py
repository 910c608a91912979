"""Two threads on one trace: while one scans the current buffer, the other scans the next one from a guessed start.

The guess is a position where the text looks like the start of an event of this trace; a name may look like that, too.
It is confirmed if the first thread's events end right there, with one comma between; else the second thread's events
are discarded, and the first thread continues from where it stopped.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from traceq.kineto.native_columns import NativeColumns
from traceq.kineto.read_buffer import ReadBuffer

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

__all__ = ["SpeculativeScan"]

_OPENING = re.compile(rb"\s*(\{\s*\"[^\"\\]{1,40}\"\s*:)")
_SEPARATOR = re.compile(rb"[ \t\r\n]*,[ \t\r\n]*")
_FIRST_ROWS = 1 << 15


class SpeculativeScan:
    """Scan of a ReadBuffer from the first event on, by one thread or two."""

    CHUNKS = 8  # read at once for two threads: scanning them should take much longer than starting a thread

    def __init__(self, buffer: ReadBuffer, columns: NativeColumns, threads: int) -> None:
        self._buffer, self._columns = buffer, columns
        opening = _OPENING.match(buffer.buffer, buffer.start, buffer.stop) if threads > 1 else None
        self._opening = opening[1] if opening else b""
        self._part = NativeColumns(_FIRST_ROWS) if opening else None
        self._pool = _one_thread() if opening else None

    def __enter__(self) -> SpeculativeScan:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def scan(self, *, comma_due: bool) -> tuple[int, bool]:
        """Add the events in the buffer, at times those of the next, too; return (status, is a comma due after them)."""
        buffer, part = self._buffer, self._part
        guess, stop = -1, 0
        if part is not None and buffer.start < buffer.stop and (peeked := buffer.peek()) is not None:
            text, begin, stop = peeked
            guess = text.find(self._opening, begin, stop)
        if guess < 0 or part is None or self._pool is None:
            return self._scan_current(comma_due=comma_due)
        speculation = self._pool.submit(part.scan, text, guess, stop, comma_due=False)
        try:
            status, comma_due = self._scan_current(comma_due=comma_due)
        finally:
            speculation.exception()  # waits until the thread has finished
        if status == NativeColumns.MORE:
            status, comma_due, is_confirmed = self._scan_seam(guess, comma_due=comma_due)
            if is_confirmed:
                status, position, comma_due = speculation.result()
                self._columns.move_from(part)
                buffer.skip_to(position)
                return status, comma_due
            if status == NativeColumns.MORE:
                status, comma_due = self._scan_current(comma_due=comma_due)
        self._part = NativeColumns(_FIRST_ROWS)  # discards the rows of the wrong guess, and their strings
        return status, comma_due

    def _scan_current(self, *, comma_due: bool) -> tuple[int, bool]:
        buffer = self._buffer
        status, position, comma_due = self._columns.scan(buffer.buffer, buffer.start, buffer.stop, comma_due=comma_due)
        buffer.skip_to(position)
        return status, comma_due

    def _scan_seam(self, guess: int, *, comma_due: bool) -> tuple[int, bool, bool]:
        """Switch to the next buffer and scan up to `guess`; return (status, is a comma due, is the guess confirmed)."""
        buffer = self._buffer
        if not buffer.advance_buffer():
            return NativeColumns.MORE, comma_due, False
        seam = bytearray(buffer.buffer[buffer.start : guess]) + bytes(NativeColumns.PADDING)
        size = guess - buffer.start
        status, position, comma_due = self._columns.scan(seam, 0, size, comma_due=comma_due)
        buffer.skip_to(buffer.start + position)
        has_comma = comma_due and _SEPARATOR.fullmatch(seam, position, size) is not None
        return status, comma_due, status == NativeColumns.MORE and has_comma


def _one_thread() -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor  # loads logging and more, for a second thread alone

    return ThreadPoolExecutor(1, "traceq-scan")
