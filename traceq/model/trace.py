"""Run > Trace > Events: traced events as columns."""

from __future__ import annotations

from dataclasses import fields, replace
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from traceq.frozen import frozen
from traceq.model.recording import Manifest, Pairs, Processes, SourceLines, Timings
from traceq.units import format_ranks

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class Category(IntEnum):
    """Kind of an event, independent of the accelerator and the year of the trace."""

    OTHER = 0
    CPU_OP = 1
    ANNOTATION = 2
    DEVICE_ANNOTATION = 3
    RUNTIME = 4
    KERNEL = 5
    MEMCPY = 6
    MEMSET = 7
    SYNC = 8
    PYTHON = 9
    OVERHEAD = 10
    PROFILER = 11
    COMPILING = 12


SHOWN_WINDOW = "shown_window"
"""Code of the caveat that says what `Run.window` says."""
SLOWED_BY_STACKS = "slowed_by_stacks"
"""Code of the caveat of a trace whose durations are no evidence: Python's stacks were recorded with it."""


@frozen
class Caveat:
    """Doubt about the input or a result. `code` is stable, `text` is for people."""

    code: str
    text: str


@frozen
class Messages:
    """Arguments of collectives, one row per event that has them.

    `row` int64[M] into Events, ascending; `name`, `dtype`, `group`, `ranks` int32 string ids;
    `elements_in`, `elements_out`, `rows_in`, `rows_out`, `group_size`, `sequence` int64. -1 = absent. `rows_in` and
    `rows_out` are the sums of the split sizes of an all-to-all, in rows of the tensor that is sent or received.
    """

    row: NDArray[np.int64]
    name: NDArray[np.int32]
    dtype: NDArray[np.int32]
    group: NDArray[np.int32]
    ranks: NDArray[np.int32]
    elements_in: NDArray[np.int64]
    elements_out: NDArray[np.int64]
    rows_in: NDArray[np.int64]
    rows_out: NDArray[np.int64]
    group_size: NDArray[np.int64]
    sequence: NDArray[np.int64]


@frozen
class CallStacks:
    """Stacks of ops (2021), callers of Python frames (torch 2.14): `row` int64[M], `text` int32[M] string ids."""

    row: NDArray[np.int64]
    text: NDArray[np.int32]


@frozen
class EventWaits:
    """CUDA events for which `cuda_sync` rows wait, as far as the trace names them.

    `row` int64[M] into Events; `stream` int64[M] on which the event was recorded; `record` int64[M], correlation id of
    the call that recorded it.
    """

    row: NDArray[np.int64]
    stream: NDArray[np.int64]
    record: NDArray[np.int64]


@frozen
class GraphNodes:
    """Nodes of CUDA graphs that device work ran, as far as the trace names them (since 2026, with CUDA 12).

    `row` int64[M] into Events; `graph` int64[M], the executable graph; `node` int64[M], which ascends in the order in
    which nodes were added; `label` int32[M] string ids, the annotation that torch gave the node at its capture. -1 =
    absent.
    """

    row: NDArray[np.int64]
    graph: NDArray[np.int64]
    node: NDArray[np.int64]
    label: NDArray[np.int32]


@frozen
class Allocations:
    """Allocations and frees (`[memory]` rows), M of them in file order. -1 = absent.

    `ts` int64 ns; `pid`, `tid` int32 string ids; `bytes` int64, negative where memory was freed; `allocated`,
    `reserved` int64 bytes of the device afterwards; `device_type` int64, torch's DeviceType (0 is the CPU); `device`,
    `address` int64.
    """

    ts: NDArray[np.int64]
    pid: NDArray[np.int32]
    tid: NDArray[np.int32]
    bytes: NDArray[np.int64]
    allocated: NDArray[np.int64]
    reserved: NDArray[np.int64]
    device_type: NDArray[np.int64]
    device: NDArray[np.int64]
    address: NDArray[np.int64]


SIDE_TABLES: dict[str, type[Any]] = {
    "messages": Messages,
    "stacks": CallStacks,
    "allocations": Allocations,
    "waits": EventWaits,
    "nodes": GraphNodes,
}
"""Tables of Events by their field; their columns of string ids are the int32 ones."""
_STRING_IDS = ("name", "dtype", "group", "ranks", "text", "label", "pid", "tid")
Columns = TypeVar("Columns", bound="DataclassInstance")


def side_table(kind: type[Columns], numbers: NDArray[np.int64]) -> Columns:
    """Return an int64[M, fields] table as the columns of a side table, in the order of its fields."""
    columns = zip(fields(kind), numbers.T, strict=True)
    dtypes = {True: np.int32, False: np.int64}
    return kind(**{each.name: column.astype(dtypes[each.name in _STRING_IDS]) for each, column in columns})


def select_rows(columns: Columns, rows: NDArray[np.int64] | NDArray[np.bool_] | slice) -> Columns:
    """Return the same with some rows of every array in it."""
    arrays = {each.name: getattr(columns, each.name) for each in fields(columns)}
    return replace(columns, **{name: each[rows] for name, each in arrays.items() if isinstance(each, np.ndarray)})


@frozen(eq=False, slots=False)
class Events:
    """Complete events of one trace as columns of equal length N, in file order. -1 = absent.

    `ts`, `dur` int64 ns; `category` int8 of Category; `name`, `cat`, `pid`, `tid`, `grid`, and of a CPU op's inputs, as
    the trace writes them, `shapes`, `types`, `strides` and `inputs` (values of those that are no tensors) int32 into
    `strings`; `device`, `stream` int32; `correlation`, `external_id`, `bytes`, `sequence`, `forward_thread` int64.
    """

    strings: tuple[str, ...]
    ts: NDArray[np.int64]
    dur: NDArray[np.int64]
    category: NDArray[np.int8]
    name: NDArray[np.int32]
    cat: NDArray[np.int32]
    pid: NDArray[np.int32]
    tid: NDArray[np.int32]
    grid: NDArray[np.int32]
    shapes: NDArray[np.int32]
    types: NDArray[np.int32]
    strides: NDArray[np.int32]
    inputs: NDArray[np.int32]
    device: NDArray[np.int32]
    stream: NDArray[np.int32]
    correlation: NDArray[np.int64]
    external_id: NDArray[np.int64]
    bytes: NDArray[np.int64]
    sequence: NDArray[np.int64]
    forward_thread: NDArray[np.int64]
    messages: Messages
    stacks: CallStacks
    allocations: Allocations
    waits: EventWaits
    nodes: GraphNodes

    def __len__(self) -> int:
        return len(self.ts)

    def __repr__(self) -> str:
        return f"<Events: {len(self):,}>"

    @cached_property
    def end(self) -> NDArray[np.int64]:
        """End times int64[N] ns: `ts` + `dur`."""
        return self.ts + self.dur

    def rows(self, *categories: Category) -> NDArray[np.int64]:
        """Return the rows of these categories, ascending: int64[K], cached and therefore read-only."""
        key = frozenset(categories)
        if (rows := self._rows_of.get(key)) is None:
            mask = np.zeros(len(self), np.bool_)
            for category in key:
                mask |= self.category == int(category)
            self._rows_of[key] = rows = np.flatnonzero(mask)
            rows.flags.writeable = False
        return rows

    def by_start(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return some rows in the order in which they start, those that start together in the order given."""
        return np.asarray(rows[np.argsort(self.ts[rows], kind="stable")])

    @cached_property
    def _rows_of(self) -> dict[frozenset[Category], NDArray[np.int64]]:
        """Results of `rows`; no field, so that `replace` and comparisons of fields never see it."""
        return {}

    def names_among(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the distinct names of some rows, ascending ids into `strings`; of those that are read-only once."""
        of_rows, names = self._names_of.get(id(rows), (None, rows))
        if of_rows is rows:
            return names
        is_used = np.zeros(len(self.strings), np.bool_)
        is_used[self.name[rows]] = True
        names = np.flatnonzero(is_used)
        if not rows.flags.writeable:
            self._names_of[id(rows)] = rows, names
        return names

    @cached_property
    def _names_of(self) -> dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Rows and their names, by the id of the rows."""
        return {}

    def text(self, row: int) -> str:
        """Return the name of one event."""
        return self.strings[int(self.name[row])]


@frozen
class Thread:
    """Named track of the trace; `pid` and `tid` as the trace writes them."""

    pid: str
    tid: str
    name: str


@frozen
class CapturedOp:
    """Name of an op and its inputs, as the trace that captured it writes them; "" = absent."""

    name: str
    shapes: str
    types: str
    strides: str
    inputs: str


@frozen(eq=False)
class CapturedGraphs:
    """K CUDA graphs that other windows of the same process captured, in order; graph k has `size[k]` nodes.

    `size` int64[K]; `module` int64[N] of each node into `names`, -1 outside all modules; `op` int64[N] of each node
    into `ops`, the op whose work it does, -1 outside all ops: nodes of one `call` int64[N] of it share that. `in_turn`:
    graphs are instantiated in the order of their captures; `paths`: the files.
    """

    size: NDArray[np.int64]
    module: NDArray[np.int64]
    op: NDArray[np.int64]
    call: NDArray[np.int64]
    names: tuple[str, ...]
    ops: tuple[CapturedOp, ...]
    in_turn: bool
    paths: tuple[str, ...]


@frozen
class OneStep:
    """Step to which a trace was cut, as it was in the whole trace: (start, end) ns on the host and of its window.

    `opens_ns`: end of the unrecorded work at its start; `unrecorded_ns`: all such work; `label`: "" of ProfilerStep.
    """

    number: int
    host_ns: tuple[int, int]
    window_ns: tuple[int, int]
    by_device: bool
    is_partial: bool
    opens_ns: int | None = None
    unrecorded_ns: tuple[tuple[int, int], ...] = ()
    label: str = ""


@frozen(eq=False, weakref_slot=True)
class Trace:
    """One rank's profiled window, or `only` one step of it. `base_time_ns` + `events.ts` is absolute time.

    `embedded` is the text that a recording of traceq wrote into the trace; reading a path unpacks it into `manifest`,
    `arm`, `pairs`, `processes` and `lines`. `versions` are (what, text): drivers, NCCL and options of the profiler.
    `host`: the machine, "" if unknown. `group_size`: ranks of the process groups, -1 if unknown or not all the same.
    `captured`: what another window captured, for replays of it. `left_out`: names of steps that do not count.
    `num_counters`: samples of counters, which are not read. `process_names`: (process, its name or a label).
    `compute_major`: the first number of the compute capability of a device of CUDA, 0 if unknown, and of any other.
    """

    path: str
    events: Events
    threads: tuple[Thread, ...]
    rank: int
    world_size: int
    backend: str
    device: str
    base_time_ns: int
    schema: str
    embedded: str = ""
    manifest: Manifest | None = None
    arm: str = ""
    pairs: tuple[Pairs, ...] = ()
    processes: tuple[Processes, ...] = ()
    lines: SourceLines | None = None
    num_dropped: int = 0
    num_counters: int = 0
    versions: tuple[tuple[str, str], ...] = ()
    caveats: tuple[Caveat, ...] = ()
    host: str = ""
    only: OneStep | None = None
    group_size: int = -1
    captured: CapturedGraphs | None = None
    left_out: frozenset[str] = frozenset()
    process_names: tuple[tuple[str, str], ...] = ()
    compute_major: int = 0

    def __repr__(self) -> str:
        device = f", {self.device}" if self.device else ""
        return f"<Trace {self.path}: rank {self.rank} of {self.world_size}{device}, {len(self.events):,} events>"


@frozen(eq=False)
class Flight:
    """F collectives in one rank's flight recorder, by (group, sequence), without point-to-point messages.

    `group`, `members` (`[0, 1]`), `name`, `dtype`, `state` (scheduled, started or completed), `line` of Python F texts;
    `sequence`, `elements` (of the larger side), `created_ns` (since the epoch) int64[F]; -1 and "" = absent.
    `is_window`: part of a recording that continued, so that entries which are not completed are not stuck. `waits_at`:
    the Python line at which the program was waiting when its rank gave up; "" if it did not.
    """

    path: str
    rank: int
    group: tuple[str, ...]
    members: tuple[str, ...]
    name: tuple[str, ...]
    dtype: tuple[str, ...]
    sequence: NDArray[np.int64]
    elements: NDArray[np.int64]
    created_ns: NDArray[np.int64]
    state: tuple[str, ...]
    line: tuple[str, ...]
    is_window: bool
    waits_at: str = ""


@frozen
class Window:
    """Latest of `num` windows that each rank of a folder has; `path` is that of the first rank."""

    num: int
    path: str


@frozen(eq=False)
class Run:
    """Traces of one arm by rank, with the data of the recording they come from.

    `window` is set where a folder has several windows of each rank.
    """

    path: str
    traces: tuple[Trace, ...]
    manifest: Manifest | None = None
    arm: str = ""
    pairs: tuple[Pairs, ...] = ()
    caveats: tuple[Caveat, ...] = ()
    flights: tuple[Flight, ...] = ()
    timings: Timings | None = None
    processes: tuple[Processes, ...] = ()
    window: Window | None = None

    @property
    def ranks(self) -> tuple[int, ...]:
        """Rank of each trace, ascending."""
        return tuple(trace.rank for trace in self.traces)

    def __repr__(self) -> str:
        ranks = f"rank{'s' if len(self.traces) > 1 else ''} {format_ranks(self.ranks)}" if self.traces else "no traces"
        parts = [
            f"arm {self.arm}" if self.arm else "",
            ranks,
            f"{sum(len(trace.events) for trace in self.traces):,} events",
            f"{len(self.caveats)} caveats" if self.caveats else "",
        ]
        return f"<Run {self.path}: {', '.join(part for part in parts if part)}>"
