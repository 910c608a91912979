"""Sequential timing stops at the first decisive look, at the same pair on every rank, within the time limit."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Barrier, current_thread
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recording import start

pytest.importorskip("torch", reason="recording needs torch")

from timed_plan import timed_plan

from traceq.errors import UsageFault
from traceq.model import Arm
from traceq.recorder.spec.plan import Block, Plan, PlannedArm, block_sizes
from traceq.recorder.spec.prepare import Request
from traceq.recorder.timing import timed_steps
from traceq.recorder.timing.timed_steps import blocks_until_decided, look_text, looks_within
from traceq.runs.run_folder import RunFolder
from traceq.runs.step_log import PairLine, StepLine, pairs_of, read_pairs
from traceq.stats import LOOKS, Comparison, compare_pairs

pytestmark = pytest.mark.torch

MS = 1_000_000
ARMS = (Arm("off", "", baseline=True), Arm("on", ""), Arm("deferred", ""))
STEP_NS = {"off": 100 * MS, "on": 103 * MS, "deferred": 100 * MS}
PLAN = replace(timed_plan(*(arm.name for arm in ARMS), steps=64), reseeds=True, max_minutes=10)
WARM_UP = [StepLine(arm, "", "", -1, 0, 0, {}, ns, ns, 0, 0) for arm, ns in STEP_NS.items() for _ in (0, 1)] * 2


@dataclass
class Threads:
    """Ranks as threads: `gather` returns the values of all once each has stored its own."""

    barrier: Barrier
    values: list[Any]

    def gather(self, rank: int, value: object) -> list[Any]:
        self.values[rank] = value
        self.barrier.wait(timeout=10)
        values = list(self.values)
        self.barrier.wait(timeout=10)
        return values


class FakeRank:
    """The part of a rank that `blocks_until_decided` uses; it is also its `world` and its `progress`."""

    def __init__(self, number: int, threads: Threads, plan: Plan = PLAN) -> None:
        self.number, self.threads, self.plan = number, threads, plan
        self.messages: list[str] = []
        self.planned: list[int] = []
        self.world = self.progress = self

    def gather(self, value: object) -> list[Any]:
        return self.threads.gather(self.number, value)

    def share(self, value: object) -> Any:
        return self.gather(value)[0]

    def say(self, text: str) -> None:
        self.messages.append(text)

    def plan_steps(self, num_steps: int) -> None:
        self.planned.append(num_steps)


def measured(block: Block, rng: np.random.Generator, noise_pct: float) -> Iterator[PairLine]:
    for index, b_second in enumerate(block.b_second):
        times = [round(STEP_NS[arm] * (1 + rng.normal(scale=noise_pct) / 100)) for arm in block.halves(index)]
        yield PairLine(block.a, block.b, block.first_pair + index, b_second, *times, block.num_looks)


def record(rank: Any, noise_pct: float = 0.1) -> tuple[list[Block], list[PairLine]]:
    """Blocks that one rank ran, and its pairs; the noise differs between ranks."""
    rng, ran, pairs = np.random.default_rng(rank.number), [], []
    for block in blocks_until_decided(rank, WARM_UP, pairs):
        ran.append(block)
        pairs += measured(block, rng, noise_pct)
    return ran, pairs


def alone(plan: Plan = PLAN) -> Any:
    return FakeRank(0, Threads(Barrier(1), [None]), plan)


def num_pairs(ran: Sequence[Block]) -> dict[tuple[str, str], int]:
    return {(block.a, block.b): block.end_pair for block in ran}


def test_what_is_clear_at_the_first_look_ends_the_timing() -> None:
    rank = alone()
    ran, _ = record(rank)
    assert num_pairs(ran) == {("off", "on"): 16, ("off", "deferred"): 16, ("off", "off"): 16}
    assert [line.partition(":")[0] for line in rank.messages[1:]] == ["on", "deferred"]
    assert rank.messages[1].endswith("after 16 pairs, material")
    assert rank.messages[2].endswith("after 16 pairs, in the noise")


def test_arms_with_other_batch_sizes_are_compared_by_the_time_per_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of `on` take twice as long for twice the samples: the difference per sample is in the noise."""
    monkeypatch.setitem(STEP_NS, "on", 200 * MS)
    samples = {"off": 8, "on": 16, "deferred": 8}
    arms = tuple(PlannedArm(replace(arm, samples_per_step=samples[arm.name]), arm.name, {}) for arm in ARMS)
    rank = alone(replace(PLAN, arms=arms))
    ran, _ = record(rank)
    assert num_pairs(ran)["off", "on"] == 16
    _, on, deferred = rank.messages
    assert re.match(r"on: .* per sample after 16 pairs", on)
    assert re.match(r"deferred: .* after 16 pairs", deferred)
    assert "per sample" not in deferred
    assert [text.endswith(", in the noise") for text in (on, deferred)] == [True, True]


def test_a_decided_comparison_stops_while_the_control_goes_on_with_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STEP_NS, "on", 120 * MS)
    rank = alone()
    ran, lines = record(rank, noise_pct=1.0)
    stopped = num_pairs(ran)
    assert stopped["off", "on"] == 16 < stopped["off", "deferred"] == stopped["off", "off"]
    assert stopped["off", "deferred"] in LOOKS
    (deferred,) = [pairs for pairs in pairs_of([lines]) if pairs.b == "deferred"]
    before = LOOKS[LOOKS.index(stopped["off", "deferred"]) - 1]
    earlier = replace(deferred, b_second=deferred.b_second[:before], first_ns=deferred.first_ns[:, :before])
    assert compare_pairs(deferred).verdict.name == "in_the_noise"
    assert not compare_pairs(replace(earlier, second_ns=deferred.second_ns[:, :before])).verdict.is_final
    assert sum(line.endswith("not yet decided") for line in rank.messages) == LOOKS.index(stopped["off", "deferred"])


def test_all_ranks_run_the_same_blocks_though_clocks_and_times_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = {True: iter(range(0, 10_000, 90)), False: iter(range(0, 10_000_000, 10_000))}
    threads = Threads(Barrier(3), [None] * 3)
    ranks: list[Any] = [FakeRank(number, threads) for number in range(3)]
    clocks = {}

    def monotonic() -> float:
        return float(next(ticks[clocks[current_thread().name] == 0]))

    def run(rank: Any) -> tuple[list[Block], list[PairLine]]:
        clocks[current_thread().name] = rank.number
        return record(rank, noise_pct=1.5)

    monkeypatch.setattr(timed_steps, "monotonic", monotonic)
    with ThreadPoolExecutor(3) as pool:
        ran = [blocks for blocks, _ in pool.map(run, ranks)]
    assert ran[0] == ran[1] == ran[2]
    assert num_pairs(ran[0])["off", "off"] > 16
    assert ranks[0].planned == ranks[1].planned == ranks[2].planned


@pytest.mark.parametrize(("rounds", "stops_at"), [(1, 16), (2, 24), (6, 80)])
def test_the_cap_stops_after_the_round_that_passes_it(
    monkeypatch: pytest.MonkeyPatch, rounds: int, stops_at: int
) -> None:
    times = iter([0, *[599] * (rounds - 1), *[600] * 99])
    monkeypatch.setattr(timed_steps, "monotonic", lambda: next(times))
    rank = alone()
    ran, _ = record(rank, noise_pct=20)
    assert set(num_pairs(ran).values()) == {stops_at}
    assert [line for line in rank.messages if line.endswith(", undecided")] == rank.messages[-2:]


def test_out_of_looks_is_out_of_time() -> None:
    rank = alone(replace(PLAN, max_minutes=1))
    ran, lines = record(rank, noise_pct=20)
    planned = ran[-1].end_pair
    assert {pairs.num_looks for pairs in pairs_of([lines])} == {LOOKS.index(planned) + 1}
    num_looks = LOOKS.index(planned) + 1
    assert re.findall(r"\d+ [a-z]+", rank.messages[0]) == [f"{planned} pairs", f"{num_looks} looks", "1 min"]
    most = 3 * (2 * 2 * (planned + len({block.first_pair for block in ran})) + planned)
    assert rank.planned == [most]


@given(st.floats(0.1, 1e5), st.floats(1e-3, 1e3))
def test_no_more_is_planned_than_fits_into_the_time(seconds: float, pair_seconds: float) -> None:
    looks = looks_within(seconds, pair_seconds)
    assert looks == LOOKS[: len(looks)]

    def takes(planned: Sequence[int]) -> float:
        return (planned[-1] + len(block_sizes(planned))) * pair_seconds

    assert len(looks) == 1 or takes(looks) <= seconds
    assert looks == LOOKS or takes(LOOKS[: len(looks) + 1]) > seconds


def comparison(change_pct: Callable[[int], float], num_pairs: int) -> Comparison:
    lines = [
        PairLine("off", "on", i, i % 2 == 0, *(times if i % 2 == 0 else times[::-1]), 11)
        for i, times in enumerate((100 * MS, round((100 + change_pct(i)) * MS)) for i in range(num_pairs))
    ]
    return compare_pairs(pairs_of([lines])[0])


def test_a_look_is_reported_in_one_line() -> None:
    unclear = comparison(lambda i: 1.1 + 0.45 * ((i * 7) % 16 - 7.5), 32)
    look = look_text("on", unclear, is_last=False)
    assert re.match(r"on: \+1\.1 % \(-0\.\d\d to \+\d\.\d\) after 32 pairs, ", look)
    assert look.endswith("not yet decided")
    assert look_text("on", unclear, is_last=True).endswith("after 32 pairs, undecided")
    assert look_text("on", comparison(lambda i: 2, 16), is_last=False) == (
        "on: +2.0 % (+2.0 to +2.0) after 16 pairs, material"
    )
    alike = comparison(lambda i: 0, 16)
    assert alike.verdict.name == "in_the_noise"
    assert look_text("on", alike, is_last=True) == f"on: 0.00 % (0.00 to 0.00) after 16 pairs, {alike.verdict.text}"


@pytest.mark.slow
def test_a_large_stall_is_decided_at_the_first_look_on_two_ranks(tmp_path: Path) -> None:
    options = ("--until", "decided", "--max-minutes", "1", "--trace-steps", "0", "--set", "sleep_ms=20")
    done = start(tmp_path, "--ranks", "2", *options).finish()
    assert done.code == 0, done.stderr
    lines = done.stderr.splitlines()
    assert any(re.match(r"up to \d+ pairs .*, \d+ looks, .* 1 min$", line) for line in lines)
    assert any(re.fullmatch(r"slow: \+[\d,.]+ % \(\+[\d,.]+ to \+[\d,.]+\) after 16 pairs, material", x) for x in lines)
    folder = RunFolder(done.out)
    assert folder.read_manifest().status == "complete"
    (slow, control) = sorted(read_pairs(folder.steps), key=lambda pairs: pairs.is_control)
    assert slow.first_ns.shape == control.first_ns.shape == (2, 16)
    assert slow.num_looks == control.num_looks > 1
    assert f"95 % CI over {slow.num_looks} looks" in compare_pairs(slow, control=control).verdict.reason


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--max-minutes", "5"], "--max-minutes 5: requires --until decided"),
        (["--until", "decided", "--steps", "9"], "--steps 9: --until decided determines"),
        (["--until", "decided", "--max-minutes", "0"], "--max-minutes 0: expected more"),
        (["--until", "decided", "--max-minutes", "nan"], "--max-minutes nan: expected more"),
    ],
)
def test_options_that_contradict_each_other_are_usage_errors(tmp_path: Path, options: list[str], message: str) -> None:
    done = start(tmp_path, *options).finish()
    assert done.code == 2
    assert message in done.stderr
    assert not done.out.exists()


def test_one_arm_leaves_nothing_to_decide(tmp_path: Path) -> None:
    recipe = tmp_path / "alone.py"
    recipe.write_text(
        "from dataclasses import make_dataclass\n"
        "from traceq.recorder import Recipe\n"
        "recipe = Recipe('', phases=(), parameters=make_dataclass('Parameters', [])(), build=lambda *_: print)\n"
    )
    with pytest.raises(UsageFault, match=r"alone\.py .* one arm; --vary KEY=A,B"):
        Request(str(recipe), until_decided=True).check()
