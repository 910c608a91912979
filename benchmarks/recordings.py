"""Record jobs whose truth is known, and count what traceq says of them: false stragglers, missed ones, false verdicts.

    python benchmarks/recordings.py [KIND ...] [--out build/recordings] [--minutes M] [--recordings N]

| kind | recorded | counted |
|---|---|---|
| symmetric | two ranks that do the same, 40 times | recordings that name a straggler: at most 2 |
| slow | one rank, in turns, works 10 % of the step longer, 20 times | that name this rank alone: at least 18 |
| null | six arms that are the same step, so five questions, 40 times | that say *material* of any arm: at most 2 |
| loaded | the same beside two processes that compute at random times, 40 times | the same |
| collected | *null* among 300,000 samples, 10,000 of them new in each step, for the collector, 40 times | the same |

Each recording is a training under torchrun, of a small model in DistributedDataParallel on two CPU ranks, in a folder
of its own under --out: 200 unprofiled steps and 3 traced ones, or 64 pairs of each arm. Complete recordings are read
and not repeated, so that the script can be stopped, and goes on where it was; with --minutes it begins no recording
after that time. The kinds take turns. "Alone": the same count by the three traced steps alone, or by each arm's own
interval. `make recordings` runs it.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import traceq
from traceq.model import Run
from traceq.stats import compare_pairs
from traceq.units import Unit, format_ranks, format_value

CONSOLE = Console(highlight=False, soft_wrap=True)
RANKS = 2
WIDTH, LAYERS, BATCH = 512, 4, 32
STEPS = 200  # as many as decide on stragglers
STEPS_OF_ARM = 128  # 64 pairs
ARMS = ("off", "same_1", "same_2", "same_3", "same_4", "same_5")
LONGER = 0.1  # part of a step
SETTLING_STEPS = 4
NUM_SAMPLES, NUM_NEW_SAMPLES = 300_000, 10_000


@dataclass(frozen=True, slots=True)
class Kind:
    """What is recorded `num` times, and how many times the answer must be given: at most or at least `bar`."""

    name: str
    num: int
    question: str
    bar: str
    arms: Sequence[str] = ()
    has_slow_rank: bool = False
    is_loaded: bool = False
    has_garbage: bool = False


KINDS = (
    Kind("symmetric", 40, "names a straggler", "at most 2"),
    Kind("slow", 20, "names the slow rank alone", "at least 18", has_slow_rank=True),
    Kind("null", 40, "material, any of 5 arms", "at most 2", ARMS),
    Kind("loaded", 40, "material, any of 5 arms", "at most 2", ARMS, is_loaded=True),
    Kind("collected", 40, "material, any of 5 arms", "at most 2", ARMS, has_garbage=True),
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What traceq says of one recording.

    `is_counted` if it is what its kind counts; `is_alone` if it would be by the traced steps alone, or by each arm by
    itself. `half_width_pct` of the intervals, of verdicts. `words` is a line for people.
    """

    is_counted: bool
    is_alone: bool
    step_ns: int
    words: str
    half_width_pct: float | None = None


def main() -> None:
    """Record what is missing, and print one line per recording and one table."""
    options = _options()
    if options.train:
        train(next(kind for kind in KINDS if kind.name == options.kinds[0]), options.number, options.out)
        return
    kinds = [replace(kind, num=options.recordings or kind.num) for kind in KINDS if kind.name in options.kinds]
    until = time.monotonic() + 60 * options.minutes
    answers: dict[str, list[Answer]] = {kind.name: [] for kind in kinds}
    for kind, number in in_turns(kinds):
        folder = options.out / kind.name / f"{number:02}"
        if not folder.is_dir() and (time.monotonic() > until or not record(kind, number, folder)):
            continue
        answer = answer_of(kind, number, folder)
        answers[kind.name].append(answer)
        CONSOLE.print(f"{kind.name:9} {number:2}  {answer.words}")
    Console(width=140).print(table_of(kinds, answers))


def _options() -> argparse.Namespace:
    names = [kind.name for kind in KINDS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(names))
    parser.add_argument("--out", type=Path, default=Path("build/recordings"))
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--recordings", type=int, help="of each kind")
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--number", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.kinds = options.kinds or names
    if unknown := set(options.kinds) - set(names):
        parser.error(f"no such kind: {', '.join(sorted(unknown))}; one of {', '.join(names)}")
    return options


def in_turns(kinds: Sequence[Kind]) -> Iterator[tuple[Kind, int]]:
    """Yield every recording of every kind such that all kinds are at the same part of theirs at any time."""
    recordings = [((number + 0.5) / kind.num, kind, number) for kind in kinds for number in range(kind.num)]
    for _, kind, number in sorted(recordings, key=lambda each: each[0]):
        yield kind, number


def record(kind: Kind, number: int, folder: Path) -> bool:
    """Record into a folder that exists only once it is complete; say so, and return False, if that fails."""
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS), __file__),
        *("--train", kind.name, "--number", str(number), "--out", str(partial)),
    ]
    paths = [str(Path(traceq.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    with loaded(number) if kind.is_loaded else idle():
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        CONSOLE.print(f"{kind.name:9} {number:2}  failed: {done.stderr.strip()[-300:]}")
        return False
    partial.rename(folder)
    return True


@contextmanager
def idle() -> Iterator[None]:
    """Run nothing beside the block."""
    yield


@contextmanager
def loaded(seed: int) -> Iterator[None]:
    """Run two processes beside the block, each of which computes and pauses for random times of 0.2 s on average."""
    code = "\n".join(
        (
            "import random, sys, time",
            "rng = random.Random(sys.argv[1])",
            "while True:",
            "    end = time.monotonic() + rng.expovariate(5)",
            "    while time.monotonic() < end: pass",
            "    time.sleep(rng.expovariate(5))",
        )
    )
    others = [subprocess.Popen([sys.executable, "-c", code, f"{seed} {index}"]) for index in range(2)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def train(kind: Kind, number: int, out: Path) -> None:
    """Train on this rank until the recording is complete."""
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    recording = {"arms": kind.arms, "steps": STEPS_OF_ARM, "trace_steps": 0} if kind.arms else {"steps": STEPS}
    with traceq.record(out, device="cpu", **recording) as rec:
        rank = int(os.environ["RANK"])
        torch.manual_seed(0)
        layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
        model = DistributedDataParallel(nn.Sequential(*layers))
        optimizer = torch.optim.AdamW(model.parameters())
        longer = Longer() if kind.has_slow_rank and rank == number % RANKS else None
        kept = samples(NUM_SAMPLES) if kind.has_garbage else []
        generator = torch.Generator().manual_seed(random.Random(f"{number} {rank}").randrange(2**31))
        for batch in rec.steps(torch.randn(BATCH, WIDTH, generator=generator) for _ in count()):
            if rec.rank.progress.is_done:
                break
            if kind.has_garbage:
                kept[NUM_SAMPLES:] = samples(NUM_NEW_SAMPLES)
            with rec.phase("forward"):
                loss = model(batch).square().mean()
                if longer:
                    longer.work()
            with rec.phase("backward"):
                loss.backward()
            with rec.phase("optimizer"):
                optimizer.step()
                optimizer.zero_grad()


def samples(num: int) -> list[dict[str, object]]:
    """Return samples of two objects each that Python's garbage collector visits."""
    return [{"id": number, "text": [str(number)]} for number in range(num)]


class Longer:
    """Work that takes 10 % of a step, from when the first steps have shown how long a step takes."""

    def __init__(self) -> None:
        self.begins: list[float] = []
        self.work_s = 0.0

    def work(self) -> None:
        """Multiply matrices for as long as this rank is to be late."""
        import torch

        begin = time.perf_counter()
        if len(self.begins) <= 2 * SETTLING_STEPS:
            self.begins.append(begin)
            steps_s = [after - before for before, after in zip(self.begins, self.begins[1:], strict=False)]
            self.work_s = LONGER * statistics.median(steps_s[SETTLING_STEPS:] or [0.0])
        matrix = torch.ones(64, 64)
        while time.perf_counter() < begin + self.work_s:
            matrix @ matrix


def answer_of(kind: Kind, number: int, folder: Path) -> Answer:
    """Read a complete recording."""
    if kind.arms:
        return answer_of_verdicts(folder)
    run = traceq.read(folder)
    assert run.timings is not None
    ranks, traced = stragglers_of(run), stragglers_of(replace(run, timings=None))
    slow = number % RANKS
    words = f"straggler: {_numbers(ranks)}; by the traced steps alone: {_numbers(traced)}"
    step_ns = int(np.median(run.timings.step_ns.max(axis=0)))
    if kind.has_slow_rank:
        return Answer(ranks == (slow,), traced == (slow,), step_ns, f"rank {slow} is slow; {words}")
    return Answer(bool(ranks), bool(traced), step_ns, words)


def stragglers_of(run: Run) -> tuple[int, ...]:
    """Return the ranks that `traceq show` calls stragglers."""
    rows = traceq.analyze(run, "ranks").table("ranks").to_dicts()
    return tuple(int(str(row["rank"])) for row in rows if row["verdict"] == "straggler")


def answer_of_verdicts(folder: Path) -> Answer:
    """Read a recording of arms that are the same."""
    result = traceq.diff(folder)
    answers = [diff.comparison for diff in result.diffs if diff.comparison]
    names = Counter(answer.verdict.name for answer in answers)
    alone = [compare_pairs(pairs).verdict.name for pairs in result.pairs if not pairs.is_control]
    widths = [100 * (answer.ci95_ns[1] - answer.ci95_ns[0]) / 2 / answer.a_ns for answer in answers if answer.ci95_ns]
    width = statistics.median(widths)
    words = f"{', '.join(f'{num} {name}' for name, num in names.items())}; half-width {width:.1f} %"
    return Answer(names["material"] > 0, "material" in alone, answers[0].a_ns, words, width)


def _numbers(ranks: Sequence[int]) -> str:
    return format_ranks(ranks) if ranks else "none"


def table_of(kinds: Sequence[Kind], answers: Mapping[str, Sequence[Answer]]) -> Table:
    """Return one row per kind."""
    table = Table(title=f"recordings of {RANKS} CPU ranks", title_justify="left")
    for heading in ("kind", "counted", "recordings", "number", "bar", "alone", "step", "half-width"):
        table.add_column(heading, justify="left" if heading in ("kind", "counted") else "right")
    for kind in kinds:
        if of_kind := answers[kind.name]:
            counted, alone = sum(answer.is_counted for answer in of_kind), sum(answer.is_alone for answer in of_kind)
            step = format_value(statistics.median(answer.step_ns for answer in of_kind), Unit.NS)
            widths = [answer.half_width_pct for answer in of_kind if answer.half_width_pct is not None]
            width = f"{statistics.median(widths):.1f} %" if widths else ""
            num = f"{len(of_kind)} of {kind.num}"
            table.add_row(kind.name, kind.question, num, str(counted), kind.bar, str(alone), step, width)
    return table


if __name__ == "__main__":
    main()
