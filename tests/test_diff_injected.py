"""Changes of known cost, made to real traces: the diff must find each, and charge it with what it costs.

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
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from traceq.diff.actors import LAUNCHES, kernel_name
from traceq.diff.diff import diff
from traceq.diff.result import Cause, Diff

TRACES = Path(__file__).resolve().parents[1].parent / "shared" / "traces"

Row = dict[str, Any]

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
    found = [
        row for row in rows if re.match(r"ProfilerStep#\d+$", row["name"]) and row.get("cat") != "gpu_user_annotation"
    ]
    return sorted(found, key=lambda row: row["ts"])


def ops_within(rows: Sequence[Row], name: str, step: Row) -> list[Row]:
    """Ops of a name that the thread of a step runs in it, in order."""
    found = [
        row
        for row in rows
        if row["name"] == name and row["tid"] == step["tid"] and step["ts"] <= row["ts"] and end(row) <= end(step)
    ]
    return sorted(found, key=lambda row: row["ts"])


def hungry(rows: Sequence[Row], ops: Sequence[Row], left_us: float = 50) -> list[Row]:
    """Those of the ops after which the device has hardly any work left: it waits for the host."""
    calls = {correlation(row): float(row["ts"]) for row in rows if is_runtime(row) and correlation(row)}
    device = sorted((calls[correlation(row)], end(row)) for row in rows if is_device(row) and correlation(row) in calls)
    launched = [start for start, _ in device]
    done = list(accumulate((stop for _, stop in device), max))
    return [op for op in ops if (at := bisect_left(launched, end(op))) and done[at - 1] <= end(op) + left_us]


def with_stalls(rows: Sequence[Row], ops: Sequence[Row], stall_us: float) -> list[Row]:
    """After each op an `aten::item` for which the host waits `stall_us` in all: a copy, then a synchronize.

    The trace must wait for its host there: the copy runs as it is launched, or behind what is queued.
    """
    instants = sorted(end(op) for op in ops)
    changed = _stretched(rows, instants, stall_us)
    calls = {correlation(row): float(row["ts"]) for row in changed if is_runtime(row) and correlation(row)}
    device = [row for row in changed if is_device(row)]
    like = _on_busiest_stream(device)
    for number, instant in enumerate(instants):
        at = instant + stall_us * number
        behind = max(end(row) for row in device if calls.get(correlation(row), at) < at)
        assert behind < at + stall_us / 2, "the device must be hungry there"
        changed += _stall(ops[0], at, stall_us, max(behind, at + 8), like, max(calls) + 1 + number)
    return changed


def _stretched(rows: Sequence[Row], instants: Sequence[float], by_us: float) -> list[Row]:
    """The host stops at each instant. Work that followed its launch at once still does; other work runs behind what it
    ran behind."""

    def later(time: float) -> float:
        return time + by_us * bisect_left(instants, time)

    host = [row for row in rows if not is_device(row)]
    device = sorted((row for row in rows if is_device(row)), key=lambda row: row["ts"])
    calls = {correlation(row): row for row in host if is_runtime(row) and correlation(row)}
    changed = [{**row, "ts": later(row["ts"]), "dur": later(end(row)) - later(row["ts"])} for row in host]
    running: list[tuple[float, float]] = []  # (end, how much it moved) of the work before, by end
    for row in device:
        start = float(row["ts"])
        at = bisect_right(running, (start, float("inf")))
        moved = running[at - 1][1] if at else 0.0
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


def _stall(host: Row, at: float, stall_us: float, copied: float, like: Row, number: int) -> list[Row]:
    """`aten::item` and what it does: it starts 0.5 us after the op and is over 0.5 us before the next."""
    over = at + stall_us - 0.5
    where = {key: like["args"].get(key, 0) for key in ("stream", "device")}
    return [
        _row(host, "cpu_op", "aten::item", at + 0.5, over),
        _row(host, "cpu_op", "aten::_local_scalar_dense", at + 1, over - 0.5),
        _row(host, "cuda_runtime", "cudaMemcpyAsync", at + 2, at + 7, correlation=number),
        _row(host, "cuda_runtime", "cudaStreamSynchronize", at + 7.5, over - 1),
        _row(
            like,
            "gpu_memcpy",
            "Memcpy DtoH (Device -> Pinned)",
            copied,
            copied + 1.5,
            correlation=number,
            bytes=8,
            **where,
        ),
    ]


def _row(like: Row, cat: str, name: str, start: float, stop: float, **args: Any) -> Row:
    where = {"pid": like["pid"], "tid": like["tid"]}
    return {"ph": "X", "cat": cat, "name": name, **where, "ts": start, "dur": stop - start, "args": args}


def with_slower_kernel(rows: Sequence[Row], slow: Row, by_us: float) -> list[Row]:
    """One kernel takes longer; what its stream runs later, and all that is launched after it began, moves."""
    calls = {correlation(row): float(row["ts"]) for row in rows if is_runtime(row) and correlation(row)}
    over, stream = end(slow), slow["args"]["stream"]

    def moves(row: Row) -> bool:
        queued = row["args"].get("stream") == stream and row["ts"] >= over
        return queued or calls.get(correlation(row), 0) >= slow["ts"]

    changed = []
    for row in rows:
        if row is slow:
            changed.append({**row, "dur": row["dur"] + by_us})
        elif is_device(row):
            changed.append({**row, "ts": row["ts"] + by_us if moves(row) else row["ts"]})
        else:
            begins = by_us if row["ts"] >= slow["ts"] else 0
            grows = by_us if not begins and end(row) > slow["ts"] else 0
            changed.append({**row, "ts": row["ts"] + begins, "dur": row["dur"] + grows})
    return changed


def with_all_reduce(rows: Sequence[Row], after: Row, dur_us: float) -> list[Row]:
    """After an op one more all-reduce, alone on the device, with the host inside its call until it is over."""
    at = end(after)
    changed = _stretched(rows, [at], dur_us)
    calls = {correlation(row): float(row["ts"]) for row in changed if is_runtime(row) and correlation(row)}
    device = [row for row in changed if is_device(row)]
    behind = max(end(row) for row in device if calls.get(correlation(row), at) < at)
    known = max(calls) + 1
    name, where = (
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        {"stream": 99, "device": 0},
    )
    return [
        *changed,
        _row(after, "cpu_op", "c10d::allreduce_", at + 0.5, at + dur_us - 0.5),
        _row(after, "cuda_runtime", "cudaLaunchKernel", at + 1, at + 4, correlation=known),
        _row(device[0], "kernel", name, max(behind, at + 6), at + dur_us, correlation=known, **where),
    ]


@pytest.fixture
def compare(tmp_path: Path) -> Any:
    def compare(a: Sequence[Row], b: Sequence[Row]) -> Diff:
        paths = []
        for name, rows in (("a", a), ("b", b)):
            paths.append(tmp_path / f"{name}.json")
            paths[-1].write_text(json.dumps({"traceEvents": rows}))
        found = diff(*paths)
        assert found.residual_ns == 0
        assert found.traced is not None
        assert sum(cause.delta_ns for cause in found.causes) == found.traced.delta_ns
        return found

    return compare


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


def total(causes: Sequence[Cause]) -> int:
    return sum(cause.delta_ns for cause in causes)


HOST_BOUND = [
    pytest.param("ddp-a100/rank0.json.gz", "aten::conv2d", 3, id="ddp-a100"),
    pytest.param("dlrm-v100-8r/rank7.json.gz", "aten::linear", 5, id="dlrm-v100"),
    pytest.param("resnet50-2021/workers0.json.gz", "aten::batch_norm", 2, id="resnet50-2021"),
]


@pytest.mark.parametrize(("name", "op", "num"), HOST_BOUND)
def test_an_injected_sync_is_found_with_all_that_it_costs(compare: Any, name: str, op: str, num: int) -> None:
    rows = rows_of(name)
    found = compare(rows, with_stalls(rows, spread(rows, op, num), 2000))
    injected = num * 2_000_000
    assert found.traced.delta_ns == pytest.approx(injected, rel=0.001)
    first, *others = found.causes
    assert (first.kind, first.name) == ("sync", "dtoh aten::_local_scalar_dense")
    assert first.delta_num == num
    assert first.delta_ns == pytest.approx(injected, rel=0.02)
    assert abs(total(others)) < 0.01 * injected
    said = f"b adds {num} syncs a step ({num} dtoh aten::_local_scalar_dense in {first.phase})"
    assert found.words[2].startswith(said)


def test_removing_it_again_is_the_same_with_the_signs_turned(compare: Any) -> None:
    rows = rows_of("dlrm-v100-8r/rank7.json.gz")
    stalled = with_stalls(rows, spread(rows, "aten::linear", 5), 2000)
    there, back = compare(rows, stalled).causes, compare(stalled, rows).causes
    assert [(cause.key, cause.delta_ns) for cause in there] == [(cause.key, -cause.delta_ns) for cause in back]


@pytest.mark.parametrize(("name", "op", "num"), HOST_BOUND)
def test_a_slower_kernel_is_found_with_all_that_it_costs(compare: Any, name: str, op: str, num: int) -> None:
    rows = rows_of(name)
    last = main_steps(rows)[-1]
    kernels = [row for row in rows if row.get("cat", "").lower() == "kernel" and "nccl" not in row["name"]]
    slow = max((row for row in kernels if last["ts"] <= row["ts"] <= end(last)), key=lambda row: row["dur"])
    found = compare(rows, with_slower_kernel(rows, slow, 3000))
    first, *others = found.causes
    assert (first.kind, first.delta_num, first.count_ns) == ("kernel", 0, 0)
    assert first.name.rpartition(LAUNCHES)[2] == kernel_name(slow["name"])
    assert first.delta_ns * found.traced.num_a == pytest.approx(3_000_000, rel=0.02)
    assert abs(total(others)) < 0.01 * abs(found.traced.delta_ns)


@pytest.mark.parametrize(("name", "op", "num"), HOST_BOUND)
def test_one_more_all_reduce_is_found_with_all_that_it_costs(compare: Any, name: str, op: str, num: int) -> None:
    rows = rows_of(name)
    after = hungry(rows, spread(rows, op, num), left_us=20)[-1]
    found = compare(rows, with_all_reduce(rows, after, 2000))
    steps = found.traced.num_a
    collective = next(cause for cause in found.causes if cause.kind == "collective")
    assert collective is found.causes[0]
    assert (collective.name, collective.delta_num) == ("all_reduce", pytest.approx(1 / steps))
    assert collective.delta_ns * steps == pytest.approx(2_000_000, rel=0.02)
    others = [cause for cause in found.causes if cause is not collective]
    assert abs(total(others)) < 0.01 * abs(found.traced.delta_ns)
