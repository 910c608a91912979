"""Reads a Perfetto trace packet by packet, as its documentation says, into slices, arrows and curves."""

from __future__ import annotations

import gzip
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent


@dataclass
class Slice:
    process: str
    track: str
    name: str
    category: str
    start: int
    end: int
    args: dict[str, Any]
    flows: tuple[int, ...]


@dataclass
class Sequence:
    now: int = 0
    names: dict[int, str] = field(default_factory=dict)
    categories: dict[int, str] = field(default_factory=dict)
    keys: dict[int, str] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)


@dataclass
class Reading:
    slices: list[Slice] = field(default_factory=list)
    curves: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))

    def on(self, track: str) -> list[Slice]:
        return [one for one in self.slices if one.track == track]


def read_perfetto(path: Path) -> Reading:
    """Slices in the order in which they end. A slice that never ends, or ends twice, is an error."""
    trace, result = Trace(), Reading()
    data = path.read_bytes()
    trace.ParseFromString(gzip.decompress(data) if path.suffix == ".gz" else data)
    sequences: dict[int, Sequence] = defaultdict(Sequence)
    tracks = {p.track_descriptor.uuid: p.track_descriptor for p in trace.packet if p.HasField("track_descriptor")}
    stacks: dict[int, list[Slice]] = defaultdict(list)
    for packet in trace.packet:
        sequence = sequences[packet.trusted_packet_sequence_id]
        _intern(sequence, packet)
        if packet.HasField("clock_snapshot"):
            sequence.now = packet.clock_snapshot.clocks[1].timestamp
        if not packet.HasField("track_event"):
            continue
        sequence.now += packet.timestamp
        event, descriptor = packet.track_event, tracks[packet.track_event.track_uuid]
        if event.type == TrackEvent.TYPE_SLICE_BEGIN:
            process = tracks[descriptor.parent_uuid].process.process_name
            stacks[event.track_uuid].append(_begun(sequence, event, process, descriptor.name))
        elif event.type == TrackEvent.TYPE_SLICE_END:
            result.slices.append(stacks[event.track_uuid].pop())
            result.slices[-1].end = sequence.now
        else:
            result.curves[descriptor.name].append((sequence.now, event.counter_value))
    assert not any(stacks.values())
    return result


def _begun(sequence: Sequence, event: Any, process: str, track: str) -> Slice:
    args = {}
    for reported in event.debug_annotations:
        is_text = reported.HasField("string_value_iid")
        args[sequence.keys[reported.name_iid]] = (
            sequence.texts[reported.string_value_iid] if is_text else reported.int_value
        )
    category = sequence.categories[event.category_iids[0]]
    flows = tuple(event.flow_ids)
    return Slice(process, track, sequence.names[event.name_iid], category, sequence.now, -1, args, flows)


def _intern(sequence: Sequence, packet: Any) -> None:
    data = packet.interned_data
    sequence.names |= {one.iid: one.name for one in data.event_names}
    sequence.categories |= {one.iid: one.name for one in data.event_categories}
    sequence.keys |= {one.iid: one.name for one in data.debug_annotation_names}
    sequence.texts |= {one.iid: one.str.decode() for one in data.debug_annotation_string_values}
