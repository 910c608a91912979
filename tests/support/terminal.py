"""The command line as a user meets it: exit code, stdout, stderr."""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import typer
from patience import patient

from traceq.cli import app, main

PROGRAM = "from traceq.cli import main; main()"


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
    """Run a line of shell in which $TRACEQ is the command, in a separate process."""
    command = line.replace("$TRACEQ", f"{sys.executable} -c '{PROGRAM}'")
    settings = os.environ | environment
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, env=settings, check=False, timeout=patient(60)
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def options_of(command: str) -> set[str]:
    """All options of a command, and of the commands below it."""
    group: Any = typer.main.get_command(app)
    chosen: Any = group.get_command(group.make_context("traceq", [], resilient_parsing=True), command)
    commands = [chosen, *getattr(chosen, "commands", {}).values()]
    return {option for each in commands for parameter in each.params for option in parameter.opts}


def on_terminal(*arguments: str, columns: int, program: str = PROGRAM, **environment: str) -> str:
    """What a command writes to a terminal of that width, stdout and stderr together; `program` is what starts it."""
    pty, fcntl, termios = (pytest.importorskip(name) for name in ("pty", "fcntl", "termios"))
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    settings = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")} | environment
    command = [sys.executable, "-c", program, *arguments]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=settings) as process:
        os.close(theirs)
        screen = b"".join(iter(lambda: _read(ours), b""))
        assert process.wait(timeout=patient(60)) == 0
    os.close(ours)
    return screen.decode().replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    """Some output; empty once the program is gone, which Linux calls an input/output error."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""
