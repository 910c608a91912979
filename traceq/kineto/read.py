"""Reader of one trace file as a Trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import PurePosixPath
from typing import Any

import msgspec

from traceq.errors import UnreadableInput
from traceq.intervals import sorted_unique
from traceq.kineto.categories import UNNAMED_DEVICES, device_of, unread_device_of
from traceq.kineto.columns import LIMIT_NS, to_int
from traceq.kineto.damage_report import damage_caveats
from traceq.kineto.decompression import open_source
from traceq.kineto.event_windows import Document
from traceq.kineto.file_name import host_in_name, rank_in_name
from traceq.kineto.other_formats import browser_trace
from traceq.kineto.reader_choice import scan
from traceq.kineto.scan_result import Scan
from traceq.kineto.torch_versions import with_compile_ranges, with_ops_of_autograd, with_sequence_numbers
from traceq.locations import Place
from traceq.model import Category, Caveat, Events, Thread, Trace
from traceq.short_texts import LONGEST_NAME, capped
from traceq.stages import stage

__all__ = ["read_rank", "read_trace"]

_VERSIONS = ("cuda_driver_version", "cuda_runtime_version", "hip_driver_version", "hip_runtime_version")
_OPTIONS = ("record_shapes", "with_stack", "profile_memory")


def read_trace(path: Place, *, strict: bool = False) -> Trace:
    """Return the trace in a Kineto JSON file: plain, gzip or zstd; an object or a bare array; any layout.

    Of a damaged file the readable events are returned, with a caveat per kind of damage that gives its first position;
    `strict` refuses such a file and names the first position of all. Raises UnreadableInput.
    """
    source = open_source(path)
    try:
        with stage(f"reading {path.name}", source.num_read, source.size_bytes, are_bytes=True):
            result = scan(source)
    finally:
        source.close()
    num_events = len(result.events)
    damage = damage_caveats(result.damage, source.fault, num_events)
    if strict and damage:
        _, first = min(damage, key=itemgetter(0))
        raise UnreadableInput(str(path), f"{first.text} (--strict refuses)")
    caveats = tuple(caveat for _, caveat in damage)
    if num_events == 0:
        why = caveats[0].text if caveats else "no complete event"
        raise UnreadableInput(str(path), why, "events with ts and dur, not pairs of begin and end (ph B, E)")
    if other := browser_trace(result.events):
        raise UnreadableInput(str(path), other, "a Kineto trace, as torch.profiler writes it")
    return _trace(path, result, caveats)


def read_rank(path: Place) -> int:
    """Return the rank of a trace: from the metadata before its events, else from the file's name, else 0.

    Raises UnreadableInput.
    """
    source = open_source(path)
    try:
        document = Document(source)
        document.open()
        return _rank(_decoded(document.metadata, "distributedInfo", dict), path)
    finally:
        source.close()


def _trace(path: Place, result: Scan, caveats: tuple[Caveat, ...]) -> Trace:
    events, of_format = with_ops_of_autograd(result.events)
    events, metadata = with_compile_ranges(with_sequence_numbers(_with_short_names(events))), result.metadata
    world = _decoded(metadata, "distributedInfo", dict)
    return Trace(
        path=str(path),
        events=events,
        threads=tuple(Thread(*map(capped, (each.pid, each.tid, each.name))) for each in result.names.threads),
        process_names=tuple((pid, capped(name)) for pid, name in result.names.processes),
        rank=_rank(world, path),
        world_size=max(to_int(world.get("world_size", 1)), 1),
        backend=capped(str(world.get("backend", ""))),
        device=capped(_device(metadata, events, [name for _, name in result.names.processes])),
        base_time_ns=_base_time_ns(metadata, events),
        schema=_schema(metadata, events),
        embedded=_decoded(metadata, "traceq", str),
        num_dropped=result.damage.num_dropped,
        num_counters=result.num_counters,
        versions=_versions(metadata, world),
        caveats=(*caveats, *of_format),
        host=capped(_host(metadata, path, events)),
        group_size=_group_size(world),
    )


def _base_time_ns(metadata: Mapping[str, msgspec.Raw], events: Events) -> int:
    """Return what makes times absolute; 0 where it is negative, or puts the last event beyond any plausible time."""
    base_ns: int = _decoded(metadata, "baseTimeNanoseconds", int)
    latest_ns = int((events.ts + events.dur).max(initial=0))
    return base_ns if 0 <= base_ns <= LIMIT_NS - latest_ns else 0


def _with_short_names(events: Events) -> Events:
    """Return the events with capped names; of call stacks each frame, while lists, such as shapes, stay whole."""
    long = {index for index, text in enumerate(events.strings) if len(text) > LONGEST_NAME}
    if not long:
        return events
    strings, stacks = list(events.strings), long.intersection(events.stacks.text.tolist())
    lists = (events.shapes, events.types, events.strides, events.inputs, events.messages.ranks)
    for index in long.difference(*(sorted_unique(each).tolist() for each in lists)):
        strings[index] = ";".join(map(capped, strings[index].split(";"))) if index in stacks else capped(strings[index])
    return replace(events, strings=tuple(strings))


def _group_size(world: Mapping[str, Any]) -> int:
    """Return the ranks of every process group of the job if all that the metadata lists have as many, else -1."""
    groups = world.get("pg_config")
    listed = groups if isinstance(groups, list) else []
    sizes = [to_int(group.get("pg_size")) for group in listed if isinstance(group, dict)]
    return sizes[0] if sizes and len(set(sizes)) == 1 and sizes[0] > 0 else -1


def _decoded(metadata: Mapping[str, msgspec.Raw], key: str, kind: type) -> Any:
    """Return one metadata value, or an empty one of its type if it is absent, broken, or of another type."""
    try:
        value = msgspec.json.decode(bytes(metadata[key]).decode("utf-8", "replace"))
    except (KeyError, msgspec.DecodeError, RecursionError):
        return kind()
    return value if isinstance(value, kind) else kind()


def _rank(world: dict[str, Any], path: Place) -> int:
    """Return the rank from the metadata, else from the file's name, else 0."""
    rank = to_int(world.get("rank", -1))
    return rank if rank >= 0 else rank_in_name(path.name) or 0


def _host(metadata: Mapping[str, msgspec.Raw], path: Place, events: Events) -> str:
    """Return the name of the machine, "" if unknown.

    It is the one that the profiler recorded (since 2025), else the one in the name that tensorboard_trace_handler gave
    the file, which the metadata of a renamed file still has.
    """
    if host := str(_decoded(metadata, "host_name", str)):
        return host
    processes = {events.strings[pid] for pid in sorted_unique(events.pid).tolist() if pid >= 0}
    names = (path.name, PurePosixPath(_decoded(metadata, "traceName", str)).name)
    return next(filter(None, (host_in_name(name, processes) for name in names)), "")


_MADE_OF = "computeMajor", "computeMinor", "numSms", "totalGlobalMem"


def _unnamed(device: Mapping[str, object]) -> str:
    """Return the name of a device that has none in the device list, by what it is made of; "" if unknown."""
    major, minor, units, size = (device.get(key) for key in _MADE_OF)
    gib = round(size / 2**30) if isinstance(size, int) else 0
    return next((name for key, name in UNNAMED_DEVICES.items() if key == (major, minor, units, gib)), "")


def _device(metadata: Mapping[str, msgspec.Raw], events: Events, processes: Sequence[str]) -> str:
    """Return the accelerator's name: from the device list, else its kind from the runtime calls; `cpu` without one.

    Without rows of a device it is one that is not read, if categories or processes tell of it.
    """
    devices = _decoded(metadata, "deviceProperties", list)
    names = [str(device.get("name", "")) or _unnamed(device) for device in devices if isinstance(device, dict)]
    device_rows = events.rows(Category.KERNEL, Category.MEMCPY, Category.MEMSET)
    if len(device_rows) == 0:
        unread = {events.strings[int(i)] for i in sorted_unique(events.cat[events.rows(Category.OTHER)])}
        return unread_device_of([*sorted(unread), *processes]) or "cpu"
    if names and names[0]:
        return names[0]
    cats = {events.strings[int(i)].lower() for i in sorted_unique(events.cat[device_rows])}
    calls = {events.strings[int(i)] for i in sorted_unique(events.name[events.rows(Category.RUNTIME)])}
    return device_of([*sorted(cats), *sorted(calls)]) or "accelerator"


def _versions(metadata: Mapping[str, msgspec.Raw], world: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return (what, text): versions of drivers and NCCL, and which costly options the profiler was run with."""
    versions = [(name.replace("_", " "), str(_decoded(metadata, name, int) or "")) for name in _VERSIONS]
    versions += [(f"profiler's {name}", "yes" if _decoded(metadata, name, int) else "no") for name in _OPTIONS]
    versions.append(("nccl", capped(str(world.get("nccl_version", "")))))
    return tuple((name, text) for name, text in versions if text)


def _schema(metadata: Mapping[str, msgspec.Raw], events: Events) -> str:
    """Return the year of the Kineto format that a file is written in."""
    if any(cat in ("Operator", "Kernel") for cat in events.strings):
        return "2021"
    return "2025" if "baseTimeNanoseconds" in metadata else "2023"
