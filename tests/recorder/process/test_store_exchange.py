"""Ranks exchange values by a store, and learn at once if one of them has left."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

pytest.importorskip("torch", reason="stores are torch's")

from torch._C._distributed_c10d import HashStore

from traceq.errors import RecordingFailed
from traceq.recorder.process.world import StoreExchange

pytestmark = pytest.mark.torch


def on_ranks(function: Callable[[StoreExchange, int], object], size: int = 3, seconds: float = 20) -> list[object]:
    """Return what the function returns on each rank, a thread each; an exception in its place."""
    store = HashStore()

    def run(rank: int) -> object:
        try:
            return function(StoreExchange(store, rank, size, timedelta(seconds=seconds)), rank)
        except RecordingFailed as fault:
            return str(fault)

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(run, range(size)))


def test_every_rank_has_the_values_of_all_in_order() -> None:
    def gather(exchange: StoreExchange, rank: int) -> list[object]:
        return [exchange.gather({"rank": rank, "round": number}) for number in range(5)]

    expected = [[{"rank": rank, "round": number} for rank in range(3)] for number in range(5)]
    assert on_ranks(gather) == [expected] * 3


def test_a_rank_that_left_is_not_waited_for() -> None:
    def leave_or_gather(exchange: StoreExchange, rank: int) -> object:
        return exchange.leave("the loop ended") if rank == 1 else exchange.gather(rank)

    assert on_ranks(leave_or_gather) == ["rank 1: the loop ended", None, "rank 1: the loop ended"]


def test_a_rank_may_leave_as_soon_as_its_value_is_there() -> None:
    """Between two looks of another rank: no value yet, then both."""

    class LateStore(HashStore):
        def check(self, keys: list[str]) -> bool:
            if keys == ["gather/0/1"] and not super().check(["left/1"]):
                leaving = StoreExchange(self, 1, 2, timedelta(seconds=20))
                assert not super().check(["gather/0/1"])
                self.set("left/1", "complete")
                assert leaving.gather("its value") == [0, "its value"]
                return False
            return super().check(keys)

    assert StoreExchange(LateStore(), 0, 2, timedelta(seconds=20)).gather(0) == [0, "its value"]


def test_a_rank_that_does_not_come_is_named() -> None:
    def gather(exchange: StoreExchange, rank: int) -> object:
        return None if rank == 2 else exchange.gather(rank)

    *waited, late = on_ranks(gather, seconds=0.2)
    assert [str(text).split(" did not ")[0] for text in waited] == ["rank 2", "rank 2"]
    assert late is None


def test_ranks_that_never_announced_themselves_are_absent() -> None:
    def announce(exchange: StoreExchange, rank: int) -> object:
        if rank:
            exchange.announce()
        return exchange.absent_ranks(0.2)

    assert on_ranks(announce) == [[0], [0], [0]]


def test_all_ranks_get_the_answer_of_the_first_that_asks() -> None:
    store = HashStore()
    first, second = (StoreExchange(store, rank, 2, timedelta(seconds=1)) for rank in range(2))
    first.accept("q")
    assert not first.all_accept("q")
    second.accept("q")
    assert not second.all_accept("q")
    for exchange in (first, second):
        exchange.accept("another")
    assert second.all_accept("another")
    assert first.all_accept("another")
