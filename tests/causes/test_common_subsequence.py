"""Common subsequences: valid always, and longest where the shortest edit script decides."""

from __future__ import annotations

import numpy as np
import pytest
from examples import up_to
from hypothesis import given
from hypothesis import strategies as st

from traceq.causes.common_subsequence import Pairs, _edit_script, common_subsequence

VALUES = st.sampled_from([-(2**62) + 5, -1, 0, 1, 2**63 - 1 - 2**55])
FEW_NAMES = st.lists(VALUES, max_size=25).map(lambda values: np.array(values, np.int64))
MANY_NAMES = st.lists(st.integers(0, 30), max_size=40).map(lambda values: np.array(values, np.int64))


def longest(a: list[int], b: list[int]) -> int:
    """Length of a longest common subsequence, by the textbook's table."""
    above = [0] * (len(b) + 1)
    for x in a:
        row = [0]
        for index, y in enumerate(b):
            row.append(above[index] + 1 if x == y else max(above[index + 1], row[-1]))
        above = row
    return above[-1]


def assert_valid(a: np.ndarray, b: np.ndarray, pairs: Pairs) -> None:
    in_a, in_b = pairs
    assert len(in_a) == len(in_b)
    assert (np.diff(in_a) > 0).all()
    assert (np.diff(in_b) > 0).all()
    assert a[in_a].tolist() == b[in_b].tolist()


def of(text: str) -> np.ndarray:
    return np.array([ord(letter) for letter in text], np.int64)


@up_to(400)
@given(FEW_NAMES, FEW_NAMES)
def test_a_shortest_edit_script_keeps_a_longest_common_subsequence(a: np.ndarray, b: np.ndarray) -> None:
    pairs = _edit_script(a, b)
    assert_valid(a, b, pairs)
    assert len(pairs[0]) == longest(a.tolist(), b.tolist())


def test_scripts_of_hundreds_of_edits_keep_a_longest_one_too() -> None:
    a, b = np.random.default_rng(7).integers(0, 9, (2, 700))
    pairs = _edit_script(a, b)
    assert_valid(a, b, pairs)
    assert len(pairs[0]) == longest(a.tolist(), b.tolist()) < 450


def test_iterations_of_a_long_loop_are_paired_whose_ops_vary() -> None:
    """Of 40,000 ops in iterations of 20 every tenth one is left out, and every tenth is new."""
    rng = np.random.default_rng(7)
    a = np.tile(np.arange(20), 2_000)
    kept = rng.random(len(a)) > 0.1
    b = np.insert(a[kept], rng.integers(0, kept.sum(), 4_000), 77)
    in_a, in_b = common_subsequence(a, b)
    assert_valid(a, b, (in_a, in_b))
    assert len(in_a) >= kept.sum()


@pytest.mark.slow
@up_to(400)
@given(st.one_of(FEW_NAMES, MANY_NAMES), st.one_of(FEW_NAMES, MANY_NAMES))
def test_pairs_are_equal_and_ascending(a: np.ndarray, b: np.ndarray) -> None:
    assert_valid(a, b, common_subsequence(a, b))


@pytest.mark.slow
@up_to(200)
@given(MANY_NAMES, st.data())
def test_what_was_only_taken_out_leaves_the_rest_paired(a: np.ndarray, data: st.DataObject) -> None:
    kept = np.array(data.draw(st.lists(st.booleans(), min_size=len(a), max_size=len(a))), np.bool_)
    pairs = common_subsequence(np.unique(a), np.unique(a[kept]))
    assert np.unique(a)[pairs[0]].tolist() == np.unique(a[kept]).tolist()


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("abcd", "abcd", "abcd"),
        ("abcd", "abxcd", "abcd"),
        ("aXbab", "aYbab", "abab"),
        ("xaaa", "aaax", "x"),  # x is the only letter that occurs once on both sides and decides
        ("abcX", "Xabc", "abc"),
        ("", "abc", ""),
    ],
)
def test_ends_come_first_then_elements_that_occur_once(a: str, b: str, expected: str) -> None:
    in_a, in_b = common_subsequence(of(a), of(b))
    assert "".join(a[index] for index in in_a) == "".join(b[index] for index in in_b) == expected


def test_what_differs_in_most_of_its_elements_is_not_compared() -> None:
    near, far = (np.tile(of(text), 100) for text in ("xyabab", "xyzwvab"))
    a = np.tile(of("abab"), 100)
    assert len(_edit_script(a, near)[0]) == 400
    assert len(_edit_script(a, far)[0]) == 0
    assert longest(a.tolist(), far.tolist()) == 200


def test_an_edit_script_does_not_take_values_for_equal_that_differ_in_their_highest_bit() -> None:
    a, b = np.array([-(2**63), 0, -(2**63)]), np.array([0, -(2**63), -(2**63)])
    assert_valid(a, b, _edit_script(a, b))
