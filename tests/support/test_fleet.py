"""The made-up job of many ranks is what it says it is: what is found in it is what was put there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from builder import read_text
from fleet import MS, Fleet, play

from traceq.analysis.registry import analyze
from traceq.model import Run
from traceq.runs.read import read

SMALL = Fleet(num_ranks=12, ranks_per_host=4, layers=2, steps=3)
LATE = Fleet(num_ranks=12, ranks_per_host=4, layers=2, steps=3, late_ranks=(4, 5, 6, 7), late_ns=6 * MS)


def rows(run: Run, name: str) -> list[dict[str, Any]]:
    table = analyze(run, name).tables[0]
    return [dict(zip((column.key for column in table.columns), row, strict=True)) for row in table.rows]


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return read(play(LATE).write(tmp_path_factory.mktemp("late")))


def test_a_rank_of_the_whole_job_is_about_a_megabyte() -> None:
    assert 1_000_000 < len(play(Fleet(num_ranks=8)).text(3)) < 1_300_000


def test_the_same_seed_writes_the_same_bytes_and_another_one_does_not() -> None:
    first, again, other = (play(fleet).text(2) for fleet in (SMALL, SMALL, Fleet(12, 4, 2, 3, seed=1)))
    assert first == again != other


def test_ranks_issue_what_fsdp_predicts(late: Run) -> None:
    reported = rows(late, "strategy")
    assert {row["rank"] for row in reported} == set(range(12))
    assert {(row["strategy"], row["verdict"]) for row in reported} == {("FSDP2", "exact")}


def test_the_late_host_waits_for_nobody_and_the_others_wait_for_it(late: Run) -> None:
    idle_ms = {row["rank"]: row["exposed_wait_ns"] / row["num_steps"] / MS for row in rows(late, "ranks")}
    assert all((idle_ms[rank] > 4) == (rank not in LATE.late_ranks) for rank in idle_ms)
    assert all((idle_ms[rank] < 1) == (rank in LATE.late_ranks) for rank in idle_ms)


def test_clocks_are_found_as_they_were_set(late: Run) -> None:
    offset = play(LATE).offset
    result = [row["offset_ns"] for row in rows(late, "ranks")]
    assert [result[rank] - result[0] for rank in range(12)] == [int(index - offset[0]) for index in offset]


def test_a_desync_is_on_the_rank_and_in_the_step_where_it_was_put() -> None:
    fleet = Fleet(num_ranks=12, ranks_per_host=4, layers=1, steps=3, desync_rank=7)
    (finding,) = analyze(Run("job", tuple(read_each(fleet))), "desync").findings
    assert (finding.measures["extra_ranks"], finding.measures["step"]) == ("rank 7", 12)


def read_each(fleet: Fleet) -> list[Any]:
    played = play(fleet)
    return [read_text(played.text(rank).encode()) for rank in range(fleet.num_ranks)]


def test_files_are_packed_or_plain(tmp_path: Path) -> None:
    fleet = Fleet(num_ranks=2, ranks_per_host=1, layers=1, steps=2)
    plain, packed = (play(fleet).write(tmp_path / str(how), packed=how) for how in (False, True))
    assert sorted(file.name for file in plain.iterdir()) == ["rank0.json", "rank1.json"]
    assert len(read(plain).traces[1].events) == len(read(packed).traces[1].events) > 0
