"""Test whether equal trainings, built one after another in one process, take equally long.

    python benchmarks/layout.py [--processes 4] [--rounds 120]

Four trainings alternate in random order, drawn anew for each round; times are CPU time (excludes blocked time). "one"
is one training under four names; in "used heap" two others were built, run and dropped before. Each row is a process:
the spread from the fastest to the slowest, the agreement of its two halves (correlation of the four effects by even and
odd rounds), and Friedman's statistic, which exceeds 11.3 once in a hundred if there is no difference.
"""

from __future__ import annotations

import argparse
import gc
import random
import subprocess
import sys
import time

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

NUM = 4
KINDS = ("one", "new heap", "used heap")


class Training:
    """The tiny model of the recipes, its optimizer, and one step on one batch."""

    def __init__(self) -> None:
        import torch

        from traceq.recipes.workload.model import SIZES, VisionLanguageAction

        torch.set_num_threads(1)
        torch.manual_seed(0)
        size = SIZES["tiny"]
        self.batch = size.episodes(0, 0).batch(8)
        self.model = VisionLanguageAction(size)
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def step(self) -> int:
        """Run one step and return its CPU time in ns."""
        import torch

        torch.manual_seed(1)
        start = time.thread_time_ns()
        self.model(self.batch).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.thread_time_ns() - start


def measure(kind: str, rounds: int, seed: int) -> NDArray[np.int64]:
    """Return int64[rounds, NUM] ns, the steps of the current process."""
    if kind == "used heap":
        before = [Training() for _ in range(2)]
        for training in before:
            training.step()
        del before, training
        gc.collect()
    trainings = [Training()] * NUM if kind == "one" else [Training() for _ in range(NUM)]
    for training in trainings * 4:
        training.step()
    gc.disable()
    rng, times = random.Random(seed), np.zeros((rounds, NUM), np.int64)
    for number in range(rounds):
        for index in rng.sample(range(NUM), NUM):
            times[number, index] = trainings[index].step()
        if number % 16 == 15:
            gc.collect()
    return times


def effects(times: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return float64[NUM], the percent by which each training is slower than the mean of all, by medians."""
    logs = np.log(times)
    effect: NDArray[np.float64] = np.median(logs - logs.mean(axis=1, keepdims=True), axis=0)
    return np.asarray(100 * (effect - effect.mean()))


def friedman(times: NDArray[np.int64]) -> float:
    """Return the statistic of Friedman's test, with NUM - 1 degrees of freedom."""
    ranks = times.argsort(axis=1).argsort(axis=1) + 1
    return float(12 * len(times) / (NUM * (NUM + 1)) * ((ranks.mean(axis=0) - (NUM + 1) / 2) ** 2).sum())


def main() -> None:
    """Print a row for each process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=120)
    parser.add_argument("--alone", nargs=2, metavar=("KIND", "SEED"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        kind, seed = options.alone
        times = measure(kind, options.rounds, int(seed))
        halves = np.corrcoef(effects(times[0::2]), effects(times[1::2]))[0, 1]
        sys.stdout.write(f"{np.ptp(effects(times))} {halves} {friedman(times)} {np.median(times) / 1e6}\n")
        return
    table = Table(title=f"{NUM} equal trainings, alternating, {options.rounds} rounds")
    for heading in ("trainings", "spread", "halves agree", "Friedman", "step"):
        table.add_column(heading, justify="left" if heading == "trainings" else "right")
    for kind in KINDS:
        for seed in range(options.processes):
            words = [sys.executable, __file__, "--rounds", str(options.rounds), "--alone", kind, str(seed)]
            output = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
            spread, halves, statistic, step_ms = map(float, output)
            table.add_row(kind, f"{spread:.2f} %", f"{halves:+.2f}", f"{statistic:.1f}", f"{step_ms:.1f} ms")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
