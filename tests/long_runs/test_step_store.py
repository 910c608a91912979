"""Steps on disk: whole rows in files of bounded number, and a histogram for each minute."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from made_steps import made_rows

from traceq.long_runs import step_store
from traceq.long_runs.step_store import (
    STEP,
    TIMES,
    RowReader,
    RowWriter,
    Sketches,
    last_rows,
    quantile,
    read_sketches,
    sketch_of,
)


def test_rows_are_read_as_they_are_appended(tmp_path: Path) -> None:
    rows, reader = made_rows(100), RowReader(tmp_path, 3)
    assert len(reader.take()) == 0
    with closing(RowWriter(tmp_path, 3)) as writer:
        writer.append(rows[:40])
        assert (reader.take() == rows[:40]).all()
        writer.append(rows[40:])
    assert (reader.take() == rows[40:]).all()
    assert len(reader.take()) == 0


@pytest.mark.parametrize("cut", range(1, STEP.itemsize, 7))
def test_a_torn_row_is_none(tmp_path: Path, cut: int) -> None:
    rows = made_rows(10)
    with closing(RowWriter(tmp_path, 0)) as writer:
        writer.append(rows)
    (path,) = tmp_path.glob("*.rows")
    path.write_bytes(path.read_bytes()[:-cut])
    assert (RowReader(tmp_path, 0).take() == rows[:9]).all()


def test_disk_is_bounded_and_a_reader_keeps_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_store, "FILE_BYTES", 100 * STEP.itemsize)
    rows, reader = made_rows(5000), RowReader(tmp_path, 0)
    seen = []
    with closing(RowWriter(tmp_path, 0)) as writer:
        for begin in range(0, 5000, 50):
            writer.append(rows[begin : begin + 50])
            seen.append(reader.take())
    assert (np.concatenate(seen) == rows).all()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= step_store.KEPT_FILES * 100 * STEP.itemsize
    assert last_rows(tmp_path, 0)["step"][-1] == 4999
    assert RowReader(tmp_path, 0).take()["step"][-1] == 4999


def test_a_process_that_is_started_again_begins_a_new_file(tmp_path: Path) -> None:
    for _ in range(2):
        with closing(RowWriter(tmp_path, 0)) as writer:
            writer.append(made_rows(10))
    assert list(RowReader(tmp_path, 0).take()["step"]) == [*range(10), *range(10)]


def test_a_rank_whose_files_are_removed_says_so(tmp_path: Path) -> None:
    with closing(RowWriter(tmp_path, 0)) as writer:
        next(tmp_path.iterdir()).unlink()
        with pytest.raises(FileNotFoundError):
            writer.append(made_rows(1))


def test_quantiles_of_a_histogram_are_near_those_of_its_steps() -> None:
    rows = made_rows(5000, forward=np.random.default_rng(1).exponential(0.01, 5000))
    counts = sketch_of(rows)["counts"][0, TIMES.index("wall")]
    for share in (0.1, 0.5, 0.9, 0.99):
        assert quantile(counts, share) == pytest.approx(np.quantile(rows["wall"], share), rel=0.03)
    assert np.isnan(quantile(0 * counts, 0.5))


def test_each_minute_that_has_ended_has_a_histogram(tmp_path: Path) -> None:
    rows = made_rows(20_000)
    sketches = Sketches(tmp_path, 0)
    for begin in range(0, len(rows), 1000):
        sketches.add(rows[begin : begin + 1000])
    read = read_sketches(tmp_path, 0)
    minutes = np.unique(rows["time"] // 60)
    assert list(read["time"] // 60) == list(minutes[:-1])
    assert read["num_regular"].sum() == np.count_nonzero(rows["time"] // 60 < minutes[-1])
    assert (read["counts"].sum(axis=2) == read["num_regular"][:, None]).all()
