"""Write tracks, slices and counters as a Perfetto trace: TrackEvent packets, exact to the nanosecond.

Small packets are written by the `perfetto` package; those of slices, of which there are millions, in columns. Each
packet sequence has a separate table of texts, each written once, and a separate clock of time deltas between packets.
The wire format (protobuf.dev, "Encoding"): a field is its key, `number << 3 | type`, and a value; integers are varints,
seven bits a byte, the lowest first; a nested message is its length and its fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field

import numpy as np
from numpy.typing import NDArray
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackDescriptor, TrackEvent

from traceq.frozen import frozen


@frozen
class Track:
    """A row of the viewer; `order` is its position among siblings, and a `pid` makes it a process, without a parent."""

    uuid: int
    name: str
    order: int
    parent: int = 0
    pid: int = 0
    is_counter: bool = False


@frozen(eq=False)
class Argument:
    """An argument that the viewer shows for each of N slices.

    `values` int64[N] are numbers, or indices into `texts` if there are any; -1 = absent.
    """

    name: str
    values: NDArray[np.int64]
    texts: Sequence[str] | None = None


@frozen(eq=False)
class Slices:
    """N slices, as columns.

    `track` int64[N] are uuids; `start`, `end` int64[N] ns; `name`, `category` int64[N] indices into `names` and
    `categories`; `flow` int64[N] joins slices of the same number with arrows, 0 = none.
    """

    track: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    name: NDArray[np.int64]
    names: Sequence[str]
    category: NDArray[np.int64]
    categories: Sequence[str]
    flow: NDArray[np.int64]
    arguments: Sequence[Argument] = field(default=())

    def __len__(self) -> int:
        return len(self.track)


_CHUNK = 1 << 16
_BOOTTIME, _OWN_CLOCK = 6, 64
_CLEARED, _NEEDED = 1, 2  # state of the sequence: texts and clock

# Numbers of fields: perfetto/protos/perfetto/trace/{trace_packet,track_event/track_event,...}.proto
_PACKET = 1
_TIMESTAMP, _SEQUENCE, _TRACK_EVENT, _SEQUENCE_FLAGS = 8, 10, 11, 13
_CATEGORY, _ANNOTATION, _TYPE, _NAME, _TRACK, _COUNTER_VALUE, _FLOW = 3, 4, 9, 10, 11, 30, 47
_ANNOTATION_NAME, _ANNOTATION_INT, _ANNOTATION_TEXT = 1, 4, 17


def track_packets(tracks: Iterable[Track]) -> bytes:
    """Return the descriptors of tracks."""
    trace = Trace()
    for track in tracks:
        descriptor = trace.packet.add().track_descriptor
        descriptor.uuid, descriptor.sibling_order_rank = track.uuid, track.order
        descriptor.child_ordering = TrackDescriptor.EXPLICIT
        if track.pid:
            descriptor.process.pid, descriptor.process.process_name = track.pid, track.name
        else:
            descriptor.name, descriptor.parent_uuid = track.name, track.parent
        if track.is_counter:
            descriptor.counter.SetInParent()
    return bytes(trace.SerializeToString())


def slice_packets(slices: Slices, offset_ns: int, sequence: int) -> Iterator[bytes]:
    """Yield all slices, with `offset_ns` added to their times, as one packet sequence."""
    which, opens = boundaries(slices.start, slices.end)
    time_ns = np.where(opens, slices.start[which], slices.end[which]) + offset_ns
    base = int(time_ns[0]) if len(time_ns) else 0
    texts = [texts for argument in slices.arguments if (texts := argument.texts) is not None]
    yield _opening(sequence, base, slices, [text for some in texts for text in some])
    step = np.diff(time_ns, prepend=base)
    for first in range(0, len(step), _CHUNK):
        chunk = slice(first, first + _CHUNK)
        yield _boundaries(slices, sequence, which[chunk], opens[chunk], step[chunk])


def counter_packets(
    track: int, time_ns: NDArray[np.int64], values: NDArray[np.int64], sequence: int
) -> Iterator[bytes]:
    """Yield a counter that has `values` int64[M] from `time_ns` int64[M] on, as one packet sequence."""
    base = int(time_ns[0]) if len(time_ns) else 0
    yield _opening(sequence, base, None, ())
    step = np.diff(time_ns, prepend=base)
    for first in range(0, len(step), _CHUNK):
        chunk = values[first : first + _CHUNK]
        event = [
            varint(_TYPE, np.full(len(chunk), TrackEvent.TYPE_COUNTER)),
            varint(_TRACK, np.full(len(chunk), track)),
            varint(_COUNTER_VALUE, chunk),
        ]
        yield _packets(sequence, step[first : first + _CHUNK], event)


def _boundaries(
    slices: Slices, sequence: int, which: NDArray[np.int64], opens: NDArray[np.bool_], step: NDArray[np.int64]
) -> bytes:
    """Return the packets of some beginnings and ends."""
    flow = slices.flow[which]
    event = [
        varint(_TYPE, np.where(opens, TrackEvent.TYPE_SLICE_BEGIN, TrackEvent.TYPE_SLICE_END)),
        varint(_TRACK, slices.track[which]),
        varint(_NAME, slices.name[which] + 1, opens),
        varint(_CATEGORY, slices.category[which] + 1, opens),
        fixed64(_FLOW, flow, opens & (flow > 0)),
    ]
    num_texts = 0
    for number, argument in enumerate(slices.arguments):
        event += _argument(argument, number, num_texts, which, opens)
        num_texts += len(argument.texts or ())
    return _packets(sequence, step, event)


def _argument(
    argument: Argument, number: int, num_texts: int, which: NDArray[np.int64], opens: NDArray[np.bool_]
) -> list[Field]:
    """Return the fields of a debug annotation; `num_texts` were interned by earlier arguments."""
    values = argument.values[which]
    present = opens & (values >= 0)
    if not present.any():
        return []
    is_text = argument.texts is not None
    name = varint(_ANNOTATION_NAME, np.full(len(which), number + 1))
    value = varint(_ANNOTATION_TEXT, values + 1 + num_texts) if is_text else varint(_ANNOTATION_INT, values)
    return delimited(_ANNOTATION, [name, value], present)


def _packets(sequence: int, step: NDArray[np.int64], event: Sequence[Field]) -> bytes:
    num = len(step)
    packet = [
        varint(_TIMESTAMP, step),
        varint(_SEQUENCE, np.full(num, sequence)),
        varint(_SEQUENCE_FLAGS, np.full(num, _NEEDED)),
        *delimited(_TRACK_EVENT, event),
    ]
    return join(delimited(_PACKET, packet))


def _opening(sequence: int, base_ns: int, slices: Slices | None, texts: Sequence[str]) -> bytes:
    """Return the packets that define the clock and the texts of a sequence."""
    trace = Trace()
    snapshot = trace.packet.add()
    snapshot.trusted_packet_sequence_id, snapshot.sequence_flags = sequence, _CLEARED
    snapshot.trace_packet_defaults.timestamp_clock_id = _OWN_CLOCK
    snapshot.clock_snapshot.clocks.add(clock_id=_BOOTTIME, timestamp=base_ns)
    snapshot.clock_snapshot.clocks.add(
        clock_id=_OWN_CLOCK, timestamp=base_ns, is_incremental=True, unit_multiplier_ns=1
    )
    if slices is not None:
        interned = trace.packet.add()
        interned.trusted_packet_sequence_id, interned.sequence_flags = sequence, _NEEDED
        data = interned.interned_data
        names = [argument.name for argument in slices.arguments]
        for target, some in (
            (data.event_names, slices.names),
            (data.event_categories, slices.categories),
            (data.debug_annotation_names, names),
        ):
            for iid, text in enumerate(some, start=1):
                target.add(iid=iid, name=text)
        for iid, text in enumerate(texts, start=1):
            data.debug_annotation_string_values.add(iid=iid, str=text.encode())
    return bytes(trace.SerializeToString())


_VARINT, _FIXED64, _DELIMITED = 0, 1, 2


@frozen(eq=False)
class Field:
    """Bytes of one field in N messages: `data` uint8[N, W], of which the first `size` int64[N] of each row are used."""

    data: NDArray[np.uint8]
    size: NDArray[np.int64]


def varint(number: int, values: NDArray[np.int64], present: NDArray[np.bool_] | None = None) -> Field:
    """Encode an integer field, negative values in ten bytes; `present` bool[N] is False where it is omitted."""
    return _present(_keyed(number, _VARINT, _varints(values)), present)


def fixed64(number: int, values: NDArray[np.int64], present: NDArray[np.bool_] | None = None) -> Field:
    """Encode a field of eight bytes, the lowest first."""
    data = np.ascontiguousarray(values, "<i8").view(np.uint8).reshape(-1, 8)
    return _present(_keyed(number, _FIXED64, Field(data, np.full(len(values), 8))), present)


def delimited(number: int, fields: Sequence[Field], present: NDArray[np.bool_] | None = None) -> list[Field]:
    """Encode a nested message of these fields; returns the fields to use in their place."""
    inside = [_present(field, present) for field in fields]
    size: NDArray[np.int64] = np.sum([field.size for field in inside], axis=0)
    return [_present(_keyed(number, _DELIMITED, _varints(size)), present), *inside]


def join(fields: Iterable[Field]) -> bytes:
    """Return the messages, concatenated."""
    columns = list(fields)
    data = np.concatenate([field.data for field in columns], axis=1)
    counts = [np.arange(field.data.shape[1]) < field.size[:, None] for field in columns]
    return data[np.concatenate(counts, axis=1)].tobytes()


def _varints(values: NDArray[np.int64]) -> Field:
    rest = values.astype(np.uint64)
    width = max(1, -(-int(rest.max(initial=0)).bit_length() // 7))
    data, size = np.empty((len(rest), width), np.uint8), np.ones(len(rest), np.int64)
    for index in range(width):
        data[:, index] = rest & np.uint64(0x7F)
        rest >>= np.uint64(7)
        more = rest > 0
        data[more, index] |= 0x80
        size += more
    return Field(data, size)


def _keyed(number: int, kind: int, value: Field) -> Field:
    key = _varints(np.array([number << 3 | kind])).data
    keys = np.broadcast_to(key, (len(value.size), key.shape[1]))
    return Field(np.concatenate([keys, value.data], axis=1), value.size + key.shape[1])


def _present(field: Field, present: NDArray[np.bool_] | None) -> Field:
    return field if present is None else Field(field.data, np.where(present, field.size, 0))


def boundaries(start: NDArray[np.int64], end: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return (slice, opens) of all 2N beginnings and ends, in the order in which a viewer must read them.

    At one instant: first the ends, inner before outer; then the beginnings, longer before shorter; then empty slices,
    each with its beginning and end.
    """
    num = len(start)
    which, opens = np.tile(np.arange(num), 2), np.repeat([True, False], num)
    begins, ends = start[which], end[which]
    empty = begins == ends
    time = np.where(opens, begins, ends)
    kind = np.where(empty, 2, np.where(opens, 1, 0))
    nesting = np.where(empty, 0, np.where(opens, -ends, -begins))
    row = np.where(opens | empty, which, -which)
    order = np.lexsort((~opens, row, nesting, kind, time))
    return which[order], opens[order]


def lanes(track: NDArray[np.int64], start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[N], the lane of each slice on its track, from 0: slices of a lane are disjoint or nested.

    Only slices that cross another are moved, each to the first lane where it fits.
    """
    lane = np.zeros(len(track), np.int64)
    order = np.argsort(track, kind="stable")
    cuts = np.flatnonzero(np.diff(track[order])) + 1
    for rows in np.split(order, cuts) if len(order) else ():
        if not _is_nested(start[rows], end[rows]):
            lane[rows] = _first_fit(start[rows], end[rows])
    return lane


def _is_nested(start: NDArray[np.int64], end: NDArray[np.int64]) -> bool:
    """Return whether all slices are disjoint or nested: read as brackets, every end closes its own beginning."""
    which, opens = boundaries(start, end)
    depth = np.cumsum(np.where(opens, 1, -1)) + ~opens
    pairs = which[np.argsort(depth, kind="stable")].reshape(-1, 2)
    return bool((pairs[:, 0] == pairs[:, 1]).all())


def _first_fit(start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the lane of each slice, by a loop, as few tracks need it; slices without crossings fit the first lane."""
    lane = np.zeros(len(start), np.int64)
    open_ends: list[list[int]] = []
    order = np.lexsort((-end, start))
    for index, begins, ends in zip(order.tolist(), start[order].tolist(), end[order].tolist(), strict=True):
        for stack in open_ends:
            while stack and stack[-1] <= begins:
                stack.pop()
        fits = (number for number, stack in enumerate(open_ends) if not stack or ends <= stack[-1])
        number = next(fits, len(open_ends))
        if number == len(open_ends):
            open_ends.append([])
        open_ends[number].append(ends)
        lane[index] = number
    return lane
