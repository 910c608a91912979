"""An attribute, dictionary item or list item of the job that its steps read: `--toggle main.config.threshold=0,10`."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch.utils.data import DataLoader

from traceq.errors import UsageFault
from traceq.recorder.toggles.attribute_path import Slot, find_slots
from traceq.recorder.toggles.toggle import Job

__all__ = ["AttributeToggle", "create"]

_WORDS = {"on": True, "off": False, "true": True, "false": False, "none": None}


@dataclass(frozen=True, slots=True)
class AttributeToggle:
    """Places that the path names, their values in the job, and those of the arms: one per place and arm.

    `writes`: what writes them, by arm; it runs while steps are timed.
    """

    slots: Sequence[Slot]
    before: Sequence[Any]
    values: Sequence[Sequence[Any]]
    writes: Sequence[Sequence[Callable[[], object]]]
    changes_ops: bool = False

    def apply(self, number: int) -> None:
        """Write the n-th value into all places."""
        for write in self.writes[number]:
            write()

    def fault(self, number: int) -> str:
        """Return the first place that does not hold the n-th value; "" if all do."""
        for slot, value in zip(self.slots, self.values[number], strict=True):
            current = slot.get()
            if current != value:
                return f"{type(slot.owner).__name__}.{slot.key} was set to {value!r} and reads {current!r}"
        return ""

    def restore(self) -> None:
        """Write the job's own values back."""
        for slot, value in zip(self.slots, self.before, strict=True):
            slot.write(value)()


def create(path: str, values: Sequence[str], job: Job) -> AttributeToggle:
    """Return the toggle of all places that the path names.

    UsageFault if there is none, for one that does not hold a plain value, for one of a DataLoader, which reads them
    once, and for values of another type than its own.
    """
    slots = find_slots(path, job)
    if any(isinstance(slot.owner, DataLoader) for slot in slots):
        reads = "a DataLoader reads it only where an epoch begins, so no step would differ"
        raise UsageFault(f"--toggle {path}: {reads}; compare processes: --arm 'NAME=ARGUMENTS' (see --dry-run)")
    before = [slot.get() for slot in slots]
    typed = [[_typed(path, text, current) for current in before] for text in values]
    writes = [[slot.write(value) for slot, value in zip(slots, each, strict=True)] for each in typed]
    toggle = AttributeToggle(slots, before, typed, writes)
    try:
        toggle.restore()
    except (AttributeError, TypeError) as error:
        raise UsageFault(f"--toggle {path}: cannot be changed: {error}") from error
    return toggle


def _typed(path: str, text: str, current: Any) -> Any:
    """Return the text as a value of the type that the job has there."""
    if isinstance(current, torch.Tensor | torch.nn.Module) or callable(current):
        raise UsageFault(f"--toggle {path}: holds a {type(current).__name__}; expected a plain value")
    convert = next((convert for kind, convert in _CONVERTERS if isinstance(current, kind)), _literal)
    try:
        return convert(text, current)
    except (ValueError, KeyError) as error:
        kind = type(current).__name__
        raise UsageFault(f"--toggle {path}: {text!r} is no {kind}; the job has {current!r}") from error


def _boolean(text: str, _: object) -> bool:
    return {**_WORDS, "1": True, "0": False}[text.lower()] is True


def _number(text: str, _: object) -> int | float:
    return float(text) if any(letter in text for letter in ".en") else int(text)


def _member(text: str, current: Enum) -> Enum:
    return type(current)[text]


def _literal(text: str, _: object) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


_CONVERTERS: tuple[tuple[type, Callable[[str, Any], Any]], ...] = (
    (bool, _boolean),
    (Enum, _member),
    (int, _number),
    (float, lambda text, _: float(text)),
    (str, lambda text, _: text),
)
