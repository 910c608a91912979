"""Profiler sessions of one process become one trace: ids stay unique, steps are numbered on."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="recording needs torch")

from traceq.errors import RecordingFailed
from traceq.recorder.tracing.traced_steps import joined_events, write_joined

pytestmark = pytest.mark.torch

BASE_NS = 1_700_000_000_000_000_000


def session(start: float, num_steps: int = 1) -> dict[str, Any]:
    """What the profiler writes of some steps, each of which has an op that launches a kernel and a link to backward."""
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": 1, "ts": 0, "args": {"name": "python"}}]
    for step in range(num_steps):
        ts, index = start + 100 * step, step + 1
        events += [
            {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{2 + step}", "ts": ts, "dur": 90, "args": {}},
            {"ph": "X", "name": "op", "ts": ts, "dur": 5, "args": {"External id": index, "Sequence number": 7}},
            {"ph": "X", "name": "launch", "ts": ts, "dur": 1, "args": {"correlation": index, "Ev Idx": 0}},
            {"ph": "X", "name": "Event Sync", "ts": ts, "dur": 1, "args": {"wait_on_cuda_event_record_corr_id": index}},
            {"ph": "X", "name": "Stream Sync", "ts": ts, "dur": 1, "args": {"wait_on_cuda_event_record_corr_id": -1}},
            {"ph": "s", "name": "fwdbwd", "id": index, "ts": ts},
            {"ph": "f", "name": "fwdbwd", "id": index, "ts": ts + 3},
        ]
    return {"schemaVersion": 1, "baseTimeNanoseconds": BASE_NS, "traceEvents": events}


def test_ids_of_windows_differ_and_stay_those_of_one_event() -> None:
    events = list(joined_events([session(0, 2), session(1000), session(2000)]))
    flows = [(event["ph"], event["id"]) for event in events if event["ph"] in "sf"]
    assert len(set(flows)) == len(flows) == 8
    starts, ends = ([number for ph, number in flows if ph == kind] for kind in "sf")
    assert starts == ends
    assert [event["args"]["External id"] for event in events if event["name"] == "op"] == starts
    assert [event["args"]["correlation"] for event in events if event["name"] == "launch"] == starts
    recorded = {
        name: [e["args"].get("wait_on_cuda_event_record_corr_id") for e in events if e["name"] == name]
        for name in ("Event Sync", "Stream Sync")
    }
    assert recorded == {"Event Sync": starts, "Stream Sync": [-1] * 4}
    assert {event["args"]["Sequence number"] for event in events if event["name"] == "op"} == {7}  # of the process
    assert {event["args"]["Ev Idx"] for event in events if event["name"] == "launch"} == {0}  # none


def test_steps_are_numbered_on_past_the_warm_up_and_times_are_those_of_the_profiler() -> None:
    events = list(joined_events([session(0, 2), session(1000), session(2000)]))
    steps = [(event["name"], event["ts"]) for event in events if event.get("cat") == "user_annotation"]
    assert steps == [
        ("ProfilerStep#2", 0),
        ("ProfilerStep#3", 100),
        ("ProfilerStep#6", 1000),
        ("ProfilerStep#9", 2000),
    ]
    assert sum(event["ph"] == "M" for event in events) == 1


def test_a_single_window_stays_as_it_is() -> None:
    assert list(joined_events([session(0, 3)])) == session(0, 3)["traceEvents"]


def test_windows_of_different_clocks_are_refused() -> None:
    with pytest.raises(RecordingFailed, match="different base times"):
        list(joined_events([session(0), {**session(1), "baseTimeNanoseconds": BASE_NS + 1}]))


def test_the_trace_replaces_the_files_of_the_windows(tmp_path: Path) -> None:
    windows = [tmp_path / f".rank0.window{turn}.part" for turn in range(2)]
    for turn, window in enumerate(windows):
        window.write_text(json.dumps(session(1000 * turn)))
    write_joined(windows, tmp_path / "rank0.json.gz", "samples")
    document = json.loads(gzip.decompress((tmp_path / "rank0.json.gz").read_bytes()))
    assert document.pop("traceq") == "samples"
    assert document == {**session(0), "traceEvents": list(joined_events([session(0), session(1000)]))}
    assert [path.name for path in tmp_path.iterdir()] == ["rank0.json.gz"]


def test_invalid_json_of_the_profiler_is_refused(tmp_path: Path) -> None:
    (tmp_path / "window").write_text('{"traceEvents": [{"name": "a"b"}]}')
    with pytest.raises(RecordingFailed, match="window: the profiler wrote invalid JSON"):
        write_joined([tmp_path / "window"], tmp_path / "rank0.json.gz", "")
