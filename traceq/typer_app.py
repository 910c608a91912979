"""The command line as a typer app: every module of `traceq.commands` is a command, imported when it is used."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from traceq import __version__
from traceq.commands import SUMMARIES

__all__ = ["app"]

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
