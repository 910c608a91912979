"""Every key that the JSON of `show` promises, with its type: what scripts rely on. New keys may join, none may go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from builder import annotation, call, comms, kernel, launch, memcpy, op, step, write
from json_shape import fits

from traceq.cli import main

NUMBER, TEXT_OR_NONE, INT_OR_NONE, NUMBER_OR_NONE = (
    (int, float),
    (str, type(None)),
    (int, type(None)),
    (int, float, type(None)),
)
SHOW: dict[str, Any] = {
    "schema": str,
    "source": {
        "path": str,
        "num_events": int,
        "ranks": list,
        "world_size": int,
        "device": TEXT_OR_NONE,
        "torch": TEXT_OR_NONE,
    },
    "steps": [
        {
            "rank": int,
            "index": int,
            "name": str,
            "dur_ns": int,
            "window": str,
            "window_ns": int,
            "partial": bool,
            "lag_ns": int,
        }
    ],
    "memcpy": [{"rank": int, "kind": str, "num": int, "bytes": INT_OR_NONE, "gpu_ns": int}],
    "syncs": [
        {
            "key": str,
            "rank": int,
            "kind": str,
            "op": str,
            "call": str,
            "phase": str,
            "line": str,
            "module": str,
            "num": int,
            "bytes": INT_OR_NONE,
            "blocked_ns": int,
            "wait_ns": int,
            "starved_ns": int,
            "cost_ns": int,
            "label": str,
        }
    ],
    "collectives": [
        {
            "key": str,
            "rank": int,
            "name": str,
            "group": str,
            "group_size": INT_OR_NONE,
            "dtype": str,
            "num": int,
            "num_kernels": int,
            "bytes": INT_OR_NONE,
            "gpu_ns": int,
            "exposed_ns": int,
            "algbw_gbps": NUMBER_OR_NONE,
            "busbw_gbps": NUMBER_OR_NONE,
            "phase": str,
        }
    ],
    "phases": [
        {
            "rank": int,
            "name": str,
            "rule": str,
            "cpu_ns": int,
            "gpu_busy_ns": int,
            "gpu_sum_ns": int,
            "num_kernels": int,
            "num_gpu_ops": int,
        }
    ],
    "partition": [{"rank": int, "step": int, "phase": str, "category": str, "ns": int}],
    "kernels": [{"key": str, "rank": int, "phase": str, "name": str, "num": int, "gpu_ns": int}],
    "coverage": {"num_gpu_events": int, "unattributed_ns": int, "before_window_ns": int, "dropped_events": int},
    "findings": [{"code": str, "severity": str, "text": str, "ns": int, "key": str}],
    "warnings": [{"code": str, "text": str}],
}


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """A trace with something in every table, and an event without a time for the warnings."""
    rows = []
    for number in range(2):
        at, corr = 1000 * number, 10 * number
        rows += [
            step(at, 1000, number),
            annotation("forward", at, 500),
            annotation("backward", at + 500, 500),
            launch(at + 10, 5, corr + 1),
            kernel("gemm", at + 20, 200, corr + 1),
            op("aten::_local_scalar_dense", at + 300, 100),
            call("cudaMemcpyAsync", at + 305, 10, corr + 2),
            memcpy("DtoH (Device -> Pageable)", at + 310, 10, corr + 2),
            call("cudaStreamSynchronize", at + 316, 60),
            comms("allreduce", at + 600, 20, (1000, 1000)),
            launch(at + 605, 5, corr + 3),
            kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", at + 620, 100, corr + 3),
        ]
    path = write(tmp_path / "trace.json", *rows, op("aten::mm", "soon", 1))
    monkeypatch.setattr("sys.argv", ["traceq", "show", str(path), "--json"])
    with pytest.raises(SystemExit):
        main()
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_show_keeps_every_key_it_promises(shown: dict[str, Any]) -> None:
    fits(shown, SHOW, "show")
    assert shown["schema"] == "traceq.show/1"


def test_words_that_stand_for_kinds_are_those_promised(shown: dict[str, Any]) -> None:
    assert {row["window"] for row in shown["steps"]} <= {"device", "host"}
    assert {row["kind"] for row in shown["syncs"]} == {"dtoh"}
    assert {row["label"] for row in shown["syncs"]} <= {"costly", "waits_but_free", "harmless"}
    assert {row["kind"] for row in shown["memcpy"]} == {"DtoH"}
    assert {row["severity"] for row in shown["findings"]} <= {"high", "medium", "low"}


def test_rows_have_keys_of_their_own_and_partition_adds_up_to_the_windows(shown: dict[str, Any]) -> None:
    for table in ("syncs", "collectives", "kernels"):
        keys = [(row["rank"], row["key"]) for row in shown[table]]
        assert len(set(keys)) == len(keys), table
    for found in shown["steps"]:
        cells = [row["ns"] for row in shown["partition"] if row["step"] == found["index"]]
        assert sum(cells) == found["window_ns"]
