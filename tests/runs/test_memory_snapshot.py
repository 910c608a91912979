"""Snapshots of torch's allocator: read from every version's pickle, without running anything and within bounds."""

from __future__ import annotations

import pickle
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from snapshots import CALL, MIB, Allocator, Row, stack

from traceq.errors import UnreadableInput
from traceq.model import Action, Frame, MemorySnapshot
from traceq.runs.memory_snapshot import is_memory_snapshot, read_memory_snapshots

START = 1 << 40


def used() -> Allocator:
    allocator = Allocator()
    allocator.segment(START, 4 * MIB)
    allocator.alloc(START, 1000, stack("model.py:41 forward", CALL))
    allocator.alloc(START + 1024, 600, stack("model.py:41 forward", CALL))
    allocator.free(START)
    return allocator


def read_bytes(folder: Path, content: bytes) -> tuple[MemorySnapshot, ...]:
    path = folder / "snapshot.pickle"
    path.write_bytes(content)
    return read_memory_snapshots(path)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_actions_segments_and_blocks_are_columns(tmp_path: Path, protocol: int) -> None:
    path = used().write(tmp_path / "s.pickle", protocol=protocol)
    assert is_memory_snapshot(path)
    (snapshot,) = read_memory_snapshots(path)
    history, blocks = snapshot.history, snapshot.blocks
    alloc, requested, completed = Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED
    assert history.action.tolist() == [Action.SEGMENT_ALLOC, alloc, alloc, requested, completed]
    assert history.address.tolist() == [START, START, START + 1024, START, START]
    assert history.size.tolist() == [4 * MIB, 1000, 600, 1000, 1000]
    assert np.diff(history.time_us).tolist() == [10] * 4
    assert history.stack.tolist() == [0, 1, 1, 0, 0]
    assert snapshot.stacks[1][2:] == (
        Frame("/home/me/model.py", 41, "forward"),
        Frame(CALL["filename"], CALL["line"], CALL["name"]),
    )
    assert blocks.address.tolist() == [START, START + 1024, START + 2048]
    assert blocks.size.tolist() == [1024, 1024, 4 * MIB - 2048]
    assert (blocks.requested.tolist(), blocks.is_active.tolist()) == ([0, 600, 0], [False, True, False])
    assert (snapshot.segments.size.tolist(), snapshot.segments.is_large.tolist()) == ([4 * MIB], [True])


def test_memory_that_another_stream_still_uses_is_in_use(tmp_path: Path) -> None:
    allocator = used()
    allocator.request_free(START + 1024)
    (snapshot,) = read_memory_snapshots(allocator.write(tmp_path / "s.pickle"))
    assert snapshot.blocks.requested.tolist() == [0, 600, 0]


def test_devices_are_apart(tmp_path: Path) -> None:
    content = used().content()
    content["segments"].append(content["segments"][0] | {"device": 2})
    content["device_traces"] = [[], *content["device_traces"]]
    shown = read_bytes(tmp_path, pickle.dumps(content))
    assert [(s.device, len(s.history), len(s.blocks.size)) for s in shown] == [(0, 0, 3), (1, 5, 0), (2, 0, 3)]


def test_segments_alone_and_those_of_torch_2_0_are_read(tmp_path: Path) -> None:
    frames = [{"filename": "a.py", "line": 1, "name": "f"}]
    block = {"size": 512, "state": "active_allocated", "history": [{"addr": START, "real_size": 300, "frames": frames}]}
    segments = [{"device": 0, "address": START, "total_size": 512, "segment_type": "small", "blocks": [block]}]
    (snapshot,) = read_bytes(tmp_path, pickle.dumps(segments))
    assert (snapshot.blocks.requested.tolist(), snapshot.segments.is_large.tolist()) == ([300], [False])
    assert snapshot.stacks[int(snapshot.blocks.stack[0])] == (Frame("a.py", 1, "f"),)


def test_addresses_beyond_two_to_the_63_are_identities(tmp_path: Path) -> None:
    rows = [{"action": "alloc", "addr": (255 << 56) + number, "size": 1} for number in range(3)]
    (snapshot,) = read_bytes(tmp_path, pickle.dumps({"segments": [], "device_traces": [rows]}))
    assert len(set(snapshot.history.address.tolist())) == 3


def test_ends_of_optimizer_steps_are_read_from_annotations(tmp_path: Path) -> None:
    name = "Optimizer.step#AdamW.step"
    annotations = [
        {"stage": stage, "name": name, "device": device, "time_us": time}
        for stage, device, time in (("START", 0, 1), ("END", 0, 5), ("END", 1, 6), ("END", 0, 3))
    ]
    (snapshot,) = read_memory_snapshots(used().write(tmp_path / "s.pickle", external_annotations=annotations))
    assert snapshot.optimizer_ends_us == (3, 5)


class _Bomb:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        import os

        return os.system, ("touch exploded",)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_would_run_something_is_refused(
    tmp_path: Path, protocol: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    content = used().content() | {"bomb": _Bomb()}
    with pytest.raises(UnreadableInput, match=r" (posix|nt)\.system; .*expected a snapshot"):
        read_bytes(tmp_path, pickle.dumps(content, protocol))
    assert not (tmp_path / "exploded").exists()


def changed(**row: Any) -> Row:
    """The snapshot, of which the first action is changed."""
    content = used().content()
    content["device_traces"][0][0] |= row
    return content


@pytest.mark.parametrize(
    "content",
    [
        5,
        {"segments": 5},
        {"segments": [5]},
        {"segments": [{}]},
        {"segments": [{"blocks": [5]}]},
        {"segments": [{"blocks": [{"state": "inactive"}]}]},
        {"segments": [{"device": "x", "blocks": []}]},
        {"segments": [], "device_traces": [[5]]},
        {"segments": [], "device_traces": {"a": 1}},
        changed(size=None),
        changed(size=-1),
        changed(size=1 << 62),
        changed(size=1 << 70),
        changed(addr="x"),
        changed(action=["alloc"]),
        changed(action="alloc", frames=[5]),
        changed(action="alloc", frames=5),
        changed(action="alloc", frames=[{"filename": 5}]),
        changed(action="alloc", frames=[{"line": "x"}]),
    ],
)
def test_parts_that_torch_does_not_write_are_one_line(tmp_path: Path, content: Any) -> None:
    with pytest.raises(UnreadableInput, match=r"snapshot.pickle: .*expected a snapshot") as fault:
        read_bytes(tmp_path, pickle.dumps(content))
    assert "\n" not in str(fault.value)


@pytest.mark.parametrize("num", [0, 1, 2, 5, 100, 1000])
def test_a_file_that_is_cut_is_one_line(tmp_path: Path, num: int) -> None:
    whole = pickle.dumps(used().content())
    with pytest.raises(UnreadableInput, match="it is damaged"):
        read_bytes(tmp_path, whole[: min(num, len(whole) - 1)])


def times(value: object, num: int = 30_000) -> list[object]:
    return [value] * num


SEGMENT = {"device": 0, "address": 0, "total_size": 1}
FRAME = {"filename": "x" * 100_000, "line": 1, "name": "f"}


def many_blocks() -> dict[str, object]:
    return {"segments": times(SEGMENT | {"blocks": times({"size": 1, "state": "inactive"})})}


def many_actions() -> dict[str, object]:
    return {"segments": [], "device_traces": times(times({"action": "alloc"}))}


def many_frames() -> dict[str, object]:
    actions = [{"action": "alloc", "frames": [*times(FRAME, 9_000), n]} for n in range(9_000)]
    return {"segments": [], "device_traces": [actions]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (many_blocks, "more actions and blocks"),
        (many_actions, "more actions and blocks"),
        (many_frames, "more frames|not what torch"),
    ],
)
def test_parts_that_are_held_many_times_take_no_more_than_their_size(
    tmp_path: Path, content: Callable[[], dict[str, object]], problem: str
) -> None:
    shared = pickle.dumps(content())
    tracemalloc.start()
    try:
        with pytest.raises(UnreadableInput, match=problem):
            read_bytes(tmp_path, shared)
        assert tracemalloc.get_traced_memory()[1] < 20 * len(shared) + (8 << 20)
    finally:
        tracemalloc.stop()


def test_long_texts_in_many_frames_are_cut(tmp_path: Path) -> None:
    frames = [dict(FRAME, line=number) for number in range(2000)]
    rows = [{"action": "alloc", "addr": 0, "size": 1, "frames": frames}]
    (snapshot,) = read_bytes(tmp_path, pickle.dumps({"segments": [], "device_traces": [rows]}))
    assert sum(len(frame.filename) for frame in snapshot.stacks[1]) <= 2000 * 1000


def test_other_pickles_are_no_snapshots(tmp_path: Path) -> None:
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps({"version": "2.10", "entries": []}))
    assert not is_memory_snapshot(path)
    assert not is_memory_snapshot(tmp_path)
