"""The store: several write it at once, one may be killed at any moment, and nothing is lost or torn."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from dataclasses import asdict, fields, replace
from datetime import datetime
from pathlib import Path

import duckdb
import pytest
from patience import patient

from traceq.errors import UnreadableInput
from traceq.history.store import Row, append, append_tag, read_rows, read_tags
from traceq.locations import place

ROW = Row("r1", datetime(2026, 11, 2, 9), "main", "c0ffee", "run", "runs/1", "step", 0, 4e7, 3.9e7, 4.1e7, "ns", "H100")
WRITER = """
import sys
from datetime import datetime
from pathlib import Path
from traceq.history.store import Row, append
for number in range(int(sys.argv[3])):
    run = f"{sys.argv[2]}-{number}", datetime(2026, 11, 2), "main", "c0ffee", "run", "runs/1"
    sys.stdin.readline()  # without a line or the end it waits
    append(Path(sys.argv[1]), [Row(*run, measure, 0, 4e7, None, None, "ns") for measure in ("step", "mfu")])
    print(number, flush=True)
"""


def test_rows_come_back_as_they_were_added(tmp_path: Path) -> None:
    rows = (ROW, replace(ROW, measure="mfu", rank=None, low=None, high=None, unit="percent"))
    append(tmp_path / "store", rows)
    assert read_rows(tmp_path / "store").rows == rows


def test_a_store_may_be_a_url(tmp_path: Path) -> None:
    store = place(f"memory://{tmp_path.name}/store")
    append(store, [ROW])
    append(store, [replace(ROW, run_id="r2")])
    append_tag(store, "v1", "r2")
    assert [row.run_id for row in read_rows(store).rows] == ["r1", "r2"]
    assert read_tags(store) == {"v1": "r2"}


def test_the_last_tag_of_a_name_counts(tmp_path: Path) -> None:
    append_tag(tmp_path, "v1", "r1")
    append_tag(tmp_path, "v2", "r1")
    append_tag(tmp_path, "v1", "r2")
    assert read_tags(tmp_path) == {"v1": "r2", "v2": "r1"}


def test_a_file_that_cannot_be_read_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    whole = tmp_path / append(tmp_path, [ROW])
    (tmp_path / "20200101-torn.parquet").write_bytes(whole.read_bytes()[:-9])
    (tmp_path / ".20200101-x.parquet.part").write_bytes(b"P")
    stored = read_rows(tmp_path)
    assert stored.rows == (ROW,)
    assert [("torn" in caveat.text, caveat.code) for caveat in stored.caveats] == [(True, "unreadable_rows")]


def test_no_store_and_one_of_a_newer_version_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnreadableInput, match="no such folder"):
        read_rows(tmp_path / "none")
    monkeypatch.setattr("traceq.history.store._VERSION", 2)
    append(tmp_path, [ROW])
    monkeypatch.undo()
    with pytest.raises(UnreadableInput, match="newer traceq"):
        read_rows(tmp_path)


def test_duckdb_reads_a_store(tmp_path: Path) -> None:
    append(tmp_path, [ROW])
    append(tmp_path, [replace(ROW, run_id="r2", value=5e7)])
    append_tag(tmp_path, "v1", "r1")
    answer = duckdb.sql(f"SELECT * FROM '{tmp_path}/*.parquet' ORDER BY run_id")
    assert answer.columns == [each.name for each in fields(Row)]
    assert answer.fetchall() == [tuple(asdict(each).values()) for each in (ROW, replace(ROW, run_id="r2", value=5e7))]


def _append_while_one_is_killed(folder: Path, num: int, num_kills: int) -> None:
    """Two processes append `num` times each; the second is killed again and again, and goes on where it stopped."""
    draw, store = random.Random(num), folder / "store"

    def start(name: str, times: int, most: int) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", WRITER, str(store), name, str(times)]
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder)
        assert process.stdin is not None
        process.stdin.write("\n" * most)
        process.stdin.flush()
        return process

    steady, returned, lives, left = start("steady", num, num), [], 0, num
    while left > 0:
        lives += 1
        most = draw.randrange(-(-left // 2)) if lives <= num_kills else left
        killed = start(f"life{lives}", left, most + 2)  # it is killed in the last append, or while it waits for more
        assert killed.stdout is not None
        lines = []
        for line in killed.stdout:
            lines.append(line)
            if len(lines) > most:
                time.sleep(draw.uniform(0, 0.002))
                killed.send_signal(signal.SIGKILL)
                break
        lines += killed.stdout.readlines()
        killed.communicate(timeout=patient(60))
        returned += [f"life{lives}-{number}" for number in range(sum(line.endswith("\n") for line in lines))]
        left = num - len(returned)
    out, _ = steady.communicate(timeout=patient(300))
    returned += [f"steady-{number}" for number in range(out.count("\n"))]
    stored = read_rows(store)
    measures: dict[str, list[str]] = {}
    for row in stored.rows:
        measures.setdefault(row.run_id, []).append(row.measure)
    assert lives > num_kills
    assert stored.caveats == ()
    assert len(returned) >= 2 * num
    assert set(returned) <= measures.keys()
    assert len(measures) <= len(returned) + lives  # what was whole, though the writer died before it could say so
    assert set(map(tuple, measures.values())) == {("step", "mfu")}


def test_nothing_is_lost_or_torn_when_a_writer_is_killed(tmp_path: Path) -> None:
    _append_while_one_is_killed(tmp_path, 20, num_kills=1)


@pytest.mark.slow
def test_nothing_of_a_thousand_appends_is_lost_or_torn(tmp_path: Path) -> None:
    _append_while_one_is_killed(tmp_path, 1000, num_kills=9)
