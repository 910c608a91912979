"""Lines of loader workers: only of those that fork, only once asked, and the job's own `worker_init_fn` is called."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="recording needs torch")

import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from traceq.recorder.tracing.line_samples import WorkerSamples, line_of

pytestmark = [pytest.mark.torch, pytest.mark.skipif(sys.platform != "linux", reason="fork")]


class Slow(Dataset[torch.Tensor]):
    """Items that take 5 ms of one line."""

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> torch.Tensor:
        until = time.thread_time() + 0.005
        while time.thread_time() < until:
            pass
        return torch.tensor(index)


class Noting:
    """A `worker_init_fn` of a job."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, worker_id: int) -> None:
        (self.folder / f"own{worker_id}").touch()


def iterator_of(samples: WorkerSamples, loader: DataLoader[Any]) -> Any:
    """The loader's iterator, made as the recorder's hook makes it."""
    from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

    iterator = _MultiProcessingDataLoaderIter.__new__(_MultiProcessingDataLoaderIter)
    with samples.sampled_workers(iterator, loader):
        iterator.__init__(loader)
    return iterator


def open_pipes() -> set[str]:
    """Every pipe of this process."""
    pipes = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            pipes.add(os.readlink(f"/proc/self/fd/{name}"))
    return {pipe for pipe in pipes if pipe.startswith("pipe:")}


@pytest.mark.slow
def test_workers_count_their_lines_once_they_are_asked(tmp_path: Path) -> None:
    of_job, samples = Noting(tmp_path), WorkerSamples(tmp_path)
    loader = DataLoader(Slow(), num_workers=2, worker_init_fn=of_job, prefetch_factor=200)
    iterator = iterator_of(samples, loader)
    assert loader.worker_init_fn is of_job
    for _ in range(4):
        next(iterator)
    assert not list(tmp_path.glob("*.json"))
    samples.start()
    counts = samples.take()
    assert counts.total() > 0
    ((line, _),) = counts.most_common(1)
    assert line.startswith("test_worker_samples.py:")
    assert line.endswith(" __getitem__")
    assert {path.name for path in tmp_path.glob("own*")} == {"own0", "own1"}
    assert len(list(tmp_path.glob("*.json"))) == 2
    assert next(iterator) is not None


def test_workers_that_are_never_asked_end_with_their_iterator_and_leave_no_descriptor(tmp_path: Path) -> None:
    before = open_pipes()
    samples = WorkerSamples(tmp_path)
    iterator = iterator_of(samples, DataLoader(Slow(), num_workers=1))
    next(iterator)
    workers = list(iterator._workers)
    iterator._shutdown_workers()
    assert [worker.exitcode for worker in workers] == [0]
    del iterator, workers
    deadline = time.monotonic() + 30  # the threads that feed the loader's queues close theirs a little later
    while not (left := open_pipes()) <= before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert left <= before
    assert samples.take() == {}


def test_workers_that_are_spawned_stay_untouched(tmp_path: Path) -> None:
    of_job = Noting(tmp_path)
    loader = DataLoader(Slow(), num_workers=1, worker_init_fn=of_job, multiprocessing_context="spawn")
    with WorkerSamples(tmp_path).sampled_workers(loader, loader):
        assert loader.worker_init_fn is of_job


def test_a_loader_that_refuses_the_change_is_not_sampled_and_raises_nothing(tmp_path: Path) -> None:
    class Strict(DataLoader[Any]):
        def __setattr__(self, name: str, value: object) -> None:
            if name == "worker_init_fn" and name in vars(self):
                raise AttributeError(name)
            super().__setattr__(name, value)

    loader = Strict(Slow(), num_workers=1)
    with WorkerSamples(tmp_path).sampled_workers(loader, loader):
        assert loader.worker_init_fn is None


def test_a_thread_that_makes_no_batch_has_no_line() -> None:
    assert line_of(sys._getframe()) == ""


def test_a_worker_that_has_ended_is_not_waited_for_and_files_of_others_are_theirs(tmp_path: Path) -> None:
    samples = WorkerSamples(tmp_path)
    iterator = iterator_of(samples, DataLoader(Slow(), num_workers=1))
    next(iterator)
    (tmp_path / f"{os.getpid()}.samples.json").write_text('{"other.py:1 f": 9}')  # of another rank's worker
    samples.start()
    iterator._workers[0].kill()
    iterator._workers[0].join()
    begin = time.monotonic()
    assert samples.take() == {}
    assert time.monotonic() - begin < 3


class Comprehending(Dataset[torch.Tensor]):
    """Items that note the line in which a comprehension of theirs runs."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __getitem__(self, index: int) -> torch.Tensor:
        self.lines += [line_of(sys._getframe()) for _ in range(2)]
        return torch.tensor(index)


def test_a_comprehension_is_in_the_function_around_it() -> None:
    dataset = Comprehending()
    _MapDatasetFetcher(dataset, True, torch.stack, False).fetch([0])
    assert {line.partition(" ")[2] for line in dataset.lines} == {"__getitem__"}
