"""Changes of known cost, made to the rows of real traces.

Time on the host is stretched: whatever starts after the change moves, whatever spans it grows. Device work moves with
the call that launched it, or with what it runs behind.
"""

from __future__ import annotations

import gzip
import json
import re
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from paths import TRACES

Row = dict[str, Any]


@dataclass(frozen=True)
class Stall:
    """Rows of a stall: host ops around each other, a copy that is waited for, a call that waits, an annotation."""

    ops: tuple[str, ...] = ()
    copy: str = ""
    synchronize: str = ""
    annotation: str = ""


STALLS = {
    "item": Stall(
        ("aten::item", "aten::_local_scalar_dense"), "Memcpy DtoH (Device -> Pinned)", "cudaStreamSynchronize"
    ),
    "upload": Stall(("aten::to", "aten::_to_copy", "aten::copy_"), "Memcpy HtoD (Pageable -> Device)"),
    "nonzero": Stall(("aten::nonzero",), "Memcpy DtoH (Device -> Pinned)", "cudaStreamSynchronize"),
    "device": Stall(synchronize="cudaDeviceSynchronize"),
    "load": Stall(annotation="enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"),
}
"""What can keep a host: `.item()`, a pageable copy, a boolean mask, a device synchronize, a data loader."""

_CATEGORY = {"record_param_comms": "cpu_op", "nccl:all_reduce": "user_annotation"}

_AT_ONCE_US = 12.0
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_RUNTIME = ("cuda_runtime", "cuda_driver", "runtime")


def read_rows(path: Path) -> list[Row]:
    """The complete events of a trace, as they stand."""
    document = json.loads(gzip.decompress(path.read_bytes()))
    rows = document["traceEvents"] if isinstance(document, dict) else document
    return [row for row in rows if row.get("ph") == "X"]


def is_device(row: Row) -> bool:
    return str(row.get("cat", "")).lower() in _DEVICE


def is_runtime(row: Row) -> bool:
    return str(row.get("cat", "")).lower() in _RUNTIME


def correlation(row: Row) -> int:
    return int(row.get("args", {}).get("correlation", 0))


def end(row: Row) -> float:
    return float(row["ts"]) + float(row["dur"])


def main_steps(rows: Sequence[Row]) -> list[Row]:
    """The ProfilerStep rows of the host, in order."""
    result = [
        row for row in rows if re.match(r"ProfilerStep#\d+$", row["name"]) and row.get("cat") != "gpu_user_annotation"
    ]
    return sorted(result, key=lambda row: row["ts"])


def ops_within(rows: Sequence[Row], name: str, step: Row) -> list[Row]:
    """Ops of a name that the thread of a step runs in it, in order."""
    result = [
        row
        for row in rows
        if row["name"] == name and row["tid"] == step["tid"] and step["ts"] <= row["ts"] and end(row) <= end(step)
    ]
    return sorted(result, key=lambda row: row["ts"])


def hungry(rows: Sequence[Row], ops: Sequence[Row], left_us: float = 50) -> list[Row]:
    """Those of the ops after which the device has hardly any work left: it waits for the host."""
    calls = {correlation(row): float(row["ts"]) for row in rows if is_runtime(row) and correlation(row)}
    device = sorted((calls[correlation(row)], end(row)) for row in rows if is_device(row) and correlation(row) in calls)
    launched = [start for start, _ in device]
    done = list(accumulate((stop for _, stop in device), max))
    return [op for op in ops if (index := bisect_left(launched, end(op))) and done[index - 1] <= end(op) + left_us]


def waits_for_kernels(rows: Sequence[Row], name: str, left_us: float = 25) -> tuple[list[Row], list[Row]]:
    """(the rows with a device synchronize in every step, after an op of that name; the kernel each of them waits for).

    As the host waits there, it is as much later as the kernel: nothing else of the recording depends on it.
    """
    calls = {correlation(row): float(row["ts"]) for row in rows if is_runtime(row) and correlation(row)}
    device = sorted((row for row in rows if is_device(row)), key=end)
    places = []
    for step in main_steps(rows):
        for op in hungry(rows, ops_within(rows, name, step), left_us):
            last = [row for row in device if calls.get(correlation(row), end(op)) < end(op)][-1]
            if end(op) + 3 < end(last) and str(last["cat"]).lower() == "kernel" and "nccl" not in last["name"]:
                places.append((op, last))
                break
    changed = with_stalls(rows, [op for op, _ in places], 60, "device")
    kernels = {correlation(kernel) for _, kernel in places}
    return changed, [row for row in changed if is_device(row) and correlation(row) in kernels]


def with_stalls(rows: Sequence[Row], ops: Sequence[Row], stall_us: float, kind: str = "item") -> list[Row]:
    """After each op something of STALLS for which the host waits `stall_us` in all.

    Where that waits for the device, the trace must wait for its host: the copy runs as it is launched, or behind what
    is queued.
    """
    instants = sorted(end(op) for op in ops)
    changed = stretched(rows, instants, stall_us)
    calls = {correlation(row): float(row["ts"]) for row in changed if is_runtime(row) and correlation(row)}
    device = [row for row in changed if is_device(row)]
    like = _on_busiest_stream(device)
    for number, instant in enumerate(instants):
        index = instant + stall_us * number
        behind = max(end(row) for row in device if calls.get(correlation(row), index) < index)
        assert behind < index + stall_us / 2 or kind == "load", "the device must be hungry there"
        changed += _stall(ops[0], index, stall_us, max(behind, index + 8), like, max(calls) + 1 + number, STALLS[kind])
    return changed


def stretched(rows: Sequence[Row], instants: Sequence[float], by_us: float) -> list[Row]:
    """The host stops at each instant. Work that followed its launch at once still does; other work runs behind what it
    ran behind.
    """

    def later(time: float) -> float:
        return time + by_us * bisect_left(instants, time)

    host = [row for row in rows if not is_device(row)]
    device = sorted((row for row in rows if is_device(row)), key=lambda row: row["ts"])
    calls = {correlation(row): row for row in host if is_runtime(row) and correlation(row)}
    changed = [{**row, "ts": later(row["ts"]), "dur": later(end(row)) - later(row["ts"])} for row in host]
    running: list[tuple[float, float]] = []  # (end, how much it moved) of the work before, by end
    for row in device:
        start = float(row["ts"])
        index = bisect_right(running, (start, float("inf")))
        moved = running[index - 1][1] if index else 0.0
        if call := calls.get(correlation(row)):
            launch = float(call["ts"])
            moved = max(moved, later(launch) + min(start - launch, _AT_ONCE_US) - start)
        insort(running, (end(row), moved))
        changed.append({**row, "ts": start + moved})
    return changed


def _on_busiest_stream(device: Sequence[Row]) -> Row:
    counts = Counter(row["args"].get("stream", -1) for row in device)
    stream = max(counts, key=lambda number: counts[number])
    return next(row for row in device if row["args"].get("stream", -1) == stream)


def _stall(
    host: Row, position: float, stall_us: float, copied: float, like: Row, number: int, stall: Stall
) -> list[Row]:
    """What the host does from 0.5 us after an op to 0.5 us before the next."""
    begin, over = position + 0.5, position + stall_us - 0.5
    made = [_row(host, "cpu_op", op, begin + 0.1 * n, over - 0.1 * n) for n, op in enumerate(stall.ops)]
    made += [_row(host, "user_annotation", stall.annotation, begin, over)] if stall.annotation else []
    begin, over = begin + 1.5, over - 1
    if stall.copy:
        returns = position + 7 if stall.synchronize else over
        where = {key: like["args"].get(key, 0) for key in ("stream", "device")}
        copy = _row(like, "gpu_memcpy", stall.copy, copied, copied + 1.5, correlation=number, bytes=8, **where)
        made += [copy, _row(host, "cuda_runtime", "cudaMemcpyAsync", begin, returns, correlation=number)]
        begin = position + 7.5
    if stall.synchronize:
        made.append(_row(host, "cuda_runtime", stall.synchronize, begin, over))
    return made


def _row(like: Row, cat: str, name: str, start: float, stop: float, **args: Any) -> Row:
    where = {"pid": like["pid"], "tid": like["tid"]}
    return {"ph": "X", "cat": cat, "name": name, **where, "ts": start, "dur": stop - start, "args": args}


def with_longer_kernels(rows: Sequence[Row], slow: Sequence[tuple[Row, float]]) -> list[Row]:
    """Some kernels take so many us longer: what begins after one of them moves by that, on the device and on the host,
    which stays as far ahead as it was.
    """
    ends = sorted((end(row), by) for row, by in slow)
    over, late = [index for index, _ in ends], [0.0, *accumulate(by for _, by in ends)]
    longer = {id(row): by for row, by in slow}

    def later(time: float) -> float:
        return time + late[bisect_right(over, time)]

    changed = []
    for row in rows:
        dur = row["dur"] + longer.get(id(row), 0.0) if is_device(row) else later(end(row)) - later(row["ts"])
        changed.append({**row, "ts": later(row["ts"]), "dur": dur})
    return changed


def with_all_reduces(rows: Sequence[Row], afters: Sequence[Row], dur_us: float) -> list[Row]:
    """After each op one more all-reduce, alone on the device, with the host inside its call until it is over."""
    instants = sorted(end(op) for op in afters)
    changed = stretched(rows, instants, dur_us)
    calls = {correlation(row): float(row["ts"]) for row in changed if is_runtime(row) and correlation(row)}
    device = [row for row in changed if is_device(row)]
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    reported = {"Collective name": "allreduce", "In msg nelems": 4096, "Out msg nelems": 4096, "dtype": "Float"}
    named = any("Collective name" in row.get("args", {}) for row in rows)
    tells = ["nccl:all_reduce"] if any(row["name"] == "nccl:all_reduce" for row in rows) else []
    tells += ["record_param_comms"] if named else []
    for number, instant in enumerate(instants):
        index, entries = instant + dur_us * number, max(calls) + 1 + number
        behind = max(end(row) for row in device if calls.get(correlation(row), index) < index)
        over, begins = index + dur_us, max(behind, index + 6)
        where = {"stream": 99, "device": 0}
        changed += [
            _row(afters[0], "cpu_op", "c10d::allreduce_", index + 0.5, over - 0.5),
            *(_row(afters[0], _CATEGORY[name], name, index + 0.6, over - 0.6, **reported) for name in tells),
            _row(afters[0], "cuda_runtime", "cudaLaunchKernel", index + 1, index + 4, correlation=entries),
            _row(device[0], "kernel", name, begins, over, correlation=entries, **where),
        ]
    return changed


def rows_of(name: str) -> list[Row]:
    path = TRACES / name
    if not path.exists():
        pytest.skip(f"no trace {name} beside this checkout")
    return read_rows(path)


def spread(rows: Sequence[Row], op: str, a_step: int) -> list[Row]:
    """So many ops of every step after which the device waits for the host."""
    chosen = []
    for step in main_steps(rows):
        fit = hungry(rows, ops_within(rows, op, step))
        assert len(fit) >= a_step, f"{step['name']}: only {len(fit)} {op} with a hungry device"
        chosen += fit[:: len(fit) // a_step][:a_step]
    return chosen


def within(rows: Sequence[Row], annotation: str, step: Row) -> tuple[float, float]:
    """When an annotation of that name is open in a step."""
    result = next(row for row in rows if row["name"] == annotation and step["ts"] <= row["ts"] < end(step))
    return float(result["ts"]), end(result)


def kernels_launched(rows: Sequence[Row], name: str, spans: Sequence[tuple[float, float]]) -> list[Row]:
    """Kernels whose name begins so and that are launched within some spans of time."""
    calls = {correlation(row): float(row["ts"]) for row in rows if is_runtime(row) and correlation(row)}
    selected = [row for row in rows if str(row.get("cat", "")).lower() == "kernel" and row["name"].startswith(name)]
    return [row for row in selected if any(a <= calls.get(correlation(row), -1) < b for a, b in spans)]


def first_launch(rows: Sequence[Row], after: Row) -> float:
    """When the first call that launches work begins after a row has ended."""
    launched = {correlation(row) for row in rows if is_device(row)}
    return min(row["ts"] for row in rows if is_runtime(row) and correlation(row) in launched and row["ts"] > end(after))
