"""The wall time of a job is a closed account, whatever its steps do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field
from itertools import cycle, islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="recording needs torch")

from traceq.model import WallPart, WallTime, WorkKind
from traceq.recorder.rank.wall_account import WallAccount
from traceq.recorder.spec.phases import Phases

pytestmark = pytest.mark.torch

Step = tuple[WorkKind | None, int, int, bool]
"""Its kind, how long it takes, how long torch compiles in it, and whether it is profiled."""


@dataclass
class Job:
    """A job that is recorded: 10 ns to start, 20 ns to learn, and 3 ns of the recording's own after each step."""

    now_ns: int = 100
    phases: Phases = field(default_factory=Phases)

    def run(self, steps: list[Step]) -> WallAccount:
        account = WallAccount(100, lambda: self.now_ns)
        self.now_ns += 10
        account.charge("start_up")
        self.now_ns += 20
        account.charge("learning")
        for _, (_, wall_ns, compiled_ns, is_profiled) in zip(
            account.around(self.recorded(account, steps), self.phases), steps, strict=False
        ):
            self.phases.profiling = is_profiled
            self.now_ns += wall_ns
            account.compiled_ns += compiled_ns
        account.charge("recording")
        return account

    def recorded(self, account: WallAccount, steps: list[Step]) -> Generator[str, None, None]:
        for kind, *_ in steps:
            self.now_ns += 3
            yield "run"
            account.classify(kind)
        self.now_ns += 3
        yield "run"


def account_of(account: WallAccount, samples_per_step: float = 0.0) -> WallTime:
    return account.account(0, 1, samples_per_step, 0)


def by_name(account: WallTime) -> dict[str, int]:
    return {part.name: part.ns for part in account.parts}


STEPS = st.tuples(
    st.sampled_from([None, None, None, ("checkpoint",), ("epoch",), ("evaluation", "checkpoint"), ("other",)]),
    st.integers(0, 10**9),
    st.integers(0, 10**8),
    st.booleans(),
)


@given(st.lists(STEPS, max_size=60))
def test_the_parts_add_up_to_the_time_that_passed(steps: list[Step]) -> None:
    job = Job()
    account = account_of(job.run(steps))
    assert sum(part.ns for part in account.parts) == job.now_ns - 100
    assert all(part.ns >= 0 for part in account.parts)
    counted = [step for step in steps if not step[3]]
    assert sum(part.num for part in account.parts) == len(counted)
    assert WallTime.of(account.facts()) == (account if account.training_ns else None)


def plain(kind: WorkKind | None, wall_ns: int) -> Step:
    return kind, wall_ns, 0, False


def test_an_irregular_step_has_a_regular_one_in_it() -> None:
    steps = [plain(None, 100)] * 9 + [plain(("checkpoint",), 350)]
    parts = by_name(account_of(Job().run(steps)))
    assert (parts["regular"], parts["checkpoint"], parts["start_up"], parts["learning"]) == (1_000, 250, 10, 20)


def test_a_pause_without_an_event_is_told_from_the_steps_around_it() -> None:
    parts = by_name(account_of(Job().run([plain(None, 100)] * 10 + [plain(None, 2_000)])))
    assert (parts["regular"], parts["pause"]) == (1_100, 1_900)


def test_a_step_is_no_pause_that_is_as_long_as_others_of_its_arm() -> None:
    job = Job()
    account = WallAccount(clock=lambda: job.now_ns)

    def recorded() -> Generator[str, None, None]:
        for arm in [*("fast", "slow") * 20, "fast"]:
            yield arm
            account.classify(None)

    for arm in account.around(recorded(), job.phases):
        job.now_ns += 1_000 if arm == "slow" else 100
    assert [(part.name, part.num) for part in account_of(account).training] == [("regular", 41)]


@pytest.mark.parametrize(("collected_ns", "name"), [(1_500, "collection"), (500, "pause")])
def test_a_pause_in_which_garbage_is_collected_is_a_collection(collected_ns: int, name: str) -> None:
    job = Job()
    so_far_ns = [0]
    lines = Counter(["train.py:3 step"])
    account = WallAccount(clock=lambda: job.now_ns, take_lines=lambda _: lines, collected_ns=lambda: so_far_ns[0])
    steps = [*[plain(None, 100)] * 10, plain(None, 2_000)]
    for number, _ in enumerate(account.around(job.recorded(account, steps), job.phases)):
        job.now_ns += steps[number][1] if number < len(steps) else 0
        so_far_ns[0] += collected_ns if number == 10 else 0
    irregular = [(part.name, part.line) for part in account_of(account).training if part.name != "regular"]
    assert irregular == [(name, "train.py:3 step" if name == "pause" else "")]


def test_compiling_in_a_step_is_none_of_it() -> None:
    parts = by_name(account_of(Job().run([plain(None, 100)] * 8 + [(None, 400, 300, False)])))
    assert (parts["regular"], parts["recompiling"]) == (900, 300)


def test_what_is_profiled_is_the_recordings() -> None:
    parts = by_name(account_of(Job().run([plain(None, 100)] * 8 + [(None, 5_000, 0, True)])))
    assert (parts["regular"], parts["recording"]) == (800, 5_000 + 10 * 3)


def test_throughput_is_by_the_clock() -> None:
    account = account_of(Job().run([plain(None, 100)] * 9 + [plain(("epoch",), 1_100)]), 16)
    assert (account.training_ns, account.samples, account.regular_samples) == (2_000, 160, 144)
    assert account.samples_per_second == pytest.approx(160 / 2e-6)
    assert (account.is_notable, account.irregular_pct) == (True, 50)


@pytest.mark.parametrize("profiled", [(), (*range(62, 93),), (0, 1, 29, 30)])
def test_work_is_weighed_by_its_cycles(profiled: tuple[int, ...]) -> None:
    """Half of the time is in rollouts, also where some are profiled or the last cycle has not ended."""
    steps = [plain(None, 100)] * 30 + [plain(("rollout",), 3_200)]
    run = [(*step[:3], number in profiled) for number, step in enumerate([*steps * 4, *steps[:20]])]
    account = account_of(Job().run(run))
    assert account.irregular_pct == pytest.approx(50, abs=1)
    assert account.training_ns == sum(step[1] for step in run if not step[3])


def test_work_that_came_twice_in_a_row_is_not_due_in_every_step() -> None:
    steps = [plain(None, 100)] * 50 + [plain(("checkpoint",), 600)] * 2 + [plain(None, 100)] * 48
    parts = {part.name: part for part in account_of(Job().run(steps)).parts}
    assert parts["checkpoint"].weighed_ns == 1.5 * 1_000


CYCLE = [plain(None, 100)] * 30 + [plain(("rollout",), 4_000)]


@pytest.mark.parametrize(("num_steps", "is_whole"), [(29, False), (30, False), (31, True), (40, False), (62, True)])
def test_a_recording_goes_on_until_it_holds_whole_cycles(num_steps: int, is_whole: bool) -> None:
    job = Job()
    account = WallAccount(clock=lambda: job.now_ns, before_ns=4_000)
    steps = list(islice(cycle(CYCLE), num_steps))
    job_account = _run(job, account, steps)
    assert job_account.holds_whole_cycles == is_whole


def test_work_that_takes_longer_to_come_again_than_before_is_not_awaited() -> None:
    job = Job()
    account = _run(job, WallAccount(clock=lambda: job.now_ns), [*CYCLE, *CYCLE, *[plain(None, 100)] * 32])
    assert account.holds_whole_cycles


@pytest.mark.parametrize(("num_steps", "is_whole"), [(31, False), (40, False), (62, True), (63, False)])
def test_work_that_was_profiled_alone_is_awaited(num_steps: int, is_whole: bool) -> None:
    steps = [(*step[:3], number == 30) for number, step in enumerate(islice(cycle(CYCLE), num_steps))]
    assert Job().run(steps).holds_whole_cycles == is_whole


def test_a_pause_of_a_busy_machine_is_not_the_end_of_a_cycle() -> None:
    job = Job()
    account = _run(
        job, WallAccount(clock=lambda: job.now_ns, before_ns=4_000), [plain(None, 100)] * 9 + [plain(None, 900)]
    )
    assert not account.holds_whole_cycles


def test_a_step_of_more_batches_is_no_pause() -> None:
    job, sizes = Job(), [1] * 10 + [5] * 10
    account = WallAccount(clock=lambda: job.now_ns)

    def recorded() -> Generator[str, None, None]:
        for size in sizes:
            yield "run"
            account.classify(None, size)

    for _, size in zip(account.around(recorded(), job.phases), sizes, strict=False):
        job.now_ns += 100 * size
    assert {part.name for part in account_of(account).parts if part.is_training and part.ns} == {"regular"}


def _run(job: Job, account: WallAccount, steps: list[Step]) -> WallAccount:
    for _, (_, wall_ns, *_) in zip(account.around(job.recorded(account, steps), job.phases), steps, strict=False):
        job.now_ns += wall_ns
    return account


def test_a_line_is_that_of_the_step_in_which_it_was_met() -> None:
    job, lines = Job(), {0: Counter(a=1), 103: Counter(b=3, c=1)}
    job.now_ns = -3
    account = WallAccount(clock=lambda: job.now_ns, take_lines=lambda began_ns: lines[began_ns])
    _run(job, account, [plain(None, 100), plain(("checkpoint",), 900), plain(None, 100)])
    assert WallPart("checkpoint", 800, 1, "b", 75) in account_of(account).parts
