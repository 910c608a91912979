"""Which ranks of a large job are worth looking at, and that `open` shows these."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

import pytest
from fleet import MS, Fleet, play
from terminal import traceq

from traceq.commands import open as open_command
from traceq.engines.notable_ranks import MOST_RANKS, NotableRanks, notable_ranks
from traceq.engines.rank_reader import SameProcess
from traceq.errors import UnreadableInput

LATE, DESYNCED = (4, 5, 6, 7), 9
JOB = Fleet(num_ranks=12, ranks_per_host=4, layers=1, steps=3, late_ranks=LATE, late_ns=6 * MS, desync_rank=DESYNCED)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return play(JOB).write(tmp_path_factory.mktemp("fleet"))


def notable_of(folder: Path) -> NotableRanks | None:
    return notable_ranks(str(folder), start=lambda: nullcontext(SameProcess()), small=-1)


def test_late_ranks_both_sides_of_a_desync_the_median_and_the_fastest_are_notable(folder: Path) -> None:
    notable = notable_of(folder)
    assert notable is not None
    assert notable.num_ranks == 12
    kinds = {reason: rank for rank, why in notable.why.items() for reason in why}
    assert kinds["slowest"] in LATE
    assert {rank for rank, why in notable.why.items() if "straggler" in why} <= set(LATE)
    assert kinds["desync"] == DESYNCED
    assert kinds["not desynced"] not in (DESYNCED, None)
    assert not {kinds["median"], kinds["fastest"]} & set(LATE)
    assert len(notable.why) <= MOST_RANKS


def test_all_ranks_of_a_small_job_are(folder: Path, tmp_path: Path) -> None:
    for rank in range(MOST_RANKS):
        (tmp_path / f"rank{rank}.json.gz").write_bytes((folder / f"rank{rank}.json.gz").read_bytes())
    assert notable_of(tmp_path) is None
    assert notable_of(tmp_path / "rank0.json.gz") is None


@pytest.mark.parametrize("chosen", [None, "0,1"])
def test_open_shows_them_and_says_why_unless_ranks_are_named(folder: Path, chosen: str | None) -> None:
    queries: list[set[int] | None] = []

    def stop(path: str, other: str | None, ranks: set[int] | None) -> None:
        queries.append(ranks)
        raise UnreadableInput(path, "far enough")

    with patch.object(open_command, "read_subject", stop):
        outcome = traceq("open", folder, *(["--ranks", chosen] if chosen else []))
    notable = notable_of(folder)
    assert notable is not None
    assert queries == [{0, 1} if chosen else set(notable.why)]
    assert (f"{notable}\n" in outcome.err) == (chosen is None)
    assert "--ranks chooses others" in str(notable)
