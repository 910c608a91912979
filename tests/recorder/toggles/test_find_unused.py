"""The search for unused parameters is switched with its reducer: the attribute of DDP alone would change nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

pytest.importorskip("torch", reason="toggles change torch")

import torch
from single_rank_group import single_rank_group
from torch.nn.parallel import DistributedDataParallel

from traceq.errors import UsageFault
from traceq.recorder.toggles.toggle import Job, applicable_toggles, create_toggle

pytestmark = pytest.mark.torch


@pytest.fixture
def group() -> Iterator[None]:
    with single_rank_group():
        yield


def ops_of_step(model: torch.nn.Module) -> list[str]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        model(torch.ones(2, 4)).sum().backward()
    return [event.name for event in profiler.events()]


def test_one_reducer_searches_and_the_other_does_not(group: None) -> None:
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters())
    ops_of_step(model)
    reducer = model.reducer
    toggle = create_toggle("@find_unused", ("off", "on"), Job([model], [optimizer]))
    for number in (0, 1, 0, 1, 1, 0):
        toggle.apply(number)
        ops = ops_of_step(model)
        assert any("search_unused" in op for op in ops) == bool(number)
        assert sum(bool(re.search("gloo:all_reduce|c10d::allreduce_", op)) for op in ops) > 0
    toggle.apply(1)
    toggle.restore()
    assert model.reducer is reducer
    assert not model.find_unused_parameters
    assert applicable_toggles(Job([model], [optimizer]))["@find_unused"] == ("default", "on")


def test_a_model_without_ddp_has_no_such_search() -> None:
    with pytest.raises(UsageFault, match="no model is wrapped in DistributedDataParallel"):
        create_toggle("@find_unused", ("off", "on"), Job([torch.nn.Linear(2, 2)], []))
