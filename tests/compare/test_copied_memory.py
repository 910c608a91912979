"""A loop of two copies whose memory becomes pinned: what each copy costs, and what no longer waiting wins."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from builder import Event, call, memcpy, op, step, write

from traceq.compare.diff import diff
from traceq.compare.result import Cause

STREAMS = {"HtoD": 22, "DtoH": 20}
TAKES_US = {("HtoD", "Pageable"): 32_000, ("HtoD", "Pinned"): 30_500, ("DtoH", "Pageable"): 34_500}
TAKES_US |= {("DtoH", "Pinned"): 17_700}


def loop(order: tuple[str, ...], memory: str, seed: int, num_steps: int = 6) -> list[Event]:
    """Each step copies `order` and waits for the device; the host waits for each pageable copy."""
    rng, rows, now, number = random.Random(seed), list[Event](), 0.0, 0
    for index in range(num_steps):
        begin, ends = now, [now]
        for kind in order:
            number += 1
            takes = TAKES_US[kind, memory] * rng.uniform(0.98, 1.02)
            held = takes + 50 if memory == "Pageable" else 8
            name = f"HtoD ({memory} -> Device)" if kind == "HtoD" else f"DtoH (Device -> {memory})"
            rows += [op("aten::copy_", round(now, 3), round(held + 20, 3))]
            rows += [call("cudaMemcpyAsync", round(now + 5, 3), round(held, 3), number)]
            rows += [memcpy(name, round(now + 20, 3), round(takes, 3), number, STREAMS[kind], 154_140_672)]
            ends.append(now + 20 + takes)
            now += held + 60
        until = max(*ends, now) + 10
        rows.append(call("cudaDeviceSynchronize", round(now, 3), round(until - now, 3)))
        rows.append(step(round(begin, 3), round(until + 5 - begin, 3), index))
        now = until + 15
    return rows


def causes(folder: Path, a: list[Event], b: list[Event]) -> dict[tuple[str, str], Cause]:
    paths = write(folder / "a.json", *a), write(folder / "b.json", *b)
    return {(cause.kind, cause.work): cause for cause in diff(*map(str, paths)).causes}


@pytest.mark.parametrize("order", [("HtoD", "DtoH"), ("DtoH", "HtoD")], ids=["same order", "another order"])
def test_copies_that_became_pinned_are_as_many_and_agree_between_two_sides(
    order: tuple[str, ...], tmp_path: Path
) -> None:
    b = loop(order, "Pinned", 9)
    first, second = (causes(tmp_path, loop(("HtoD", "DtoH"), "Pageable", seed), b) for seed in (1, 2))
    for name in ("HtoD", "DtoH"):
        cause = first["memcpy", f"aten::copy_ > {name}"]
        assert (cause.delta_num, cause.delta_bytes) == (0, 0)
        assert cause.memory.startswith("pageable -> pinned, 4.")
        assert first["sync", f"{name.lower()} aten::copy_"].delta_num == -1
    assert first.keys() >= {key for key, cause in second.items() if abs(cause.delta_ns) > 1_000_000}
    for key, cause in second.items():
        if cause.names_a_change and cause.kind != "minor":
            assert abs(first[key].delta_ns - cause.delta_ns) < 400_000, key  # sides differ by as much


def test_a_copy_that_is_pinned_on_both_sides_tells_no_memory(tmp_path: Path) -> None:
    both = [loop(("HtoD", "DtoH"), "Pinned", seed) for seed in (1, 2)]
    assert {cause.memory for cause in causes(tmp_path, *both).values()} == {""}
