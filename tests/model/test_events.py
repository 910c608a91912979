"""Rows by category: computed once per trace, never from another one's columns, never changed by a caller."""

from __future__ import annotations

import pickle
from dataclasses import fields, replace

import numpy as np
import pytest
from builder import build, kernel, launch, memcpy, op

from traceq.engines.rank_summary import pack, unpack
from traceq.model import Category, Events


def events() -> Events:
    return build(
        op("aten::mm", 0, 10), launch(2, 2, 1), kernel("gemm", 5, 5, 1), memcpy("HtoD", 12, 2, corr=2), op("add", 20, 1)
    ).events


def test_rows_are_those_of_any_of_the_categories_ascending() -> None:
    trace = events()
    assert trace.rows(Category.CPU_OP).tolist() == [0, 4]
    assert trace.rows(Category.MEMCPY, Category.KERNEL).tolist() == [2, 3]
    assert trace.rows(Category.SYNC).tolist() == trace.rows().tolist() == []


def test_rows_are_computed_once_and_cannot_be_changed() -> None:
    trace = events()
    rows = trace.rows(Category.KERNEL, Category.MEMCPY)
    assert trace.rows(Category.MEMCPY, Category.KERNEL) is rows
    with pytest.raises(ValueError, match="read-only"):
        rows += 1


def test_events_with_other_categories_have_other_rows() -> None:
    trace = events()
    assert len(trace.rows(Category.KERNEL)) == 1
    copies = replace(trace, category=np.full_like(trace.category, int(Category.KERNEL)))
    assert copies.rows(Category.KERNEL).tolist() == [0, 1, 2, 3, 4]


def test_the_cache_is_not_a_column_and_copies_give_the_same_rows() -> None:
    trace = events()
    packed = pack(trace)
    rows = trace.rows(Category.CPU_OP)
    assert pack(trace) == packed
    assert "_rows_of" not in {field.name for field in fields(trace)}
    for copy in (unpack(packed, Events), pickle.loads(pickle.dumps(trace))):
        assert copy.rows(Category.CPU_OP).tolist() == rows.tolist()
