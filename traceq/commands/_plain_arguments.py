"""Arguments of a command where they are plain: read by its declarations, so that typer is not imported for them.

What is not plain is typer's: options that are unknown, cut short or joined to a value of one letter, values that are
missing, empty, of a type that is checked, or like an option; and everything that ends with a message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from traceq.commands._typer import Parameter, declared_parameters

__all__ = ["plain_arguments"]

_TEXTS, _PATHS, _NUMBERS = (str, str | None), (Path, Path | None), (int, int | None)
_LISTS = (list[str], list[str] | None)
_MOST_DIGITS = 9


class _NotPlain(Exception):
    """Something that typer has to look at."""


def plain_arguments(command: Callable[..., None], words: Sequence[str]) -> dict[str, Any] | None:
    """Return what typer would call the command with, by name; None where that is for typer to find out."""
    parameters = list(declared_parameters(command))
    try:
        given, texts = _split(parameters, words)
        values = {each.name: _value(each, given[each.name]) for each in parameters if each.name in given}
        for each in parameters:
            if each.declared.kind == "Argument":
                is_list = each.type in _LISTS
                if taken := texts if is_list else texts[:1]:
                    values[each.name] = _value(each, taken)
                texts = [] if is_list else texts[1:]
            if values.setdefault(each.name, each.default) is ...:
                return None
    except _NotPlain:
        return None
    return None if texts else values


def _split(parameters: Sequence[Parameter], words: Sequence[str]) -> tuple[dict[str, list[Any]], list[str]]:
    """Return the values that each option is given, and the other words."""
    options = {name: (each, is_on) for each in parameters for name, is_on in each.names.items()}
    takes_command = any(each.is_command for each in parameters)
    given: dict[str, list[Any]] = {}
    texts: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--":
            texts += rest
        elif not word.startswith("-") and takes_command:
            texts += [word, *rest]
        elif not word.startswith("-"):
            texts.append(word)
        else:
            name, is_joined, value = word.partition("=")
            option, is_on = options.get(name, (None, False))
            if option is None or (is_joined and (option.type is bool or not name.startswith("--"))):
                raise _NotPlain
            given.setdefault(option.name, []).append(
                is_on if option.type is bool else value if is_joined else next(rest, "")
            )
    return given, texts


def _value(parameter: Parameter, given: list[Any]) -> Any:
    """Return the value of a parameter, of a repeated option the last one."""
    if parameter.type is bool:
        return given[-1]
    is_option = parameter.declared.kind == "Option"
    if not all(given) or (is_option and any(each.startswith("-") for each in given)):
        raise _NotPlain
    if parameter.type in _LISTS:
        return given
    if parameter.type in _TEXTS:
        return given[-1]
    if parameter.type in _PATHS:
        return Path(given[-1])
    if parameter.type in _NUMBERS and all(map(_is_number, given)):
        number = int(given[-1])
        if number >= parameter.declared.settings.get("min", number):
            return number
    raise _NotPlain


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS
