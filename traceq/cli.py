"""The command line as a program: faults become one line, and the exit code says what kind they are of."""

from __future__ import annotations

import errno
import os
import sys

from traceq.commands import SUMMARIES
from traceq.engines.process_tuning import collect_rarely, raise_mmap_threshold
from traceq.errors import RecordingFailed, TraceqError
from traceq.escaping import VisibleStream, in_its_encoding, visible
from traceq.locations import as_printed
from traceq.typer_app import app

__all__ = ["main"]

_STDOUT_FAULTS = {errno.ENOSPC, errno.EDQUOT, errno.EIO}  # a fault of another file names that file
_READER_GONE = 141  # as of a program that SIGPIPE ends: a check whose output was not read has not passed


def _run(words: list[str]) -> None:
    """Run a command, `show` for a path alone; of URLs it gets what can be printed, but for a job's own command."""
    if words[:1] != ["record"]:
        words = [*map(as_printed, words)]
    if words and words[0] not in SUMMARIES and ("/" in words[0] or ".json" in words[0] or os.path.exists(words[0])):
        words = ["show", *words]
    app(words, prog_name="traceq")


def _drop_stdout() -> None:
    """Discard what is still to be written, so that the final flush cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> None:
    """Run the command line: exit 0 good, 1 bad input or failed run, 2 usage, 3 a tripped rule."""
    sys.stdout, sys.stderr = (VisibleStream(in_its_encoding(each)) for each in (sys.stdout, sys.stderr))
    stdout = sys.stdout
    collect_rarely()
    raise_mmap_threshold()
    try:
        try:
            _run(sys.argv[1:])
        finally:
            sys.stdout.flush()  # a full disk shows here at the latest, not when the interpreter ends
    except TraceqError as fault:
        message = str(fault) if isinstance(fault, RecordingFailed) else visible(str(fault))  # with the end of a log
        print(f"traceq: {message}", file=sys.stderr)  # noqa: T201
        sys.exit(fault.exit_code)
    except BrokenPipeError:
        _drop_stdout()
        sys.exit(_READER_GONE)
    except SystemExit:
        if sys.stdout is stdout:
            raise
        sys.exit(_READER_GONE)  # typer met a broken pipe: it exits with 1, and wraps stdout
    except OSError as fault:
        if fault.filename is None and fault.errno not in _STDOUT_FAULTS:
            raise
        print(f"traceq: {visible(str(fault.filename or 'stdout'))}: {fault.strerror}", file=sys.stderr)  # noqa: T201
        _drop_stdout()
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
