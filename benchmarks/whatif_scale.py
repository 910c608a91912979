"""Cost of `traceq whatif` on many ranks: CPU time of all processes and their peak memory, by the number of ranks.

    PYTHONPATH=tests/support python benchmarks/whatif_scale.py                about two minutes, 0.3 GB of disk

The job is that of tests/support/fleet.py, with one late rank, and of each rank as many ops as `--ops` asks for at
least: those of the host, its launches, and those of the device. Each row is `traceq whatif JOB --json`, which reads
every rank, makes the changes to it, and plays the job. Memory is proportional set size, of all processes together.
"""

from __future__ import annotations

import argparse
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory

from fleet import Fleet, play
from rich.console import Console
from rich.table import Table
from scale import Cost, cost_of

LAYERS = 60
QUESTIONS = (
    ("--without-straggler",),
    ("--without", "syncs", "--scale", "aten::mm=0.5", "--comm-bandwidth", "2x"),
    (),
)


def main() -> None:
    """Print a row for each question and number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--ops", type=int, default=150_000)
    options, console = parser.parse_args(), Console(width=150, highlight=False, markup=False)
    first, second = num_ops(1), num_ops(2)
    num_steps = 1 + ceil((options.ops - first) / (second - first))
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("what if", "ranks", "ops", "CPU s", "wall s", "peak MB", "first answer"):
        table.add_column(heading, justify="left" if heading in ("what if", "first answer") else "right")
    with TemporaryDirectory(prefix="traceq-whatif-") as made:
        folder = play(Fleet(options.ranks, layers=LAYERS, steps=num_steps, late_ranks=(3,))).write(Path(made) / "job")
        for ranks in (options.ranks // 4, options.ranks):
            for words in QUESTIONS:
                cost = cost_of("whatif", str(folder), "--json", *words, "--ranks", f"0-{ranks - 1}")
                add(table, words, ranks, ranks * num_ops(num_steps), cost)
    console.print(table)


def num_ops(num_steps: int) -> int:
    """Return how many ops one rank has."""
    text = play(Fleet(8, layers=LAYERS, steps=num_steps)).text(0)
    return sum(text.count(f'"cat": "{category}"') for category in ("cpu_op", "cuda_runtime", "kernel", "gpu_memcpy"))


def add(table: Table, words: tuple[str, ...], ranks: int, ops: int, cost: Cost) -> None:
    """Add what a command took, and its first sentence."""
    sentence = cost.output["predictions"][0]["sentence"] if cost.output["predictions"] else "nothing gains much"
    numbers = (f"{cost.cpu_s:.1f}", f"{cost.wall_s:.1f}", f"{cost.peak_bytes / 1e6:.0f}")
    table.add_row(" ".join(words) or "(unasked)", str(ranks), f"{ops:,}", *numbers, sentence)


if __name__ == "__main__":
    main()
