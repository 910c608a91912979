"""What does the recorder cost an unedited job while it times steps? traceq's own A/B of itself, on against off.

    python benchmarks/job_cost.py [--step-ms 50] [--steps 128]

A loop with a DataLoader, a model, gradient clipping and AdamW is recorded by `traceq.record`, in two arms. In both its
steps are the same; in `on` the recorder of unedited jobs is attached in the same process and times the steps, too, with
two values of a toggle; in `off` its functions are removed. Each step also spins for --step-ms of CPU time, so that the
cost is that in a step of this length. On a busy machine the intervals are wide, also of CPU time, as caches are shared.

Printed first are medians of the CPU times of steps, with and without the recorder, and with functions in place of those
of torch that do nothing but call them: what Python takes for that is the least that a recorder in Python can cost.
These steps do not spin. Each of their parts follows a matrix product, which empties the caches as layers would, and
whose own time does not count; or none (`warm`).
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import get_ident
from typing import Any

import torch
from rich.console import Console
from torch import nn

import traceq
from traceq.recorder.job_process import JobProcess
from traceq.recorder.jobs.injection import Injection, JobRequest, parse_toggle
from traceq.stats import Comparison
from traceq.units import Unit, format_value

CONSOLE = Console(highlight=False, soft_wrap=True)
ENDLESS = 20_000
"""Steps: more than are run. Far more would be a plan of so many blocks that collecting garbage shows."""
ROUNDS, SETTLING_STEPS, COUNTED_STEPS = 200, 2, 4
OFF, IDLE, ON = "off", "replaced functions alone", "recorder"
WIDTH = 700
"""Of a square matrix: three of them are larger than the caches of a core."""


@dataclass
class Config:
    """What the recorder of the job changes."""

    value: int = 0


config = Config()


class Recorder:
    """The recorder of an unedited job in this process, whose functions `is_on` replaces or restores."""

    def __init__(self, folder: Path, model: nn.Module) -> None:
        run = folder / "job"
        run.mkdir()
        toggle = parse_toggle(f"{__name__}.config.value=0,1")
        request = JobRequest(str(run), "job-1", 7, "", (toggle,), ENDLESS, trace_steps=0, stops=False, hang_s=0)
        injection = Injection(folder / "inject")
        injection.write(request)
        self.process = JobProcess(request, injection)
        self.process.hooks.install()
        self._model = model
        self._is_on = True

    def become(self, state: str) -> None:
        """Be on, off, or idle: its functions are in place, and call the originals alone, as on another thread."""
        self.is_on = state != OFF
        self.process._stack.thread = get_ident() if state == ON else -1
        self.process._other_threads.clear()  # of which this one was while idle

    @property
    def is_on(self) -> bool:
        """Whether the functions of torch are replaced."""
        return self._is_on

    @is_on.setter
    def is_on(self, value: bool) -> None:
        """Replace all functions anew, and for off restore them: so that a change does the same work for both values."""
        self.process.hooks.remove()
        self.process.hooks.install()
        self.process.hooks.hook_models([self._model])
        if not value:
            self.process.hooks.remove()
        self._is_on = value


class Loop:
    """A training loop of six phases; `product_ns`: CPU time of the products so far."""

    spin_ns = 0
    has_products = False
    product_ns = 0

    def __init__(self) -> None:
        self.model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)])
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self._a, self._b, self._product = torch.randn(3, WIDTH, WIDTH)

    def step(self, batches: Iterator[torch.Tensor]) -> None:
        """Train one step, then compute nothing for a while."""
        self._multiply()
        loss = self.model(next(batches)).square().mean()
        self._multiply()
        loss.backward()
        self._multiply()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        end_ns = time.thread_time_ns() + self.spin_ns  # not of the clock: others may use the core meanwhile
        while time.thread_time_ns() < end_ns:
            pass

    def _multiply(self) -> None:
        if self.has_products:
            began_ns = time.thread_time_ns()
            torch.mm(self._a, self._b, out=self._product)
            self.product_ns += time.thread_time_ns() - began_ns


def median_costs_ns(recorder: Recorder, loop: Loop, batches: Iterator[torch.Tensor]) -> dict[str, int]:
    """Return by state of the recorder by how much the median CPU time of a step exceeds that without it.

    A few steps of all states in turns, in random order: what is slow for a while is slow for all.
    """
    cpu_ns: dict[str, list[int]] = {OFF: [], IDLE: [], ON: []}
    rng = random.Random(7)
    for _ in range(ROUNDS):
        for state in rng.sample(list(cpu_ns), len(cpu_ns)):
            recorder.become(state)
            for number in range(SETTLING_STEPS + COUNTED_STEPS):
                began_ns = time.thread_time_ns() - loop.product_ns
                loop.step(batches)
                if number >= SETTLING_STEPS:
                    cpu_ns[state].append(time.thread_time_ns() - loop.product_ns - began_ns)
    recorder.become(ON)
    without = statistics.median(cpu_ns[OFF])
    return {state: round(statistics.median(cpu_ns[state]) - without) for state in (IDLE, ON)}


def main() -> None:
    """Print the cost of a step by wall and by CPU time, with intervals, and in percent of the step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step-ms", type=float, default=50.0)
    parser.add_argument("--steps", type=int, default=128, help="of each arm")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="traceq-") as scratch:
        loop = Loop()
        recorder = Recorder(Path(scratch), loop.model)
        samples: Any = torch.randn(ENDLESS, 64)  # as a dataset: it has a length and items
        batches = iter(torch.utils.data.DataLoader[torch.Tensor](samples, batch_size=1))
        for _ in range(40):  # until it times steps
            loop.step(batches)
        for loop.has_products, caches in ((True, "cold"), (False, "warm")):
            for state, cost_ns in median_costs_ns(recorder, loop, batches).items():
                share = f"{100 * cost_ns / (1e6 * options.step_ms):.3f} % of {options.step_ms:g} ms"
                CONSOLE.print(f"{caches} caches, {state}: {format_value(cost_ns, Unit.DELTA_NS)} per step, {share}")
        loop.spin_ns = round(1e6 * options.step_ms)
        out = Path(scratch) / "run"
        with traceq.record(out, arms=("off", "on"), steps=options.steps, trace_steps=0, device="cpu") as recording:
            recording.toggle(recorder, "is_on", off=False, on=True)
            for batch in recording.steps(batches):
                if recording.rank.progress.is_done:
                    break
                loop.step(iter([batch]))
        recorder.is_on = True
        timed = (Path(scratch) / "job" / "steps" / "rank0.jsonl").read_bytes().count(b'"kind":"step"')
        (diff,) = traceq.diff(out).diffs
    assert timed > options.steps  # the recorder was timing steps of its own
    for name, comparison in (("wall time", diff.comparison), ("CPU time of the main thread", diff.cpu)):
        if comparison is not None:
            CONSOLE.print(f"{name}: {_cost(comparison)}")


def _cost(comparison: Comparison) -> str:
    """Return `+41.0 us per step (+38.0 us to +44.0 us), 0.08 % of 50.4 ms`."""
    ends = " to ".join(format_value(end, Unit.DELTA_NS) for end in comparison.ci95_ns or ())
    share = 100 * comparison.delta_ns / comparison.a_ns
    step = format_value(comparison.a_ns, Unit.NS)
    return f"{format_value(comparison.delta_ns, Unit.DELTA_NS)} per step ({ends}), {share:.3f} % of {step}"


if __name__ == "__main__":
    main()
