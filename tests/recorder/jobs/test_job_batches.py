"""Which loader feeds a loop, and how many samples its batches have."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("torch", reason="loaders are torch's")

import torch

from traceq.recorder.jobs.job_facts import JobBatches
from traceq.recorder.rank.rank_state import loader_settings

pytestmark = pytest.mark.torch


def loader(batch_size: int | None = 8) -> Any:
    return torch.utils.data.DataLoader([0], batch_size=batch_size)


@pytest.mark.parametrize(
    ("batch", "num_samples"),
    [
        (torch.zeros(8, 3), 8),
        ((torch.zeros(4, 3), torch.zeros(4)), 4),
        ({"prompt": ["a", "b"], "pixels": {"left": torch.zeros(2, 3)}}, 2),
        (torch.tensor(1.0), 0),
        (["a", "b"], 0),
        (torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged), 2),
        (torch.nn.parameter.UninitializedParameter(), 0),
    ],
)
def test_samples_are_the_first_dimension_of_the_first_tensor(batch: Any, num_samples: int) -> None:
    batches = JobBatches()
    batches.add(loader(num_samples or 8), batch)
    assert batches.samples_per_batch == num_samples


def test_samples_are_unknown_where_batches_are_not_what_their_loader_declares() -> None:
    """A collate function may pack sequences; a loader without a batch size passes on what the dataset has."""
    for declared in (4, None):
        batches = JobBatches()
        batches.add(loader(declared), torch.zeros(8))
        assert batches.samples_per_batch == 0
    sampler = torch.utils.data.BatchSampler(range(32), 8, drop_last=True)
    batches = JobBatches()
    batches.add(torch.utils.data.DataLoader(range(32), batch_sampler=sampler), torch.zeros(8))
    assert batches.samples_per_batch == 8


def test_the_loader_of_a_framework_declares_no_size() -> None:
    """Fastai gives torch's iterators a loader of its own, which has only what those read."""
    framework_s = SimpleNamespace(num_workers=0, prefetch_factor=2)
    batches = JobBatches()
    batches.add(cast(Any, framework_s), torch.zeros(8))
    assert (batches.loader, batches.samples_per_batch) == (framework_s, 0)
    assert loader_settings(cast(Any, framework_s)) == {"num_workers": 0, "prefetch_factor": 0}


def test_the_usual_batch_of_the_main_loader_counts() -> None:
    batches, train, other = JobBatches(), loader(), loader()
    for size in (8, 8, 8, 8, 3):
        batches.add(train, torch.zeros(size))
    batches.add(other, torch.zeros(64))
    assert (batches.loader, batches.samples_per_batch) == (train, 8)


def test_of_two_loaders_side_by_side_none_is_the_main_one() -> None:
    batches, labelled, unlabelled = JobBatches(), loader(), loader()
    for _ in range(4):
        batches.add(labelled, torch.zeros(8))
        batches.add(unlabelled, torch.zeros(16))
    assert (batches.loader, batches.samples_per_batch) == (None, 0)
    batches.add(None, torch.zeros(8))
    batches.clear()
    assert batches.loader is None
