"""The command line as a user meets it: exit code, stdout, stderr."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from traceq.cli import main

PROGRAM = [sys.executable, "-c", "from traceq.cli import main; main()"]


@dataclass(frozen=True)
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str


def traceq(*arguments: str | Path) -> Outcome:
    """Run a command in this process, output piped; an exception that a user would see as a traceback goes through."""
    out, err = io.StringIO(), io.StringIO()
    argv = ["traceq", *map(str, arguments)]
    code: int | str | None = 0
    with patch.object(sys, "argv", argv), redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code
    return Outcome(int(code or 0), out.getvalue(), err.getvalue())


def shell(line: str, **environment: str) -> Outcome:
    """Run a line of shell in which $TRACEQ is the command, in a process of its own."""
    program = f"{sys.executable} -c 'from traceq.cli import main; main()'"
    settings = {**os.environ, "TRACEQ": program, **environment}
    command = ["bash", "-o", "pipefail", "-c", line.replace("$TRACEQ", program)]
    done = subprocess.run(command, capture_output=True, text=True, env=settings, check=False, timeout=60)
    return Outcome(done.returncode, done.stdout, done.stderr)
