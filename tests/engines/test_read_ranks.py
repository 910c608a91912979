"""A diff does not depend on how the ranks are read, and reads the events of few of many ranks."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fleet import MS, Fleet, play

from traceq.compare.diff import diff, diff_run
from traceq.compare.explain import MAX_PEERS
from traceq.compare.result import Diff, Diffs
from traceq.engines import rank_reader
from traceq.engines.analyze_path import PathReader
from traceq.engines.rank_reader import SameProcess
from traceq.engines.workers import Pool
from traceq.locations import Place
from traceq.model import Trace
from traceq.renderers.diff_json import diffs_to_json
from traceq.runs.read import read, read_one

FIXTURES = Path(__file__).parents[2] / "fixtures"
BEFORE = Fleet(num_ranks=12, ranks_per_host=4, layers=1, steps=3)
CHANGES = {
    "a host is late": replace(BEFORE, seed=1, late_ranks=(4, 5, 6, 7), late_ns=6 * MS),
    "a rank is late in backward": replace(BEFORE, seed=2, late_ranks=(9,), late_ns=8 * MS, late_in="backward"),
    "a rank issues another collective": replace(BEFORE, seed=3, desync_rank=5),
    "another step": replace(BEFORE, seed=4, layers=2),
    "fewer ranks": replace(BEFORE, seed=5, num_ranks=8),
    "the same": BEFORE,
}


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return play(BEFORE).write(tmp_path_factory.mktemp("before"))


@pytest.fixture(scope="module", params=CHANGES)
def after(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return play(CHANGES[request.param]).write(tmp_path_factory.mktemp("after"))


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(8_000_000_000, 2) as result:
        yield result


def merged(engine: SameProcess | Pool) -> PathReader:
    """Reader of folders of any size by summaries."""
    return PathReader(lambda: engine, small=-1)


def text(*diffs: Diff) -> str:
    """All numbers and sentences."""
    return diffs_to_json(Diffs(diffs[0].a_name, diffs))


@pytest.mark.slow
def test_a_diff_of_summaries_is_that_of_traces_in_memory(before: Path, after: Path, pool: Pool) -> None:
    in_memory = diff(read(before), read(after))
    assert in_memory.traced is not None
    assert in_memory.residual_ns == 0
    expected = text(in_memory)
    assert text(diff(before, after, read_ranks=merged(pool).ranks)) == expected
    assert text(diff(before, after, read_ranks=merged(SameProcess()).ranks)) == expected  # all summaries from the cache


@pytest.mark.slow
def test_a_rank_that_cannot_be_read_is_left_out_either_way(before: Path, tmp_path: Path) -> None:
    other = shutil.copytree(before, tmp_path / "other")
    (other / "rank3.json.gz").write_bytes(b"no trace")
    expected = diff(read(before), read(other))
    assert {"unreadable_rank", "ranks_apart"} <= {caveat.code for caveat in expected.caveats}
    assert text(diff(before, other, read_ranks=merged(SameProcess()).ranks)) == text(expected)


@pytest.mark.slow
@pytest.mark.parametrize("run", ["outlier_ab"])
def test_arms_of_a_run_are_compared_by_summaries_as_in_memory(run: str) -> None:
    by_summaries = diff_run(FIXTURES / run, read_arm_ranks=merged(SameProcess()).arms)
    assert diffs_to_json(by_summaries) == diffs_to_json(diff_run(FIXTURES / run))
    assert any(result.free for result in by_summaries.diffs)


@pytest.mark.slow
def test_the_events_of_many_ranks_are_read_once_for_their_summary_and_those_of_few_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_ranks = MAX_PEERS + 9
    fleets = (replace(BEFORE, num_ranks=num_ranks), replace(BEFORE, num_ranks=num_ranks, late_ranks=(38,)))
    a, b = (play(fleet).write(tmp_path / name) for fleet, name in zip(fleets, "ab", strict=True))
    expected = text(diff(read(a), read(b)))
    again: list[Place] = []
    monkeypatch.setattr(rank_reader, "read_one", counted(read_one, again))
    assert text(diff(a, b, read_ranks=merged(SameProcess()).ranks)) == expected
    assert len(again) == len(set(again))
    assert len(again) <= 2 * (MAX_PEERS + 3)  # the explained rank, its peers, the first, and one that waits


def counted(function: Callable[..., Trace], files: list[Place]) -> Callable[..., Trace]:
    def call(file: Place, *, strict: bool) -> Trace:
        files.append(file)
        return function(file, strict=strict)

    return call


def test_a_run_of_summaries_answers_queries_in_this_process(before: Path) -> None:
    ranks = merged(SameProcess()).ranks(before)
    assert [len(trace.events) for trace in ranks.run.traces] == [1] * BEFORE.num_ranks
    files = [before / f"rank{rank}.json.gz" for rank in (3, 1)]
    expected = [len(read_one(file, strict=False).events) for file in files]
    assert ranks.job.query(_num_events, [(3, None), (1, None)]) == expected


def _num_events(trace: Trace, _: None) -> int:
    return len(trace.events)
