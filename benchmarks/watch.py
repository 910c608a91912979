"""Simulate long runs, to measure how often `traceq watch` says that steps became slower when none did, and how late.

    python benchmarks/watch.py [--steps 500000] [--onsets 20]
    python benchmarks/watch.py --cost

Two ranks compute, and exchange gradients; a step is as long as that of the slower one. What a rank computes has 3 % of
noise. An onset makes rank 1 compute longer, so that steps take 5, 10 or 20 % more, from a step on that follows 3,200
others. Its delay is the number of steps until it is said; one that is said of another kind or rank is not found.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from traceq.watch.onsets import SLOW_RANK, Onset, OnsetDetector
from traceq.watch.step_store import REGULAR, STEP, StepBlocks

OWN_S, BACKWARD_S = 0.03, 0.02
BEFORE, AFTER = 3200, 6400
PART = 1 << 14
"""Steps that are simulated at once."""
GROWTHS = (0.05, 0.10, 0.20)


@dataclass(frozen=True)
class Noise:
    """Noise of a rank's own time: standard deviation, autocorrelation, degrees of freedom of its tails.

    `drift`: growth in 100,000 steps. Every `pause_every`-th step takes five times as long; after every
    `evaluation_every`-th step five are 30 % longer, as caches are cold; of steps in `busy` runs of 40 in 2,000 another
    program takes 30 %.
    """

    name: str
    correlation: float = 0.0
    freedom: float = 0.0
    sd: float = 0.03
    drift: float = 0.0
    pause_every: int = 0
    evaluation_every: int = 0
    is_busy: bool = False

    def factors(self, rng: np.random.Generator, steps: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return own times of steps as multiples of the usual one."""
        num = len(steps)
        noise = rng.standard_t(self.freedom, num) / self.freedom**0.5 if self.freedom else rng.normal(size=num)
        if self.correlation:
            kernel = self.correlation ** np.arange(int(8 / (1 - self.correlation)))
            noise = (
                np.convolve(rng.normal(size=num + len(kernel)), kernel, "valid")[:num]
                * (1 - self.correlation**2) ** 0.5
            )
        logs = self.sd * noise + self.drift * steps / 1e5
        if self.evaluation_every:
            logs += 0.3 * (steps % self.evaluation_every < 5)
        if self.is_busy:
            begins = np.flatnonzero(rng.random(num) < 1 / 2000)
            for begin in begins:
                logs[begin : begin + 40] += 0.3
        factors = np.exp(logs)
        if self.pause_every:
            factors[steps % self.pause_every == 0] *= 5
        return factors


NOISES = (
    Noise("independent, 3 %"),
    Noise("autocorrelation 0.9", correlation=0.9),
    Noise("autocorrelation 0.99", correlation=0.99),
    Noise("heavy tails, 2 degrees of freedom", freedom=2.0),
    Noise("drift of 5 % in 100,000 steps", correlation=0.9, drift=0.05),
    Noise("evaluations every 500 steps", correlation=0.9, evaluation_every=500),
    Noise("pauses every 100 steps", pause_every=100),
    Noise("busy machine", is_busy=True),
)


def simulated(
    noise: Noise, rng: np.random.Generator, num: int, growth: float = 0.0
) -> Iterator[list[NDArray[np.void]]]:
    """Yield rows of both ranks, part after part; from step BEFORE on rank 1 computes longer."""
    for first in range(0, num, PART):
        steps = np.arange(first, min(first + PART, num))
        computed_s = np.array([OWN_S * noise.factors(rng, steps) for _ in range(2)])
        computed_s[1] += growth * (OWN_S + BACKWARD_S) * (steps >= BEFORE)
        backward = BACKWARD_S * np.exp(0.03 * rng.normal(size=len(steps)))
        wall = computed_s.max(axis=0) + backward
        ranks = []
        for rank in range(2):
            rows = np.zeros(len(steps), STEP)
            rows["step"], rows["flags"], rows["wall"] = steps, REGULAR, wall
            rows["forward"] = rows["cpu"] = computed_s[rank]
            rows["backward"] = wall - computed_s[rank]
            rows[["memory", "queued", "clock", "throttled"]] = np.nan
            ranks.append(rows)
        yield ranks


def onsets(noise: Noise, rng: np.random.Generator, num: int, growth: float = 0.0) -> Iterator[Onset]:
    """Yield what is said of a simulated run."""
    blocks, detector = StepBlocks(2), OnsetDetector()
    for rows in simulated(noise, rng, num, growth):
        yield from filter(None, map(detector.add, blocks.add(rows)))


def delay(noise: Noise, rng: np.random.Generator, growth: float) -> float:
    """Return the steps until an onset is said; infinity where something else is, or nothing."""
    for onset in onsets(noise, rng, BEFORE + AFTER, growth):
        if onset.seen_at > BEFORE:
            return onset.seen_at - BEFORE if (onset.kind, onset.ranks) == (SLOW_RANK, (1,)) else np.inf
    return np.inf


LOOP = """
import sys, time, torch
from torch.utils.data import DataLoader

torch.set_num_threads(1)
model, times = torch.nn.Linear(8, 8), []
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for batch in DataLoader(torch.randn(int(sys.argv[1]), 8), batch_size=1):
    times.append(time.thread_time_ns())
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
steps = sorted(end - begin for begin, end in zip(times[500:], times[501:]))
print(steps[len(steps) // 2] / 1e3)
"""


def print_cost(num_steps: int = 4000, num_times: int = 5) -> None:
    """Print the CPU time of a median step, alone and watched, by turns."""
    alone: list[float] = []
    watched: list[float] = []
    with TemporaryDirectory() as folder:
        for number in range(num_times):
            job = [sys.executable, "-c", LOOP, str(num_steps)]
            watch = [sys.executable, "-m", "traceq", "watch", "--out", f"{folder}/{number}", "--"]
            for command, times in ((job, alone), ([*watch, *job], watched)):
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                times.append(float(done.stdout))
    more = np.subtract(watched, alone)
    lines = (
        f"a step takes {np.median(alone):.0f} us of CPU time; watched {np.median(more):.0f} us more",
        f"({more.min():.0f} to {more.max():.0f} in {num_times} pairs): {np.median(more) / 500:.2f} % of one of 50 ms",
    )
    Console(width=120, highlight=False).print("\n".join(lines))


def main() -> None:
    """Print a row for each kind of noise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500_000, help="of each run without an onset")
    parser.add_argument("--onsets", type=int, default=20, help="of each size")
    parser.add_argument("--cost", action="store_true", help="measure what a step of a small loop takes more instead")
    options = parser.parse_args()
    if options.cost:
        print_cost()
        return
    table = Table("noise", "false in 100,000 steps", *(f"{growth:.0%}: found, steps until" for growth in GROWTHS))
    for number, noise in enumerate(NOISES):
        rng = np.random.default_rng(number)
        num_false = sum(1 for _ in onsets(noise, rng, options.steps))
        cells = []
        for growth in GROWTHS:
            delays = np.array([delay(noise, rng, growth) for _ in range(options.onsets)])
            finite = delays[np.isfinite(delays)]
            middle = f"{np.median(finite):.0f}" if len(finite) else "-"
            cells.append(f"{len(finite)} of {options.onsets}, {middle}")
        table.add_row(noise.name, f"{num_false * 1e5 / options.steps:.1f}", *cells)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
