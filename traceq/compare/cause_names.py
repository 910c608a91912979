"""Names of causes as people read them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from traceq.compare.cost_centers import LAUNCHES
from traceq.compare.labels import AND_MORE
from traceq.compare.limits import NAMED
from traceq.compare.result import AND, REPLACED_BY, Cause
from traceq.facts.events.kernel_names import without_tunings
from traceq.short_texts import cut_before, place_of_difference
from traceq.units import Unit, format_value

BEYOND, MOST_OF_IT, LARGEST = "beyond their jitter", "most of it ", "the largest "
"""What small differences are together that are more than run-to-run jitter."""
JITTER_ERRORS = 2
"""Standard deviations of a sum within which it is jitter."""

_SYNCHRONIZES = ("device", "stream", "event")
"""Kinds of sync that are calls of their own, not an effect of the op around them."""
_COPIES = ("dtoh", "htod")
"""Kinds of sync that are an effect of a copy; what has no kind ran on a CPU, where reading a value does not wait."""
_CALL = re.compile(r"Synchronize$|^(Malloc|Free|HostAlloc|HostMalloc|HostFree|ExtMalloc|Mem)\w*$")
"""Calls of the runtime by their names without the vendor, of syncs outside any op."""
_MOST_SYNCS = 6
_LONGEST_NAME = 60
_LONGEST_OF_TWO = 45
_FEWEST = 12
"""Characters from which a kernel's name that is cut can tell it from another one."""
_NODE = "autograd::engine::evaluate_function: "
_NAMESPACES = re.compile(rf"\b(at::native::|{_NODE})|\(anonymous namespace\)::")


def cause_name(cause: Cause) -> str:
    """Return `dtoh aten::item at train.py:7 step`."""
    name = sync_name(cause) if cause.kind == "sync" else _cut_name(cause.path)
    return name + (f" at {cause.line}" if cause.line else "")


def named_python_ns(cause: Cause) -> int:
    """Return how much of a cause is Python between ops; 0 where that is next to nothing."""
    is_part = cause.python_ns * cause.delta_ns > 0 and abs(cause.python_ns) >= NAMED * abs(cause.delta_ns)
    return cause.python_ns if is_part else 0


def phase_text(cause: Cause) -> str:
    """Return `in decode, mixed and prefill`, `moved from optimizer to backward`; "" without a phase."""
    if cause.moved:
        return f"moved {cause.moved}"
    *first, last = cause.phase.split(AND)
    return f"in {', '.join(first)}{AND if first else ''}{last}" if last else ""


def is_backward_node(cause: Cause) -> bool:
    """Return whether it is a call of autograd's engine, as that of `MulBackward0`, and not of the user's code."""
    return _NODE in cause.name


def change_name(cause: Cause) -> str:
    """Return `aten::any`, `dtoh aten::item (sync)`, `device synchronize in aten::matmul`.

    What reads a value on a CPU is `aten::item (a sync on a GPU)`.
    """
    if cause.kind != "sync":
        return _cut_name(cause.name)
    is_one = abs(cause.delta_num) == 1
    if reads_on_cpu(cause):
        return sync_name(cause) + (" (a sync on a GPU)" if is_one else " (syncs on a GPU)")
    if cause.work.partition(" ")[0] in _COPIES:
        return sync_name(cause) + (" (sync)" if is_one else " (syncs)")
    return sync_name(cause)


def reads_on_cpu(cause: Cause) -> bool:
    """Return whether a sync is none where it ran: an op that reads a value on a CPU, and would wait on a GPU."""
    return cause.work.partition(" ")[0] not in (*_SYNCHRONIZES, *_COPIES, "alloc")


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


def jitter_name(num: int, ns: float, sd_ns: float, most: str = "", largest: str = "") -> str:
    """Return `3 kinds of work, each within jitter`, or what has `most` of it; or that their sum `ns` is beyond it.

    Of a sum beyond it the `largest` is named also where it is not most.
    """
    kinds = f"{num:,} {'kind' if num == 1 else 'kinds'} of work"
    if not is_within_jitter(ns, sd_ns) and abs(ns) > num:  # more than roundings
        several = f"{kinds}, {MOST_OF_IT + most if most else LARGEST + largest}, together {BEYOND}"
        return several if num > 1 else f"{kinds}, {most or largest}, beyond its jitter"
    if most:
        return f"{kinds}, {MOST_OF_IT if num > 1 else ''}{most}, within jitter"
    return f"{kinds}{', each' if num > 1 else ''} within jitter"


def pace_name(what: str, ratio: float) -> str:
    """Return `pace of all host ops (-31.0 %)`."""
    return f"pace of all {what} ({100 * (ratio - 1):+.1f} %)"


def is_within_jitter(ns: float, sd_ns: float) -> bool:
    """Return whether a sum, or a delta, is within what two runs of the same code differ by."""
    return abs(ns) <= JITTER_ERRORS * sd_ns


def listed_syncs(changed: Sequence[Cause]) -> str:
    """Return `20 dtoh aten::item in forward, 2 aten::equal in optimizer`; those of several lines are one."""
    named: dict[tuple[str, str], Cause] = {}
    for cause in changed:
        key = cause.name, cause.phase
        named[key] = joined(cause, named[key]) if key in named else cause
    shown = [*named.values()][:_MOST_SYNCS]
    names = ", ".join(f"{numbered(each, sync_name(each))} in {each.phase}{steps_text(each)}" for each in shown)
    return names + (f" and {len(named) - _MOST_SYNCS} more" if len(named) > _MOST_SYNCS else "")


def joined(cause: Cause, other: Cause) -> Cause:
    """Return causes of one name as one; which steps have all of it is known of each alone."""
    return replace(cause, delta_num=cause.delta_num + other.delta_num, in_steps="")


def numbered(cause: Cause, text: str) -> str:
    """Return `2 aten::any`, `rank 3: 2 dtoh aten::item`."""
    ranks = cause.name.removesuffix(cause.work)
    return f"{ranks}{number(cause)} {text.removeprefix(ranks)}"


def steps_text(cause: Cause) -> str:
    """Return `, all in 1 of 3 traced steps` of what only some steps have, as an evaluation; "" of others."""
    return f", all in {cause.in_steps} traced steps" if cause.in_steps else ""


def number(cause: Cause) -> str:
    """Return how many more or fewer there are, without a sign."""
    return format_value(abs(cause.delta_num), Unit.MEAN)


def short_name(name: str, longest: int) -> str:
    """Return a name without common namespaces; both names of a replacement are cut to `longest` characters."""
    old, _, new = _NAMESPACES.sub("", name).partition(REPLACED_BY)
    return REPLACED_BY.join(_cut_two(old, new, longest)) if new else without_tunings([old])[0]


def _cut_name(name: str) -> str:
    short = short_name(name, _LONGEST_OF_TWO)
    return short if REPLACED_BY in short else _cut(short)


def _cut_two(old: str, new: str, longest: int) -> tuple[str, str]:
    """Cut both names of a replacement, before the first difference of their kernels where that would be cut off."""
    op = old[: old.rindex(LAUNCHES) + len(LAUNCHES)] if LAUNCHES in old and LAUNCHES not in new else ""
    kernels = without_tunings([old.removeprefix(op), new])
    rooms = longest - len(op), longest
    of_names = [room - len(_more(name)) for name, room in zip(kernels, rooms, strict=True)]
    heads = [name.removesuffix(_more(name)) for name in kernels]
    place = place_of_difference(heads) if heads[0] != heads[1] else 0
    is_hidden = any(
        len(name) > room and place + 1 >= of for name, room, of in zip(kernels, rooms, of_names, strict=True)
    )
    if min(of_names) < _FEWEST or not is_hidden:
        return _cut(op + kernels[0], longest), _cut(kernels[1], longest)
    return op + _cut(kernels[0], rooms[0], place), _cut(kernels[1], rooms[1], place)


def _more(name: str) -> str:
    """Return ` (and 2 more)`, how many more a name is of; "" else."""
    more = AND_MORE.search(name)
    return more[0] if more else ""


def _cut(name: str, longest: int = _LONGEST_NAME, place: int = 0) -> str:
    """Return a name of at most so many characters, also those from a place on; how many more there are is never cut."""
    rest = _more(name)
    head = name.removesuffix(rest)
    return cut_before(head, place, longest - len(rest)) + rest


def lines_text(causes: Sequence[Cause]) -> str:
    """Return `check.py:41 check`, or `check.py:41-43 check` of several lines of one function."""
    numbers, (place, *function) = sorted(map(_line_number, causes)), causes[0].line.split(" ", 1)
    if numbers[0] == numbers[-1]:
        return causes[0].line
    return " ".join([f"{place.rpartition(':')[0]}:{numbers[0]}-{numbers[-1]}", *function])


def sync_line(cause: Cause) -> str:
    """Return ` in line 41` of one sync per step; "" of several, which may be at other lines, too, and of other work."""
    return f" in line {_line_number(cause)}" if cause.kind == "sync" and abs(cause.delta_num) == 1 else ""


def _line_number(cause: Cause) -> int:
    number = cause.line.partition(" ")[0].rpartition(":")[2]
    return int(number) if number.isdecimal() else 0


def unchanged_name(cause: Cause) -> str:
    """Return `83 kinds of work, small each, together beyond their jitter of 1.42 ms`: what names no change."""
    return cause.name + (f" of {format_value(cause.sd_ns, Unit.NS)}" if cause.name.endswith(BEYOND) else "")
