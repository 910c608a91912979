"""Events as other versions of torch, and its older profiler, write them, made as the newest one would."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from traceq.grouping import group
from traceq.intervals import span_index, spans
from traceq.kineto.collective_messages import COUNT_LIMIT
from traceq.model import Category, Caveat, Events

__all__ = ["with_compile_ranges", "with_ops_of_autograd", "with_sequence_numbers"]

_RANGES = ("dynamo", "entire_frame_compile", "entire_backward_compile")
"""Names, in newer versions of torch, of the ranges around those of `dynamo_timed`."""
_TIMED = " (dynamo_timed)"
"""End of the names of `torch._dynamo.utils.dynamo_timed`, since torch 2.0."""


def with_compile_ranges(events: Events) -> Events:
    """Return the events with the category of compiling for all that a thread does in a range of torch.compile at work.

    Compiling runs the program on fake tensors, backward included: thousands of rows that look like its ops and modules.
    Calls of a device's runtime keep theirs.
    """
    host = events.rows(Category.CPU_OP, Category.ANNOTATION)
    names = events.names_among(host).tolist()
    named = [name for name in names if events.strings[name] in _RANGES or events.strings[name].endswith(_TIMED)]
    if not named:
        return events
    ranges = host[np.isin(events.name[host], named)]
    rows = events.rows(Category.CPU_OP, Category.ANNOTATION, Category.PYTHON)
    category = events.category.copy()
    for pid, tid in set(zip(events.pid[ranges].tolist(), events.tid[ranges].tolist(), strict=True)):
        of_thread = (events.pid == pid) & (events.tid == tid)
        around, inside = ranges[of_thread[ranges]], rows[of_thread[rows]]
        parts = spans(events.ts[around], events.end[around])
        index = span_index(parts, events.ts[inside])
        is_inside = (index >= 0) & (events.end[inside] <= parts[index, 1])  # not what begins with a range, and goes on
        category[inside[is_inside]] = Category.COMPILING
    return replace(events, category=category)


_HOST, _DEVICE = "CPU functions", "CUDA functions"
"""Names of the processes in such a trace."""


def with_ops_of_autograd(events: Events) -> tuple[Events, tuple[Caveat, ...]]:
    """Return the events with the category of ops where they are of such a trace, and what cannot be said of it.

    Its times on a device are those between two events around an op, of ops inside each other: none of a kernel.
    """
    if _HOST not in events.strings or (events.category != Category.OTHER).any():
        return events, ()
    pids = np.array([*(name == _HOST for name in events.strings), False])
    category = np.where(pids[events.pid], Category.CPU_OP, events.category).astype(events.category.dtype)
    device = "; the times of its ops on a device are left out" if _DEVICE in events.strings else ""
    text = f"written by torch.autograd.profiler without Kineto: it has ops alone{device}; record with torch.profiler"
    return replace(events, category=category), (Caveat("autograd_profiler", text),)


_NAME = "record_param_comms"
_decode_list = msgspec.json.Decoder(list[Any]).decode


def with_sequence_numbers(events: Events) -> Events:
    """Return the events with the sequence numbers that are among the inputs of `record_param_comms`.

    torch up to 2.4 passes the number as an integer: as the first input, or as the second behind the tensors of the
    call. Later it is in a tuple, which the profiler does not write, and newer versions write `Seq`.
    https://github.com/pytorch/pytorch/blob/v2.4.0/torch/csrc/distributed/c10d/ParamCommsUtils.hpp

    A group gets them only if none of its calls has one, it sends and receives no messages, which would count for two of
    its ranks alone, and the numbers of its calls ascend by one: other backends pass a constant.
    """
    messages = events.messages
    if not len(messages.row) or (messages.sequence >= 0).any() or _NAME not in events.strings:
        return events
    is_call = events.name[messages.row] == events.strings.index(_NAME)
    kind = _kinds(events, messages.name)
    chosen = np.flatnonzero(is_call & (kind != "wait"))
    if not len(chosen):
        return events
    number = _numbers(events, messages.row[chosen])
    groups = group([messages.group[chosen].astype(np.int64), messages.ranks[chosen].astype(np.int64)])
    order = np.lexsort((events.ts[messages.row[chosen]], groups.group_ids))
    chosen, number, of_group = chosen[order], number[order], groups.group_ids[order]
    is_odd = (number < 0) | (kind[chosen] == "message")
    is_odd[1:] |= (of_group[1:] == of_group[:-1]) & (number[1:] != number[:-1] + 1)
    sound = ~np.isin(of_group, of_group[is_odd])
    sequence = messages.sequence.copy()
    sequence[chosen[sound]] = number[sound]
    return replace(events, messages=replace(messages, sequence=sequence))


def _kinds(events: Events, names: NDArray[np.int32]) -> NDArray[np.str_]:
    """Return whether each name is a `wait`, which has the number of what it waits for, a `message`, or a `call`."""
    texts, inverse = np.unique(names, return_inverse=True)
    return np.array([_kind(events.strings[text].lower() if text >= 0 else "") for text in texts.tolist()])[inverse]


def _kind(name: str) -> str:
    return "wait" if "wait" in name else "message" if name.startswith(("send", "recv")) else "call"


def _numbers(events: Events, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[N]: the number among the inputs of each row, -1 without one; each distinct text is decoded once."""
    texts = group([events.types[rows].astype(np.int64), events.inputs[rows].astype(np.int64)])
    strings = (*events.strings, "")
    numbers = [_number(strings[types], strings[inputs]) for types, inputs in texts.keys.tolist()]
    return np.array(numbers, np.int64)[texts.group_ids]


def _number(types: str, inputs: str) -> int:
    """Return the first input that is a scalar, behind at most the tensors of the call; -1 if there is none."""
    try:
        kinds, values = _decode_list(types), _decode_list(inputs)
        place = int(kinds[0] not in ("", "Scalar"))
        number = int(values[place]) if kinds[place] == "Scalar" else -1
    except (msgspec.DecodeError, RecursionError, IndexError, TypeError, ValueError):
        return -1
    return number if 0 <= number < COUNT_LIMIT else -1
