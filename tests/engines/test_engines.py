"""The report of a job does not depend on how its ranks are read; a rank that cannot be read affects no other."""

from __future__ import annotations

import gzip
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builder import kernel, launch, step, world, write
from fleet import MS, Fleet, play

from traceq.analysis.registry import analysis, names, sheet
from traceq.commands._options import parse_memory
from traceq.engines.analyze_path import SMALL, analyze_path, sheet_of
from traceq.engines.cache import How, _entry_of, cache_folder
from traceq.engines.rank_reader import Engine, Lost, Result, plain_bytes
from traceq.engines.rank_summary import Damaged, pack, part_type, unpack
from traceq.engines.workers import Pool
from traceq.errors import UnreadableInput, UsageFault
from traceq.facts.ranks.rank_outline import Outline, outline
from traceq.facts.timeline.single_step import only_step
from traceq.facts.timeline.steps import steps
from traceq.locations import Remote
from traceq.renderers.json import json_pieces
from traceq.renderers.markdown import sheet_to_markdown
from traceq.report import Sheet
from traceq.rules.evaluate import analyses_for, judge, judge_run
from traceq.rules.parse import parse
from traceq.rules.sentences import IDENTICAL
from traceq.runs.read import read

BUDGET = 8_000_000_000
FLEET = Fleet(num_ranks=12, ranks_per_host=4, layers=1, steps=3, late_ranks=(4, 5, 6, 7), late_ns=6 * MS, desync_rank=9)
Start = Callable[[], AbstractContextManager[Engine]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return play(FLEET).write(tmp_path_factory.mktemp("fleet"))


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    """A separate folder, without a cache."""
    shutil.copytree(folder, tmp_path / "fleet")
    return tmp_path / "fleet"


@pytest.fixture(scope="module")
def expected(folder: Path) -> str:
    """The sheet of traces that are all in memory."""
    return text(sheet(read(folder)))


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(BUDGET, 2) as result:
        yield result


def text(result: Sheet) -> str:
    """As JSON, and as people read it."""
    return "".join(json_pieces(result)) + sheet_to_markdown(result)


def merged_text(folder: Path, engine: Engine, only: Sequence[str] = ()) -> str:
    result, run = sheet_of(folder, only, start=lambda: nullcontext(engine), small=0)
    assert run.traces == ()
    return text(result)


class InProcessEngine:
    """Engine that runs everything in this process, the last task first, and records what it ran."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def map(
        self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], needs: Sequence[int]
    ) -> Iterator[Result]:
        for index, of_task in reversed(list(enumerate(arguments))):
            self.ran.append(f"{function.__name__} {of_task[0].name}")
            yield index, function(*of_task)


def test_the_first_line_is_the_same_whichever_engine_reads_the_ranks(folder: Path) -> None:
    result, _ = sheet_of(folder, ["steps"], start=lambda: nullcontext(InProcessEngine()), small=0)
    assert result.source == sheet(read(folder), ["steps"]).source


def test_steps_that_count_are_the_same_whichever_engine_reads_the_ranks(tmp_path: Path) -> None:
    """Of one rank the first is partial, which its summary alone tells."""
    marks = [
        step(0, 10, 0),
        launch(2, 1, 1),
        kernel("k", 4, 5, 1),
        step(10, 10, 1),
        launch(12, 1, 2),
        kernel("k", 14, 5, 2),
    ]
    write(tmp_path / "rank0.json", *marks, **world(0, 2))
    write(tmp_path / "rank1.json", *marks, kernel("of before", 1, 2), **world(1, 2))
    assert merged_text(tmp_path, InProcessEngine()) == text(sheet(read(tmp_path)))
    assert merged_text(tmp_path, InProcessEngine()) == text(sheet(read(tmp_path)))  # from the cache


RULES = ("step max < 1000 s", "step p95 < 1 ms", "kernels == 0", IDENTICAL)


@pytest.mark.slow
def test_rules_have_one_outcome_whichever_engine_reads_the_ranks(folder: Path, pool: Pool) -> None:
    rules = [parse(rule) for rule in RULES]
    expected = judge_run(read(folder), rules)
    assert [outcome.holds for outcome in expected] == [True, False, False, False]
    analyzed = analyze_path(folder, analyses_for(rules), start=lambda: nullcontext(pool), small=0)
    assert not analyzed.is_in_memory
    assert judge(analyzed.job, analyzed.reports, rules) == expected


@pytest.mark.slow
def test_what_is_merged_from_bytes_is_what_is_merged_in_memory(copied: Path, folder: Path, expected: str) -> None:
    assert "rank 9 issued one more" in expected
    assert "the others wait" in expected
    assert merged_text(copied, InProcessEngine()).replace(str(copied), str(folder)) == expected


@pytest.mark.parametrize("name", names())
def test_what_an_analysis_keeps_of_a_rank_survives_as_bytes(folder: Path, name: str) -> None:
    part = pack(analysis(name).summarize(read(folder / "rank9.json.gz").traces[0]))
    assert pack(unpack(part, part_type(name))) == part
    assert len(part) < 20_000


def test_bytes_that_are_something_else_are_refused(folder: Path) -> None:
    whole = pack(outline(read(folder / "rank9.json.gz").traces[0]))
    assert unpack(whole, Outline).rank == 9
    for damaged in (b"", b"no zlib", whole[:-9], pack([1]), pack({"rank": 9})):
        with pytest.raises(Damaged):
            unpack(damaged, Outline)


def test_only_numbers_come_out_of_bytes() -> None:
    numbers: Any = np.ndarray[Any, np.dtype[np.int64]]
    assert unpack(pack(np.arange(6).reshape(2, 3)), numbers).tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(NotImplementedError):
        pack(np.array([object()]))
    with pytest.raises(Damaged):
        unpack(pack(("|O", (1,), b"12345678")), numbers)


def test_a_pool_says_to_the_byte_what_one_process_says(
    folder: Path, expected: str, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEQ_CACHE", "0")
    assert merged_text(folder, pool) == expected
    assert not any(_entry_of(file, How(False, None)) for file in folder.iterdir())


@pytest.mark.slow
def test_one_step_of_many_ranks_is_that_of_a_few(copied: Path) -> None:
    short = play(Fleet(num_ranks=12, ranks_per_host=4, layers=1, steps=2)).text(3).encode()
    (copied / "rank3.json.gz").write_bytes(gzip.compress(short))
    run = read(copied)
    last = int(steps(run.traces[0]).number[-1])
    alone = sheet(only_step(run, last))
    assert "no step" in " ".join(caveat.text for caveat in alone.caveats)
    engine = InProcessEngine()
    for _ in range(2):
        result, _ = sheet_of(copied, start=lambda: nullcontext(engine), small=0, step=last)
        assert text(result) == text(alone)
    with pytest.raises(UsageFault, match="no step 99; expected one of"):
        sheet_of(copied, start=lambda: nullcontext(engine), small=0, step=99)


def test_one_bad_rank_is_told_of_and_the_rest_is_read(copied: Path, pool: Pool) -> None:
    (copied / "rank3.json.gz").write_bytes(b"{}")
    result, _ = sheet_of(copied, ["steps"], start=lambda: nullcontext(pool), small=0)
    assert result.source.ranks == (0, 1, 2, *range(4, 12))
    (caveat,) = (caveat for caveat in result.caveats if caveat.code == "unreadable_rank")
    assert "rank3.json.gz" in caveat.text
    with pytest.raises(UnreadableInput, match=r"rank3\.json\.gz"):
        sheet_of(copied, ["steps"], start=lambda: nullcontext(pool), small=0, strict=True)


def dies_of_seven(number: int) -> int:
    if number == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    return 10 * number


@pytest.mark.slow
def test_a_process_that_dies_loses_its_own_rank_alone(pool: Pool) -> None:
    result = dict(pool.map(dies_of_seven, [(number,) for number in range(12)], [1] * 12))
    assert result == {number: Lost() if number == 7 else 10 * number for number in range(12)}


def test_a_process_that_dies_idle_is_replaced() -> None:
    with Pool(BUDGET, 1) as alone:
        before = set(active_children())
        assert list(alone.map(abs, [(-1,)], [1])) == [(0, 1)]
        for child in set(active_children()) - before:
            child.kill()
            child.join()
        assert sorted(alone.map(abs, [(-2,), (-3,)], [1, 1])) == [(0, 2), (1, 3)]


def run_interval(number: int) -> tuple[float, float]:
    start = time.monotonic()
    time.sleep(0.02)
    return start, time.monotonic()


@pytest.mark.slow
def test_what_does_not_fit_the_budget_together_runs_one_after_the_other() -> None:
    needs = [60, 60, 60, 500, 60, 60]
    with Pool(100, 2) as small:
        times = sorted(result for _, result in small.map(run_interval, [(number,) for number in range(6)], needs))
    assert all(end <= start for (_, end), (start, _) in pairwise(times))


def test_one_more_rank_costs_one_rank(copied: Path) -> None:
    last = (copied / "rank11.json.gz").rename(copied.parent / "kept")
    merged_text(copied, InProcessEngine(), ["steps", "kernels"])
    last.rename(copied / "rank11.json.gz")
    once, again, more = InProcessEngine(), InProcessEngine(), InProcessEngine()
    first = merged_text(copied, once, ["steps"])
    assert once.ran == ["summarize rank11.json.gz"]
    assert merged_text(copied, again, ["steps"]) == first
    merged_text(copied, more, ["kernels"])
    assert (again.ran, more.ran) == ([], ["summarize rank11.json.gz"])
    last = InProcessEngine()
    merged_text(copied, last, ["steps", "kernels"])
    assert last.ran == []


@pytest.mark.slow
def test_a_cache_that_is_stale_damaged_or_forbidden_is_as_if_it_were_not(
    copied: Path, folder: Path, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    merged_text(copied, InProcessEngine(), ["steps"])
    shutil.copy(copied / "rank1.json.gz", copied / "rank2.json.gz")
    entry = {rank: _entry_of(copied / f"rank{rank}.json.gz", How(False, None)).path for rank in (5, 6, 7, 8)}
    entry[5].write_bytes(b"damaged")
    shutil.copy(entry[6], entry[7])
    entry[8].write_bytes(entry[8].read_bytes()[:100])
    engine = InProcessEngine()
    merged_text(copied, engine, ["steps"])
    assert sorted(engine.ran) == [f"summarize rank{rank}.json.gz" for rank in (2, 5, 7, 8)]
    shutil.rmtree(cache_folder())
    cache_folder().write_text("no folder")
    shutil.copy(folder / "rank2.json.gz", copied / "rank2.json.gz")
    assert merged_text(copied, InProcessEngine()).replace(str(copied), str(folder)) == expected
    monkeypatch.setattr("traceq.engines.cache.sources", lambda: "0.0.9 (another)")
    cache_folder().unlink()
    merged_text(copied, InProcessEngine(), ["steps"])
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    newer = InProcessEngine()
    merged_text(copied, newer, ["steps"])
    assert len(newer.ran) == 12


@pytest.mark.slow
def test_a_cache_serves_each_path_that_leads_to_its_folder(copied: Path, tmp_path: Path) -> None:
    by_name = merged_text(copied, InProcessEngine())
    link = tmp_path / "link"
    link.symlink_to(copied)
    engine = InProcessEngine()
    assert merged_text(link, engine).replace(str(link), str(copied)) == by_name
    assert not [ran for ran in engine.ran if ran.startswith("summarize")]


def test_few_bytes_are_read_without_an_engine(folder: Path, expected: str) -> None:
    result, run = sheet_of(folder, start=lambda: pytest.fail("an engine for a few bytes"))
    assert len(run.traces) == 12
    assert text(result) == expected


def test_a_gzip_file_tells_how_much_it_unpacks_to(folder: Path, tmp_path: Path) -> None:
    plain = play(FLEET).text(0).encode()
    (tmp_path / "plain.json").write_bytes(plain)
    assert plain_bytes(tmp_path / "plain.json") == plain_bytes(folder / "rank0.json.gz") == len(plain)


@pytest.mark.skipif(sys.platform != "linux" or platform.libc_ver()[0] != "glibc", reason="needs glibc")
@pytest.mark.parametrize("keeps", [False, True])
def test_memory_that_was_freed_is_used_again(keeps: bool) -> None:
    code = f"""
import resource
import numpy as np
from traceq.engines.process_tuning import keep_freed_memory
def num_faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def columns(): [np.ones(400_000) for _ in range(10)]
if {keeps}: keep_freed_memory()
columns()
before = num_faults()
for _ in range(5): columns()
print(num_faults() - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (int(done.stdout) < 1_000) == keeps, done.stdout


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_a_process_that_reads_has_no_threads_but_its_own() -> None:
    imports = "from traceq.engines.process_tuning import tune_process; tune_process([]); import os, numpy"
    code = f"{imports}; print(len(os.listdir('/proc/self/task')), os.environ['OPENBLAS_NUM_THREADS'])"
    for variables, expected in (({}, "1 1"), ({"OPENBLAS_NUM_THREADS": "2"}, "2")):
        environment = {key: value for key, value in os.environ.items() if key != "OPENBLAS_NUM_THREADS"} | variables
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        assert done.stdout.strip().endswith(expected), variables


def test_a_remote_file_is_as_large_as_its_listing_says_or_large() -> None:
    named, packed = Remote("s3://bucket/rank0.json", size=10**6), Remote("s3://bucket/rank0.json.gz", size=10**6)
    assert (plain_bytes(named), plain_bytes(packed)) == (10**6, 12 * 10**6)
    assert plain_bytes(Remote("http://host/rank0.json.gz")) > SMALL


@pytest.mark.parametrize(
    ("printed", "size"), [("8GB", 8 * 10**9), ("8gib", 8 * 2**30), ("1.5g", 1_500_000_000), ("500 MB", 500_000_000)]
)
def test_a_size_is_read_as_people_write_it(printed: str, size: int) -> None:
    assert parse_memory(printed) == size


@pytest.mark.parametrize("printed", ["", "much", "0", "-1GB", "8 apples"])
def test_what_is_no_size_is_refused(printed: str) -> None:
    with pytest.raises(UsageFault, match="expected a size, like 8GB"):
        parse_memory(printed)


INTERRUPTED = """
import sys, time
import traceq.engines.analyze_path
from traceq.cli import main

def slow(path, only, *, start, **how):
    with start() as engine:
        list(engine.map(time.sleep, [(60,), (60,)], [1, 1]))

traceq.engines.analyze_path.sheet_of = slow
sys.argv = ["traceq", "show", "job"]
main()
"""


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def children(pid: int) -> set[int]:
    file = Path(f"/proc/{pid}/task/{pid}/children")
    return {int(child) for child in file.read_text().split()} if file.exists() else set()


def wait_until(is_so: Callable[[], bool]) -> bool:
    until = time.monotonic() + 60
    while not is_so() and time.monotonic() < until:
        time.sleep(0.05)
    return is_so()


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
@pytest.mark.parametrize(("by", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_an_interrupted_command_leaves_no_process_behind(by: signal.Signals, code: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED], stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as command:
        assert wait_until(lambda: len(children(command.pid)) >= 3)  # two, and the one that tracks what they share
        workers = children(command.pid)
        os.killpg(command.pid, by) if by == signal.SIGINT else command.send_signal(by)  # as a terminal does
        assert command.wait(60) == code
        assert wait_until(lambda: not any(map(is_there, workers)))
        assert command.stderr is not None
        assert by == signal.SIGKILL or command.stderr.read() == ""
