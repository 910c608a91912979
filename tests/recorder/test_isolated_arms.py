"""Arms that cannot share a process: the order of their processes, and arms that end early."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="a recipe is a torch program")

from paths import FIXTURES, TESTS
from recording import start
from terminal import traceq

from traceq.errors import UnreadableInput, UsageFault
from traceq.model import Arm
from traceq.recorder.failures.rank_errors import LaunchFailure, RankFailure
from traceq.recorder.isolated_arms import next_arms_of, record_isolated, round_order
from traceq.recorder.spec.plan import Plan, PlannedArm
from traceq.recorder.spec.recipe import Outcome, Recipe
from traceq.recorder.timing.timed_steps import Journal
from traceq.runs.read import read
from traceq.runs.step_log import StepLine, read_processes

RECIPE = TESTS / "support" / "recipes" / "apart.py"
GRAPH = FIXTURES / "cuda_graph.py"
MS = 1_000_000
OUT = ("out of memory", "rank 0: MemoryError")


@dataclass(frozen=True)
class Parameters:
    """What an arm of the test can change."""

    width: int = 1


@dataclass
class Ranks:
    """Fake ranks: each process writes one step as long as its arm's width, or fails as `endings` says."""

    endings: dict[str, LaunchFailure] = field(default_factory=dict)
    jobs: list[Plan] = field(default_factory=list)
    progress: list[tuple[int, int]] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)

    def __call__(self, job: Plan, on_progress: Callable[[int, int], None], _: object) -> LaunchFailure | None:
        self.jobs.append(job)
        on_progress(0, 0)
        (planned,) = job.arms
        if failed := self.endings.get(planned.arm.name):
            return failed
        ns = int(planned.parameters["width"]) * MS
        line = StepLine(planned.arm.name, "", "", 0, 0, 0, {}, ns, ns, 0, 7, process=job.process)
        for rank in range(job.num_ranks):
            with Journal(job.folder.samples(rank)) as journal:
                journal.write([line])
        return None

    @property
    def order(self) -> str:
        return "".join(job.arms[0].arm.name for job in self.jobs)


def recorded(
    out: Path,
    ranks: Ranks,
    replicates: int = 1,
    next_arms: Callable[[Parameters, Sequence[Outcome]], Sequence[Arm]] | None = None,
) -> LaunchFailure | None:
    """Arms a, b and c, of which c runs on one rank alone."""
    arms = (Arm("a", "", baseline=True), Arm("b", ""), Arm("c", "", num_ranks=1))
    recipe: Recipe[Any] = Recipe(
        "?", (), Parameters(), lambda *_: lambda _: None, arms, apart=True, next_arms=next_arms
    )
    plan = Plan(
        recipe="", run_id="r", out=str(out), device="cpu", num_ranks=2, steps=1, trace_steps=3, seed=5, parameters={},
        arms=tuple(PlannedArm(arm, arm.name, {"width": 1}) for arm in arms), replicates=replicates,
    )  # fmt: skip
    out.mkdir()
    plan.folder.write_manifest(plan.manifest("apart", "?"))
    further = next_arms_of(recipe, plan)
    return record_isolated(plan, further, ranks, lambda *steps: ranks.progress.append(steps), ranks.messages.append)


def test_every_arm_runs_once_a_round_and_every_order_is_reversed_in_the_next() -> None:
    arms = [PlannedArm(Arm(name, ""), name, {}) for name in "abcd"]
    rounds = [[planned.arm.name for planned in round_order(arms, number, seed=3)] for number in range(8)]
    assert rounds[0] == ["a", "b", "c", "d"]
    assert [order[::-1] for order in rounds[::2]] == rounds[1::2]
    assert len({tuple(order) for order in rounds[::2]}) > 1


def test_each_process_has_one_arm_its_number_of_ranks_and_only_the_last_round_is_traced(tmp_path: Path) -> None:
    ranks = Ranks()
    assert recorded(tmp_path / "run", ranks, replicates=2) is None
    assert ranks.order == "abccba"
    assert [job.process for job in ranks.jobs] == [0, 1, 2, 3, 4, 5]
    assert [job.num_ranks for job in ranks.jobs] == [2, 2, 1, 1, 2, 2]
    assert [job.trace_steps for job in ranks.jobs] == [0, 0, 0, 3, 3, 3]
    ended = [ended for ended, _ in ranks.progress]
    assert ended == sorted(ended)
    assert len({total for _, total in ranks.progress}) == 1
    manifest = ranks.jobs[0].folder.read_manifest()
    assert (manifest.status, manifest.apart) == ("complete", True)
    processes = read_processes(ranks.jobs[0].folder.steps, manifest)
    assert {each.arm: each.process.tolist() for each in processes} == {"a": [0, 5], "b": [1, 4], "c": [2, 3]}


def test_each_process_is_one_line_with_the_rest_by_those_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("traceq.recorder.isolated_arms.monotonic", count(0, 10).__next__)  # 10 s from call to call
    ranks = Ranks()
    recorded(tmp_path / "run", ranks, replicates=2)
    line = re.compile(r"round (\d) of 2, arm (\w): process (\d) of 6(?:; .* ([\d.]+ s))?")
    assert [match.groups() for match in map(line.fullmatch, ranks.messages) if match] == [
        ("1", "a", "1", None),
        ("1", "b", "2", "50.0 s"),
        ("1", "c", "3", "40.0 s"),
        ("2", "c", "4", "30.0 s"),
        ("2", "b", "5", "20.0 s"),
        ("2", "a", "6", "10.0 s"),
    ]


def test_an_arm_that_is_out_of_memory_is_marked_and_not_run_again(tmp_path: Path) -> None:
    ranks = Ranks({"b": LaunchFailure("", "", OUT)})
    assert recorded(tmp_path / "run", ranks, replicates=2) is None
    assert ranks.order == "abcca"
    manifest = ranks.jobs[0].folder.read_manifest()
    assert manifest.status == "complete"
    assert [arm.failure for arm in manifest.arms] == ["", "out of memory: rank 0: MemoryError", ""]
    with pytest.raises(UnreadableInput, match="arm b: out of memory: rank 0: MemoryError"):
        read(tmp_path / "run" / "b")


def test_a_fault_of_another_kind_ends_the_run(tmp_path: Path) -> None:
    fault = LaunchFailure("rank 1: ValueError", "log: rank 1: ValueError")
    ranks = Ranks({"b": fault})
    assert recorded(tmp_path / "run", ranks, replicates=2) == fault
    assert ranks.order == "ab"


def test_a_run_without_any_arm_has_failed(tmp_path: Path) -> None:
    skipped = LaunchFailure("", "", ("skipped", "not installed"))
    failed = recorded(tmp_path / "run", Ranks(dict.fromkeys("abc", skipped)))
    assert failed is not None
    assert failed.fault.split("; ") == [f"arm {name}: skipped: not installed" for name in "abc"]


def test_a_recipe_names_further_arms_by_how_those_before_ended(tmp_path: Path) -> None:
    def twice(_: Parameters, outcomes: Sequence[Outcome]) -> list[Arm]:
        width = 2 * outcomes[-1].step_ns // MS
        return [Arm(f"w{width}", "", varied={"width": width})] if width else []

    ranks = Ranks({"w8": LaunchFailure("", "", OUT)})
    assert recorded(tmp_path / "run", ranks, 2, twice) is None
    assert ranks.order == "abcw2w4w8" + "w4w2cba"
    manifest = ranks.jobs[0].folder.read_manifest()
    assert [arm.status for arm in manifest.arms] == ["", "", "", "", "", "out of memory"]
    assert [processes.median_ns[0] // MS for processes in read_processes(ranks.jobs[0].folder.steps, manifest)] == [
        1,
        1,
        1,
        2,
        4,
    ]
    assert all(before <= after for before, after in pairwise(total for _, total in ranks.progress[:5]))


def test_an_arm_that_is_there_already_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageFault, match="arm a already exists"):
        recorded(tmp_path / "run", Ranks(), 1, lambda *_: [Arm("a", "")])


@pytest.mark.parametrize(
    ("message", "status"),
    [
        ("OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "out of memory"),
        ("MemoryError", "out of memory"),
        ("RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried\nx", "out of memory"),
        ("... throwing an instance of 'std::bad_alloc'", "out of memory"),
        ("RuntimeError: CUDA error: out of memory", "out of memory"),
        ("OSError: [Errno 12] Cannot allocate memory", "out of memory"),
        ("Skip: deepspeed is not installed", "skipped"),
        ("ValueError: a memory of the past", ""),
        ("", ""),
    ],
)
def test_what_is_the_end_of_one_arm_alone(message: str, status: str) -> None:
    assert RankFailure(1, 1, message).arm_status[0] == status


def test_a_launchers_ranks_cannot_be_started_again_and_nothing_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for key in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "OMP_NUM_THREADS", "KINETO_LOG_LEVEL"):
        monkeypatch.setenv(key, "1")
    done = traceq("record", "--recipe", RECIPE)
    assert done.code == 2
    assert "cannot be started again" in done.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--until", "decided"), "set their number with --replicates"),
        (("--replicates", "0"), "--replicates 0: expected 1 to 100"),
        (("--ranks", "2", "--recipe", str(RECIPE.with_name("linear.py")), "--replicates", "2"), "share a process"),
    ],
)
def test_what_makes_no_sense_apart_is_refused(options: tuple[str, ...], message: str) -> None:
    done = traceq("record", "--recipe", RECIPE, *options)
    assert (done.code, message in done.err) == (2, True)


@pytest.mark.torch
@pytest.mark.slow
def test_arms_that_are_skipped_or_out_of_memory_leave_the_others_a_run(tmp_path: Path) -> None:
    options = ("--steps", "2", "--trace-steps", "1", "--set", "more=absent,huge")
    started = start(tmp_path, *options, recipe=str(RECIPE))
    done = started.finish(seconds=120)
    assert done.code == 0, done.stderr
    notes = [line for line in done.stderr.splitlines() if line.startswith("traceq: ")]
    assert f"traceq diff {done.out}" in done.stdout.splitlines()
    fast, slow = read(done.out / "fast"), read(done.out / "slow")
    assert fast.manifest is not None
    arms = {arm.name: arm for arm in fast.manifest.arms}
    assert {name: (arm.status, arm.facts.get("built")) for name, arm in arms.items()} == {
        "fast": ("", "fast"),
        "slow": ("", "slow"),
        "absent": ("skipped", None),
        "huge": ("out of memory", None),
    }
    assert arms["huge"].fault.startswith("rank 1: RuntimeError: ")
    assert notes[:2] == [f"traceq: note: arm {name}: {arms[name].failure}" for name in ("absent", "huge")]
    assert (fast.ranks, slow.ranks) == ((0, 1), (0, 1))
    assert [(each.arm, each.num_steps.tolist()) for each in fast.processes] == [("fast", [2]), ("slow", [2])]
    alone = read(done.out / "slow" / "rank1.json.gz")
    assert [each.median_ns.tolist() for each in alone.processes] == [each.median_ns.tolist() for each in slow.processes]
    assert started.left_running() == []


@pytest.mark.slow
@pytest.mark.torch
def test_a_graph_is_left_out_where_no_device_can_replay_it(tmp_path: Path) -> None:
    options = ("--device", "cpu", "--ranks", "1", "--steps", "0", "--trace-steps", "1")
    done = start(tmp_path, *options, recipe=str(GRAPH)).finish()
    assert done.code == 0, done.stderr
    manifest = read(done.out).manifest
    assert manifest is not None
    assert {arm.name: arm.status for arm in manifest.arms} == {"launched": "", "graph": "skipped"}
    assert (done.out / "launched" / "rank0.json.gz").exists()
