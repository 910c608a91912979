"""On every real trace a sync's label, its finding and its savings say the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from catalogue import FILES

from traceq.analysis.registry import analyze
from traceq.facts.timeline.steps import steps
from traceq.runs.read import read


@pytest.mark.parametrize("path", FILES)
def test_no_label_contradicts_what_its_removal_saves(path: Path) -> None:
    run = read(path)
    step_ns = {}
    for trace in run.traces:
        windows = steps(trace).window[steps(trace).counted]
        step_ns[trace.rank] = (windows[:, 1] - windows[:, 0]).mean()
    report = analyze(run, "syncs")
    rows = {(row["rank"], row["key"]): row for row in report.tables[0].to_dicts()}
    for row in rows.values():
        assert (row["replay_ns"] is None) == (row["label"] == "unknown")
        row["replay_ns"] = row["replay_ns"] or 0
        is_saving = row["replay_ns"] > 0 and row["replay_ns"] >= 0.001 * step_ns[row["rank"]]
        assert (row["label"] == "costly") == is_saving
        assert 0 <= row["replay_ns"] <= row["blocked_ns"]
    by_key: dict[str, int] = {}
    for (_, key), row in rows.items():
        by_key[key] = max(by_key.get(key, 0), row["replay_ns"])
    for finding in report.findings:
        assert finding.ns == by_key[finding.key]
