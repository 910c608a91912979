"""A batch is made while the step before it runs: the same batches, in the same order, up to the same end."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

pytest.importorskip("torch", reason="toggles change torch")

import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from traceq.recorder.toggles.prefetch import PrefetchToggle
from traceq.recorder.toggles.toggle import Job, applicable_toggles, create_toggle

pytestmark = pytest.mark.torch

NUM_SAMPLES = 24


class Samples(Dataset[torch.Tensor]):
    """Notes the thread that makes each sample."""

    def __init__(self, *, draws: bool = False, fails_at: int = -1) -> None:
        self.threads: list[int] = []
        self.draws, self.fails_at = draws, fails_at

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self.fails_at:
            raise ValueError("a bad sample")
        self.threads.append(threading.get_ident())
        return index + torch.rand(()) if self.draws else torch.tensor(float(index))

    @property
    def num_ahead(self) -> int:
        return sum(thread != threading.get_ident() for thread in self.threads)


def toggle_of(loader: DataLoader[torch.Tensor]) -> PrefetchToggle:
    toggle = create_toggle("@prefetch", ("default", "on"), Job([], [], loader=loader))
    assert isinstance(toggle, PrefetchToggle)
    return toggle


def epochs(loader: DataLoader[torch.Tensor], toggle: PrefetchToggle | None = None, num: int = 2) -> list[float]:
    """Train on random noise beside the batches, and change the arm in every third step."""
    torch.manual_seed(0)
    values = []
    for epoch in range(num):
        for step, batch in enumerate(loader):
            if toggle is not None:
                toggle.apply((epoch + step // 3) % 2)
            values.append((batch.sum() + torch.rand(())).item())
    return values


def test_batches_and_random_numbers_are_those_of_the_bare_loop() -> None:
    samples = Samples()
    loader = DataLoader(samples, batch_size=2, shuffle=True)
    bare = epochs(loader, num=4)
    assert samples.num_ahead == 0
    original = _SingleProcessDataLoaderIter._next_data
    toggle = toggle_of(loader)
    assert epochs(loader, toggle, num=4) == bare
    assert samples.num_ahead > 0
    toggle.restore()
    assert _SingleProcessDataLoaderIter._next_data is original
    assert epochs(loader, num=4) == bare


def ahead(loader: DataLoader[torch.Tensor]) -> tuple[PrefetchToggle, Iterator[torch.Tensor]]:
    """Return the toggle, on, and an iterator of which a batch has been begun."""
    toggle = toggle_of(loader)
    for _ in loader:  # until it is known that batches draw nothing
        pass
    toggle.apply(1)
    iterator = iter(loader)
    next(iterator)
    return toggle, iterator


def test_a_batch_that_was_begun_is_delivered_once_it_is_restored() -> None:
    loader = DataLoader(Samples(), batch_size=2)
    toggle, iterator = ahead(loader)
    toggle.restore()
    rest = [batch.tolist() for batch in iterator]
    assert rest == [[float(n), float(n + 1)] for n in range(2, NUM_SAMPLES, 2)]


def test_an_exception_comes_where_the_job_would_meet_it() -> None:
    samples = Samples()
    toggle, iterator = ahead(DataLoader(samples, batch_size=2))
    samples.fails_at = 6
    assert [batch.tolist() for batch in (next(iterator), next(iterator))] == [[2, 3], [4, 5]]
    with pytest.raises(ValueError, match="a bad sample"):
        next(iterator)
    toggle.restore()


def test_a_loader_that_draws_random_numbers_is_left_alone() -> None:
    samples = Samples(draws=True)
    loader = DataLoader(samples, batch_size=2)
    bare = epochs(loader)
    toggle = toggle_of(loader)
    toggle.apply(1)
    assert epochs(loader, toggle) == bare
    assert samples.num_ahead == 0
    assert toggle.no_effect.startswith("the loader's batches draw random numbers")
    toggle.restore()


def test_it_is_silent_without_a_loader_and_with_workers() -> None:
    assert "@prefetch" in applicable_toggles(Job([], [], loader=DataLoader(Samples())))
    assert "@prefetch" not in applicable_toggles(Job([], [], loader=DataLoader(Samples(), num_workers=1)))
    assert "@prefetch" not in applicable_toggles(Job([], []))
