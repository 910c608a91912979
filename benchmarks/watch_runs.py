"""Run real jobs of two ranks under `traceq watch`, with a planted onset or none, and score what it says.

    python benchmarks/watch_runs.py [--each 4] [--clean 20] [--folder DIR]

Each job trains a small model with DistributedDataParallel in steps of some 5 ms. From step 12,000 on, one of these:

- `compute`: rank 1 computes 10 % of a step more, at a line of its loop;
- `loader`: a batch of rank 0 takes 10 % of a step longer, at a line of its dataset;
- `leak`: rank 1 keeps a tensor of every step;
- `garbage`: rank 0 makes so many cycles that they and their collection take more than 10 % of a step;
- `cores`: rank 1 has to share its core with another process.

Found: within 200 steps, of the right kind and rank. Cause: the commands that the watch prints name the planted line.
It takes some 80 s for each job with an onset and 110 s for one without; both cores should be free.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from traceq.long_runs.onsets import COLLECTOR, GROWING_MEMORY, LESS_CPU, SLOW_LOADER, SLOW_RANK, Onset
from traceq.long_runs.watch_folder import WatchFolder

ONSET, WITHIN = 12_000, 200
STEPS, STEPS_WITH_ONSET = 20_000, 16_000
JOB = """
import gc
import os
import subprocess
import sys
import time

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

NUM, ONSET, KIND = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
RANK = int(os.environ["RANK"])
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
CORES = sorted(os.sched_getaffinity(0))


class Batches(Dataset):
    def __len__(self):
        return NUM

    def __getitem__(self, index):
        if KIND == "loader" and RANK == 0 and index >= ONSET:
            end = time.thread_time() + 0.0005
            while time.thread_time() < end:
                torch.ones(64, 64)  # planted: loader
        return torch.randn(1100, 128)


model = DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(128, 128) for _ in range(3)]))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
kept = []
for step, batch in enumerate(DataLoader(Batches(), batch_size=None)):
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step < ONSET:
        continue
    if KIND == "compute" and RANK == 1:
        end = time.thread_time() + 0.0005
        while time.thread_time() < end:
            torch.ones(64, 64)  # planted: compute
    if KIND == "leak" and RANK == 1:
        kept.append(torch.ones(64 * 1024))  # planted: leak
    if KIND == "garbage" and RANK == 0:
        for _ in range(4000):
            cycle = []
            cycle.append(cycle)  # planted: garbage
    if KIND == "cores" and RANK == 1 and step == ONSET:
        for thread in os.listdir("/proc/self/task"):
            os.sched_setaffinity(int(thread), CORES[:1])
        other = subprocess.Popen([sys.executable, "-c", "while True: pass"])  # on that core, too
if KIND == "cores" and RANK == 1:
    other.kill()
torch.distributed.destroy_process_group()
"""


@dataclass(frozen=True)
class Planted:
    """A planted onset: what is to be said of it; `line`: which its `traceq diff` or `show` is to name, if any."""

    name: str
    kind: str
    ranks: tuple[int, ...]
    has_line: bool = True


PLANTED = (
    Planted("compute", SLOW_RANK, (1,)),
    Planted("loader", SLOW_LOADER, (0,)),
    Planted("leak", GROWING_MEMORY, (1,)),
    Planted("garbage", COLLECTOR, (0,)),
    Planted("cores", LESS_CPU, (1,), has_line=False),
)


@dataclass(frozen=True)
class Outcome:
    """What was said of one run: its onsets, and what the commands print that the watch named."""

    onsets: list[Onset]
    explained: str

    def onset_of(self, planted: Planted) -> Onset | None:
        """Return the first onset if it is the planted one, and in time."""
        if not self.onsets:
            return None
        first = self.onsets[0]
        is_right = (first.kind, first.ranks) == (planted.kind, planted.ranks)
        return first if is_right and ONSET <= first.seen_at <= ONSET + WITHIN else None


def run(folder: Path, kind: str, num_steps: int) -> Outcome:
    """Watch one job and return what was said."""
    folder.mkdir(parents=True)
    script = folder / "train.py"
    script.write_text(textwrap.dedent(JOB))
    watched = WatchFolder(folder / "run")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    job = [*torchrun, str(script), str(num_steps), str(ONSET), kind]
    done = _traceq(["watch", "--out", str(watched.path), "--", *job])
    explained = [_traceq(words) for words in _commands(done.stderr)]
    return Outcome(
        watched.read_onsets() if watched.is_watched else [],
        "\n".join(each.stdout for each in explained),
    )


def _traceq(words: list[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "traceq", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "120"})


def _commands(output: str) -> Iterator[list[str]]:
    """Yield the commands that were named for traced onsets."""
    for line in output.splitlines():
        if match := re.match(r"traceq: onset-\d+: traceq (.*)", line):
            yield match[1].split()


def main() -> None:
    """Print a row for each kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, default=4, help="runs of each kind of onset")
    parser.add_argument("--clean", type=int, default=20, help="runs without an onset")
    parser.add_argument("--only", default="", help="one kind")
    parser.add_argument("--folder", type=Path, help="where runs are kept; else they are removed")
    options = parser.parse_args()
    console = Console(width=160, highlight=False)
    with tempfile.TemporaryDirectory() as temporary:
        root = options.folder or Path(temporary)
        table = Table("planted", "found", "steps until said", "the diff names the line", "other onsets")
        for planted in PLANTED:
            if options.only not in ("", planted.name):
                continue
            outcomes = []
            for number in range(options.each):
                outcome = run(root / f"{planted.name}-{number}", planted.name, STEPS_WITH_ONSET)
                outcomes.append(outcome)
                console.print(f"{planted.name} {number}: {_text(outcome)}", style="dim")
            table.add_row(*_row(planted, outcomes))
        num_alarms = 0
        for number in range(options.clean if options.only in ("", "clean") else 0):
            outcome = run(root / f"clean-{number}", "clean", STEPS)
            num_alarms += bool(outcome.onsets)
            console.print(f"clean {number}: {_text(outcome)}", style="dim")
        console.print(table)
        if options.clean:
            console.print(f"{options.clean} runs of {STEPS:,} steps without an onset: {num_alarms} with an alarm")


def _row(planted: Planted, outcomes: list[Outcome]) -> tuple[str, ...]:
    onsets = [onset for outcome in outcomes if (onset := outcome.onset_of(planted))]
    line = f"train.py:{_line(planted.name)}" if planted.has_line else ""
    named = sum(line in outcome.explained for outcome in outcomes)
    num_others = sum(len(outcome.onsets) for outcome in outcomes) - len(onsets)
    return (
        planted.name,
        f"{len(onsets)} of {len(outcomes)}",
        ", ".join(str(onset.seen_at - ONSET) for onset in onsets),
        f"{line}: {named} of {len(outcomes)}" if line else "-",
        str(num_others),
    )


def _line(name: str) -> int:
    """Return the number of the line at which a kind is planted."""
    lines = textwrap.dedent(JOB).splitlines()
    return 1 + next(number for number, line in enumerate(lines) if f"# planted: {name}" in line)


def _text(outcome: Outcome) -> str:
    texts = [f"{each.kind} {each.ranks} {each.step}, said {each.seen_at}" for each in outcome.onsets]
    return "; ".join(texts) or "nothing"


if __name__ == "__main__":
    main()
