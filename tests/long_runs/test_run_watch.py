"""What the launcher of a watched job says and asks for, from what its ranks have written."""

from __future__ import annotations

import urllib.request
from contextlib import closing
from pathlib import Path

import pytest
from made_steps import MS, ONSET, complete, made_ranks, since, watched_run

from traceq.errors import TraceqError, UnreadableInput, UsageFault
from traceq.long_runs.block_tree import Store
from traceq.long_runs.limits import CAPTURES_A_DAY, CAPTURES_OF_A_KIND
from traceq.long_runs.onsets import KINDS, SLOW_JOB, SLOW_RANK, Onset
from traceq.long_runs.run_watch import Captures, RunWatch, capture_now
from traceq.long_runs.status import read_status, serve_metrics
from traceq.long_runs.step_store import RowWriter
from traceq.long_runs.watch_folder import HEALTHY, WatchFolder

SLOWER = since(ONSET, 0.9 * MS)


def no_store(address: str) -> Store:
    """One launcher needs none."""
    raise AssertionError(address)


def test_an_onset_is_said_kept_and_traced_behind_the_healthy_steps(tmp_path: Path) -> None:
    ranks = made_ranks({}, {"forward": SLOWER, "cpu": SLOWER})
    folder = watched_run(tmp_path / "run", [rows[:ONSET] for rows in ranks])
    watch = RunWatch(folder, no_store)
    assert watch.read() == []
    assert (folder.read_capture().name, folder.read_capture().first_step) == (HEALTHY, ONSET - 1 + 333)
    complete(folder, HEALTHY)
    for rank, rows in enumerate(ranks):
        with closing(RowWriter(folder.steps, rank)) as writer:
            writer.append(rows[ONSET:])
    onset, healthy = watch.read()
    assert onset.startswith("traceq: slow rank: rank 1 became slower")
    assert healthy == f"traceq: healthy steps are traced: {folder.path / HEALTHY}"
    (kept,) = folder.read_onsets()
    assert (kept.kind, kept.capture) == (SLOW_RANK, folder.read_capture().name)
    complete(folder, "onset-1")
    with closing(RowWriter(folder.steps, 0)) as writer:
        writer.append(ranks[0][-1:])
    assert watch.read() == [f"traceq: onset-1: traceq diff {folder.path / HEALTHY} {folder.path / 'onset-1'}"]


def test_a_fault_of_the_watch_is_one_line(tmp_path: Path) -> None:
    folder = watched_run(tmp_path / "run", made_ranks({}))
    (folder.path / "watch.json").write_text("{")
    watch = RunWatch(folder, no_store)
    (line,) = watch.read()
    assert line.startswith("traceq: no more onsets are looked for: UnreadableInput")
    assert watch.read() == []


def test_a_capture_that_ranks_did_not_read_in_time_is_asked_for_again_with_more(tmp_path: Path) -> None:
    folder = watched_run(tmp_path, made_ranks({}))
    captures, step, leads = Captures(folder), 0, []
    for _ in range(10):
        assert list(captures.look(step, 1.0)) == []
        leads.append(folder.read_capture().first_step - step)
        step = folder.read_capture().first_step + 8
    assert leads[:3] == [3, 6, 12]
    assert leads[3:] == [-8] * 7


@pytest.mark.parametrize("status", ["recording", "failed"])
def test_one_capture_at_a_time_and_none_after_a_failed_one(tmp_path: Path, status: str) -> None:
    folder = watched_run(tmp_path, made_ranks({}))
    captures = Captures(folder)
    assert list(captures.look(0, 1.0)) == []
    complete(folder, HEALTHY, status)
    assert captures.name_for(onset_of(1, SLOW_JOB, 0)) == "onset-1"
    assert list(captures.look(1000, 1.0)) == []
    assert folder.read_capture().name == (HEALTHY if status == "recording" else "onset-1")


def onset_of(number: int, kind: str, time: float) -> Onset:
    fields = {"measure": "wall", "before": 1.0, "after": 2.0, "growth": 1.0, "low": 1.0, "high": 1.0}
    return Onset(number=number, kind=kind, ranks=(0,), step=0, time=time, **fields)


def test_captures_of_a_day_are_few(tmp_path: Path) -> None:
    captures = Captures(WatchFolder(tmp_path))
    names = [captures.name_for(onset_of(number, SLOW_JOB, number)) for number in range(5)]
    assert sum(map(bool, names)) == CAPTURES_OF_A_KIND
    names += [captures.name_for(onset_of(5 + number, kind, number)) for number, kind in enumerate(KINDS)]
    assert sum(map(bool, names)) == CAPTURES_A_DAY
    assert captures.name_for(onset_of(99, SLOW_JOB, 2 * 86_400.0)) == "onset-99"


def test_a_capture_on_demand_waits_for_its_steps(tmp_path: Path) -> None:
    folder = watched_run(tmp_path, made_ranks({}, {}))
    with pytest.raises(TraceqError, match="capture-1 is not complete within 0 s"):
        capture_now(tmp_path, 2, 0.0)
    assert folder.read_capture().num_steps == 2
    with pytest.raises(TraceqError, match="being traced now"):
        capture_now(tmp_path, 2, 0.0)
    with pytest.raises(UnreadableInput):
        capture_now(tmp_path / "other", 2, 0.0)


def test_the_status_has_each_rank_and_metrics_are_served(tmp_path: Path) -> None:
    folder = watched_run(tmp_path, made_ranks({}, {"memory": 1.0}))
    folder.append_onset(onset_of(1, SLOW_JOB, 0))
    status = read_status(tmp_path)
    assert [rank.rank for rank in status.ranks] == [0, 1]
    assert status.ranks[0].step_ns == pytest.approx(9.06e6, rel=0.01)
    assert (status.ranks[0].clock_mhz, status.ranks[0].throttled) == (1980, False)
    port = serve_metrics(tmp_path, 0)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    assert 'traceq_step_seconds{rank="1"} 0.009' in text
    assert 'traceq_memory_bytes{rank="0"} 3145728' in text
    assert 'traceq_clock_mhz{rank="0"} 1980\n' in text
    assert 'traceq_throttled{rank="0"} 0\n' in text
    assert 'traceq_onsets_total{kind="slow job"} 1' in text
    with pytest.raises(UsageFault, match="--metrics"):
        serve_metrics(tmp_path, port)
