"""CPU time of workers and waits for a core, read from processes that really run."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import pytest

pytest.importorskip("torch", reason="recording needs torch")

from traceq.model import CoreUse
from traceq.recorder.process.child_processes import daemonic_children
from traceq.recorder.timing.clocks import CoreClocks, core_facts
from traceq.runs.step_log import CoresLine

pytestmark = [pytest.mark.torch, pytest.mark.skipif(sys.platform != "linux", reason="/proc")]

MS = 1_000_000


def spin(seconds: float) -> None:
    while time.process_time() < seconds:
        pass


def rest(seconds: float) -> None:
    time.sleep(60)


@contextmanager
def child(target: object, seconds: float) -> Iterator[multiprocessing.process.BaseProcess]:
    process = multiprocessing.get_context("fork").Process(target=target, args=(seconds,), daemon=True)
    process.start()
    yield process
    process.kill()
    process.join()


@pytest.mark.slow
def test_a_worker_that_computes_is_told_from_one_that_rests() -> None:
    for target, least, most in ((spin, 0.1, 0.6), (rest, 0.0, 0.05)):
        with child(target, 60) as process:
            clocks = CoreClocks(daemonic_children)
            clocks.start()
            time.sleep(0.4)
            (line,) = clocks.lines(num_steps=4)
            assert (line.num_steps, line.num_workers) == (4, 1)
            assert least <= (line.worker_ns + line.worker_wait_ns) / 1e9 <= most, process.pid
            assert line.wall_ns >= 400 * MS
            assert line.process_ns < line.wall_ns


def test_the_wait_of_a_thread_is_at_most_that_of_all() -> None:
    ends_ns = time.monotonic_ns() + 300 * MS
    threads = [Thread(target=keep_busy, args=(ends_ns,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    clocks = CoreClocks(list)
    clocks.start()
    keep_busy(ends_ns - 50 * MS)
    (line,) = clocks.lines(num_steps=1)
    for thread in threads:
        thread.join()
    assert 0 <= line.thread_wait_ns <= min(line.process_wait_ns, line.wall_ns)


def keep_busy(ends_ns: int) -> None:
    while time.monotonic_ns() < ends_ns:
        sum(range(1000))


def test_the_time_of_a_worker_that_ended_meanwhile_counts() -> None:
    clocks = CoreClocks(daemonic_children)
    process = multiprocessing.get_context("fork").Process(target=spin, args=(0.2,), daemon=True)
    process.start()
    clocks.start()
    process.join()
    (line,) = clocks.lines(num_steps=1)
    assert line.worker_ns >= 100 * MS


def test_the_time_of_a_process_that_the_job_starts_is_none_of_its_workers() -> None:
    with child(rest, 60):
        clocks = CoreClocks(daemonic_children)
        clocks.start()
        program = "import time\nwhile time.process_time() < 0.3: pass"
        subprocess.run([sys.executable, "-c", program], check=True)
        (line,) = clocks.lines(num_steps=1)
    assert line.worker_ns < 100 * MS


def test_without_clocks_of_the_system_there_are_no_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traceq.recorder.timing.clocks.resource", None)
    clocks = CoreClocks(list)
    clocks.start()
    assert clocks.lines(1) == []
    assert core_facts([[]], ["host"]) == {}


def line(**changes: int) -> CoresLine:
    values = {
        "num_steps": 10, "wall_ns": 1000 * MS, "process_ns": 800 * MS, "worker_ns": 300 * MS,
        "process_wait_ns": 50 * MS, "thread_wait_ns": 30 * MS, "worker_wait_ns": 20 * MS,
        "machine_ns": 1500 * MS, "num_workers": 2,
    }  # fmt: skip
    return CoresLine(**{**values, **changes})


def test_facts_are_means_of_a_step_and_others_are_what_the_job_does_not_use() -> None:
    use = CoreUse.of(core_facts([[line(), line(num_steps=30, process_ns=0)]], []))
    assert use is not None
    assert (use.timed_step_ns, use.step_cpu_ns, use.worker_cpu_ns) == (50 * MS, 20 * MS, 15 * MS)
    assert (use.step_core_wait_ns, use.thread_core_wait_ns) == (2.5 * MS, 1.5 * MS)
    assert use.other_busy_cores == pytest.approx((3000 - 800 - 600) / 2000)
    assert use.cores_available == len(os.sched_getaffinity(0))


def test_ranks_of_a_host_share_its_cores_and_the_busiest_host_counts() -> None:
    ranks = [[line()], [line()], [line(machine_ns=1900 * MS)]]
    use = CoreUse.of(core_facts(ranks, ["one", "one", "two"]))
    assert use is not None
    assert (use.ranks_per_host, use.loader_workers, use.step_cpu_ns) == (2, 2, 80 * MS)
    assert use.other_busy_cores == pytest.approx(0.8)
    unknown = CoreUse.of(core_facts([[line(machine_ns=0)]], ["one"]))
    assert unknown is not None
    assert unknown.other_busy_cores == -1
