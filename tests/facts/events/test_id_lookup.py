"""Lookup of rows by id, against a search through all ids."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from traceq.facts.events.device_work import first_index

some_ids = st.lists(st.integers(-1, 5), max_size=8)


@given(some_ids, some_ids)
def test_the_first_of_equal_ids_is_returned_and_ids_below_one_match_nothing(ids: list[int], queries: list[int]) -> None:
    expected = [ids.index(number) if number > 0 and number in ids else -1 for number in queries]
    assert first_index(np.array(ids, np.int64), np.array(queries, np.int64)).tolist() == expected
