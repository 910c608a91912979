"""The command line as a typer app, for whatever is not plain: help of a narrow terminal, completions, wrong options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from importlib import import_module
from inspect import Parameter, signature
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from traceq import __version__
from traceq.commands import SUMMARIES
from traceq.commands._typer import declared_parameters

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
        kind = _command_with(getattr(module, "MAY_BE_BARE", ()))
        runs_command = any(each.is_command for each in declared_parameters(module.command))
        settings = {**_SETTINGS["context_settings"], "allow_interspersed_args": not runs_command}
        single.command(cmd_name, cls=kind, context_settings=settings)(_declared_for_typer(module.command))
        return typer.main.get_command(single)

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


def _declared_for_typer(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with what `traceq.commands._typer` kept as declarations of typer."""

    @wraps(command)
    def called(**values: Any) -> None:
        command(**values)

    parameters = [
        Parameter(
            name,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if default is ... else default,
            annotation=Annotated[type_, getattr(typer, declared.kind)(*declared.words, **declared.settings)],
        )
        for name, type_, declared, default in declared_parameters(command)
    ]
    called.__signature__ = signature(command).replace(parameters=parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in parameters}
    return called


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
