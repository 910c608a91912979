"""Every key that the JSON of `show` promises, with its type: what scripts rely on. New keys may join, none may go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from builder import annotation, call, comms, kernel, launch, memcpy, op, step, write
from json_shape import fits
from show_keys import SHOW

from traceq.cli import main


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """A trace with something in every table, and an event without a time for the warnings."""
    rows = []
    for number in range(2):
        start, corr = 1000 * number, 10 * number
        rows += [
            step(start, 1000, number),
            annotation("forward", start, 500),
            annotation("backward", start + 500, 500),
            launch(start + 10, 5, corr + 1),
            kernel("gemm", start + 20, 200, corr + 1),
            op("aten::_local_scalar_dense", start + 300, 100),
            call("cudaMemcpyAsync", start + 305, 10, corr + 2),
            memcpy("DtoH (Device -> Pageable)", start + 310, 10, corr + 2),
            call("cudaStreamSynchronize", start + 316, 60),
            comms("allreduce", start + 600, 20, (1000, 1000)),
            launch(start + 605, 5, corr + 3),
            kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", start + 620, 100, corr + 3),
            op("dynamo", start + 800, 50),
        ]
    path = write(tmp_path / "trace.json", *rows, op("aten::mm", "soon", 1))
    monkeypatch.setattr("sys.argv", ["traceq", "show", str(path), "--json"])
    with pytest.raises(SystemExit):
        main()
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_show_keeps_every_key_it_promises(shown: dict[str, Any]) -> None:
    fits(shown, SHOW, "show")
    assert shown["schema"] == "traceq.show/3"


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
    for step_row in shown["steps"]:
        cells = [row["dur_ns"] for row in shown["partition"] if row["step"] == step_row["step"]]
        assert sum(cells) == step_row["window_ns"]
