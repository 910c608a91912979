"""Training loops that make it hard to see where a step begins; each place of a step notes the switch that it reads.

`loop(notes, num_steps)` the value of the switch at every place that belongs to a step.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

__all__ = [
    "LOOPS",
    "Loop",
    "Net",
    "Notes",
    "Switch",
    "accumulation_with_a_tail",
    "adjoint",
    "evaluations_and_checkpoints",
    "loss_of_a_method",
    "loss_that_holds_the_model",
    "plain",
    "without_loader",
]


@dataclass(frozen=True)
class Switch:
    """What an experiment changes; frozen, as many configurations are."""

    value: int = 0


@dataclass
class Notes:
    """Values of the switch by step."""

    switch: Switch
    steps: list[list[int]] = field(default_factory=list)

    def begin(self) -> None:
        self.steps.append([])
        self.note()

    def note(self) -> None:
        self.steps[-1].append(self.switch.value)


Loop = Callable[[Notes, int], None]


class Net(nn.Module):
    """Notes the switch in each forward."""

    def __init__(self, notes: Notes, width: int = 4) -> None:
        super().__init__()
        self.notes = notes
        self.layer = nn.Linear(4, width)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        if self.notes.steps:
            self.notes.note()
        return self.layer(batch)


class Batches(torch.utils.data.Dataset[torch.Tensor]):
    """Batches that note the switch when they are fetched: with the first of each step the step begins."""

    def __init__(self, notes: Notes, num: int, per_step: int = 1) -> None:
        self.notes, self.num, self.per_step = notes, num, per_step

    def __len__(self) -> int:
        return self.num

    def __getitem__(self, index: int) -> torch.Tensor:
        if index % self.per_step == 0:
            self.notes.begin()
        return torch.ones(4)


def batches(notes: Notes, num: int, per_step: int = 1) -> torch.utils.data.DataLoader[torch.Tensor]:
    return torch.utils.data.DataLoader(Batches(notes, num, per_step))


def plain(notes: Notes, num_steps: int) -> None:
    model = Net(notes)
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in batches(notes, num_steps):
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        notes.note()


class FrameworkLoader:
    """A loader that is none of torch's, as fastai has: torch's iterator reads some attributes of it."""

    _dataset_kind = torch.utils.data.dataloader._DatasetKind.Iterable
    _IterableDataset_len_called, _auto_collation, _index_sampler = None, False, itertools.count()
    drop_last, persistent_workers, num_workers, prefetch_factor = False, False, 0, 2
    pin_memory, pin_memory_device = False, ""
    timeout, generator, multiprocessing_context, worker_init_fn, in_order = 0, None, None, None, True

    def __init__(self, dataset: Batches) -> None:
        self.dataset = (dataset[index] for index in range(len(dataset)))

    def _get_shared_seed(self) -> int:
        return 0

    def collate_fn(self, sample: torch.Tensor) -> torch.Tensor:
        return sample[None]

    def __iter__(self) -> Iterator[torch.Tensor]:
        return torch.utils.data.dataloader._SingleProcessDataLoaderIter(self)  # type: ignore[arg-type]


def loader_of_a_framework(notes: Notes, num_steps: int) -> None:
    model = Net(notes)
    optimizer = torch.optim.SGD(model.parameters())
    for batch in FrameworkLoader(Batches(notes, num_steps)):
        model(batch).sum().backward()
        optimizer.step()
        notes.note()


def without_loader(notes: Notes, num_steps: int) -> None:
    """The forward begins a step; what follows the optimizer belongs to it."""
    model = Net(notes)
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(num_steps):
        notes.steps.append([])
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        notes.note()


def called_by_method(notes: Notes, num_steps: int) -> None:
    """The forward is called past `__call__` and its hooks, as trainers of policies do; two of them are a step."""
    model = Net(notes)
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(num_steps):
        notes.steps.append([])
        for _ in range(2):
            model.forward(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        notes.note()


class Flow(Net):
    """Trained by a method that does not call its forward."""

    def loss(self, batch: torch.Tensor) -> torch.Tensor:
        loss = self.layer(batch).square().sum()
        self.notes.note()
        return loss + self.layer(-batch).sum()


def loss_of_a_method(notes: Notes, num_steps: int) -> None:
    """The forward of the model samples from it, which no step does; the modules inside begin one."""
    model = Flow(notes)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for number in range(num_steps):
        notes.steps.append([])
        model.loss(torch.ones(1, 4)).backward()
        optimizer.step()
        notes.note()
        if number % 50 == 49:
            with torch.no_grad():
                model(torch.ones(1, 4))


class LossOfModel(nn.Module):
    """Holds the model whose output it is given, as the marginal likelihood of a Gaussian process does."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, output: torch.Tensor) -> torch.Tensor:
        return output.square().sum()


def loss_that_holds_the_model(notes: Notes, num_steps: int) -> None:
    """No module contains the loss, so it is the model; the loop calls the module in it first."""
    model = Net(notes)
    loss = LossOfModel(model)
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(num_steps):
        notes.steps.append([])
        loss(model(torch.ones(1, 4))).backward()
        optimizer.step()
        optimizer.zero_grad()


class Solver(nn.Module):
    """Made anew for each step around the model, as by the adjoint methods of solvers."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        return self.model(state)


class Adjoint(torch.autograd.Function):
    """Runs the model without gradients, and again with them in its backward."""

    @staticmethod
    def forward(ctx: Any, solver: nn.Module, num: int, state: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        ctx.solver = solver
        ctx.save_for_backward(state, *parameters)
        for _ in range(num):
            state = solver(state)
        return state

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        state, *parameters = ctx.saved_tensors
        with torch.enable_grad():
            output = ctx.solver(state)
        return None, None, None, *torch.autograd.grad(output, parameters, *gradients)


def adjoint(notes: Notes, num_steps: int) -> None:
    """All that a step shows are forwards without gradients and a backward, which runs a forward of its own."""
    model = Net(notes)
    optimizer = torch.optim.SGD(model.parameters())
    for number in range(num_steps):
        state = Adjoint.apply(Solver(model), 1 + number % 3, torch.ones(1, 4), *model.parameters())
        notes.steps.append([])
        state.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        notes.note()


def next_batch_before_backward(notes: Notes, num_steps: int, *, is_before_backward: bool = True) -> None:
    """A batch is requested while the device computes the one before."""
    model = Net(notes)
    optimizer = torch.optim.SGD(model.parameters())
    loader = iter(torch.utils.data.DataLoader(torch.ones(num_steps + 1, 4)))
    batch = next(loader)
    for _ in range(num_steps):
        notes.steps.append([])
        loss = model(batch).sum()
        if is_before_backward:
            batch = next(loader)
        notes.note()
        loss.backward()
        if not is_before_backward:
            batch = next(loader)
        optimizer.step()
        notes.note()


def next_batch_before_optimizer(notes: Notes, num_steps: int) -> None:
    next_batch_before_backward(notes, num_steps, is_before_backward=False)


def metrics_with_gradients(notes: Notes, num_steps: int) -> None:
    """A forward behind the optimizer, of which no backward follows."""
    model = Net(notes)
    optimizer = torch.optim.SGD(model.parameters())
    for batch in batches(notes, num_steps):
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        model(batch).sum().item()
        notes.note()


def evaluations_of_the_model(notes: Notes, num_steps: int) -> None:
    """In some of them someone has forgotten `no_grad`."""
    model = Net(notes)
    optimizer = torch.optim.SGD(model.parameters())
    for number, batch in enumerate(batches(notes, num_steps)):
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        notes.note()
        if number % 8 == 7:
            notes.steps.append([])  # its batches may begin a step, which then does not count
            with torch.set_grad_enabled(number % 16 == 7):
                for other in torch.utils.data.DataLoader(torch.ones(3, 4)):
                    model(other)


def teacher_after_a_warm_up(notes: Notes, num_steps: int) -> None:
    """The steps of most of the loop are other ones than those of its begin."""
    model, teacher = Net(notes), nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters())
    for number, batch in enumerate(batches(notes, num_steps)):
        target = batch
        if number >= num_steps // 5:
            with torch.no_grad():
                target = teacher(batch)
        (model(batch) - target).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        notes.note()


def metrics_behind_the_step(notes: Notes, num_steps: int) -> None:
    model = Net(notes)
    optimizer = torch.optim.SGD(model.parameters())
    for batch in batches(notes, num_steps):
        loss = model(batch).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            model(batch)
        if notes.switch.value:
            loss.item()
        notes.note()


def two_networks(notes: Notes, num_steps: int) -> None:
    generator, critic = Net(notes), Net(notes, 1)
    first, second = torch.optim.Adam(critic.parameters()), torch.optim.Adam(generator.parameters())
    for batch in batches(notes, num_steps):
        critic(batch).sum().backward()
        made = generator(batch)
        critic(made.detach()).sum().backward()
        first.step()
        critic.zero_grad()
        critic(made).sum().backward()
        second.step()
        generator.zero_grad()
        notes.note()


def rare_generator(notes: Notes, num_steps: int) -> None:
    """The critic steps three times as often."""
    generator, critic = Net(notes), Net(notes, 1)
    first, second = torch.optim.Adam(critic.parameters()), torch.optim.Adam(generator.parameters())
    for number, batch in enumerate(batches(notes, 3 * num_steps, 3)):
        critic(batch).sum().backward()
        first.step()
        if number % 3 == 2:
            critic(generator(batch)).sum().backward()
            second.step()
        notes.note()


def accumulation_with_a_tail(notes: Notes, num_steps: int) -> None:
    """Two batches per step, and after every third step an epoch ends with a single one."""
    model = Net(notes)
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(num_steps // 4):
        for number, batch in enumerate(batches(notes, 7, 2)):
            model(batch).sum().backward()
            if number % 2 or number == 6:
                optimizer.step()
                optimizer.zero_grad()
            notes.note()


def scaler_that_skips(notes: Notes, num_steps: int) -> None:
    model = Net(notes)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=10_000)
    for number, batch in enumerate(batches(notes, num_steps)):
        factor = float("inf") if number % 11 == 10 else 1.0
        scaler.scale(model(batch).sum() * factor).backward()
        scaler.step(optimizer)
        scaler.update(8.0)
        optimizer.zero_grad()
        notes.note()


def closures(notes: Notes, num_steps: int, num_closures: int = 3) -> None:
    model = Net(notes)
    limits = {"max_iter": num_closures, "tolerance_grad": 0, "tolerance_change": 0}
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1e-3, **limits)
    for batch in batches(notes, num_steps):

        def closure(batch: torch.Tensor = batch) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(batch).square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)
        notes.note()


def many_closures(notes: Notes, num_steps: int) -> None:
    """More backwards in the first step of the optimizer than a loop without one would have shown."""
    closures(notes, num_steps, num_closures=20)


def optimizers_in_backward(notes: Notes, num_steps: int) -> None:
    model = Net(notes)
    optimizers = {parameter: torch.optim.SGD([parameter]) for parameter in model.parameters()}

    def step(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()  # type: ignore[index]
        optimizers[parameter].zero_grad()  # type: ignore[index]
        notes.note()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    for batch in batches(notes, num_steps):
        model(batch).sum().backward()
        notes.note()


def evaluations_and_checkpoints(notes: Notes, num_steps: int) -> None:
    model = Net(notes)
    optimizer = torch.optim.SGD(model.parameters())
    for number, batch in enumerate(batches(notes, num_steps)):
        model(batch).sum().backward()
        optimizer.step()
        notes.note()
        if number % 9 == 8:
            with torch.no_grad():
                for other in torch.utils.data.DataLoader(torch.ones(3, 4)):
                    model.layer(other)
        if number % 7 == 6:
            torch.save(model.layer.state_dict(), "/dev/null")


def compiled_model(notes: Notes, num_steps: int) -> None:
    model = nn.Linear(4, 4)
    compiled = torch.compile(model, backend="eager")
    optimizer = torch.optim.SGD(model.parameters())
    for batch in batches(notes, num_steps):
        compiled(batch).sum().backward()
        optimizer.step()
        notes.note()


def compiled_optimizer(notes: Notes, num_steps: int) -> None:
    """Its hooks do not run: the backward is the last event that is seen."""
    model = Net(notes)
    optimizer = torch.optim.SGD(model.parameters())
    step = torch.compile(optimizer.step, backend="eager")
    for batch in batches(notes, num_steps):
        model(batch).sum().backward()
        step()
        optimizer.zero_grad()
        notes.note()


def compiled_step(notes: Notes, num_steps: int) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters())

    @torch.compile(backend="eager")
    def train(batch: torch.Tensor) -> None:
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    for batch in batches(notes, num_steps):
        train(batch)
        notes.note()


def other_optimizer(notes: Notes, num_steps: int) -> None:
    """An optimizer that is none of torch's."""
    model = Net(notes)
    for batch in batches(notes, num_steps):
        model(batch).sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter -= 1e-3 * parameter.grad
        model.zero_grad()
        notes.note()


LOOPS: tuple[Loop, ...] = (
    plain,
    loader_of_a_framework,
    without_loader,
    called_by_method,
    loss_of_a_method,
    loss_that_holds_the_model,
    adjoint,
    next_batch_before_backward,
    next_batch_before_optimizer,
    teacher_after_a_warm_up,
    metrics_behind_the_step,
    metrics_with_gradients,
    evaluations_of_the_model,
    two_networks,
    rare_generator,
    accumulation_with_a_tail,
    scaler_that_skips,
    closures,
    many_closures,
    optimizers_in_backward,
    evaluations_and_checkpoints,
    compiled_model,
    compiled_optimizer,
    compiled_step,
    other_optimizer,
)
