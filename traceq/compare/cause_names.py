"""Names of causes as people read them."""

from __future__ import annotations

import re

from traceq.compare.result import AND, REPLACED_BY, Cause
from traceq.facts.events.kernel_names import cut_name, without_tuning
from traceq.units import Unit, format_value

__all__ = [
    "BEYOND",
    "cause_name",
    "change_name",
    "is_within_jitter",
    "jitter_name",
    "number",
    "numbered",
    "phase_text",
    "short_name",
    "sync_name",
]

BEYOND = "beyond their jitter"
"""What small differences are together that are more than run-to-run jitter."""
_ERRORS = 2
"""Standard deviations of a sum within which it is jitter."""

_SYNCHRONIZES = ("device", "stream", "event")
"""Kinds of sync that are calls of their own, not an effect of the op around them."""
_COPIES = ("dtoh", "htod")
"""Kinds of sync that are an effect of a copy; what has no kind ran on a CPU, where reading a value does not wait."""
_CALL = re.compile(r"Synchronize$|^(Malloc|Free|HostAlloc|HostMalloc|HostFree|ExtMalloc|Mem)\w*$")
"""Calls of the runtime by their names without the vendor, of syncs outside any op."""
_LONGEST_NAME = 60
_LONGEST_OF_TWO = 45
_AND_MORE = re.compile(r" \(and \d+ more\)$")
_NAMESPACES = re.compile(r"\b(at::native::|autograd::engine::evaluate_function: )|\(anonymous namespace\)::")


def cause_name(cause: Cause) -> str:
    """Return `dtoh aten::item at train.py:7 step`."""
    name = sync_name(cause) if cause.kind == "sync" else _cut_name(cause.path)
    return name + (f" at {cause.line}" if cause.line else "")


def phase_text(cause: Cause) -> str:
    """Return `in decode, mixed and prefill`, `moved from optimizer to backward`; "" without a phase."""
    if cause.moved:
        return f"moved {cause.moved}"
    *first, last = cause.phase.split(AND)
    return f"in {', '.join(first)}{AND if first else ''}{last}" if last else ""


def change_name(cause: Cause) -> str:
    """Return `aten::any`, `dtoh aten::item (sync)`, `device synchronize in aten::matmul`.

    What reads a value on a CPU is `aten::item (a sync on a GPU)`.
    """
    if cause.kind != "sync":
        return _cut_name(cause.name)
    kind, is_one = cause.work.partition(" ")[0], abs(cause.delta_num) == 1
    if kind in (*_SYNCHRONIZES, "alloc"):
        return sync_name(cause)
    if kind in _COPIES:
        return sync_name(cause) + (" (sync)" if is_one else " (syncs)")
    return sync_name(cause) + (" (a sync on a GPU)" if is_one else " (syncs on a GPU)")


def sync_name(cause: Cause) -> str:
    """Return `rank 3: dtoh aten::item`, `device synchronize in aten::matmul`, `allocations in aten::cat`."""
    kind, _, op = cause.work.partition(" ")
    plural = "s" * (abs(cause.delta_num) not in (0, 1))
    if kind not in (*_SYNCHRONIZES, "alloc"):
        return _cut_name(cause.name)
    ranks, is_call = cause.name.removesuffix(cause.work), _CALL.search(op) is not None
    if kind == "alloc":
        return f"{ranks}{op} call{plural}" if is_call else f"{ranks}allocation{plural} in {_cut_name(op)}"
    return f"{ranks}{kind} synchronize{plural}" + ("" if is_call else f" in {_cut_name(op)}")


def jitter_name(num: int, ns: float, sd_ns: float) -> str:
    """Return `3 kinds of work, each within jitter`, or what they are if their sum `ns` is not."""
    kinds = f"{num:,} {'kind' if num == 1 else 'kinds'} of work"
    if not is_within_jitter(ns, sd_ns) and abs(ns) > num:  # more than roundings
        return f"{kinds}, small each, together {BEYOND}" if num > 1 else f"{kinds}, small, but beyond its jitter"
    return f"{kinds}{', each' if num > 1 else ''} within jitter"


def is_within_jitter(ns: float, sd_ns: float) -> bool:
    """Return whether a sum, or a delta, is within what two runs of the same code differ by."""
    return abs(ns) <= _ERRORS * sd_ns


def numbered(cause: Cause, text: str) -> str:
    """Return `2 aten::any`, `rank 3: 2 dtoh aten::item`."""
    ranks = cause.name.removesuffix(cause.work)
    return f"{ranks}{number(cause)} {text.removeprefix(ranks)}"


def number(cause: Cause) -> str:
    """Return how many more or fewer there are, without a sign."""
    return format_value(abs(cause.delta_num), Unit.MEAN)


def short_name(name: str, longest: int) -> str:
    """Return a name without common namespaces; both names of a replacement are cut to `longest` characters."""
    parts = without_tuning(_NAMESPACES.sub("", name)).split(REPLACED_BY)
    return REPLACED_BY.join(_cut(part, longest) for part in parts) if len(parts) > 1 else parts[0]


def _cut_name(name: str) -> str:
    short = short_name(name, _LONGEST_OF_TWO)
    return short if REPLACED_BY in short else _cut(short)


def _cut(name: str, longest: int = _LONGEST_NAME) -> str:
    """Return a name of at most so many characters; how many more there are is never cut."""
    more = _AND_MORE.search(name)
    rest = more[0] if more else ""
    head = name.removesuffix(rest)
    return cut_name(head, longest - len(rest)) + rest
