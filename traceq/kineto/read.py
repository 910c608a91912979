"""Reader of one trace file as a Trace."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import PurePosixPath
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from traceq.errors import UnreadableInput
from traceq.grouping import group
from traceq.intervals import sorted_unique, span_index, spans
from traceq.kineto.categories import UNNAMED_DEVICES, device_of, unread_device_of
from traceq.kineto.collective_messages import COUNT_LIMIT
from traceq.kineto.columns import LIMIT_NS, to_int
from traceq.kineto.decompression import open_source
from traceq.kineto.event_windows import Document, browser_trace
from traceq.kineto.reader_choice import Scan, damage_caveats, scan
from traceq.locations import Place
from traceq.model import Category, Caveat, Events, Thread, Trace
from traceq.short_texts import LONGEST_NAME, capped
from traceq.stages import stage

_RANK = re.compile(r"rank[-_]?(\d+)")
_HANDLERS_NAME = re.compile(r"^(.+)_(\d+)\.\d+\.pt\.trace\.json")

_RANGES = ("dynamo", "entire_frame_compile", "entire_backward_compile")
"""Names, in newer versions of torch, of the ranges around those of `dynamo_timed`."""
_PROFILERS = re.compile(r"torch/profiler/profiler\.py\(\d+\): (__enter__|__exit__|start|stop|start_trace|stop_trace)$")
"""Frames in which the profiler starts and stops."""
_NO_RANGE = re.compile(r"::|Backward\d*$|^Torch")
"""Names of ops, of autograd's nodes and of torch.compile's regions, which no range of the program has."""
_TIMED = " (dynamo_timed)"
"""End of the names of `torch._dynamo.utils.dynamo_timed`, since torch 2.0."""

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
    events, of_format = _with_ops_of_autograd(result.events)
    events = _with_ranges_of_the_program(_with_short_names(events))
    events = _with_compile_ranges(_with_sequence_numbers(events))
    events, metadata = _without_profilers_python(_with_slashes(events)), result.metadata
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
        compute_major=_compute_major(metadata, events),
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
    return next(filter(None, (_host_in_name(name, processes) for name in names)), "")


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


def _compute_major(metadata: Mapping[str, msgspec.Raw], events: Events) -> int:
    """Return the major compute capability of the first device; 0 if unknown, or of AMD's, whose numbers are others."""
    calls = {events.strings[int(i)] for i in sorted_unique(events.name[events.rows(Category.RUNTIME)])}
    devices = _decoded(metadata, "deviceProperties", list)
    if not devices or not isinstance(devices[0], dict) or device_of(sorted(calls)) != "cuda":
        return 0
    return max(to_int(devices[0].get("computeMajor")), 0)


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


def _with_compile_ranges(events: Events) -> Events:
    """Return the events with the category of compiling for all that a thread does in a range of torch.compile at work.

    Compiling runs the program on fake tensors, backward included: thousands of rows that look like its ops and modules.
    Calls of a device's runtime keep theirs.
    """
    host = events.rows(Category.CPU_OP, Category.ANNOTATION)
    texts = {name: events.strings[name] for name in events.names_among(host).tolist()}
    named = [name for name, text in texts.items() if text in _RANGES or text.endswith(_TIMED)]
    rows = (Category.CPU_OP, Category.ANNOTATION, Category.PYTHON)
    return _with_category(events, host[np.isin(events.name[host], named)], rows, Category.COMPILING)


def _with_ranges_of_the_program(events: Events) -> Events:
    """Return the events with ranges of the program (`record_function`), which early Kineto wrote as ops, as such.

    They are what has ops in it, and no shapes where shapes are recorded, in a trace without annotations.
    """
    if len(events.rows(Category.ANNOTATION)):
        return events
    ops = events.rows(Category.CPU_OP)
    unshaped = ops[events.shapes[ops] < 0]
    if len(unshaped) == len(ops):
        return events
    named = [name for name in events.names_among(unshaped).tolist() if not _NO_RANGE.search(events.strings[name])]
    ops = ops[np.lexsort((-events.end[ops], events.ts[ops], events.tid[ops], events.pid[ops]))]
    this, following = ops[:-1], ops[1:]
    same = (events.pid[this] == events.pid[following]) & (events.tid[this] == events.tid[following])
    has_op = same & (events.end[following] <= events.end[this])
    category = events.category.copy()
    category[this[has_op & (events.shapes[this] < 0) & np.isin(events.name[this], named)]] = Category.ANNOTATION
    return replace(events, category=category)


def _with_slashes(events: Events) -> Events:
    """Return the events with one spelling of paths on all systems in the names of frames of Python."""
    strings = list(events.strings)
    for name in events.names_among(events.rows(Category.PYTHON)).tolist():
        path, begins_line, rest = strings[name].partition("(")
        if path.endswith(".py"):
            strings[name] = path.replace("\\", "/") + begins_line + rest
    return replace(events, strings=tuple(strings))


def _without_profilers_python(events: Events) -> Events:
    """Return the events with the profiler's category for Python in which it starts and stops, and what that calls.

    None of it is the program's, such as a wait for the device.
    """
    frames = events.rows(Category.PYTHON)
    named = [name for name in events.names_among(frames).tolist() if _PROFILERS.search(events.strings[name])]
    return _with_category(
        events, frames[np.isin(events.name[frames], named)], (Category.PYTHON, Category.RUNTIME), Category.PROFILER
    )


def _with_category(events: Events, ranges: NDArray[np.int64], inside: Sequence[Category], category: Category) -> Events:
    """Return the events with another category for rows of some categories that are in some ranges of their thread."""
    if not len(ranges):
        return events
    rows, categories = events.rows(*inside), events.category.copy()
    for pid, tid in set(zip(events.pid[ranges].tolist(), events.tid[ranges].tolist(), strict=True)):
        of_thread = (events.pid == pid) & (events.tid == tid)
        around, candidates = ranges[of_thread[ranges]], rows[of_thread[rows]]
        parts = spans(events.ts[around], events.end[around])
        index = span_index(parts, events.ts[candidates])
        is_inside = (index >= 0) & (events.end[candidates] <= parts[index, 1])  # not what begins there, and goes on
        categories[candidates[is_inside]] = category
    return replace(events, category=categories)


_HOST, _DEVICE = "CPU functions", "CUDA functions"
"""Names of the processes in such a trace."""


def _with_ops_of_autograd(events: Events) -> tuple[Events, tuple[Caveat, ...]]:
    """Return the events with the category of ops where they are of such a trace, and what cannot be said of it.

    Its times on a device are those between two events around an op, of ops inside each other: none of a kernel.
    """
    if _HOST not in events.strings or (events.category != Category.OTHER).any():
        return events, ()
    of_process = {_HOST: Category.CPU_OP, _DEVICE: Category.PROFILER}
    categories = np.array([*(of_process.get(name, Category.OTHER) for name in events.strings), Category.OTHER])
    category = categories[events.pid].astype(events.category.dtype)
    device = "; the times of its ops on a device are left out" if _DEVICE in events.strings else ""
    text = f"written by torch.autograd.profiler without Kineto: it has ops alone{device}; record with torch.profiler"
    return replace(events, category=category), (Caveat("autograd_profiler", text),)


_NAME = "record_param_comms"
_decode_list = msgspec.json.Decoder(list[Any]).decode


def _with_sequence_numbers(events: Events) -> Events:
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


def rank_in_name(name: str) -> int | None:
    """Return 3 for `rank3.json`, `rank-3.json.gz` and the like; None without a rank."""
    match = _RANK.search(name)
    return int(match[1]) if match else None


def _host_in_name(name: str, processes: Container[str]) -> str:
    """Return the host in a name that tensorboard_trace_handler gave a file; "" in others.

    Such a name has one of the trace's processes; else a user chose a name of this form.
    """
    match = _HANDLERS_NAME.match(name)
    return match[1] if match is not None and match[2] in processes else ""
