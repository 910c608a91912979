"""Garbage collections of steps: the collector stays as the job has it, and each pause belongs to its step."""

from __future__ import annotations

import gc
import itertools
import threading
from collections.abc import Iterator
from gc import collect
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="lines of torch are told from those of the job")

import traceq
from traceq.recorder.timing.stopwatch import GcPauses, StepPauses
from traceq.runs.step_log import PairLine, StepLine, read_lines

pytestmark = pytest.mark.torch
LINE = "test_gc_pauses.py"


class Pauses:
    """Collections since the last call."""

    def __init__(self, measured: GcPauses) -> None:
        self._measured, self._taken = measured, measured.so_far()

    def take(self) -> StepPauses:
        before, self._taken = self._taken, self._measured.so_far()
        return StepPauses.between(before, self._taken)


@pytest.fixture
def pauses() -> Iterator[Pauses]:
    thresholds, measured = gc.get_threshold(), GcPauses()
    gc.set_threshold(700, 10, 10)  # the command line, which other tests run in this process, collects rarely
    measured.start()
    yield Pauses(measured)
    measured.stop()
    gc.set_threshold(*thresholds)


def lines(step: StepPauses) -> list[str]:
    """The lines that ask for collections, "" of automatic ones."""
    return [kind.partition(" ")[2].partition(":")[0] for kind in step.kinds]


def test_automatic_collections_have_no_line_and_each_has_a_time(pauses: Pauses) -> None:
    kept = [[number] for number in range(5_000)]
    step = pauses.take()
    assert step.kinds.keys() >= {"0"} or step.kinds.keys() >= {"1"}  # from Python 3.14 on all of them are of 1
    assert all(ns > 0 for _, ns in step.kinds.values())
    assert set(lines(step)) == {""}
    assert abs(step.allocated - len(kept)) < 100


@pytest.mark.parametrize("num_allocated", [0, 600])
def test_an_explicit_collection_has_the_line_that_asks_for_it(pauses: Pauses, num_allocated: int) -> None:
    """Also where the next automatic one is near."""
    gc.collect()
    pauses.take()
    kept = [[number] for number in range(num_allocated)]
    gc.collect(2)
    collect()
    step = pauses.take()
    assert lines(step) == [LINE, LINE]
    assert [num for num, _ in step.kinds.values()] == [1, 1]
    del kept


def test_where_the_collector_is_disabled_only_the_program_collects(pauses: Pauses) -> None:
    gc.disable()
    try:
        kept = [[number] for number in range(5_000)]
        gc.collect(0)
        step = pauses.take()
    finally:
        gc.enable()
    assert (lines(step), step.allocated) == ([LINE], 0)
    del kept


def test_a_collection_of_another_thread_belongs_to_the_step_too(pauses: Pauses) -> None:
    thread = threading.Thread(target=gc.collect)
    thread.start()
    thread.join()
    assert [kind[0] for kind in pauses.take().kinds if " " in kind] == ["2"]


def test_each_step_has_its_own_collections(pauses: Pauses) -> None:
    pauses.take()
    gc.collect()
    first, second = pauses.take(), pauses.take()
    assert len(first.kinds) == 1
    assert second == StepPauses(allocated=second.allocated)


@pytest.mark.slow  # `make guard` runs it
def test_a_recording_leaves_the_collector_as_the_job_has_it(tmp_path: Path) -> None:
    """Pauses of steps, of whole halves of pairs too, are those of the job alone."""
    states = set()
    with traceq.record(tmp_path / "run", steps=16, trace_steps=1, arms=("off", "on"), device="cpu") as rec:
        for _ in rec.steps(itertools.count()):
            if rec.rank.progress.is_done:
                break
            states.add((gc.isenabled(), gc.get_threshold(), gc.get_freeze_count() > 0))
            if rec.arm == "on":
                gc.collect(1)  # the oldest generation of a suite takes long
    assert len(states) == 1
    lines = list(read_lines(tmp_path / "run" / "steps" / "rank0.jsonl"))
    steps = [line for line in lines if isinstance(line, StepLine)]
    explicit = [[kind for kind in step.pauses if " " in kind] for step in steps]
    assert [len(kinds) for kinds in explicit] == [int(step.arm == "on") for step in steps]
    assert {kind.partition(":")[0] for kinds in explicit for kind in kinds} == {f"1 {LINE}"}
    for pair in (line for line in lines if isinstance(line, PairLine)):
        for arm, half in zip(
            (pair.a, pair.b) if pair.b_second else (pair.b, pair.a),
            (pair.first_pauses, pair.second_pauses),
            strict=True,
        ):
            assert half is not None
            nums = [num for kind, (num, _, _) in half.kinds.items() if " " in kind]
            assert nums == ([half.num_steps] if arm == "on" else [])
