"""Command line: every module of `traceq.commands` is a command, imported when used; faults become one line."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib import import_module
from typing import Any, get_type_hints

import typer
from typer.core import TyperGroup

from traceq import __version__
from traceq.commands import SUMMARIES
from traceq.engines.process_tuning import collect_rarely, raise_mmap_threshold
from traceq.errors import RecordingFailed, TraceqError
from traceq.escaping import VisibleStream, visible

__all__ = ["app", "main"]

_STDOUT_FAULTS = {errno.ENOSPC, errno.EDQUOT, errno.EIO}  # a fault of another file names that file
_READER_GONE = 141  # as of a program that SIGPIPE ends: a check whose output was not read has not passed

_TEXTS = (str, str | None, list[str], list[str] | None)
"""Types of options that typer takes as they are typed."""

_SETTINGS: dict[str, Any] = {
    "add_completion": False,
    "rich_markup_mode": None,  # drawing boxes takes longer than all the rest of --help
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}


class _Commands(TyperGroup):
    """All commands; the module of one is imported when it is invoked, or its help is asked for."""

    def __init__(self, **settings: Any) -> None:
        names: dict[str, Any] = dict.fromkeys(SUMMARIES)  # listed and suggested; `get_command` has what they name
        super().__init__(**{**settings, "commands": names})

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take the options before the name of a command."""
        _keep_texts(self.get_params(ctx), {})
        return super().parse_args(ctx, args)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; None where there is none of that name."""
        if cmd_name not in SUMMARIES:
            return None
        single, module = typer.Typer(**_SETTINGS), import_module(f"traceq.commands.{cmd_name}")
        single.command(cmd_name, cls=getattr(module, "COMMAND_TYPE", None))(module.command)
        return typer.main.get_command(single)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return (name, command, arguments) of the command that is invoked."""
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None:
            _keep_texts(command.get_params(ctx), get_type_hints(command.callback))
        return name, command, rest

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the names with their summaries."""
        with formatter.section("Commands"):
            formatter.write_dl(list(SUMMARIES.items()))


def _keep_texts(parameters: Iterable[Any], types: Mapping[str, object]) -> None:
    """Have parameters take texts, and options that are absent, as they are: typer imports pydantic to do just that.

    All other values, and what is missing, are typer's to check. `types` by name of the parameter.
    """
    for each in parameters:
        each.process_value = partial(_kept, each, each.process_value, types.get(each.name) in _TEXTS)


def _kept(parameter: Any, check: Callable[..., Any], is_text: bool, ctx: Any, value: Any) -> Any:
    """Return what `check` would, without calling it for an absent option or a text."""
    is_many = parameter.multiple or parameter.nargs == -1
    if value is None and not parameter.required:
        kept: object = () if is_many else None
    elif is_text and value and all(isinstance(each, str) for each in (value if is_many else [value])):
        kept = list(value) if is_many else value
    else:
        return check(ctx, value)
    return parameter.callback(ctx, parameter, kept) if parameter.callback else kept


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


def _drop_stdout() -> None:
    """Discard what is still to be written, so that the final flush cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> None:
    """Run the command line: exit 0 good, 1 bad input or failed run, 2 usage, 3 a tripped rule."""
    sys.stdout, sys.stderr = VisibleStream(sys.stdout), VisibleStream(sys.stderr)
    stdout = sys.stdout
    collect_rarely()
    raise_mmap_threshold()
    try:
        try:
            app(prog_name="traceq")
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
