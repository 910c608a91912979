"""Two threads on one trace: while one scans what is at hand, the other scans what comes next, from a guess.

The guess is a place where the text looks as events of this trace begin; a name may look so, too. It is proven by the
first thread, whose events must end right there, with one comma between: else what the second one found is forgotten,
and the first goes on from where it came to.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

from traceq.kineto.native_columns import NativeColumns
from traceq.kineto.read_buffer import ReadBuffer

__all__ = ["SpeculativeScan"]

_OPENING = re.compile(rb"\s*(\{\s*\"[^\"\\]{1,40}\"\s*:)")
_SEPARATOR = re.compile(rb"[ \t\r\n]*,[ \t\r\n]*")
_FIRST_ROWS = 1 << 15


class SpeculativeScan:
    """Scans a tape from the first event on, by one thread or two."""

    CHUNKS = 8  # of a tape, to be read at once for two threads: what a pair of them takes should outweigh its start

    def __init__(self, tape: ReadBuffer, columns: NativeColumns, threads: int) -> None:
        self._tape, self._columns = tape, columns
        opening = _OPENING.match(tape.buffer, tape.start, tape.stop) if threads > 1 else None
        self._opening = opening[1] if opening else b""
        self._part = NativeColumns(_FIRST_ROWS) if opening else None
        self._pool = ThreadPoolExecutor(1, "traceq-scan") if opening else None

    def __enter__(self) -> SpeculativeScan:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def scan(self, *, comma_due: bool) -> tuple[int, bool]:
        """Add the events at hand, at times those behind them: (verdict, whether a comma is due behind them)."""
        tape, part = self._tape, self._part
        guess, stop = -1, 0
        if part is not None and tape.start < tape.stop and (ahead := tape.ahead()) is not None:
            text, begin, stop = ahead
            guess = text.find(self._opening, begin, stop)
        if guess < 0 or part is None or self._pool is None:
            return self._scan_alone(comma_due=comma_due)
        found = self._pool.submit(part.scan, text, guess, stop, comma_due=False)
        try:
            verdict, comma_due = self._scan_alone(comma_due=comma_due)
        finally:
            found.exception()  # it is over
        if verdict == NativeColumns.MORE:
            verdict, comma_due, is_proven = self._scan_up_to(guess, comma_due=comma_due)
            if is_proven:
                verdict, at, comma_due = found.result()
                self._columns.take(part)
                tape.skip_to(at)
                return verdict, comma_due
            if verdict == NativeColumns.MORE:
                verdict, comma_due = self._scan_alone(comma_due=comma_due)
        self._part = NativeColumns(_FIRST_ROWS)  # what it found must not be met again, its strings included
        return verdict, comma_due

    def _scan_alone(self, *, comma_due: bool) -> tuple[int, bool]:
        tape = self._tape
        verdict, at, comma_due = self._columns.scan(tape.buffer, tape.start, tape.stop, comma_due=comma_due)
        tape.skip_to(at)
        return verdict, comma_due

    def _scan_up_to(self, guess: int, *, comma_due: bool) -> tuple[int, bool, bool]:
        """Scan between what is read and a place in the next buffer, which becomes the tape's: is it proven then?"""
        tape = self._tape
        if not tape.turn():
            return NativeColumns.MORE, comma_due, False
        seam = bytearray(tape.buffer[tape.start : guess]) + bytes(NativeColumns.PADDING)
        size = guess - tape.start
        verdict, at, comma_due = self._columns.scan(seam, 0, size, comma_due=comma_due)
        tape.skip_to(tape.start + at)
        is_proven = verdict == NativeColumns.MORE and comma_due and _SEPARATOR.fullmatch(seam, at, size) is not None
        return verdict, comma_due, is_proven
