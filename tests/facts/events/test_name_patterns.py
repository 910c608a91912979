"""Names of rows: those of a whole category are examined once, and others are not taken for them."""

from __future__ import annotations

import re

import numpy as np
from builder import build, kernel, launch, op

from traceq.facts.events.name_patterns import matching, unique_names
from traceq.model import Category

TRACE = build(op("aten::add", 0, 5), op("aten::mul", 10, 5), launch(12, 1, 1), kernel("add_kernel", 14, 3, 1))


def test_a_pattern_matches_the_names_of_the_rows_that_are_given() -> None:
    events = TRACE.events
    ops = events.rows(Category.CPU_OP)
    for _ in range(2):  # the second time from what was kept
        assert matching(events, ops, re.compile("add")).tolist() == [True, False]
        assert matching(events, ops, re.compile("add_kernel")).tolist() == [False, False]
        assert matching(events, ops[1:], re.compile("add")).tolist() == [False]


def test_distinct_names_ascend_and_point_back_at_their_rows() -> None:
    events = TRACE.events
    for rows in (events.rows(Category.CPU_OP), np.array([3, 0, 3, 1])):
        names, index = unique_names(events, rows)
        assert names.tolist() == sorted({*events.name[rows].tolist()})
        assert names[index].tolist() == events.name[rows].tolist()
