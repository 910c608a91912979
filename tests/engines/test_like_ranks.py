"""JSON of many ranks: the rows of a few stand for the rest, findings still lead to rows, and all are a word away."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fleet import MS, Fleet, play
from terminal import traceq

from traceq.analysis.registry import sheet
from traceq.claims.claim import Claim, Subject
from traceq.engines import notable_ranks
from traceq.engines.notable_ranks import without_like_ranks
from traceq.renderers.json import json_pieces
from traceq.report import Cell, Column, Report, Sheet, Source, Table
from traceq.runs.read import read

LATE, DESYNCED = (4, 5, 6, 7), 9
JOB = Fleet(num_ranks=12, ranks_per_host=4, layers=1, steps=3, late_ranks=LATE, late_ns=6 * MS, desync_rank=DESYNCED)
WHOLE = ("job_path", "caused_waits")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return play(JOB).write(tmp_path_factory.mktemp("fleet"))


@pytest.fixture(autouse=True)
def ten_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notable_ranks, "_MOST_WITH_ROWS", 10)


def shown(*words: str | Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(traceq("show", "--json", *words).out)
    return result


def test_a_rank_of_each_cluster_and_those_that_stand_out_have_all_of_their_rows(folder: Path) -> None:
    few, full = shown(folder), shown("--full", folder)
    kept = few["source"]["rows_of"]
    assert DESYNCED in kept
    assert set(kept) & set(LATE)
    assert set(kept) - {DESYNCED, *LATE}
    assert len(kept) < JOB.num_ranks
    for key, rows in full.items():
        if key not in WHOLE and isinstance(rows, list) and rows and "rank" in rows[0]:
            assert few[key] == [row for row in rows if row["rank"] in kept], key
        elif key not in ("source", "warnings"):
            assert few[key] == rows, key
    assert few["source"] == {**full["source"], "rows_of": kept}
    assert {each["code"] for each in few["warnings"]} == {*(each["code"] for each in full["warnings"]), "like_ranks"}


def test_each_cluster_has_the_rank_in_its_middle(folder: Path) -> None:
    few, full = shown(folder), shown("--full", folder)
    own_ns = {rank: sum(row["own_ns"] for row in full["rank_phases"] if row["rank"] == rank) for rank in range(12)}
    late = sorted(LATE, key=own_ns.__getitem__)
    assert late[1] in few["source"]["rows_of"]


def test_all_rows_are_there_where_they_are_asked_for(folder: Path) -> None:
    assert json.loads("".join(json_pieces(sheet(read(folder))))) == shown("--full", folder)
    assert {row["rank"] for row in shown("--only", "syncs", folder)["syncs"]} == set(range(12))
    assert "rows_of" not in shown("--only", "syncs", folder)["source"]


def test_a_job_of_no_more_ranks_is_complete(folder: Path) -> None:
    some = shown("--ranks", "0-9", folder)
    assert {row["rank"] for row in some["steps"]} == set(range(10))
    assert "rows_of" not in some["source"]


def table(key: str, keys: str, *rows: tuple[Cell, ...]) -> Table:
    return Table(key, "", tuple(map(Column, keys.split())), rows)


RANKS = "key rank step_ns exposed_wait_ns num_steps verdict"


def made_sheet(key: str) -> Sheet:
    """Twelve ranks that are alike, each with a sync at `line RANK`, and a finding on the row of some key."""
    ranks = range(12)
    of_ranks = table("ranks", RANKS, *((f"rank {r}", r, 9, 0, 1, "") for r in ranks))
    phases = table("rank_phases", "rank own_ns", *((rank, 100 - rank) for rank in ranks))
    clusters = Report("clusters", (table("clusters", "ranks", ("0-11",)), phases))
    desync, syncs = table("desync", "rank how"), table("syncs", "key rank", *((f"line {r}", r) for r in ranks))
    reports = (Report("ranks", (of_ranks,)), clusters, Report("desync", (desync,)), Report("syncs", (syncs,)))
    finding = Report("found", findings=(Claim("costly_sync", 1, Subject(key=key)),))
    return Sheet(Source("job", 12, tuple(ranks), 12, "cpu", ""), (*reports, finding))


@pytest.mark.parametrize("key", ["line 3", "line 5", "line 11"])
def test_the_row_of_a_finding_is_kept_though_its_rank_is_like_others(key: str) -> None:
    few = without_like_ranks(made_sheet(key))
    kept = few.source.rows_of
    assert set(kept) == {0, 6, 11}  # the fastest, the median of equal steps and of own times, the slowest
    keys = [row[0] for row in few.report("syncs").table("syncs").rows]
    assert sorted(keys) == sorted({*(f"line {rank}" for rank in kept), key})
    assert few.report("clusters").table("clusters").rows == (("0-11",),)


def test_a_rank_that_a_finding_is_about_has_all_of_its_rows() -> None:
    few = without_like_ranks(made_sheet("rank 4"))
    assert set(few.source.rows_of) == {0, 4, 6, 11}
    assert ("line 4", 4) in few.report("syncs").table("syncs").rows
