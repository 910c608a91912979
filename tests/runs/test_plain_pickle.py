"""Pickles of plain values: what is read, and what is refused before it takes memory, time or the C stack."""

from __future__ import annotations

import gc
import pickle
import pickletools
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from traceq.runs.plain_pickle import PickleRefused, load_plain, load_shared

NUMBERS = some.integers() | some.integers(0, 300) | some.floats(allow_nan=False) | some.booleans() | some.none()
KEYS = some.text(max_size=300) | some.integers(0, 70_000)
VALUES = some.recursive(
    NUMBERS | some.text(),
    lambda inner: (
        some.lists(inner)
        | some.tuples(inner)
        | some.tuples(inner, inner, inner, inner)
        | some.dictionaries(KEYS, inner)
    ),
)
PROTOCOLS = range(2, pickle.HIGHEST_PROTOCOL + 1)


@pytest.mark.slow
@given(value=VALUES, protocol=some.sampled_from(PROTOCOLS))
def test_plain_values_are_read_as_they_were_written(value: Any, protocol: int) -> None:
    assert load_shared(pickle.dumps(value, protocol)) == value


@given(
    content=some.binary(max_size=60)
    | some.lists(some.sampled_from(list(pickletools.code2op))).map(
        lambda codes: "".join(codes).encode("latin-1") + b"."
    )
)
def test_any_bytes_are_a_value_or_refused(content: bytes) -> None:
    try:
        load_shared(content)
    except PickleRefused:
        return


@pytest.mark.parametrize("size", [100, 70_000, 20_000_000])
@pytest.mark.parametrize("times", [2, 300, 1 << 31])
def test_places_in_the_memo_are_bounded_by_the_size(size: int, times: int) -> None:
    text = b"\x80\x02B" + size.to_bytes(4, "little") + bytes(size) + b"0]r"
    index = min(max(1 << 17, times * len(text)), (1 << 32) - 1)
    with pytest.raises(PickleRefused, match="memo is larger than itself"):
        load_shared(text + index.to_bytes(4, "little") + b".")


@pytest.mark.parametrize("opcode", [b"\x85", b"0K\x01\x85", b"q\x00\x85", b"K\x01\x86", b"K\x01K\x01\x87"])
def test_tuples_within_tuples_do_not_overflow_the_stack(opcode: bytes) -> None:
    with pytest.raises(PickleRefused, match="more than 65,536 tuples"):
        load_plain(b"\x80\x02})" + opcode * 1_000_000 + b"Ns.")


def test_pairs_of_numbers_are_not_counted_among_them() -> None:
    value = [(0, number % 300) for number in range(100_000)]
    assert load_plain(pickle.dumps(value)) == value


def test_shared_parts_are_one_object_and_take_no_more_memory() -> None:
    value: list[object] = []
    for _ in range(60):
        value = [value, value]
    content = pickle.dumps(value)
    tracemalloc.start()
    try:
        loaded = load_shared(content)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert loaded[0] is loaded[1]
    with pytest.raises(PickleRefused, match="expands to more than"):
        load_plain(content)


@pytest.mark.parametrize("is_enabled", [True, False])
def test_garbage_is_collected_afterwards_as_before(is_enabled: bool) -> None:
    was_enabled = gc.isenabled()
    (gc.enable if is_enabled else gc.disable)()
    try:
        load_shared(pickle.dumps([1]))
        with pytest.raises(PickleRefused):
            load_shared(b"\x80\x02(.")
        assert gc.isenabled() == is_enabled
    finally:
        (gc.enable if was_enabled else gc.disable)()


def test_what_follows_the_end_of_a_pickle_is_not_read() -> None:
    assert load_shared(pickle.dumps([1]) + b"\x80\x02cos\nsystem\n.") == [1]
