"""The neutral graph of a job, and production jobs whose answers were published."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from straggler_jobs import FOLDER, StragglerJob, published
from task_graph import task_graph

from traceq.causes.job_graph import job_graph

NO_MEETINGS = np.empty(0, np.int64)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def test_a_task_begins_once_all_that_it_waits_for_have_ended() -> None:
    graph = task_graph(3, ints(0, 1), ints(2, 2), ints(-1, -1, -1))
    start, end = graph.play(ints(5, 7, 2), ints(0, 1, 3))
    assert (start.tolist(), end.tolist()) == ([0, 1, 11], [5, 8, 13])


def test_a_collective_begins_with_the_last_rank_and_ends_on_each_after_its_own_transfer() -> None:
    graph = task_graph(4, ints(0, 1), ints(2, 3), ints(-1, -1, 0, 0))  # two ranks: compute, then meet
    assert graph.play(ints(5, 9, 2, 3), ints(0, 0, 0, 0))[1].tolist() == [5, 9, 11, 12]
    assert graph.play(ints(5, 4, 2, 3), ints(0, 0, 0, 0))[1].tolist() == [5, 4, 7, 8]


def test_tasks_that_wait_for_each_other_are_an_error() -> None:
    with pytest.raises(ValueError, match="depend on each other"):
        task_graph(2, ints(0, 1), ints(1, 0), ints(-1, -1))


def test_the_edges_that_decide_a_moment_are_named() -> None:
    graph = job_graph(4, ints(0, 0, 1, 2), ints(2, 1, 3, 3), NO_MEETINGS, NO_MEETINGS)
    weight = ints(4, 6, 1, 2)
    assert graph.times(weight).tolist() == [0, 6, 4, 7]
    assert graph.edges_on_paths(weight, ints(3)).tolist() == [False, True, True, False]
    assert graph.edges_on_paths(weight, ints(2)).tolist() == [True, False, False, False]


@cache
def job(name: str) -> StragglerJob:
    return StragglerJob(name)


JOBS = [
    pytest.param(name, marks=pytest.mark.skipif(not FOLDER.exists(), reason="../shared/stragglers is absent"))
    for name in ("AR", "ST")
]


@pytest.mark.parametrize("name", JOBS)
def test_with_its_delays_the_job_is_played_as_it_was(name: str) -> None:
    of = job(name)
    wanted = published("result", name)["step_t_base"]
    steps = of.steps_s(of.recorded, of.delay)
    assert steps == pytest.approx([wanted[str(step)] for step in of.steps.tolist()], rel=1e-6)


@pytest.mark.parametrize("name", JOBS)
def test_every_published_step_and_slowdown_is_met(name: str) -> None:
    of, wanted = job(name), published("result", name)
    numbers = [str(step) for step in of.steps.tolist()]
    nodelay, ideal = of.steps_s(of.recorded), of.steps_s(of.ideal)
    assert nodelay == pytest.approx([wanted["step_t_nodelay"][step] for step in numbers], rel=1e-4)
    assert ideal == pytest.approx([wanted["step_t_noblk"][step] for step in numbers], rel=1e-4)
    assert nodelay.mean() / ideal.mean() == pytest.approx(wanted["blocking_slowdown"], rel=1e-4)
    base = of.steps_s(of.recorded, of.delay)
    assert base.mean() / nodelay.mean() == pytest.approx(wanted["launch_slowdown"], rel=1e-4)


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize(("by", "column"), [("dp_rank", "dp"), ("stage", "stage"), ("optype", "kind")])
def test_every_published_part_of_the_slowdown_is_met(name: str, by: str, column: str) -> None:
    of, wanted = job(name), published("result", name)
    ideal, values = of.steps_s(of.ideal), getattr(of, column).astype(str)
    of_part = wanted[f"blocking_decompose_by_{by}"]
    assert set(of_part) == set(values.tolist())
    for part, slowdown in of_part.items():
        steps = of.only(values == part)
        assert steps.mean() / ideal.mean() == pytest.approx(slowdown, rel=1e-4), part
        for step, seconds in zip(of.steps.tolist(), steps / ideal, strict=True):
            per_step = wanted[f"blocking_decompose_by_{by}_per_step"].get(str(step))
            assert per_step is None or seconds == pytest.approx(per_step[part], rel=1e-4)


@pytest.mark.parametrize("name", JOBS)
def test_the_share_of_the_worst_ranks_and_of_the_last_stage_is_met(name: str) -> None:
    of, parts = job(name), published("result", name)
    by_dp, by_stage = (parts[f"blocking_decompose_by_{key}"] for key in ("dp_rank", "stage"))
    ranks = [(dp, stage) for dp in range(of.num_dp) for stage in range(of.last_stage + 1)]
    ranks.sort(key=lambda rank: (-min(by_dp[str(rank[0])], by_stage[str(rank[1])]), rank))
    worst = ranks[: int(np.ceil(0.03 * len(ranks)))]
    chosen = {
        "mw": np.logical_or.reduce([(of.dp == dp) & (of.stage == stage) for dp, stage in worst]),
        "ms": of.stage == of.last_stage,
    }
    for kind, rows in chosen.items():
        wanted = published(kind, name)
        original, ideal = of.steps_s(of.recorded).mean(), of.steps_s(of.ideal).mean()
        removed, added = of.without(rows).mean(), of.only(rows).mean()
        answers = {
            "tori": original,
            "tideal": ideal,
            "trem": removed,
            "tadd": added,
            "rem": (original - removed) / (original - ideal),
            "add": (added - ideal) / (original - ideal),
        }
        assert answers == pytest.approx({key: wanted[key] for key in answers}, rel=1e-4, abs=1e-5)
