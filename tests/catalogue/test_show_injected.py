"""Stalls of known length in real traces: `show` charges them to what was injected, and nothing else with any of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

import msgspec
import pytest
from builder import read_text, table
from injection import Row, rows_of, spread, with_stalls

from traceq.model import Trace

STALL_US = 2000
HOST_BOUND = [
    pytest.param("ddp-a100/rank0.json.gz", "aten::conv2d", 3, id="ddp-a100"),
    pytest.param("dlrm-v100-8r/rank7.json.gz", "aten::linear", 5, id="dlrm-v100"),
]
RESNET = pytest.param("resnet50-2021/workers0.json.gz", "aten::batch_norm", 2, id="resnet50-2021")
SYNCS = {
    "item": ("dtoh", "aten::_local_scalar_dense"),
    "upload": ("htod", "aten::copy_"),
    "nonzero": ("dtoh", "aten::nonzero"),
    "device": ("device", ""),
}


def trace_of(rows: Sequence[Row]) -> Trace:
    return read_text(msgspec.json.encode({"traceEvents": rows}))


@lru_cache(maxsize=1)
def original(name: str) -> tuple[list[Row], Trace]:
    rows = rows_of(name)
    return rows, trace_of(rows)


def sums(trace: Trace, analysis: str, value: str, *keys: str) -> Counter[tuple[str, ...]]:
    result: Counter[tuple[str, ...]] = Counter()
    for row in table(trace, analysis):
        result[tuple(row[key] for key in keys)] += row[value]
    return result


def grown(a: Trace, b: Trace, analysis: str, value: str, *keys: str) -> dict[tuple[str, ...], int]:
    """What each row of an analysis has more in b."""
    first, second = sums(a, analysis, value, *keys), sums(b, analysis, value, *keys)
    return {key: second[key] - first[key] for key in first | second}


@pytest.mark.parametrize("kind", SYNCS)
@pytest.mark.parametrize(("name", "op", "num"), HOST_BOUND)
def test_what_injected_syncs_cost_is_the_time_they_add_and_no_other_sync_costs_more(
    name: str, op: str, num: int, kind: str
) -> None:
    rows, before = original(name)
    chosen = spread(rows, op, num)
    after = trace_of(with_stalls(rows, chosen, STALL_US, kind))
    added = sum(grown(before, after, "steps", "window_ns").values())
    assert added == pytest.approx(len(chosen) * STALL_US * 1000, rel=0.02)
    costs = grown(before, after, "syncs", "cost_ns", "kind", "op")
    selected = costs.pop(SYNCS[kind])
    assert 0.98 * added <= selected <= 1.001 * added
    assert sum(map(abs, costs.values())) < 0.01 * added


@pytest.mark.slow
@pytest.mark.parametrize(("name", "op", "num"), [*HOST_BOUND, RESNET])
def test_a_stall_of_the_data_loader_is_time_in_which_the_device_waits_for_the_host(
    name: str, op: str, num: int
) -> None:
    """Where phases follow from structure it is the loader's, else that of the annotation around it."""
    rows, before = original(name)
    chosen = spread(rows, op, num)
    after = trace_of(with_stalls(rows, chosen, 2 * STALL_US, "load"))
    added = sum(grown(before, after, "steps", "window_ns").values())
    assert added == pytest.approx(len(chosen) * 2 * STALL_US * 1000, rel=0.02)
    phases = grown(before, after, "partition", "dur_ns", "phase")
    waits = grown(before, after, "partition", "dur_ns", "phase", "category")
    (phase,), selected = max(phases.items(), key=lambda item: item[1])
    assert (phase == "dataload") == name.startswith("resnet50")
    assert min(selected, waits[phase, "host_bound"]) >= 0.98 * added
    assert sum(abs(ns) for (other,), ns in phases.items() if other != phase) < 0.01 * added
    costs = grown(before, after, "syncs", "cost_ns", "key")
    assert sum(map(abs, costs.values())) < 0.01 * added
