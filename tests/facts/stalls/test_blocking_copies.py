"""Which copies hold the host is known for simulated ones: of every kind, size, memory, and queue before them."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from builder import build, call, kernel, launch, memcpy, step, table

PART_BYTES = 512 * 1024
"""The driver copies pageable memory to the device by parts of this size, each by way of a pinned buffer."""


@dataclass(frozen=True, slots=True)
class DriverCopy:
    """A copy as a driver makes it: `queue_us` until the device has done what was launched before it."""

    kind: str
    memory: str
    size: int
    queue_us: int
    api: str = "cudaMemcpyAsync"

    @property
    def holds_the_host(self) -> bool:
        """Whether the call waits; one part alone fits into the buffer, for the device to copy in its own time."""
        if self.kind == "DtoD":
            return False
        if "Async" not in self.api:
            return True
        return self.memory == "Pageable" and (self.kind == "DtoH" or self.size > PART_BYTES)

    def times(self, rng: random.Random) -> tuple[float, float, float]:
        """(us that the call lasts, begin of the copy after that of the call, us that the copy lasts)."""
        gigabytes_per_s = {"Device": 900, "Pinned": 25, "Pageable": 5}[self.memory]
        takes = rng.uniform(1, 3) + self.size / gigabytes_per_s / 1000
        if not self.holds_the_host:
            returns = rng.uniform(4, 26) + (takes if self.memory == "Pageable" else 0)
            return returns, returns + self.queue_us + rng.uniform(0, 20), takes
        begin = self.queue_us + rng.uniform(5, 15)
        if self.kind == "DtoH" or self.memory == "Pinned" or self.size <= PART_BYTES:
            return begin + takes + rng.uniform(9, 376), begin, takes
        part = PART_BYTES / gigabytes_per_s / 1000  # the device is a part behind the host
        return begin + takes, begin + rng.uniform(1, 2) * part, takes


KINDS = [(kind, memory) for kind in ("HtoD", "DtoH") for memory in ("Pageable", "Pinned")] + [("DtoD", "Device")]
SIZES = (8, 65_536, 400_000, 4_000_000, 154_140_672)
CASES = [
    *(DriverCopy(kind, memory, size, queue) for kind, memory in KINDS for size in SIZES for queue in (0, 12_000)),
    *(
        DriverCopy(kind, memory, size, 300, api)
        for api in ("cudaMemcpy", "hipMemcpyWithStream")
        for kind, memory in KINDS[:4] + KINDS[-1:]
        for size in (4096, 4_000_000)
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_copy_holds_the_host_if_its_call_lasts_as_long_as_the_copy_does(case: DriverCopy) -> None:
    rng = random.Random(str(case))
    returns, begin, lasts = case.times(rng)
    to, of = {"HtoD": ("Device", case.memory), "DtoH": (case.memory, "Device")}.get(case.kind, ("Device", "Device"))
    copy = memcpy(f"{case.kind} ({of} -> {to})", 100 + round(begin, 3), round(lasts, 3), 2, size=case.size)
    before = [launch(50, 5, 1), kernel("before", 60, 40 + case.queue_us, 1)]
    trace = build(step(0, 400_000), *before, call(case.api, 100, round(returns, 3), 2), copy)
    held = [row for row in table(trace, "syncs") if row["kind"] in ("htod", "dtoh")]
    assert [row["kind"] for row in held] == [case.kind.lower()] * case.holds_the_host
    assert all(row["blocked_ns"] == pytest.approx(1000 * returns, abs=1) for row in held)


def test_there_are_enough_cases_of_either_answer() -> None:
    holding = [case.holds_the_host for case in CASES]
    assert len(holding) >= 60
    assert 20 <= sum(holding) <= 50
