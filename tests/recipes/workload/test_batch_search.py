"""The walk to the largest batch that fits, without training anything."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="a recipe is a torch program")

from traceq.model import Arm
from traceq.recipes.batch_probe import Parameters, next_arms
from traceq.recipes.workload.batch_search import next_batch
from traceq.recorder import Outcome


def walk(capacity: int, first: int, most: int = 4096) -> dict[int, bool]:
    """Every size tried, in order, and whether it fits."""
    fits: dict[int, bool] = {}
    while (size := next_batch(fits, first, most)) is not None:
        assert size not in fits
        fits[size] = size <= capacity
    return fits


def test_it_doubles_until_one_is_refused_and_then_halves_in_between() -> None:
    assert list(walk(50, 16)) == [16, 32, 64, 48, 56, 52]
    assert list(walk(5, 16)) == [16, 8, 4, 6, 5]
    assert list(walk(100, 16, most=64)) == [16, 32, 64]
    assert walk(0, 4) == {4: False, 2: False, 1: False}


@given(st.integers(1, 5000), st.integers(1, 300))
def test_the_largest_is_known_to_an_eighth(capacity: int, first: int) -> None:
    fits = walk(capacity, first)
    largest = max(size for size, does in fits.items() if does)
    refused = min((size for size, does in fits.items() if not does), default=None)
    if refused is None:
        assert largest == 4096
    else:
        assert largest <= capacity < refused <= largest + max(1, largest // 8)


def walked(parameters: Parameters, fits: Callable[[Arm], str], facts: dict[str, str]) -> list[str]:
    """Names of all arms, when each ends with the status that `fits` gives it."""
    outcomes = [Outcome(Arm("start", "", baseline=True, varied={"strategy": "ddp"}, facts=facts), 1, 1)]
    while arms := next_arms(parameters, outcomes):
        for arm in arms:
            status = fits(arm)
            outcomes.append(Outcome(Arm(arm.name, "", varied=arm.varied, status=status, facts=facts), 1, 1))
    return [outcome.arm.name for outcome in outcomes]


def test_backends_walk_side_by_side_and_what_cannot_run_is_tried_once() -> None:
    def fits(arm: Arm) -> str:
        if arm.varied["strategy"] == "zero2":
            return "skipped"
        return "out of memory" if int(arm.varied["batch_size"]) > 2 else ""

    names = walked(Parameters(backends="ddp,fsdp2,zero2", batch_size=2), fits, {"memory": "cpu"})
    assert names == [
        "start",
        "ddp,batch=4",
        "fsdp2,batch=2",
        "zero2,batch=2",
        "ddp,batch=3",
        "fsdp2,batch=4",
        "fsdp2,batch=3",
    ]


def test_on_a_gpu_each_backend_is_tried_with_expandable_segments_too() -> None:
    names = walked(Parameters(backends="ddp", batch_size=1, most=2), lambda arm: "", {"memory": "cuda"})
    assert names == ["start", "ddp,batch=2", "ddp+expandable,batch=1", "ddp+expandable,batch=2"]
