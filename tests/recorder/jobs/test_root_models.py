"""The models of a process, also where the job keeps them from Python's garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

pytest.importorskip("torch", reason="models are torch's")

import torch

from traceq.recorder.jobs.root_models import find_roots, inner_with_forward, with_forward
from traceq.recorder.rank.environment_facts import wrapper_facts

pytestmark = pytest.mark.torch


class DeepSpeedEngine(torch.nn.Module):
    """A wrapper by its name."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module


@pytest.fixture
def frozen() -> Iterator[torch.nn.Module]:
    """A model that was frozen, as some jobs do once all is built."""
    model = DeepSpeedEngine(torch.nn.Linear(4, 4))
    gc.freeze()
    assert all(each is not model for each in gc.get_objects())
    yield model
    gc.unfreeze()


@pytest.mark.slow
def test_a_frozen_model_is_a_root_and_remains_frozen(frozen: torch.nn.Module) -> None:
    before, was_enabled = gc.get_freeze_count(), gc.isenabled()
    roots = find_roots()
    assert [each for each in roots if each is frozen] == [frozen]
    assert all(each is not frozen.module for each in roots)
    assert gc.get_freeze_count() >= before
    assert gc.isenabled() == was_enabled
    assert all(each is not frozen for each in gc.get_objects())


@pytest.mark.slow
def test_a_frozen_wrapper_is_a_fact(frozen: torch.nn.Module) -> None:
    assert "DeepSpeedEngine" in wrapper_facts({})["wrapper"]


def test_what_nobody_froze_is_not_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.unfreeze()
    monkeypatch.setattr(gc, "freeze", lambda: pytest.fail("froze"))
    model = torch.nn.Linear(4, 4)
    assert any(each is model for each in find_roots())


@pytest.mark.slow
def test_a_model_without_shapes_yet_is_a_root() -> None:
    model = torch.nn.Sequential(torch.nn.LazyLinear(4))
    assert any(each is model for each in find_roots())


class Agent(torch.nn.Module):
    """A module without a forward: a loop calls methods of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.actor = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
        self.critics = torch.nn.ModuleList([torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)])


def test_of_a_model_without_a_forward_the_modules_that_its_methods_call_are_watched() -> None:
    agent, plain = Agent(), torch.nn.Linear(4, 4)
    assert with_forward([agent, plain]) == [agent.actor, *agent.critics, plain]
    agent.forward = agent.actor.forward
    assert with_forward([agent]) == [agent]


def test_inside_a_model_each_outermost_module_with_a_forward_is_found_once() -> None:
    agent = Agent()
    agent.forward = agent.actor.forward
    shared = torch.nn.Sequential(agent.actor, torch.nn.ModuleList([agent.actor]))
    assert inner_with_forward([agent, shared]) == [agent.actor, *agent.critics]


def test_the_module_that_ddp_wraps_is_called_alone_to_evaluate() -> None:
    model = torch.nn.Linear(4, 4)
    wrapped = torch.nn.DataParallel(model)
    assert with_forward([wrapped]) == [wrapped, model]
