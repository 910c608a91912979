"""Every toggle has the effect that it names, is read back where torch reads it, and is gone when it is restored."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

pytest.importorskip("torch", reason="toggles change torch")

import torch
from torch import nn

from traceq.errors import RecordingFailed, UsageFault
from traceq.recorder.toggles import settings
from traceq.recorder.toggles.toggle import DEFAULT, Job, applicable_toggles, create_toggle, toggle_names

pytestmark = pytest.mark.torch


COMPILE_CAN_SWITCH = hasattr(torch.compiler, "set_stance")


@pytest.fixture(autouse=True)
def nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever other tests of this process have compiled."""
    monkeypatch.setattr(settings, "has_compiled", lambda: False)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        heads = self.layer(batch).view(2, 4, 4, 4)
        attended = nn.functional.scaled_dot_product_attention(heads, heads, heads)
        return torch.relu(attended.reshape(2, 4, 16))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            batch = block(batch)
        return batch


class Training:
    """A model and its optimizer; `step` trains and returns how often each op ran."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = Net()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.losses: list[float] = []
        self.step()

    @property
    def job(self) -> Job:
        return Job([self.model], [self.optimizer])

    def step(self) -> Counter[str]:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            with torch.autocast("cpu", torch.bfloat16, enabled=False):
                loss = self.model(torch.ones(2, 4, 16)).square().mean()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.losses.append(loss.item())
        return Counter(event.name for event in profiler.events() if event.name.startswith(("aten::", "autograd::")))


OPS = {
    ("@optimizer", "foreach"): "aten::_foreach_mul_",
    ("@optimizer", "fused"): "aten::_fused_adamw_",
    ("@attention", "math"): "aten::_scaled_dot_product_attention_math",
}


@pytest.mark.parametrize(("name", "value"), OPS, ids=lambda text: str(text).lstrip("@"))
def test_a_value_issues_its_ops_and_its_absence_does_not(name: str, value: str) -> None:
    training = Training()
    before = training.step()
    toggle = create_toggle(name, (DEFAULT, value), training.job)
    counts = []
    for number in (1, 0, 1):
        toggle.apply(number)
        assert toggle.fault(number) == ""
        counts.append(training.step())
    toggle.restore()
    op = OPS[name, value]
    assert [count[op] > before[op] for count in counts] == [True, False, True]
    assert counts[1] == training.step() == before


def test_checkpointing_runs_the_forward_again_in_backward() -> None:
    training = Training()
    before = training.step()
    toggle = create_toggle("@checkpointing", ("off", "on"), training.job)
    toggle.apply(1)
    assert training.step()["aten::linear"] == 2 * before["aten::linear"]
    toggle.apply(0)
    assert training.step() == before
    toggle.restore()
    assert not hasattr(Block.forward, "__wrapped__")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("@optimizer", ("loop", "foreach")),
        ("@optimizer", ("foreach", "fused")),
        ("@checkpointing", ("off", "on")),
        ("@attention", ("sdpa", "math")),
        ("@threads", ("1", "2")),
        ("@gc", ("off", "on")),
        ("@stall", ("0", "10")),
    ],
)
def test_training_with_a_toggle_that_changes_every_second_step_has_the_same_losses(
    name: str, values: Sequence[str]
) -> None:
    alone, toggled = Training(), Training()
    toggle = create_toggle(name, values, toggled.job)
    for number in range(12):
        toggle.apply(number // 2 % 2)
        alone.step()
        toggled.step()
    toggle.restore()
    assert toggled.losses == pytest.approx(alone.losses, rel=1e-5)


class Convolutions(Training):
    """Two convolutions, of which the first follows the format of its weight."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.losses: list[float] = []
        self.step()

    def is_channels_last(self) -> bool:
        images = self.model[0](torch.ones(2, 4, 8, 8))
        return images.is_contiguous(memory_format=torch.channels_last) and not images.is_contiguous()

    def step(self) -> Counter[str]:
        self.optimizer.zero_grad()
        loss = self.model(torch.linspace(0, 1, 512).view(2, 4, 8, 8)).square().mean()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())
        return Counter()


@pytest.mark.parametrize("implementation", [pytest.param("foreach", marks=pytest.mark.slow), "fused"])
def test_convolutions_follow_the_format_of_their_weights_and_learn_the_same(implementation: str) -> None:
    """A fused optimizer goes over memory as it lies, so its state has to lie as the weights do."""
    alone, toggled = Convolutions(), Convolutions()
    for each in (alone, toggled):
        create_toggle("@optimizer", (DEFAULT, implementation), each.job).apply(1)
    toggle = create_toggle("@channels_last", (DEFAULT, "on"), toggled.job)
    seen = []
    for number in (0, 1, 1, 0, 1, 0):
        toggle.apply(number)
        assert toggle.fault(number) == ""
        seen.append(toggled.is_channels_last())
        alone.step()
        toggled.step()
    assert seen == [False, True, True, False, True, False]
    for weight, expected in zip(toggled.model.parameters(), alone.model.parameters(), strict=True):
        assert torch.allclose(weight, expected, rtol=1e-4, atol=1e-5)
    toggle.apply(1)
    toggle.restore()
    assert not toggled.is_channels_last()
    assert "@channels_last" in applicable_toggles(toggled.job)
    assert "@channels_last" not in applicable_toggles(Training().job)


def test_a_format_that_was_only_tried_leaves_no_trace() -> None:
    alone, toggled = Convolutions(), Convolutions()
    applicable_toggles(toggled.job)
    toggle = create_toggle("@channels_last", (DEFAULT, "on"), toggled.job)
    toggle.apply(1)
    toggle.restore()
    for each in (alone, toggled):
        for _ in range(4):
            each.step()
    assert toggled.losses == alone.losses
    assert [weight.stride() for weight in toggled.model.parameters()] == [
        weight.stride() for weight in alone.model.parameters()
    ]


class Averaged(torch.nn.Module):
    """A model beside its moving average, which comes first and is not called."""

    def __init__(self) -> None:
        super().__init__()
        self.average = torch.nn.Linear(2, 2).requires_grad_(requires_grad=False)
        self.weights = torch.nn.ParameterList([torch.zeros(2)])
        self.layer = torch.nn.Linear(2, 2)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.layer(batch) + self.weights[0]


def waits_ms(model: torch.nn.Module) -> float:
    begin = time.perf_counter()
    model(torch.zeros(1, 2))
    return 1e3 * (time.perf_counter() - begin)


def test_a_stall_is_in_the_first_layer_that_is_called() -> None:
    uncalled, model = torch.nn.Linear(64, 64), Averaged()
    toggle = create_toggle("@stall", ("0", "50000"), Job([uncalled, model], []))
    for number in (1, 0):  # each arm is tried before any step
        toggle.apply(number)
    model(torch.zeros(1, 2))
    toggle.apply(1)
    assert waits_ms(model) >= 50
    toggle.apply(0)
    assert waits_ms(model) < 50
    toggle.apply(1)
    toggle.restore()
    assert waits_ms(model) < 50


class Shared(torch.nn.Module):
    """An embedding that nobody calls, and layers in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = torch.nn.Embedding(4, 2)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)])

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            batch = layer(batch)
        return batch


def test_a_stall_is_in_a_layer_of_a_list_behind_one_that_is_never_called() -> None:
    """In none of the model's own, which begins before its forward does."""
    model = Shared()
    toggle = create_toggle("@stall", ("0", "50000"), Job([model], []))
    toggle.apply(1)
    model(torch.zeros(1, 2))
    toggle.apply(1)
    assert [bool(module._forward_pre_hooks) for module in (model, *model.layers)] == [False, True, False]
    assert waits_ms(model) >= 50
    toggle.restore()


class CallsPastHooks(torch.nn.Linear):
    """As the modules of GPyTorch."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)


class CallsHooks(torch.nn.Linear):
    """As those of Pyro."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs)


@pytest.mark.parametrize("layer", [CallsPastHooks, CallsHooks])
def test_a_layer_with_a_call_of_its_own_waits_once(layer: type[torch.nn.Linear]) -> None:
    model = torch.nn.Sequential(layer(2, 2), layer(2, 2))
    toggle = create_toggle("@stall", ("0", "50000"), Job([model], []))
    toggle.apply(1)
    model(torch.zeros(1, 2))
    toggle.apply(1)
    assert 50 <= waits_ms(model) < 100
    toggle.restore()
    assert waits_ms(model) < 50


class Activated(torch.nn.Linear):
    """A layer that is a model, with a module inside that has no parameters."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.activation = torch.nn.ReLU()

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.activation(super().forward(batch))


def test_a_stall_is_in_a_layer_that_is_a_model_and_called_past_its_hooks() -> None:
    model = Activated()
    toggle = create_toggle("@stall", ("0", "50000"), Job([model], []))
    toggle.apply(1)
    model.forward(torch.zeros(1, 2))
    toggle.apply(1)
    assert 50 <= waits_ms(model) < 100
    begin = time.perf_counter()
    model.forward(torch.zeros(1, 2))
    assert time.perf_counter() - begin >= 0.05
    toggle.restore()
    assert waits_ms(model) < 50


def test_a_stall_in_no_layer_is_a_fault() -> None:
    toggle = create_toggle("@stall", ("0", "50000"), Job([torch.nn.Linear(2, 2)], []))
    for number in range(32):
        toggle.apply(number % 2)
    with pytest.raises(RecordingFailed, match=r"@stall: .* layers of no model"):
        toggle.apply(0)


READ: dict[str, tuple[str, Callable[[], object], object]] = {
    "@cudnn_benchmark": ("on", lambda: torch.backends.cudnn.benchmark, True),
    "@matmul_precision": ("high", torch.get_float32_matmul_precision, "high"),
    "@threads": ("1", torch.get_num_threads, 1),
}


@pytest.mark.parametrize("name", READ)
def test_settings_are_read_back_and_restored(name: str) -> None:
    value, read, expected = READ[name]
    before = read()
    toggle = create_toggle(name, (DEFAULT, value), Training().job)
    toggle.apply(1)
    assert (read(), toggle.fault(1)) == (expected, "")
    toggle.apply(0)
    assert read() == before
    toggle.apply(1)
    toggle.restore()
    assert read() == before


@pytest.mark.slow
def test_what_the_job_has_frozen_stays_frozen_in_both_arms() -> None:
    gc.freeze()
    toggle = create_toggle("@gc", ("off", "on"), Training().job)
    for index, is_on in enumerate((False, True)):
        toggle.apply(index)
        assert (gc.isenabled(), gc.get_freeze_count() > 0) == (is_on, True)
    toggle.restore()
    assert gc.isenabled()


def test_lists_of_what_is_not_called_are_no_blocks() -> None:
    """As in x-transformers: lists of a norm, which may be None, a block and what adds them."""
    layers = nn.ModuleList(
        [nn.ModuleList([None, nn.Linear(4, 4)]) for _ in range(4)]  # type: ignore[list-item]
    )
    with pytest.raises(UsageFault, match="no list of blocks"):
        create_toggle("@checkpointing", ("off", "on"), Job([nn.ModuleList([layers])], []))


def test_a_list_of_norms_is_no_list_of_blocks() -> None:
    norms = nn.ModuleList([nn.LayerNorm(64) for _ in range(2)])
    with pytest.raises(UsageFault, match="no list of blocks"):
        create_toggle("@checkpointing", ("off", "on"), Job([nn.ModuleList([norms, nn.Linear(64, 512)])], []))


def test_what_applies_to_a_job_can_be_created_and_leaves_it_as_it_was() -> None:
    training = Training()
    before = training.step()
    applicable = applicable_toggles(training.job)
    assert {"@optimizer", "@checkpointing", "@attention"} <= applicable.keys()
    assert "@compile" not in applicable
    assert training.step() == before


def test_what_a_job_does_not_use_is_not_worth_a_try() -> None:
    training = Training()
    convolution = Job([nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU())], [training.optimizer], uses_autocast=False)
    assert not {"@attention", "@autocast"} & applicable_toggles(convolution).keys()
    assert "@attention" in applicable_toggles(Job([nn.MultiheadAttention(8, 2)], [training.optimizer]))
    assert "@autocast" in applicable_toggles(training.job)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("@optimizer", ("foreach", "fussed"), "fussed: .* default, loop, foreach, fused"),
        ("@optimiser", ("foreach", "fused"), r"@optimiser: .*\(did you mean optimizer\?\)"),
        ("@compile", ("on", "off"), "the job compiles nothing" if COMPILE_CAN_SWITCH else "2.6 can"),
        ("@threads", ("1", "many"), "many: expected a number of threads"),
        ("@stall", ("0", "x"), "expected microseconds"),
    ],
)
def test_what_a_job_does_not_have_is_refused(name: str, values: Sequence[str], message: str) -> None:
    with pytest.raises(UsageFault, match=message):
        create_toggle(name, values, Training().job)


def test_the_optimizer_without_a_fused_implementation_is_named() -> None:
    parameters = list(nn.Linear(2, 2).parameters())
    job = Job([], [torch.optim.Adadelta(parameters), torch.optim.AdamW(parameters)])
    with pytest.raises(UsageFault, match=r"no fused implementation: Adadelta$"):
        create_toggle("@optimizer", ("foreach", "fused"), job)


def test_every_name_is_a_toggle() -> None:
    job = Job([nn.Linear(2, 2)], [])
    for name in toggle_names():
        with pytest.raises(UsageFault, match=f"@{name}|expected"):
            create_toggle(f"@{name}", ("?", "?"), job)


def test_a_toggle_of_another_package_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import EntryPoint

    from traceq.entry_points import Plugin
    from traceq.recorder.toggles import toggle as module

    plugin = Plugin(EntryPoint("wait", "traceq.recorder.toggles.stall", "traceq.toggles"))
    monkeypatch.setattr(module, "find_plugins", lambda group: {"wait": plugin} if group == "traceq.toggles" else {})
    assert "wait" in toggle_names()
    create_toggle("@wait", ("0", "1"), Training().job).restore()


@pytest.mark.parametrize("name", ["foreach", "fused"])
def test_an_implementation_that_the_job_has_is_not_tried(name: str) -> None:
    optimizer = torch.optim.AdamW([nn.Parameter(torch.ones(2))], **{name: True})  # type: ignore[arg-type]
    job = Job([nn.Linear(2, 2)], [optimizer])
    assert set(applicable_toggles(job)["@optimizer"]) == {DEFAULT, "foreach", "fused"} - {name}
    with pytest.raises(UsageFault, match=f"the optimizers are {name} already"):
        create_toggle("@optimizer", (DEFAULT, name), job)
    create_toggle("@optimizer", (name, "loop"), job)


@pytest.mark.parametrize("is_capturable", [False, True])
def test_foreach_is_not_tried_with_a_learning_rate_that_it_refuses(is_capturable: bool) -> None:
    """Each step of such an arm would raise, in the middle of the job."""
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.AdamW([weight], lr=torch.tensor(0.1), capturable=is_capturable)
    job = Job([nn.Linear(2, 2)], [optimizer])
    assert ("foreach" in applicable_toggles(job)["@optimizer"]) is is_capturable
    if not is_capturable:
        with pytest.raises(UsageFault, match="learning rate that is a tensor"):
            create_toggle("@optimizer", ("default", "foreach"), job)
