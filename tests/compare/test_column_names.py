"""Columns of tables are named after both sides of a diff, as short as tells them apart."""

from __future__ import annotations

from pathlib import Path

import pytest
from builder import kernel, launch, step, write

import traceq
from traceq.compare.tables import waterfall


@pytest.mark.parametrize(
    ("names", "headings"),
    [
        (("before", "after"), ["before", "after"]),
        (("traces_h100_bert_base_uncased", "traces_mi300_bert_base_uncased"), ["h100", "mi300"]),
        (("a_training_run_of_a_long_name", "a_training_run_of_a_long_name_2"), ["A", "B"]),  # A has nothing of its own
        (("a" * 30, "b" * 30), ["A", "B"]),
    ],
)
def test_long_names_are_cut_to_what_differs(names: tuple[str, str], headings: list[str], tmp_path: Path) -> None:
    a, b = (
        traceq.read(write(tmp_path / f"{name}.json", step(0, us), launch(1, 2, corr=1), kernel("k", 5, us - 9, corr=1)))
        for name, us in zip(names, (100, 150), strict=True)
    )
    table = waterfall(traceq.diff(a, b))
    assert [column.title for column in table.columns if column.key in ("a_ns", "b_ns")] == headings
