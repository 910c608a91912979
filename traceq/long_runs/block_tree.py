"""Blocks of the ranks of many nodes, which the launchers of all nodes join, as a tree, on their way to the first one.

Each launcher reads the rows of its own ranks alone, and sends their blocks, with those of up to 32 children, to its
parent through the store of the job's ranks. There every node has one key, which it sets anew only once its parent has
read and deleted it, so that what lies there is bounded. A thread does that, as a store may be slow to answer.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from threading import Event, Thread
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from traceq.long_runs.limits import EVERY_S, FAN_IN, FIRST_WITHIN_S, LATE_S
from traceq.long_runs.step_store import MEASURES, RowReader, StepBlock, StepBlocks
from traceq.long_runs.watch_folder import WatchFolder, WatchNode

_MOST_UNREAD = 1024
"""Messages that wait for this launcher, or for its parent: the oldest are lost."""
_NAMED_HOSTS = 4
_CLOSE_WITHIN_S = 10.0


class Store(Protocol):
    """What is used of a store of torch."""

    def check(self, keys: list[str]) -> bool:
        """Return whether all of these keys are set."""

    def get(self, key: str) -> bytes:
        """Return a value."""

    def set(self, key: str, value: bytes) -> None:
        """Set a value."""

    def delete_key(self, key: str) -> bool:
        """Delete a key."""


class Part(msgspec.Struct, frozen=True, array_like=True):
    """A block of some ranks: uint32[num_ranks], and values, float32[num_ranks, len(MEASURES)], as bytes."""

    first_step: int
    time: float
    ranks: bytes
    values: bytes


class Message(msgspec.Struct, frozen=True, array_like=True):
    """Parts of a source since its last message; it has no others of steps before `ended`."""

    ended: int
    parts: list[Part]


class RankRows:
    """Rows of some ranks that this launcher reads itself; `only_last`: from the last file of each on."""

    def __init__(self, folder: Path, ranks: Sequence[int], *, only_last: bool = False) -> None:
        self.ranks = np.array(ranks, "<u4")
        self._readers = [RowReader(folder, rank, only_last=only_last) for rank in ranks]
        self._blocks = StepBlocks(len(ranks))

    def read(self) -> tuple[list[NDArray[np.void]], list[StepBlock]]:
        """Return the new rows of each rank, and the blocks that have ended with them."""
        rows = [reader.take() for reader in self._readers]
        return rows, self._blocks.add(rows)

    def message(self, blocks: Iterable[StepBlock]) -> Message:
        """Return these blocks as parts."""
        parts = [Part(each.first_step, each.time, self.ranks.tobytes(), each.values.tobytes()) for each in blocks]
        return Message(self._blocks.ended, parts)


class BlockJoin:
    """Joins the parts of sources, in order, once all have come but those of which nothing was heard for a while.

    `ended`: step until which that is done. A block that a source has left out, as of few regular steps, is none.
    """

    def __init__(self, sources: Iterable[int], first_until_s: float) -> None:
        self.ended = 0
        self._ended = dict.fromkeys(sources, 0)
        self._heard_s = dict.fromkeys(self._ended, first_until_s)
        self._pending: dict[int, dict[int, Part]] = {}  # by first step and source

    def add(self, source: int, message: Message, now_s: float) -> None:
        """Add what a source has sent."""
        if message.ended < self._ended.get(source, 0):  # the job was started again
            self.ended, self._ended = 0, dict.fromkeys(self._ended, 0)
            self._pending.clear()
        self._ended[source], self._heard_s[source] = message.ended, now_s
        for part in message.parts:
            if part.first_step >= self.ended:
                self._pending.setdefault(part.first_step, {})[source] = part

    def forget(self, sources: Iterable[int]) -> None:
        """Wait no longer for sources."""
        for source in sources:
            del self._ended[source], self._heard_s[source]

    def take(self, now_s: float) -> list[Part]:
        """Return the blocks that are joined now."""
        joined = []
        present = {each for each, heard_s in self._heard_s.items() if heard_s >= now_s - LATE_S}
        present_until = min((self._ended[each] for each in present), default=0)
        for first_step in sorted(self._pending):
            if present_until <= first_step:
                break
            parts = self._pending.pop(first_step)
            if present <= parts.keys():
                ranks, values = (
                    b"".join(getattr(part, name) for part in parts.values()) for name in ("ranks", "values")
                )
                joined.append(Part(first_step, min(part.time for part in parts.values()), ranks, values))
        self.ended = max(self.ended, present_until)
        return joined


class BlockTree:
    """The place of this launcher in the tree.

    Ranks of which nothing comes are NaN in a block. The first launcher says so once, and reads their rows from the
    folder that all nodes share, if there are any.
    """

    def __init__(self, node: WatchNode, open_store: Callable[[str], Store]) -> None:
        self._lines: list[str] = []
        self._node, self._folder = node, WatchFolder(Path(node.run))
        self._children = children_of(node.number, node.num_nodes)
        self._asked_s = time.monotonic()  # for all children, the last time
        self._join = BlockJoin((node.number, *self._children), self._asked_s + FIRST_WITHIN_S)
        self._hosts: tuple[str, ...] = () if node.number else self._folder.read_job().hosts
        self._has_begun = False
        self._read_here: dict[int, RankRows] = {}  # by source, of which the numbers follow those of nodes
        self._named: set[str] = set()  # hosts of these so far
        self._received: deque[tuple[int, Message]] = deque(maxlen=_MOST_UNREAD)
        self._unsent: deque[Message] = deque(maxlen=_MOST_UNREAD)
        self._sent_until, self._sent_s = 0, 0.0
        self._fault = ""  # of the store
        self._is_closed = Event()
        self._thread = Thread(target=self._transfer, args=(open_store,), name="traceq-tree", daemon=True)
        self._thread.start()

    def exchange(self, of_ranks: Message) -> list[StepBlock]:
        """Send the blocks of this node's ranks towards the first launcher; there, return those of all ranks."""
        now_s, asked_s = time.monotonic(), self._asked_s
        self._join.add(self._node.number, of_ranks, now_s)
        while self._received:
            self._join.add(*self._received.popleft(), now_s)
        if self._fault and not self._node.number and self._children and now_s > asked_s + LATE_S:
            self._join.forget(self._children)  # and not at once: the store may have ended with the job
            self._children = range(0)
            self._read(set(range(len(self._hosts))) - set(self._node.ranks))
        for source, rows in self._read_here.items():
            new, blocks = rows.read()
            if any(map(len, new)):
                self._join.add(source, rows.message(blocks), now_s)
        joined = self._join.take(asked_s)  # a store that is slow makes no child late
        if not self._node.number:
            return [block for part in joined if (block := self._block(part)) is not None]
        if self._join.ended < self._sent_until:
            self._unsent = deque(maxlen=_MOST_UNREAD)  # not cleared: the thread may be taking from it
        if self._join.ended != self._sent_until or now_s > self._sent_s + LATE_S / 4:
            self._unsent.append(Message(self._join.ended, joined))
            self._sent_until, self._sent_s = self._join.ended, now_s
        return []

    def take_lines(self) -> list[str]:
        """Return what is to be printed since the last call."""
        lines, self._lines = self._lines, []
        return lines

    def close(self) -> None:
        """Let the thread end: one that imports torch, or is in it, can abort an interpreter that ends."""
        self._is_closed.set()
        self._thread.join(_CLOSE_WITHIN_S)

    def _block(self, part: Part) -> StepBlock | None:
        """Return the block of all ranks; None until there was one of which no rank is missing."""
        values = np.full((len(self._hosts), len(MEASURES)), np.nan, np.float32)
        ranks = np.frombuffer(part.ranks, "<u4")
        values[ranks] = np.frombuffer(part.values, "<f4").reshape(len(ranks), -1)
        comes_twice = np.bincount(ranks, minlength=len(values)) > 1  # as it comes through the store again
        for source in [each for each, rows in self._read_here.items() if comes_twice[rows.ranks].all()]:
            del self._read_here[source]
            self._join.forget([source])
        missing = set(range(len(values))) - set(ranks.tolist())
        self._read(missing)
        self._has_begun |= not missing
        return StepBlock(part.first_step, part.time, values) if self._has_begun else None

    def _read(self, missing: set[int]) -> None:
        """Read the rows of ranks of which nothing comes from the folder, from now on, and say so."""
        of_host: dict[str, list[int]] = {}
        for rank in sorted(missing.difference(*(rows.ranks.tolist() for rows in self._read_here.values()))):
            of_host.setdefault(self._hosts[rank], []).append(rank)
        for ranks in of_host.values():
            source = self._node.num_nodes + ranks[0]
            self._read_here[source] = RankRows(self._folder.steps, ranks, only_last=True)
        new = [host for host in of_host if host not in self._named]
        self._named.update(new)
        if not new:
            return
        first = ", ".join(new[:_NAMED_HOSTS])
        more = f" and {len(new) - _NAMED_HOSTS} more hosts" if len(new) > _NAMED_HOSTS else ""
        why = f" ({self._fault})" if self._fault else ""
        self._lines.append(
            f"traceq: no steps of {first}{more} come through the job's store{why}; they are looked for in "
            f"{self._folder.steps}"
        )

    def _transfer(self, open_store: Callable[[str], Store]) -> None:
        """Send and receive until closed."""
        try:
            store = open_store(self._node.store)
            key = str(self._node.number)
            while not self._is_closed.wait(EVERY_S):
                for child in self._children:
                    if store.check([str(child)]):
                        self._received.append((child, msgspec.msgpack.decode(store.get(str(child)), type=Message)))
                        store.delete_key(str(child))
                self._asked_s = time.monotonic()
                unsent = self._unsent
                if unsent and not store.check([key]):
                    messages = [unsent.popleft() for _ in range(len(unsent))]
                    parts = [part for message in messages for part in message.parts]
                    store.set(key, msgspec.msgpack.encode(Message(messages[-1].ended, parts)))
        except Exception as error:  # noqa: BLE001 (torch raises what it likes, and the job goes on)
            self._fault = str(error).partition("\n")[0] or type(error).__name__


def children_of(number: int, num_nodes: int) -> range:
    """Return the nodes whose blocks a node receives."""
    return range(FAN_IN * number + 1, min(FAN_IN * (number + 1) + 1, num_nodes))
