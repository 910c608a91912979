"""Every step of every rank on disk: the last ones as rows, all older ones as histograms, one for each minute.

A rank appends whole rows to `steps/rank0.00000.rows` and begins a new file every 4 MB; of the last eight each has its
place, so that disk stays bounded. A tail that is no whole row, as of a process that was killed, is not read.

Steps of all ranks are joined to blocks of 16, by their number: what a rank spent in each is a value, robust to single
steps.
"""

from __future__ import annotations

from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from traceq.errors import UnreadableInput
from traceq.frozen import frozen
from traceq.locations import open_binary
from traceq.long_runs.limits import FILE_BYTES, KEPT_FILES, SKETCH_S, STEPS_PER_BLOCK

TIMES = ("wall", "loader", "forward", "backward", "optimizer", "gc", "cpu")
"""Seconds of a step: to the first event of the next, in phases, in the collector, of CPU time of the main thread."""
REGULAR, CAPTURED = 1, 2
"""Flags of a step: it had the usual events of the loop; it was profiled, or timed for a capture."""
STEP = np.dtype(
    [
        ("time", "<f8"),  # when it ended, s since the epoch
        ("step", "<u4"),
        ("flags", "<u4"),
        *((name, "<f4") for name in TIMES),
        ("queued", "<f4"),  # s a step that all threads waited for cores since the last reading; NaN: not read
        ("memory", "<f4"),  # resident bytes; NaN: not read
        ("clock", "<f4"),  # Hz of the device; NaN: not read
        ("throttled", "<f4"),  # 1 if the device has lowered it for power or temperature; NaN: not read
    ]
)
EDGES_S = 1e-6 * 1.1 ** np.arange(218)
"""Edges of the histograms' bins, each 10 % wide: from 1 us to 960 s."""
SKETCH = np.dtype(
    [
        ("time", "<f8"),  # when its first step ended
        ("first_step", "<u4"),
        ("num_regular", "<u4"),
        ("num_others", "<u4"),
        ("memory", "<f4"),  # the most of it
        ("mean", "<f4", len(TIMES)),
        ("counts", "<u4", (len(TIMES), len(EDGES_S) - 1)),  # of regular steps
    ]
)
Rows = NDArray[np.void]


def _files(folder: Path, rank: int) -> list[Path]:
    """Return the files of rows of a rank, oldest first."""
    return sorted(folder.glob(f"rank{rank}.[0-9]*.rows"))


class RowWriter:
    """Appends the steps of one rank. Raises FileNotFoundError once its file was removed: nobody could read them."""

    def __init__(self, folder: Path, rank: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._rank = folder, rank
        before = _files(folder, rank)  # of a process that the launcher has started again
        self._number = int(before[-1].name.split(".")[1]) + 1 if before else 0
        self._file: IO[bytes] = self._open()

    def _open(self) -> IO[bytes]:
        self._path = self._folder / f"rank{self._rank}.{self._number:05}.rows"
        return self._path.open("ab", buffering=0)

    def append(self, rows: Rows) -> None:
        """Append rows in one write."""
        self._path.stat()
        self._file.write(rows.tobytes())
        if self._file.tell() >= FILE_BYTES:
            self._file.close()
            self._number += 1
            self._file = self._open()
            for old in _files(self._folder, self._rank)[:-KEPT_FILES]:
                old.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class RowReader:
    """Reads the rows of one rank as they are appended; `only_last`: those in its last file so far, and later ones."""

    def __init__(self, folder: Path, rank: int, *, only_last: bool = False) -> None:
        self._folder, self._rank = folder, rank
        files = _files(folder, rank) if only_last else []
        self._path, self._read = files[-1] if files else Path(), 0

    def take(self) -> Rows:
        """Return the whole rows since the last call, oldest first."""
        taken = [np.empty(0, STEP)]
        for path in _files(self._folder, self._rank):
            if path > self._path:
                self._path, self._read = path, 0
            if path == self._path:
                rows = _rows_of(path, self._read)
                self._read += rows.nbytes
                taken.append(rows)
        return np.concatenate(taken)


def last_rows(folder: Path, rank: int) -> Rows:
    """Return the rows of the last file of a rank that has any."""
    files = [path for path in _files(folder, rank) if path.stat().st_size >= STEP.itemsize]
    return _rows_of(files[-1], 0) if files else np.empty(0, STEP)


def _rows_of(path: Path, begin: int) -> Rows:
    """Return the whole rows of a file from a byte on; none of one that was removed meanwhile."""
    try:
        with open_binary(path) as file:
            file.seek(begin)
            data = file.read()
    except FileNotFoundError:
        return np.empty(0, STEP)
    except OSError as fault:
        raise UnreadableInput(str(path), fault.strerror or str(fault), "steps of a watched run") from fault
    return np.frombuffer(data[: len(data) // STEP.itemsize * STEP.itemsize], STEP)


class Sketches:
    """Appends a histogram of the steps of one rank for each minute that has ended."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._path = _sketches(folder, rank)
        self._pending = np.empty(0, STEP)

    def add(self, rows: Rows) -> None:
        """Add rows in the order of time."""
        self._pending = np.concatenate([self._pending, rows])
        minutes = self._pending["time"] // SKETCH_S
        while len(minutes) and minutes[0] < minutes[-1]:
            num = int(np.searchsorted(minutes, minutes[0], "right"))
            with self._path.open("ab") as file:
                file.write(sketch_of(self._pending[:num]).tobytes())
            self._pending, minutes = self._pending[num:], minutes[num:]


def sketch_of(rows: Rows) -> Rows:
    """Return the histograms of steps: SKETCH[1]."""
    sketch = np.zeros(1, SKETCH)
    regular = rows[rows["flags"] == REGULAR]
    memory = rows["memory"][~np.isnan(rows["memory"])]
    sketch["time"], sketch["first_step"] = rows["time"][0], rows["step"][0]
    sketch["num_regular"], sketch["num_others"] = len(regular), len(rows) - len(regular)
    sketch["memory"] = memory.max() if len(memory) else np.nan
    for index, name in enumerate(TIMES if len(regular) else ()):
        sketch["mean"][0, index] = regular[name].mean()
        bins = np.searchsorted(EDGES_S[1:-1], regular[name], "right")
        sketch["counts"][0, index] = np.bincount(bins, minlength=len(EDGES_S) - 1)
    return sketch


def quantile(counts: NDArray[np.uint32], share: float) -> float:
    """Return the time, s, that a share of the steps of a histogram does not exceed, to about 2 %; NaN of no steps."""
    sums = np.cumsum(counts, dtype=np.float64)
    if not sums[-1]:
        return float("nan")
    index = int(np.searchsorted(sums, share * sums[-1]))
    part = (share * sums[-1] - (sums[index] - counts[index])) / max(counts[index], 1)
    return float(EDGES_S[index] * (EDGES_S[index + 1] / EDGES_S[index]) ** part)


def read_sketches(folder: Path, rank: int) -> Rows:
    """Return the histograms of a rank, oldest first: SKETCH[N]."""
    try:
        with open_binary(_sketches(folder, rank)) as file:
            data = file.read()
    except OSError:
        return np.empty(0, SKETCH)
    return np.frombuffer(data[: len(data) // SKETCH.itemsize * SKETCH.itemsize], SKETCH)


def _sketches(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.sketches"


MEASURES = ("median", *TIMES, "compute", "queued", "memory", "clock", "throttled")
"""Columns of a block: the median step, then means of its regular steps, s; `compute`: neither loader, nor backward, nor
collector; `queued`: s that threads waited for cores; bytes of memory; Hz, and whether throttled. NaN: not read."""
_FEWEST = STEPS_PER_BLOCK // 2
_MOST_PENDING = 1 << 16
"""Rows of a rank that wait for those of another one."""
Values = NDArray[np.float32]


def measure(name: str) -> int:
    """Return the column of a measure."""
    return MEASURES.index(name)


@frozen
class StepBlock:
    """Values of a block, float32[num_ranks, len(MEASURES)], and where it began; NaN: a rank of which nothing came."""

    first_step: int
    time: float
    values: Values


class StepBlocks:
    """Joins rows of ranks, as they come, to blocks that all ranks have ended, most steps of which were regular."""

    def __init__(self, num_ranks: int) -> None:
        self._begin(num_ranks)

    def _begin(self, num_ranks: int) -> None:
        self._pending = [np.empty(0, STEP) for _ in range(num_ranks)]
        self._next = 0

    @property
    def ended(self) -> int:
        """Step until which all blocks were returned."""
        return self._next

    def add(self, rows_of_ranks: list[NDArray[np.void]]) -> list[StepBlock]:
        """Add the new rows of each rank, in the order of ranks; return the blocks that have ended with them."""
        for rank, rows in enumerate(rows_of_ranks):
            if len(rows) and len(self._pending[rank]) and rows["step"][0] < self._pending[rank]["step"][-1]:
                self._begin(len(self._pending))  # the job was started again
            self._pending[rank] = np.concatenate([self._pending[rank], rows])[-_MOST_PENDING:]
        if not all(len(rows) for rows in self._pending):
            return []
        if self._next == 0:
            self._next = int(max(rows["step"][0] for rows in self._pending))
            self._next = -(-self._next // STEPS_PER_BLOCK) * STEPS_PER_BLOCK
        ended = min(int(rows["step"][-1]) for rows in self._pending) + 1
        blocks = []
        while self._next + STEPS_PER_BLOCK <= ended:
            block = self._block()
            self._next += STEPS_PER_BLOCK
            if block is not None:
                blocks.append(block)
        for rank, rows in enumerate(self._pending):
            self._pending[rank] = rows[np.searchsorted(rows["step"], self._next) :]
        return blocks

    def _block(self) -> StepBlock | None:
        parts = []
        for rows in self._pending:
            ends = np.searchsorted(rows["step"], [self._next, self._next + STEPS_PER_BLOCK])
            part = rows[slice(*ends)]
            if np.count_nonzero(part["flags"] == REGULAR) < _FEWEST:
                return None
            parts.append(part)
        values = np.array([_values(part) for part in parts], np.float32)
        return StepBlock(self._next, float(parts[0]["time"][0]), values)


def _values(rows: NDArray[np.void]) -> list[float]:
    regular = rows[rows["flags"] == REGULAR]
    means = {name: float(regular[name].mean()) for name in TIMES}
    computed_s = means["wall"] - means["loader"] - means["backward"] - means["gc"]
    queued = rows["queued"][~np.isnan(rows["queued"])]
    return [
        float(np.median(regular["wall"])),
        *means.values(),
        computed_s,
        float(queued.mean()) if len(queued) else np.nan,
        *(last_reading(rows, name) for name in ("memory", "clock", "throttled")),
    ]


def last_reading(rows: Rows, name: str) -> float:
    """Return what was read last in some steps; NaN where it was in none."""
    values = rows[name][~np.isnan(rows[name])]
    return float(values[-1]) if len(values) else float("nan")
