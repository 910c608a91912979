"""The command line as a process of its own: `traceq`, and `python -m traceq`."""

import atexit
import os
import sys
import threading

from traceq.cli import main


def console() -> None:
    """Run the command line, and leave it to the system to free the memory of this process: 7 ms of any command.

    Where threads are left, or something that measures this process is to write its result, it ends as others do.
    """
    code = _exit_code()
    if threading.active_count() > 1 or _is_measured():
        sys.exit(code)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _exit_code() -> int:
    try:
        main()
    except SystemExit as ended:
        if isinstance(ended.code, str):
            raise
        return ended.code or 0
    return 0


def _is_measured() -> bool:
    """Return whether a profiler, debugger or coverage watches this process."""
    if sys.getprofile() is not None or sys.gettrace() is not None:
        return True
    return sys.version_info >= (3, 12) and any(map(sys.monitoring.get_tool, range(6)))


if __name__ == "__main__":
    main()
