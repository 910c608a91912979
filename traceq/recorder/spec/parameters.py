"""A recipe's parameters with the changes of `--set KEY=VALUE`, validated by their dataclass annotations; valid names.

Names of phases are stored in traces, those of arms are folders of a run.
"""

from __future__ import annotations

import difflib
import re
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec

from traceq.errors import UsageFault

_PHASE = re.compile(r"[A-Za-z0-9_.:/#-]+")  # Kineto corrupts quotes, backslashes and non-ASCII characters
_ARM = "A-Za-z0-9_.=,+-"  # an arm is a folder
_RESERVED = ("steps", "logs", "stalled", "faults")

P = TypeVar("P")
ParameterValues = Mapping[str, str | int | float | bool]


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Return ` (did you mean x?)` if a known name resembles the word, else ""."""
    close = difflib.get_close_matches(word, list(names), n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def split_assignment(text: str, option: str) -> tuple[str, str]:
    """Return key and value of `KEY=VALUE`; UsageFault names the option."""
    key, equals, value = text.partition("=")
    if not key or not equals or not value:
        raise UsageFault(f"{option} {text}: expected KEY=VALUE")
    return key.strip(), value.strip()


def overrides(assignments: Sequence[str]) -> dict[str, str]:
    """Return the values of `--set` by key; the last value of a repeated key counts."""
    return dict(split_assignment(text, "--set") for text in assignments)


def plain_values(parameters: object) -> dict[str, Any]:
    """Return parameters as plain values by name."""
    return dict(msgspec.to_builtins(parameters))


def with_changes(defaults: P, changes: Mapping[str, object]) -> P:
    """Return the recipe's parameters with `changes` applied; UsageFault for an unknown key or an invalid value."""
    names = [field.name for field in fields(defaults)]  # type: ignore[arg-type]
    for key, value in changes.items():
        if key not in names:
            raise UsageFault(f"no parameter {key!r}{did_you_mean(key, names)}; available: {', '.join(names)}")
        _check_choice(type(defaults), key, value)
    try:
        return msgspec.convert({**plain_values(defaults), **changes}, type(defaults), strict=False)
    except msgspec.ValidationError as fault:
        problem, _, where = str(fault).partition(" - at `$.")
        key = where.rstrip("`")
        raise UsageFault(f"{key}={changes.get(key)}: {problem[:1].lower()}{problem[1:]}") from fault


def describe_parameters(defaults: object) -> list[tuple[str, str]]:
    """Return each parameter as `name=default` and the values it accepts, in the order of declaration."""
    kinds = typing.get_type_hints(type(defaults), include_extras=True)
    return [(f"{key}={value}", _accepted_values(kinds[key])) for key, value in plain_values(defaults).items()]


def _accepted_values(kind: object) -> str:
    if get_origin(kind) is Literal:
        return " | ".join(str(choice) for choice in get_args(kind))
    if get_origin(kind) is typing.Annotated:
        base, *marks = get_args(kind)
        least = [f" >= {mark.ge}" for mark in marks if isinstance(mark, msgspec.Meta) and mark.ge is not None]
        most = [f" <= {mark.le}" for mark in marks if isinstance(mark, msgspec.Meta) and mark.le is not None]
        return str(base.__name__) + ",".join([*least, *most])
    return str(getattr(kind, "__name__", kind))


def _check_choice(kind: type, key: str, value: object) -> None:
    annotation = typing.get_type_hints(kind)[key]
    if get_origin(annotation) is Literal and value not in get_args(annotation):
        choices = [str(choice) for choice in get_args(annotation)]
        raise UsageFault(f"{key}={value}: expected one of {', '.join(choices)}{did_you_mean(str(value), choices)}")


def check_phase(name: str) -> None:
    """Raise UsageFault for a phase name that a trace would corrupt."""
    if not _PHASE.fullmatch(name):
        raise UsageFault(f"phase {name!r}: phase names may contain only letters, digits and _.:/#-")


def as_arm(text: str) -> str:
    """Return a text with `_` for what no name of an arm may contain."""
    return re.sub(f"[^{_ARM}]", "_", text)


def check_arm(name: str) -> None:
    """Raise UsageFault for an arm name that cannot be a folder of a run."""
    if not re.fullmatch(f"[{_ARM}]+", name) or set(name) <= {"."} or name in _RESERVED:
        raise UsageFault(
            f"arm {name!r}: arm names may contain only letters, digits and _.=,+-; {', '.join(_RESERVED)} are reserved"
        )
