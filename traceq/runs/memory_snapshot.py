"""Reader of snapshots of torch's allocator, the pickles of `torch.cuda.memory._dump_snapshot` (torch 2.0 and later).

Keys: `segments`, each with `blocks`; `device_traces`, a list of actions per device; `allocator_settings`;
`external_annotations`. Source: torch/csrc/cuda/memory_snapshot.cpp, and torch/cuda/_memory_viz.py for the snapshots
that it makes of a profile, whose frames have all in their name, and whose actions have a `category`. Parts of the
pickle can be held any number of times: each stack is visited once, and actions and blocks are at most as many as bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceq.cores import memory_bytes
from traceq.errors import UnreadableInput
from traceq.locations import Place, open_binary, read_whole
from traceq.model import Action, Blocks, Frame, History, MemorySnapshot, Segments
from traceq.runs.plain_pickle import PickleRefused, load_shared

_MAGIC = b"\x80"
_START, _KEYS = 1024, (b"segments", b"device_traces", b"segment_type")
_EXPECTED = "a snapshot of torch.cuda.memory._dump_snapshot"
_ACTIONS = {action.name.lower(): action for action in Action} | {"free": Action.FREE_COMPLETED}
_LONGEST_TEXT, _LARGEST_SUM = 1000, 2**62


class _Malformed(Exception):
    """Snapshot whose parts are not what torch writes; the message says which."""


def is_memory_snapshot(path: Place) -> bool:
    """Return whether a file is the pickle of a snapshot, by its first bytes. Raises UnreadableInput."""
    if not path.is_file():
        return False
    try:
        with open_binary(path) as file:
            start = file.read(_START)
    except OSError as fault:
        raise UnreadableInput(str(path), fault.strerror or str(fault), _EXPECTED) from fault
    return start.startswith(_MAGIC) and any(key in start for key in _KEYS)


def read_memory_snapshots(path: Place) -> tuple[MemorySnapshot, ...]:
    """Return the snapshot of each device that has segments or a history, by device. Raises UnreadableInput."""
    try:
        content = read_whole(path, memory_bytes() // 4)  # its objects take more
        return _snapshots(str(path), load_shared(content), len(content))
    except OSError as fault:
        raise UnreadableInput(str(path), fault.strerror or str(fault), _EXPECTED) from fault
    except (PickleRefused, _Malformed) as fault:
        raise UnreadableInput(str(path), str(fault), _EXPECTED) from fault
    except (AttributeError, LookupError, OverflowError, TypeError, ValueError, RecursionError) as fault:
        raise UnreadableInput(str(path), "a part of it is not what torch writes", _EXPECTED) from fault


@dataclass(slots=True, eq=False)
class _Texts:
    """Stacks and categories, numbered as they come; each list of frames and each frame is converted once."""

    room: int
    stacks: dict[tuple[Frame, ...], int] = field(default_factory=lambda: {(): 0})
    categories: dict[str, int] = field(default_factory=lambda: {"": 0})
    _by_list: dict[int, int] = field(default_factory=dict)
    _by_ids: dict[tuple[int, ...], int] = field(default_factory=dict)
    _frames: dict[int, Frame] = field(default_factory=dict)

    def stack(self, frames: Any) -> int:
        """Return the number of a stack. Raises _Malformed for more frames in lists than the file has bytes."""
        if not frames:
            return 0
        number = self._by_list.get(id(frames))
        if number is None:
            self.room -= len(frames)
            if self.room < 0:
                raise _Malformed("more frames than bytes")
            ids = tuple(map(id, frames))
            number = self._by_ids.get(ids)
            if number is None:
                number = self.stacks.setdefault(tuple(map(self._frame, frames)), len(self.stacks))
                self._by_ids[ids] = number
            self._by_list[id(frames)] = number
        return number

    def category(self, name: Any) -> int:
        return self.categories.setdefault(_text(name), len(self.categories)) if name else 0

    def _frame(self, frame: Any) -> Frame:
        if (known_frame := self._frames.get(id(frame))) is not None:
            return known_frame
        result = Frame(_text(frame.get("filename", "")), int(frame.get("line", 0)), _text(frame.get("name", "")))
        return self._frames.setdefault(id(frame), result)


def _snapshots(path: str, content: Any, num_bytes: int) -> tuple[MemorySnapshot, ...]:
    if isinstance(content, list):  # torch.cuda.memory_snapshot()
        content = {"segments": content}
    segments, traces = list(content.get("segments", ())), list(content.get("device_traces", ()))
    num_rows = sum(len(trace) for trace in traces) + sum(1 + len(segment["blocks"]) for segment in segments)
    if num_rows > num_bytes:
        raise _Malformed("more actions and blocks than bytes")
    texts = _Texts(num_bytes)
    devices = _ints([segment.get("device", 0) for segment in segments])
    shown = sorted({*devices.tolist(), *(device for device, trace in enumerate(traces) if trace)}) or [0]
    settings = content.get("allocator_settings") or {}
    columns = [
        (
            _history(traces[device] if 0 <= device < len(traces) else (), texts),
            *_segments([segments[index] for index in np.flatnonzero(devices == device).tolist()], texts),
            _optimizer_ends(content.get("external_annotations") or (), device),
        )
        for device in shown
    ]
    stacks, categories = tuple(texts.stacks), tuple(texts.categories)
    allocator = _text(settings.get("PYTORCH_CUDA_ALLOC_CONF", ""))
    return tuple(
        MemorySnapshot(path, device, history, its_segments, blocks, stacks, categories, ends, allocator)
        for device, (history, its_segments, blocks, ends) in zip(shown, columns, strict=True)
    )


def _history(rows: Sequence[Any], texts: _Texts) -> History:
    actions = [_ACTIONS.get(row.get("action"), Action.OTHER) for row in rows]
    with_stack = (Action.ALLOC, Action.OOM)
    pairs = list(zip(rows, actions, strict=True))
    return History(
        action=np.array(actions, np.int8),
        address=_addresses([row.get("addr", 0) for row in rows]),
        size=_sizes([row.get("size", 0) for row in rows]),
        time_us=_ints([row.get("time_us", -1) for row in rows]),
        stack=_ints([texts.stack(row.get("frames")) if action in with_stack else 0 for row, action in pairs]),
        device_free=_ints([row.get("device_free", -1) for row in rows]),
        category=_ints([texts.category(row.get("category")) for row in rows]),
    )


def _segments(rows: Sequence[Any], texts: _Texts) -> tuple[Segments, Blocks]:
    """Return the segments of one device and their blocks, whose addresses follow from their sizes."""
    blocks = [block for row in rows for block in row["blocks"]]
    segment = np.repeat(np.arange(len(rows)), [len(row["blocks"]) for row in rows])
    address, size = _addresses([row.get("address") or 0 for row in rows]), _sizes([block["size"] for block in blocks])
    is_active = np.array([block["state"] not in ("inactive", "cached") for block in blocks], np.bool_)
    before = np.cumsum(size) - size
    first = np.searchsorted(segment, np.arange(len(rows)))
    start_of_segment = np.append(before, 0)[np.minimum(first, len(before))]
    requested = _sizes([_requested(block) for block in blocks])
    return (
        Segments(
            address=address,
            size=_sizes([row.get("total_size", 0) for row in rows]),
            stream=_ints([row.get("stream", 0) for row in rows]),
            is_large=np.array([row.get("segment_type", "large") == "large" for row in rows], np.bool_),
            is_expandable=np.array([bool(row.get("is_expandable")) for row in rows], np.bool_),
        ),
        Blocks(
            segment=segment,
            address=address[segment] + before - start_of_segment[segment],
            size=size,
            requested=np.where(is_active, requested, 0),
            is_active=is_active,
            stack=_ints([texts.stack(_block_frames(block)) for block in blocks]),
            category=_ints([texts.category(block.get("category")) for block in blocks]),
        ),
    )


def _requested(block: Any) -> Any:
    """Return the bytes that were asked for; up to torch 2.0 they are in the block's `history`."""
    if block.get("history"):
        return block["history"][0]["real_size"]
    return block.get("requested_size", block["size"])


def _block_frames(block: Any) -> Any:
    return block["history"][0].get("frames") if block.get("history") else block.get("frames")


def _optimizer_ends(annotations: Sequence[Any], device: int) -> tuple[int, ...]:
    """Return when steps of an optimizer ended on a device, in us."""
    ends = (
        row.get("time_us", -1)
        for row in annotations
        if row.get("stage") == "END"
        and row.get("device", device) == device
        and _text(row.get("name", "")).startswith("Optimizer.step#")
    )
    return tuple(sorted(_ints(list(ends)).tolist()))


def _text(value: Any) -> str:
    """Return a text, of a very long one the beginning: it may be held any number of times. Raises _Malformed."""
    if not isinstance(value, str):
        raise _Malformed("a name that is no text")
    return value[:_LONGEST_TEXT]


def _ints(values: Sequence[Any]) -> NDArray[np.int64]:
    """Return numbers as int64. Raises TypeError, OverflowError."""
    return np.fromiter(values, np.int64, len(values))


def _addresses(values: Sequence[Any]) -> NDArray[np.int64]:
    """Return addresses as int64; those beyond 2^63 are negative. Raises TypeError, OverflowError."""
    try:
        return _ints(values)
    except OverflowError:
        return np.fromiter(values, np.uint64, len(values)).view(np.int64)


def _sizes(values: Sequence[Any]) -> NDArray[np.int64]:
    """Return sizes in bytes, of which any sum fits into int64. Raises _Malformed."""
    sizes = _ints(values)
    if (sizes < 0).any() or sizes.sum(dtype=np.float64) >= _LARGEST_SUM:
        raise _Malformed("a size that is negative or too large")
    return sizes
