"""Sequence numbers of collectives in traces without `Seq`, from the inputs of `record_param_comms`.

torch up to 2.4 passes the number as an integer: as the first input, or as the second behind the tensors of the call.
Later it is in a tuple, which the profiler does not write, and newer versions write `Seq`.
https://github.com/pytorch/pytorch/blob/v2.4.0/torch/csrc/distributed/c10d/ParamCommsUtils.hpp
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from traceq.grouping import group
from traceq.kineto.collective_messages import COUNT_LIMIT
from traceq.model import Events

__all__ = ["with_sequence_numbers"]

_NAME = "record_param_comms"
_decode_list = msgspec.json.Decoder(list[Any]).decode


def with_sequence_numbers(events: Events) -> Events:
    """Return the events with the sequence numbers that are among the inputs of their collectives.

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
