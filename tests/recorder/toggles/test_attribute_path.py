"""A path names attributes and items of a running program, through wrappers, or says what there is instead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

pytest.importorskip("torch", reason="paths lead to models")

import torch
from torch import nn

from traceq.errors import UsageFault
from traceq.recorder.toggles.attribute import create, find_slots
from traceq.recorder.toggles.toggle import Job

pytestmark = pytest.mark.torch


@dataclass(frozen=True)
class Inner:
    rate: float = 0.5


@dataclass
class Config:
    inner: Inner = field(default_factory=Inner)
    by_name: dict[str, Any] = field(default_factory=lambda: {"clip": 1, "sizes": [1, 2]})
    is_on: bool = False
    label: str = "a"
    nothing: None = None


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.3)) for _ in range(3)])
        self.config = Config()


class Wrapper(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


config, loader = Config(), torch.utils.data.DataLoader([0, 1])
MODULE = __name__


def job() -> Job:
    model = Wrapper(Net())
    return Job([model], [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)])


@pytest.mark.parametrize("path", ["clip_at", "main.clip_at"])
def test_a_bare_variable_of_a_function_is_refused_with_what_can_be_done(path: str) -> None:
    clip_at = 1.0
    with pytest.raises(UsageFault, match=r"clip_at is a local variable of test_a_bare.*--arm 'NAME=--clip_at V"):
        find_slots(path, job())
    assert clip_at == 1.0


@pytest.mark.parametrize(
    ("path", "values"),
    [
        (f"{MODULE}.config.inner.rate", [0.5]),
        (f"{MODULE}.config.by_name.clip", [1]),
        (f"{MODULE}.config.by_name.sizes.1", [2]),
        (f"{MODULE}.config.by_name.sizes.*", [1, 2]),
        ("model.config.inner.rate", [0.5]),  # through the wrapper
        ("model.module.config.inner.rate", [0.5]),
        ("model.blocks.*.1.p", [0.3] * 3),
        ("model.**.p", [0.3] * 3),
        ("optimizer.param_groups.0.momentum", [0.9]),
        ("local.inner.rate", [0.5]),  # a variable of a function that is running
    ],
)
def test_a_path_names_all_places_that_it_fits(path: str, values: list[object]) -> None:
    local = Config()  # noqa: F841 (named by a path)
    current = job()
    slots = find_slots(path, current)
    assert [slot.get() for slot in slots] == values
    for slot in slots:
        slot.write(7)()
    assert [slot.get() for slot in find_slots(path, current)] == [7] * len(values)
    for slot, value in zip(slots, values, strict=True):
        slot.write(value)()


@pytest.mark.parametrize(
    ("path", "values", "expected"),
    [
        ("config.inner.rate", ("0", "1e-3"), [0.0, 1e-3]),
        ("config.is_on", ("off", "true"), [False, True]),
        ("config.label", ("1", "b"), ["1", "b"]),
        ("config.nothing", ("none", "[1]"), [None, [1]]),
        ("config.by_name.clip", ("2", "0.5"), [2, 0.5]),
    ],
)
def test_values_have_the_type_that_the_job_has_there(path: str, values: Sequence[str], expected: list[object]) -> None:
    toggle = create(f"{MODULE}.{path}", values, job())
    (slot,) = toggle.slots
    before = slot.get()
    seen = []
    for number in range(len(values)):
        toggle.apply(number)
        assert toggle.fault(number) == ""
        seen.append(slot.get())
    toggle.restore()
    assert (seen, slot.get()) == (expected, before)
    assert [type(value) for value in seen] == [type(value) for value in expected]


@pytest.mark.parametrize(
    ("path", "owner", "proposed"),
    [
        (f"{MODULE}.config.inner.rat", "Inner", "rate"),
        (f"{MODULE}.config.by_name.click", "dict", "clip"),
        ("model.blocks.0.0.weigth", "Linear", "weight"),
        (f"{MODULE}.Config.labl", "type", "label"),
    ],
)
def test_a_path_that_is_mistyped_is_refused_with_what_there_is(path: str, owner: str, proposed: str) -> None:
    with pytest.raises(UsageFault, match=rf": {owner} .* '{path.split('.')[-1]}' \(did you mean {proposed}\?\)"):
        create(path, ("0", "1"), job())


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("model.blocks.*.1.q", "nothing has this name"),
        ("model.blocks.0.0.weight", "holds a Parameter; expected a plain value"),
        ("nobody.knows", "variable is called 'nobody'"),
        (f"{MODULE}.loader.num_workers", "only where an epoch begins, .* --arm"),
    ],
)
def test_a_path_to_no_plain_value_is_refused(path: str, message: str) -> None:
    with pytest.raises(UsageFault, match=message):
        create(path, ("0", "1"), job())


def test_an_object_of_a_function_is_not_looked_for_in_the_script() -> None:
    args = Config()
    with pytest.raises(UsageFault, match=r"args .* of test_\w+\(\), .* --toggle args\.is_onn=\.\.\.$"):
        create("main.args.is_onn", ("0", "1"), job())
    assert create("args.is_on", ("0", "1"), job()).before == [args.is_on]
