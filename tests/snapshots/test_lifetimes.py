"""Lifetimes of allocations: the same as an allocator that is replayed action by action, also where history is cut."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from snapshots import MIB, Allocator, replay

from traceq.model import MemorySnapshot
from traceq.runs.memory_snapshot import read_memory_snapshots
from traceq.snapshots.lifetimes import BEFORE, lifetimes, reserved_levels

ADDRESSES = [1 << 40, (1 << 40) + MIB, (1 << 40) + 2 * MIB, 1 << 41]
ACTIONS = ["alloc", "free_requested", "free_completed", "segment_alloc", "oom", "snapshot"]


def read_content(content: Any, folder: Path) -> MemorySnapshot:
    path = folder / "snapshot.pickle"
    path.write_bytes(pickle.dumps(content))
    (snapshot,) = read_memory_snapshots(path)
    return snapshot


@some.composite
def allocators(draw: some.DrawFn) -> Allocator:
    """An allocator after some valid actions."""
    allocator = Allocator()
    for address in (ADDRESSES[0], ADDRESSES[3]):
        allocator.segment(address, 4 * MIB)
    for index in draw(some.lists(some.integers(0, 3), max_size=40)):
        address = ADDRESSES[index]
        if address not in allocator.alive:
            allocator.alloc(address, draw(some.integers(1, MIB)))
        elif allocator.alive[address]["state"] == "active_allocated":
            allocator.request_free(address)
        else:
            allocator.complete_free(address)
    return allocator


def states_of(snapshot: MemorySnapshot) -> list[list[int]]:
    """The sizes of what is alive before the first action and after each, in ascending order."""
    result = lifetimes(snapshot)
    actions = range(BEFORE, len(snapshot.history))
    return [sorted(result.size[result.alive_after(action)].tolist()) for action in actions]


@given(allocator=allocators(), share=some.floats(0, 1))
def test_what_is_alive_is_what_an_allocator_had_in_use(
    allocator: Allocator, share: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    last = round(share * len(allocator.rows))
    snapshot = read_content(allocator.content(last=last), tmp_path_factory.mktemp("s"))
    truth = allocator.states[len(allocator.rows) - last :]
    result = lifetimes(snapshot)
    if any(row["action"] == "alloc" for row in allocator.rows[len(allocator.rows) - last :]):
        assert result.levels().tolist() == [sum(state.values()) for state in truth]
        assert states_of(snapshot) == [sorted(state.values()) for state in truth]
    assert sorted(result.size[result.at_end].tolist()) == sorted(truth[-1].values())
    assert (result.num_contradictions, result.lost_bytes) == (0, 0)


ROWS = some.lists(
    some.fixed_dictionaries(
        {"action": some.sampled_from(ACTIONS), "addr": some.sampled_from(ADDRESSES), "size": some.integers(0, MIB)}
    ),
    max_size=30,
)


@given(rows=ROWS, in_use=some.dictionaries(some.sampled_from(ADDRESSES), some.integers(1, MIB)))
def test_any_actions_give_what_a_loop_over_them_gives(
    rows: list[dict[str, Any]], in_use: dict[int, int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    allocator = Allocator()
    for address in (ADDRESSES[0], ADDRESSES[3]):
        allocator.segment(address, 4 * MIB)
    allocator.alive = {a: {"requested_size": s, "state": "active_allocated"} for a, s in in_use.items()}
    content = allocator.content() | {"device_traces": [rows]}
    snapshot = read_content(content, tmp_path_factory.mktemp("s"))
    blocks = [{"address": address, "requested_size": size} for address, size in in_use.items()]
    truth = replay(rows, blocks)
    result = lifetimes(snapshot)
    assert result.levels().tolist() == [sum(state.values()) for state in truth]
    assert states_of(snapshot) == [sorted(state.values()) for state in truth]
    assert sorted(snapshot.blocks.requested[snapshot.blocks.is_active].tolist()) == sorted(in_use.values())
    assert len(np.unique(result.at_end)) == len(in_use)


def test_contradictions_are_counted(tmp_path: Path) -> None:
    rows = [
        {"action": "alloc", "addr": 1 << 40, "size": 8},
        {"action": "alloc", "addr": 1 << 40, "size": 9},  # its free was not recorded
        {"action": "free_completed", "addr": 1 << 41, "size": 5},
        {"action": "free_completed", "addr": 1 << 41, "size": 6},  # nor its second allocation
        {"action": "alloc", "addr": 1 << 42, "size": 7},  # in no block
    ]
    allocator = Allocator(alive={1 << 40: {"requested_size": 9, "state": "active_allocated"}})
    allocator.segment(1 << 40, MIB)
    allocator.segment(1 << 41, MIB)
    allocator.alive[1 << 41] = {"requested_size": 4, "state": "active_allocated"}  # freed according to the history
    result = lifetimes(read_content(allocator.content() | {"device_traces": [rows]}, tmp_path))
    assert (result.num_contradictions, result.lost_bytes) == (4, 7)
    assert result.levels().tolist() == [5, 13, 14, 15, 9, 16]


def test_what_is_reserved_follows_backwards_from_the_end(tmp_path: Path) -> None:
    allocator = Allocator()
    allocator.segment(1 << 40, 20 * MIB)
    allocator.segment(1 << 41, 4 * MIB, "segment_map", is_expandable=True)
    allocator.release(1 << 40)
    allocator.segment(1 << 42, 2 * MIB)
    levels = reserved_levels(read_content(allocator.content(last=3), tmp_path))
    assert levels.tolist() == [20 * MIB, 24 * MIB, 4 * MIB, 6 * MIB]
