"""Tokens that the experts of a rank compute in each layer, as far as the trace records sizes.

A token counts once for each of its experts on the rank. An all-to-all tells the rows that it receives, by its shapes or
its split sizes; the first input of a grouped product has as many rows as all its experts together.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.name_patterns import AUTOGRAD_NODE, matching
from traceq.facts.events.nesting import surroundings
from traceq.facts.memo import once_per_trace
from traceq.frozen import frozen
from traceq.grouping import group
from traceq.model import Category, Trace

EXCHANGES, PRODUCTS = "all_to_all", "grouped product"
"""What tells the tokens of a layer."""

_EXCHANGE = re.compile(r"^c10d::alltoall_base_$")
_PRODUCT = re.compile(r"^aten::_(scaled_)?grouped_mm$")
_FLOATS = ("c10::BFloat16", "c10::Half", "float", "c10::Float8_e4m3fn", "c10::Float8_e5m2")
"""Types of activations; what is exchanged as integers is their number."""
_FLOAT = re.compile(r"^b?float")
"""Names of their types in messages."""
_MOST = 2**40
"""Rows and columns from which a shape is none."""


@frozen(eq=False)
class ExpertTokens:
    """L layers of the forward pass, or grouped products, in order: `ts` int64[L] ns of the host; `tokens` int64[L].

    `source`: EXCHANGES, PRODUCTS, or "" where the trace tells no tokens.
    """

    source: str
    ts: NDArray[np.int64]
    tokens: NDArray[np.int64]


@once_per_trace
def expert_tokens(trace: Trace) -> ExpertTokens:
    """Return the tokens by layer from exchanges, else by grouped product, which may have room for more than it gets.

    A layer exchanges twice, and the second exchange returns what the first one brought: its rows in and out are
    swapped. Exchanges that do not pair like that are others, such as those of embeddings.
    """
    for rows, exchanged in (_parsed(trace, _EXCHANGE, _exchanged), _split(trace)):
        for first in (0, 1):  # the window may open within a layer
            num = (len(rows) - first) // 2
            there, back = (exchanged[first + turn : first + 2 * num : 2] for turn in (0, 1))
            if num > 0 and np.array_equal(there, back[:, [1, 0, 2]]):
                return ExpertTokens(EXCHANGES, trace.events.ts[rows[first : first + 2 * num : 2]], there[:, 0])
    rows, multiplied = _parsed(trace, _PRODUCT, _multiplied)
    return ExpertTokens(PRODUCTS if len(rows) else "", trace.events.ts[rows], multiplied[:, 0])


def _split(trace: Trace) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (all-to-alls of the forward pass by start, their rows received and sent and width), by split sizes."""
    events, messages = trace.events, trace.events.messages
    is_split = (messages.rows_in >= 0) & (messages.rows_out >= 0) & (messages.elements_in + messages.elements_out > 0)
    is_float = np.array([*(_FLOAT.match(text) is not None for text in events.strings), False])[messages.dtype]
    index = np.flatnonzero(is_split & is_float & (events.category[messages.row] == Category.CPU_OP))
    index = index[~surroundings(trace, messages.row[index]).within(AUTOGRAD_NODE)] if len(index) else index
    index = index[np.argsort(events.ts[messages.row[index]], kind="stable")]
    received, sent = messages.rows_out[index], messages.rows_in[index]
    elements = messages.elements_in[index] + messages.elements_out[index]
    width, rest = np.divmod(elements, np.maximum(received + sent, 1))
    is_rows = (received + sent > 0) & (rest == 0) & (messages.elements_out[index] == received * width)
    return messages.row[index[is_rows]], np.column_stack([received, sent, width])[is_rows]


def _parsed(
    trace: Trace, pattern: re.Pattern[str], parse: Callable[[list[Any], list[Any]], tuple[int, int, int]]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (ops of the forward pass by start, int64[K, 3] what their shapes and types tell); without zeros."""
    events = trace.events
    rows = events.rows(Category.CPU_OP)
    rows = rows[matching(events, rows, pattern) & (events.shapes[rows] >= 0) & (events.types[rows] >= 0)]
    rows = rows[~surroundings(trace, rows).within(AUTOGRAD_NODE)] if len(rows) else rows
    rows = events.by_start(rows)
    texts = group([events.shapes[rows], events.types[rows]])
    entries = [parse(_list(events.strings[shape]), _list(events.strings[kind])) for shape, kind in texts.keys.tolist()]
    numbers = np.array(entries, np.int64).reshape(-1, 3)[texts.group_ids]
    return rows[numbers[:, 2] > 0], numbers[numbers[:, 2] > 0]


def _exchanged(shapes: list[Any], types: list[Any]) -> tuple[int, int, int]:
    """Return (rows received, rows sent, width) of an exchange of rows of activations; zeros for any other."""
    received, sent = _sizes(shapes, 0), _sizes(shapes, 1)
    is_rows = len(received) == len(sent) == 2 and received[1] == sent[1] and types[:1] and types[0] in _FLOATS
    return (received[0], sent[0], received[1]) if is_rows else (0, 0, 0)


def _multiplied(shapes: list[Any], _: list[Any]) -> tuple[int, int, int]:
    """Return the rows of a product of rows with a matrix per expert; zeros for another, such as that of a gradient."""
    rows, matrices = _sizes(shapes, 0), _sizes(shapes, 1)
    return (rows[0], 0, 1) if len(rows) == 2 and len(matrices) == 3 else (0, 0, 0)


def _list(text: str) -> list[Any]:
    try:
        entries = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return []
    return entries if isinstance(entries, list) else []


def _sizes(shapes: list[Any], place: int) -> list[int]:
    """Return the shape of an input, empty if it is no tensor."""
    sizes = shapes[place] if place < len(shapes) else []
    is_shape = isinstance(sizes, list) and all(type(size) is int and 0 <= size < _MOST for size in sizes)
    return sizes if is_shape else []
