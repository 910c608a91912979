"""What commands declare options with: typer's `Option`, `Argument`, `echo` and `Exit`, without importing typer.

That takes twice as long as Python's own start. A declaration is kept as it is written: `plain_arguments` parses by it,
and `traceq.typer_app` makes typer's of it for whatever is not plain.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from inspect import signature
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

from traceq.regexes import regex

__all__ = ["Argument", "Declared", "Exit", "Option", "Parameter", "declared_parameters", "echo"]

_COLOURS = regex(r"\x1b\[[;?0-9]*[a-zA-Z]")


class Declared:
    """A declaration: Option or Argument, and what it was given."""

    def __init__(self, kind: str, *words: Any, **settings: Any) -> None:
        self.kind, self.words, self.settings = kind, words, settings


Option: Any = partial(Declared, "Option")
Argument: Any = partial(Declared, "Argument")
Exit = SystemExit


class Parameter(NamedTuple):
    """A parameter of a command: its type and declaration, and its default, `...` for a required one."""

    name: str
    type: Any
    declared: Declared
    default: Any

    @property
    def is_command(self) -> bool:
        """Whether it is a command to run: at its first word options end, as those that follow are the command's."""
        return str(self.declared.settings.get("metavar", "")).startswith("-- ")

    @property
    def names(self) -> Mapping[str, bool]:
        """Words that name an option, and for a flag what each sets; none for an argument."""
        if self.declared.kind == "Argument":
            return {}
        long = f"--{self.name.replace('_', '-')}"
        given = [word for word in self.declared.words if isinstance(word, str) and word.startswith("-")]
        both = given or [f"{long}/--no-{long[2:]}" if self.type is bool else long]
        return {word: not off for each in both for off, word in enumerate(each.split("/"))}


def declared_parameters(command: Callable[..., None]) -> Iterator[Parameter]:
    """Yield the parameters of a command, declared in the annotation or as the default."""
    types = get_type_hints(command, include_extras=True)
    for name, parameter in signature(command).parameters.items():
        type_, default = types[name], parameter.default
        if get_origin(type_) is Annotated:
            type_, declared = get_args(type_)
            yield Parameter(name, type_, declared, ... if default is parameter.empty else default)
        else:
            first, *words = default.words or (...,)
            yield Parameter(name, type_, Declared(default.kind, *words, **default.settings), first)


def echo(message: object = "", *, err: bool = False) -> None:
    """Write a line at once, without the colours of its text where it does not go to a terminal."""
    stream, text = sys.stderr if err else sys.stdout, str(message)
    print(text if stream.isatty() else _COLOURS.sub("", text), file=stream, flush=True)
