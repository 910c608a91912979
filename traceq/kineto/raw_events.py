"""One event as msgspec decodes it: only the keys that analyses need; all others are skipped."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import msgspec

from traceq.kineto.categories import BY_NAME, categorise

_ABSENT = msgspec.Raw(b"")


class RawArgs(msgspec.Struct, gc=False):
    """Arguments of an event, in the spellings of all years; typed Any, as each of them can also be a string."""

    external_id: Any = msgspec.field(name="External id", default=-1)
    external_id_2021: Any = msgspec.field(name="external id", default=-1)
    correlation: Any = -1
    device: Any = -1
    stream: Any = -1
    bytes: Any = -1
    size: Any = -1  # of an MTIA copy
    direction: Any = None  # of an MTIA copy
    grid: Any = None
    wait_on_stream: Any = -1  # of a cuda_sync row, like the next
    event_record: Any = msgspec.field(name="wait_on_cuda_event_record_corr_id", default=-1)
    graph: Any = msgspec.field(name="graph id", default=-1)
    graph_node: Any = msgspec.field(name="graph node id", default=-1)
    sequence: Any = msgspec.field(name="Sequence number", default=-1)
    forward_thread: Any = msgspec.field(name="Fwd thread id", default=-1)
    call_stack: Any = msgspec.field(name="Call stack", default=None)
    call_from: Any = msgspec.field(name="CallFrom", default=None)  # of a Python frame
    collective: Any = msgspec.field(name="Collective name", default=None)
    elements_in: Any = msgspec.field(name="In msg nelems", default=-1)
    elements_out: Any = msgspec.field(name="Out msg nelems", default=-1)
    splits_in: Any = msgspec.field(name="In split size", default=None)
    splits_out: Any = msgspec.field(name="Out split size", default=None)
    dtype: Any = None
    group: Any = msgspec.field(name="Process Group Name", default=None)
    group_size: Any = msgspec.field(name="Group size", default=-1)
    ranks: Any = msgspec.field(name="Process Group Ranks", default=None)
    message_sequence: Any = msgspec.field(name="Seq", default=-1)
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=_ABSENT)
    dims_2021: msgspec.Raw = msgspec.field(name="Input dims", default=_ABSENT)
    types: msgspec.Raw = msgspec.field(name="Input type", default=_ABSENT)
    strides: msgspec.Raw = msgspec.field(name="Input Strides", default=_ABSENT)
    inputs: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=_ABSENT)
    label_module: Any = msgspec.field(name="module_fqn", default=None)  # torchtitan's of a node of a graph
    label: Any = msgspec.field(name="name", default=None)  # of a named track, and torch's of a node of a graph
    labels: Any = None  # of a process_labels row
    label_2_13: Any = msgspec.field(name="str", default=None)  # as torch 2.12 and 2.13 wrote it, like the next
    label_unnamed: Any = msgspec.field(name="annotation", default=None)
    memory_bytes: Any = msgspec.field(name="Bytes", default=-1)  # of a [memory] row, like all below
    allocated: Any = msgspec.field(name="Total Allocated", default=-1)
    reserved: Any = msgspec.field(name="Total Reserved", default=-1)
    device_type: Any = msgspec.field(name="Device Type", default=-1)
    device_id: Any = msgspec.field(name="Device Id", default=-1)
    address: Any = msgspec.field(name="Addr", default=-1)


NODE_LABELS = attrgetter("label_module", "label", "label_2_13", "label_unnamed")
"""What annotates a node of a graph, the module first: torchtitan names it twice, `block::layers.0` in `name`."""


class RawEvent(msgspec.Struct, gc=False):
    """Event of any phase type; `ts` and `dur` stay text, as a float64 would lose nanoseconds."""

    ph: Any = None
    name: Any = ""
    cat: Any = ""
    pid: Any = ""
    tid: Any = ""
    ts: msgspec.Raw = _ABSENT
    dur: msgspec.Raw = _ABSENT
    args: RawArgs | None = None


NAME_DECIDES = -1
"""Code of a category whose meaning depends on the event's name."""


class Interner(dict[str, int]):
    """Text -> its number, counted in order of first occurrence."""

    def __missing__(self, text: str) -> int:
        self[text] = number = len(self)
        return number


class InternedNumbers(dict[int, int]):
    """Number -> the string id of its digits: process and thread ids are mostly numbers, and few."""

    def __init__(self, strings: Interner) -> None:
        super().__init__()
        self._strings = strings

    def __missing__(self, number: int) -> int:
        self[number] = text = self._strings[str(number)]
        return text


class InternedStrings(dict[bytes, int]):
    """JSON text -> the string id of that text; -1 for an absent value and for null."""

    def __init__(self, strings: Interner) -> None:
        super().__init__({b"": -1, b"null": -1})
        self._strings = strings

    def __missing__(self, text: bytes) -> int:
        self[text] = number = self._strings[text.decode("utf-8", "replace")]
        return number


class CategoryCodes(dict[str, int]):
    """Category string -> its code; NAME_DECIDES where the event's name is needed, too."""

    def __missing__(self, cat: str) -> int:
        self[cat] = code = NAME_DECIDES if cat in BY_NAME else int(categorise(cat, ""))
        return code
