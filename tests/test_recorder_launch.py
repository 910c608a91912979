"""What the launcher learns from ranks that were on their way out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the launcher is torch's")

from traceq.recorder.launch import _still_leaving
from traceq.recorder.plan import Plan


def plan(out: Path, num_ranks: int) -> Plan:
    return Plan(
        recipe="", run_id="r", out=str(out), device="cpu", num_ranks=num_ranks, steps=0, trace_steps=1, seed=0,
        parameters={}, arms=(),
    )  # fmt: skip


def test_a_rank_that_told_its_fault_before_it_was_gone_is_heard(tmp_path: Path) -> None:
    """Elastic names only the ranks that were gone when it looked: here the peer, which lost its connection first."""
    for rank, text in ((1, '{"message": {"message": "RuntimeError: mine"}}'), (2, "{"), (3, json.dumps({}))):
        folder = tmp_path / "x" / "attempt_0" / str(rank)
        folder.mkdir(parents=True)
        (folder / "error.json").write_text(text)
    found = list(_still_leaving(plan(tmp_path / "run", 5), {0}, tmp_path))
    assert [(failure.rank, failure.message) for failure in found] == [(1, "RuntimeError: mine")]
    assert list(_still_leaving(plan(tmp_path / "run", 5), {0, 1}, tmp_path)) == []
