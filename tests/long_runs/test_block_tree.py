"""Blocks of many nodes, joined by their launchers through a store."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from made_steps import made_ranks
from numpy.typing import NDArray
from patience import patient

from traceq.long_runs import block_tree
from traceq.long_runs.block_tree import BlockJoin, BlockTree, Message, Part, RankRows, Store, children_of
from traceq.long_runs.step_store import RowWriter, StepBlock, StepBlocks
from traceq.long_runs.watch_folder import FORMAT, WatchedJob, WatchFolder, WatchNode


class OneStore:
    """A store in this process."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def check(self, keys: list[str]) -> bool:
        return self.values.keys() >= set(keys)

    def get(self, key: str) -> bytes:
        return self.values[key]

    def set(self, key: str, value: bytes) -> None:
        assert key not in self.values, "what was not read would be lost"
        self.values[key] = value

    def delete_key(self, key: str) -> bool:
        del self.values[key]
        return True


class Nodes:
    """Launchers of a job whose ranks have written their steps; each has `num_each` ranks."""

    def __init__(
        self, path: Path, ranks: list[NDArray[np.void]], num_each: int, *open_stores: Callable[[str], Store]
    ) -> None:
        folder, num_nodes = WatchFolder(path), len(ranks) // num_each
        self.steps = folder.steps
        path.mkdir(exist_ok=True)
        hosts = tuple(f"n{rank // num_each}" for rank in range(len(ranks)))
        folder.write_job(WatchedJob(FORMAT, hosts, "", "", ()))
        self.write(ranks)
        self.rows, self.trees = {}, {}
        for number in range(num_nodes):
            of_node = tuple(range(number * num_each, (number + 1) * num_each))
            self.rows[number] = RankRows(folder.steps, of_node)
            node = WatchNode(number, num_nodes, of_node, str(path), "host:1")
            self.trees[number] = BlockTree(node, open_stores[number % len(open_stores)])

    def write(self, ranks: list[NDArray[np.void]]) -> None:
        """Write steps of all ranks."""
        for rank, rows in enumerate(ranks):
            with closing(RowWriter(self.steps, rank)) as writer:
                writer.append(rows)

    def close(self) -> None:
        """End their threads."""
        for tree in self.trees.values():
            tree.close()

    def blocks(self, num: int, within_s: float = 20) -> list[StepBlock]:
        """What the first launcher returns until it has so many."""
        blocks: list[StepBlock] = []
        deadline = time.monotonic() + patient(within_s)
        while len(blocks) < (num or 1) and time.monotonic() < deadline:
            for number in sorted(self.trees, reverse=True):
                blocks += self.trees[number].exchange(self.rows[number].message(self.rows[number].read()[1]))
            time.sleep(0.002)
        return blocks


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_tree, "EVERY_S", 0.002)
    monkeypatch.setattr(block_tree, "FAN_IN", 2)
    monkeypatch.setattr(block_tree, "LATE_S", 0.4)
    monkeypatch.setattr(block_tree, "FIRST_WITHIN_S", 1.0)


def test_every_node_but_the_first_has_one_parent() -> None:
    children = [child for number in range(1280) for child in children_of(number, 1280)]
    assert children == list(range(1, 1280))


def test_a_tree_joins_the_blocks_that_one_launcher_would(tmp_path: Path) -> None:
    ranks = [rows[:160] for rows in made_ranks(*[{}] * 18)]
    ranks[7]["flags"][20:31] = 0
    store, whole = OneStore(), StepBlocks(18).add(ranks)
    assert len(whole) == 9
    with closing(Nodes(tmp_path, ranks, 2, lambda _: store)) as nodes:
        blocks = nodes.blocks(9)
    assert [block.first_step for block in blocks] == [block.first_step for block in whole]
    assert all(np.array_equal(a.values, b.values) for a, b in zip(blocks, whole, strict=True))
    assert store.values == {}


def test_a_launcher_is_waited_for_while_it_lives_and_missing_once_it_is_gone(tmp_path: Path) -> None:
    ranks, store = made_ranks(*[{}] * 6), OneStore()
    with closing(Nodes(tmp_path, [rows[:160] for rows in ranks], 2, lambda _: store)) as nodes:
        blocks = nodes.blocks(10)
        nodes.write([rows[160 : 320 if rank < 4 else 160] for rank, rows in enumerate(ranks)])
        assert nodes.blocks(1, within_s=2 * block_tree.LATE_S) == []
        nodes.trees.pop(2).close()
        blocks += nodes.blocks(10)
        lines = nodes.trees[0].take_lines()
    assert [block.first_step for block in blocks] == list(range(0, 320, 16))
    assert not np.isnan(np.array([block.values for block in blocks[:10]])).any()
    assert [list(np.flatnonzero(np.isnan(block.values[:, 0]))) for block in blocks[10:]] == [[4, 5]] * 10
    assert len(lines) == 1
    assert lines[0].startswith("traceq: no steps of n2 come through the job's store;")


def test_what_comes_through_the_store_again_is_read_from_the_folder_no_longer(tmp_path: Path) -> None:
    ranks, store = made_ranks(*[{}] * 3), OneStore()
    with closing(Nodes(tmp_path, [rows[:160] for rows in ranks], 1, lambda _: store)) as nodes:
        blocks, silent = nodes.blocks(10), nodes.trees.pop(2)
        nodes.write([rows[160 : 320 if rank < 2 else 160] for rank, rows in enumerate(ranks)])
        blocks += nodes.blocks(10)
        assert list(nodes.trees[0]._read_here) == [3 + 2]
        nodes.trees[2] = silent
        nodes.write([rows[320:480] if rank < 2 else rows[160:480] for rank, rows in enumerate(ranks)])
        blocks += nodes.blocks(10)
        end = 480
        while nodes.trees[0]._read_here:  # the rows of the folder may have come first so far
            assert end < len(ranks[0])
            nodes.write([rows[end : end + 160] for rows in ranks])
            blocks += nodes.blocks(10)
            end += 160
        assert len(nodes.trees[0].take_lines()) == 1
    assert [block.first_step for block in blocks] == list(range(0, end, 16))
    assert not np.isnan(np.array([block.values for block in blocks[20:]])).any()


def refused(_: str) -> Store:
    raise OSError("refused")


def test_without_a_store_the_first_launcher_reads_all_rows(tmp_path: Path) -> None:
    ranks = [rows[:160] for rows in made_ranks(*[{}] * 3)]
    with closing(Nodes(tmp_path, ranks, 1, refused)) as nodes:
        blocks, whole = nodes.blocks(10), StepBlocks(3).add(ranks)
    assert all(np.array_equal(a.values, b.values) for a, b in zip(blocks, whole, strict=True))
    (line,) = nodes.trees[0].take_lines()
    assert line.startswith("traceq: no steps of n1, n2 come through the job's store (refused); they are looked for in ")


def test_rows_of_a_launcher_that_alone_lacks_the_store_are_read_by_the_first(tmp_path: Path) -> None:
    ranks, store = made_ranks(*[{}] * 3), OneStore()
    with closing(
        Nodes(tmp_path, [rows[:160] for rows in ranks], 1, lambda _: store, lambda _: store, refused)
    ) as nodes:
        while not (lines := nodes.trees[0].take_lines()):
            assert nodes.blocks(0, within_s=0.1) == []
        nodes.write([rows[160:320] for rows in ranks])
        blocks = nodes.blocks(10)
    assert [block.first_step for block in blocks] == list(range(160, 320, 16))
    assert not np.isnan(np.array([block.values for block in blocks])).any()
    assert len(lines) == 1
    assert lines[0].startswith("traceq: no steps of n2 come through the job's store;")


def part_of(first_step: int) -> Part:
    return Part(first_step, 0.0, b"", b"")


def test_a_block_waits_for_those_that_are_heard_and_for_others_no_longer() -> None:
    join = BlockJoin((0, 1), 0.0)
    join.add(0, Message(32, [part_of(0), part_of(16)]), 10.0)
    join.add(1, Message(16, [part_of(0)]), 10.0)
    assert [part.first_step for part in join.take(10.0)] == [0]
    join.add(0, Message(32, []), 19.0)
    join.add(1, Message(16, []), 19.0)
    assert (join.take(19.0 + block_tree.LATE_S), join.ended) == ([], 16)
    join.add(0, Message(48, [part_of(32)]), 21.0)
    assert [part.first_step for part in join.take(19.1 + block_tree.LATE_S)] == [16, 32]
    join.add(1, Message(32, [part_of(16)]), 22.0)
    join.add(0, Message(64, [part_of(48)]), 22.0)
    assert (join.take(22.0), join.ended) == ([], 48)
    join.add(1, Message(64, [part_of(32), part_of(48)]), 23.0)
    assert [part.first_step for part in join.take(23.0)] == [48]


def test_a_job_that_is_started_again_is_joined_anew() -> None:
    join = BlockJoin((0, 1), 0.0)
    for number in (0, 1):
        join.add(number, Message(1600, [part_of(1584)]), 0.0)
    assert len(join.take(0.0)) == 1
    for number in (0, 1):
        join.add(number, Message(0, []), 1.0)
        join.add(number, Message(16, [part_of(0)]), 2.0)
    assert [part.first_step for part in join.take(2.0)] == [0]
