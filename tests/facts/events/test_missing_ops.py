"""Which part of its ops a trace lacks, by their numbers; whole traces are those of the catalogue."""

from __future__ import annotations

import pytest
from builder import build, op, step
from paths import FIXTURES

from traceq.facts.events.unrecorded_work import missing_ops_share
from traceq.runs.read import read


def share(numbers: list[int]) -> float:
    ops = [op("aten::add", 2 * index, 1, **{"External id": number}) for index, number in enumerate(numbers)]
    return missing_ops_share(build(step(0, 2 * len(numbers)), *ops))


def test_one_op_in_ten_is_a_sample() -> None:
    assert share([10 * n for n in range(1, 201)]) == pytest.approx(1 - 200 / 1991)
    assert share([10 * n for n in range(1, 51)]) == 0.0  # too few to tell


def test_numbers_of_annotations_and_of_other_threads_are_not_missing_ops() -> None:
    assert share([2 * n for n in range(1, 201)]) == 0.0  # every second number is an annotation
    assert share([n + (5_000 if n > 100 else 0) for n in range(1, 201)]) == 0.0
    assert share([n + (n // 10) * 5 for n in range(1, 201)]) == 0.0


def test_a_recording_lacks_none() -> None:
    assert [missing_ops_share(trace) for trace in read(FIXTURES / "outlier_ab" / "off").traces] == [0.0, 0.0]
