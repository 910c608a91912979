"""Snapshot of torch's allocator on a device: its segments, their blocks, and the history of what it did, as columns."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from traceq.frozen import frozen


class Action(IntEnum):
    """What the allocator did: the actions of `device_traces`, in the words of torch."""

    ALLOC = 0
    FREE_REQUESTED = 1
    FREE_COMPLETED = 2
    SEGMENT_ALLOC = 3
    SEGMENT_FREE = 4
    SEGMENT_MAP = 5
    SEGMENT_UNMAP = 6
    OOM = 7
    OTHER = 8


class Frame(NamedTuple):
    """Frame of a stack: of Python, or of C++ where a snapshot has those."""

    filename: str
    line: int
    name: str


@frozen(eq=False)
class History:
    """N actions in the order in which they happened, each column [N].

    `action` int8; `address` int64, as an identity: those beyond 2^63 are negative; `size` int64 bytes that were asked
    for, before rounding; `time_us` int64 since the epoch, -1 unknown; `stack` int64 into the stacks; `device_free`
    int64 bytes, -1 but for `OOM`; `category` int64 into the categories of the snapshot, 0 unknown.
    """

    action: NDArray[np.int8]
    address: NDArray[np.int64]
    size: NDArray[np.int64]
    time_us: NDArray[np.int64]
    stack: NDArray[np.int64]
    device_free: NDArray[np.int64]
    category: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.action)


@frozen(eq=False)
class Segments:
    """S segments, which the driver gave: `address`, `size` int64[S] bytes, `stream` int64[S], flags bool[S].

    Those that are not `is_large` serve requests up to 1 MiB.
    """

    address: NDArray[np.int64]
    size: NDArray[np.int64]
    stream: NDArray[np.int64]
    is_large: NDArray[np.bool_]
    is_expandable: NDArray[np.bool_]


@frozen(eq=False)
class Blocks:
    """B blocks into which segments are divided, in use or free, each column [B].

    `segment` int64, an index, ascending; `address`, `size`, `requested` int64 bytes, 0 requested where it is free;
    `is_active` bool: in use, or freed but still awaited by another stream; `stack` int64 into the stacks; `category`
    int64 into the categories.
    """

    segment: NDArray[np.int64]
    address: NDArray[np.int64]
    size: NDArray[np.int64]
    requested: NDArray[np.int64]
    is_active: NDArray[np.bool_]
    stack: NDArray[np.int64]
    category: NDArray[np.int64]


@frozen(eq=False)
class MemorySnapshot:
    """What a file of `torch.cuda.memory._dump_snapshot` holds of one device.

    `stacks[0]` is the empty one; frames are innermost first. `categories[0]` is "". `optimizer_ends_us`: when
    `Optimizer.step` ended, where annotations say so. `settings`: PYTORCH_CUDA_ALLOC_CONF, "" for none.
    """

    path: str
    device: int
    history: History
    segments: Segments
    blocks: Blocks
    stacks: tuple[tuple[Frame, ...], ...]
    categories: tuple[str, ...]
    optimizer_ends_us: tuple[int, ...] = ()
    settings: str = ""
