"""The command line as a program: a typer app whose commands are imported when used; faults become one line and a code.

Every module of `traceq.commands` is a command. The exit code says what kind of fault it was.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from traceq import __version__
from traceq.commands import SUMMARIES
from traceq.engines.process_tuning import collect_rarely, raise_mmap_threshold
from traceq.errors import RecordingFailed, TraceqError
from traceq.escaping import VisibleStream, in_its_encoding, visible
from traceq.locations import as_printed

_SETTINGS: dict[str, Any] = {
    "add_completion": False,
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}


class _Commands(TyperGroup):
    """All commands; the module of one is imported when it is invoked, or its help is asked for."""

    def __init__(self, **settings: Any) -> None:
        names: dict[str, Any] = dict.fromkeys(SUMMARIES)  # listed and suggested; `get_command` has what they name
        super().__init__(**{**settings, "commands": names})

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; None where there is none of that name."""
        if cmd_name not in SUMMARIES:
            return None
        single, module = typer.Typer(**_SETTINGS), import_module(f"traceq.commands.{cmd_name}")
        if subcommands := getattr(module, "SUBCOMMANDS", {}):
            single.callback(invoke_without_command=True)(module.command)
            for name, function in subcommands.items():
                single.command(name)(function)
            return typer.main.get_command(single)
        kind = _command_with(getattr(module, "MAY_BE_BARE", ()))
        single.command(cmd_name, cls=kind)(module.command)
        command = typer.main.get_command(single)
        # the options that follow the first word of a command to run are that command's
        command.allow_interspersed_args = not any((each.metavar or "").startswith("-- ") for each in command.params)
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the names with their summaries."""
        with formatter.section("Commands"):
            formatter.write_dl(list(SUMMARIES.items()))


_STDOUT_FAULTS = {errno.ENOSPC, errno.EDQUOT, errno.EIO}  # a fault of another file names that file
_READER_GONE = 141  # as of a program that SIGPIPE ends: a check whose output was not read has not passed


def _run(words: list[str]) -> None:
    """Run a command, `show` for a path alone; of URLs it gets what can be printed, but for a job's own command."""
    if words[:1] not in (["record"], ["improve"], ["watch"]):
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


def _command_with(bare: Sequence[str]) -> type[TyperCommand]:
    """Return a kind of command whose `bare` options may go without a value, or have one after `=`."""

    class _Command(TyperCommand):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            return super().parse_args(ctx, [f"{word}=" if word in bare else word for word in args])

    return _Command


app = typer.Typer(
    name="traceq",
    cls=_Commands,
    help="What does a change cost per training step, on every rank, and why?",
    no_args_is_help=True,
    **_SETTINGS,
)


def _print_version(is_set: bool) -> None:
    if is_set:
        from traceq.kineto.reader_choice import reader

        typer.echo(f"traceq {__version__} ({reader()} reader)")
        raise typer.Exit


@app.callback()
def traceq(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None:
    pass
