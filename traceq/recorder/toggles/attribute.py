"""An attribute, dictionary item or list item of the job that its steps read: `--toggle main.config.threshold=0,10`."""

from __future__ import annotations

import ast
import fnmatch
import sys
import time
from collections.abc import Callable, Iterator, Mapping, MutableSequence, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from operator import setitem
from types import FrameType, ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch.utils.data import DataLoader

from traceq.errors import TraceqError, UsageFault
from traceq.recorder.spec.parameters import did_you_mean
from traceq.recorder.toggles.toggle import Job
from traceq.recorder.tracing.line_marks import frames_from

_WRAPPED = ("module", "_orig_mod", "_forward_module", "optimizer")
"""Attributes by which wrappers hold what they wrap: DDP, compiled modules, FSDP, accelerate."""


@dataclass(frozen=True, slots=True)
class Slot:
    """An attribute of an object, or an item of a mapping or list."""

    owner: Any
    key: Any
    is_item: bool = False

    def get(self) -> Any:
        """Return its value."""
        return self.owner[self.key] if self.is_item else getattr(self.owner, self.key)

    def write(self, value: Any) -> Callable[[], object]:
        """Return what replaces its value, in a frozen dataclass, too."""
        if self.is_item:
            return partial(setitem, self.owner, self.key, value)
        is_frozen = getattr(getattr(type(self.owner), "__dataclass_params__", None), "frozen", False)
        return partial(object.__setattr__ if is_frozen else setattr, self.owner, self.key, value)


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
    try:
        return _converted(text, current)
    except (ValueError, KeyError) as error:
        kind = type(current).__name__
        raise UsageFault(f"--toggle {path}: {text!r} is no {kind}; the job has {current!r}") from error


def _converted(text: str, current: Any) -> Any:
    """Return the text as a value of this kind; ValueError or KeyError if it is none."""
    match current:
        case bool():
            return {**_WORDS, "1": True, "0": False}[text.lower()] is True
        case Enum():
            return type(current)[text]
        case int():
            return float(text) if any(letter in text for letter in ".en") else int(text)
        case float():
            return float(text)
        case str():
            return text
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def find_slots(path: str, job: Job) -> list[Slot]:
    """Return all places that the path names: several if it has a `*` (one part) or `**` (any number of them).

    It starts with `model` (any model that no other contains), `optimizer`, `main` (the script), the name of an imported
    module, or a variable of the script or of a function that is running. Raises UsageFault where nothing has this name.
    """
    if variable := _bare_variable(path):
        raise UsageFault(f"--toggle {path}: {variable}")
    problems: list[str] = []
    for start, parts in _starts(path.split("."), job):
        try:
            if slots := _expand(start, parts):
                return slots
            problems.append("nothing has this name")
        except LookupError as error:
            problems.append(str(error))
    problem = _local_object(path) or (problems[0] if problems else _unknown_start(path))
    raise UsageFault(f"--toggle {path}: {problem}")


def _starts(parts: Sequence[str], job: Job) -> Iterator[tuple[Any, Sequence[str]]]:
    """Yield the objects at which a path may start, each with the rest of the path."""
    head = parts[0]
    if head in ("model", "optimizer"):
        for each in job.models if head == "model" else job.optimizers:
            yield each, parts[1:]
    script = sys.modules["__main__"]
    if head == "main":
        yield script, parts[1:]
    for length in range(len(parts) - 1, 0, -1):
        module = sys.modules.get(".".join(parts[:length]))
        if module is not None:
            yield module, parts[length:]
    if hasattr(script, head):
        yield getattr(script, head), parts[1:]
    yield from ((frame.f_locals[head], parts[1:]) for frame in _running_frames() if head in frame.f_locals)


def _bare_variable(path: str) -> str:
    """Return why a variable of a function cannot be changed while this runs, and what can be; "" for other paths."""
    name = path.removeprefix("main.")
    if "." in name or hasattr(sys.modules["__main__"], name):
        return ""
    frame = next((frame for frame in _running_frames() if name in frame.f_locals), None)
    if frame is None or frame.f_code.co_name == "<module>":
        return ""
    return (
        f"{name} is a local variable of {frame.f_code.co_name}, which cannot be changed while that runs; read it from "
        f"an object or the module in each step (args.{name}, main.{name}), or give it in the command and compare "
        f"processes: --arm 'NAME=--{name} VALUE'"
    )


def _local_object(path: str) -> str:
    """Return how to name an object of a function that was looked for in the script; "" for other paths."""
    start, _, rest = path.partition(".")
    name = rest.partition(".")[0]
    if start != "main" or hasattr(sys.modules["__main__"], name):
        return ""
    functions = (frame.f_code.co_name for frame in _running_frames() if name in frame.f_locals)
    return next((f"{name} is a variable of {each}(), not of the script: --toggle {rest}=..." for each in functions), "")


def _running_frames() -> Iterator[FrameType]:
    """Return the frames of this thread that are not traceq's, innermost first."""
    frames = frames_from(sys._getframe())
    return (frame for frame in frames if not frame.f_globals.get("__name__", "").startswith("traceq."))


def _expand(start: Any, parts: Sequence[str]) -> list[Slot]:
    """Return the slots below `start`; LookupError names the part that does not exist."""
    if not parts:
        raise LookupError("names an object, not one of its attributes")
    owners = [start]
    for part in parts[:-1]:
        owners = [slot.get() for owner in owners for slot in _slots(owner, part, has_glob="*" in ".".join(parts))]
    return [slot for owner in owners for slot in _slots(owner, parts[-1], has_glob="*" in ".".join(parts))]


def _slots(owner: Any, part: str, *, has_glob: bool) -> list[Slot]:
    """Return what `part` names in `owner`; with a glob elsewhere in the path, owners without it are passed over."""
    if part == "**":
        modules = owner.modules() if isinstance(owner, torch.nn.Module) else [owner]
        return [Slot([each], 0, is_item=True) for each in modules]
    if "*" in part:
        return [slot for name in _names(owner) if fnmatch.fnmatch(name, part) and (slot := slot_of(owner, name))]
    slot = slot_of(owner, part)
    if slot is None and not has_glob:
        names = [*_names(owner), *(name for name in dir(owner) if not name.startswith("_"))]
        raise LookupError(f"{type(owner).__name__} has no {part!r}{did_you_mean(part, names)}")
    return [] if slot is None else [slot]


def slot_of(owner: Any, part: str) -> Slot | None:
    """Return the item or attribute of that name, of the object or of what it wraps."""
    if isinstance(owner, Mapping):
        key = next((key for key in owner if str(key) == part), None)
        if key is not None:
            return Slot(owner, key, is_item=True)
    if part.isdigit() and hasattr(owner, "__getitem__") and hasattr(owner, "__len__"):
        return Slot(owner, int(part), is_item=True) if int(part) < len(owner) else None
    if hasattr(owner, part):
        holder = _innermost_holder(owner, part)
        return Slot(holder, part)
    return next((slot for inner in _wrapped(owner) if (slot := slot_of(inner, part))), None)


def _innermost_holder(owner: Any, part: str) -> Any:
    """Return the object that holds an attribute which a wrapper only passes on."""
    if part in getattr(owner, "__dict__", {}) or hasattr(type(owner), part) or isinstance(owner, ModuleType):
        return owner
    modules = getattr(owner, "_modules", {})
    if part in modules:
        return owner
    return next((_innermost_holder(inner, part) for inner in _wrapped(owner) if hasattr(inner, part)), owner)


def _wrapped(owner: Any) -> Iterator[Any]:
    attributes = getattr(owner, "__dict__", {})
    for name in _WRAPPED:
        inner = attributes.get(name, attributes.get("_modules", {}).get(name))
        if inner is not None:
            yield inner


def _names(owner: Any) -> list[str]:
    """Return the names below an object: keys, indices, or attributes and submodules."""
    if isinstance(owner, Mapping):
        return [str(key) for key in owner]
    if isinstance(owner, MutableSequence | tuple | torch.nn.ModuleList | torch.nn.Sequential):
        return [str(index) for index in range(len(owner))]
    children = [name for name, _ in owner.named_children()] if isinstance(owner, torch.nn.Module) else []
    return [*children, *(name for name in getattr(owner, "__dict__", {}) if not name.startswith("_"))]


def _unknown_start(path: str) -> str:
    head = path.partition(".")[0]
    return (
        f"no model, imported module or variable is called {head!r}; start with model, optimizer, main (the script), "
        "a module, or a variable of a function that runs the loop"
    )


_WITHIN_S = 5.0
_POLL_S = 0.01


def check_paths(toggles: Mapping[str, Sequence[str]], job: Job) -> None:
    """Raise UsageFault for the first path that the job does not have, or whose values it cannot have.

    To be called before the steps are spent from which its pattern is learned. `toggles`: their values by name.

    On several ranks only if all of them have a fault: one alone could not leave, and it is told later, to all.
    """
    fault = _first_fault(toggles, job)
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        store = PrefixStore("traceq/paths", dist.distributed_c10d._get_default_store())
        if not _is_on_all_ranks(store, dist.get_rank(), dist.get_world_size(), fault):
            return
    if fault:
        raise UsageFault(fault)


def _first_fault(toggles: Mapping[str, Sequence[str]], job: Job) -> str:
    """Return why a path cannot be changed; "" if all can, as far as is known before an optimizer has stepped."""
    for name, values in toggles.items():
        if name.startswith("@") or (name.partition(".")[0] == "optimizer" and not job.optimizers):
            continue
        try:
            create(name, values, job)
        except TraceqError as error:
            return str(error)
    return ""


def _is_on_all_ranks(store: Store, rank: int, size: int, fault: str) -> bool:
    """Tell the other ranks whether this one has a fault; return True if all have one. Only those with one wait."""
    store.set(str(rank), "1" if fault else "0")
    if not fault:
        return False
    keys = [str(number) for number in range(size)]
    deadline = time.monotonic() + _WITHIN_S
    with suppress(RuntimeError):
        while not store.check(keys) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return store.check(keys) and all(store.get(key) == b"1" for key in keys)
    return False
