"""What do the questions of a trainer's owner cost to answer, and what are the answers?

    python benchmarks/trainer.py [--out FOLDER] [--minutes M]

The trainer runs on two ranks under `accelerate launch`, and under torchrun: a loader with a worker and a collate
function, `uint8` frames of ragged length, clipping, a scheduler, metrics by `gather_for_metrics(...).item()`, and a
configuration that its forward reads (tests/support/framework_jobs/accelerate_job.py). Each question is one command
before that of the job, which is not edited. One table ends it, in Markdown: the questions, the commands, and what each
answers by wall time and, where that decides nothing, by the CPU time of the main thread. `traceq improve` on one rank
comes last, with its table and a fresh start of what gains.

Complete recordings in --out are read and not repeated; with --minutes none is begun after that time. `make jobs` runs
it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jobs import CONSOLE, TRACEQ, interval_of

import traceq
from traceq.stats import Comparison

ROOT = Path(__file__).resolve().parents[1]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
ACCELERATE = ["-m", "accelerate.commands.launch", "--config_file", str(ROOT / "tests/support/launchers/ddp.yaml")]
LAUNCHERS = ("accelerate launch", "torchrun")
TRAINER = [str(ROOT / "tests/support/framework_jobs/accelerate_job.py"), "256"]  # a step of some 30 ms on one core
LOOKS = ["--until", "decided", "--max-minutes", "1"]


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked, and the toggle that asks it; `is_compiled`: accelerate is told to compile the model."""

    name: str
    words: str
    toggle: str
    is_compiled: bool = False


QUESTIONS = (
    Question("outliers", "the outlier check?", "policy.config.warn_outlier_threshold=0,10"),
    Question("metrics", "metrics in every tenth step?", "config.metrics_every=1,10"),
    Question("fused", "fused AdamW?", "@optimizer=foreach,fused"),
    Question("checkpointing", "activation checkpointing?", "@checkpointing=off,on"),
    Question("unused", "`find_unused_parameters`?", "@find_unused=off,on"),
    Question("attention", "attention without a fused kernel?", "@attention=sdpa,math"),
    Question("compile", "`torch.compile`?", "@compile=off,on", is_compiled=True),
)


def main() -> None:
    """Record what is missing, and print a table and the answers of `traceq improve`."""
    options = _options()
    until = time.monotonic() + 60 * options.minutes
    answers: dict[tuple[str, str], str] = {}
    for question in QUESTIONS:
        for launcher in LAUNCHERS:
            out = options.out / f"{question.name}-{launcher.replace(' ', '-')}"
            environment = {"ACCELERATE_DYNAMO_BACKEND": "INDUCTOR"} if question.is_compiled else {}
            words = [*LOOKS, "--toggle", question.toggle, "--out", str(out), "--", *job(launcher, question)]
            if out.exists() or (time.monotonic() < until and is_recorded(out, words, environment)):
                answers[question.name, launcher] = answer = answer_of(out)
                CONSOLE.print(f"{question.name:13} {launcher:17} {answer}")
    CONSOLE.print(
        f"\n| question | `traceq record {' '.join(LOOKS)} ...` | {' | '.join(f'under {name}' for name in LAUNCHERS)} |"
    )
    CONSOLE.print(f"|---{(1 + len(LAUNCHERS)) * '|---'}|")
    for question in QUESTIONS:
        cells = (answers.get((question.name, launcher), "") for launcher in LAUNCHERS)
        CONSOLE.print(f"| {question.words} | `--toggle {question.toggle}` | {' | '.join(cells)} |")
    if time.monotonic() < until:
        CONSOLE.print("\ntraceq improve, on one rank")
        out = options.out / "improve"
        for each in options.out.glob(f"{out.name}*"):
            shutil.rmtree(each)
        is_recorded(out, ["--out", str(out), "--", *job("python", QUESTIONS[0])], {}, command="improve")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("build/trainer-recordings"))
    parser.add_argument("--minutes", type=float, default=float("inf"))
    options = parser.parse_args()
    options.out = options.out.absolute()
    return options


def job(launcher: str, question: Question) -> list[str]:
    """Return the command that starts the trainer, as its owner does."""
    compiled = ["--dynamo_backend", "inductor"] if question.is_compiled else []
    before = {
        "accelerate launch": [*ACCELERATE, *compiled],
        "torchrun": [*TORCHRUN, "2"],
        "python": [],
    }
    return [sys.executable, *before[launcher], *TRAINER]


def is_recorded(out: Path, words: Sequence[str], variables: dict[str, str], command: str = "record") -> bool:
    """Run one command and print how long it took, and what `improve` says; False without a whole recording."""
    out.parent.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    environment = {"OMP_NUM_THREADS": "1"} | dict(os.environ) | variables
    done = subprocess.run(
        [*TRACEQ, command, *words], env=environment, cwd=out.parent, capture_output=True, text=True, check=False
    )
    CONSOLE.print(f"{done.stderr if command == 'improve' else ''}({out.name}: {time.monotonic() - start:.0f} s)")
    if done.returncode:
        CONSOLE.print(f"{out.name} failed: {done.stderr.strip().splitlines()[-1:]}")
        shutil.rmtree(out, ignore_errors=True)
    return done.returncode == 0


def answer_of(out: Path) -> str:
    """Return the answer by wall time and, where that decides nothing, by the CPU time of the main thread."""
    (diff,) = traceq.diff(out).diffs
    assert diff.comparison is not None
    words = f"{_share_and_interval(diff.comparison)}: {diff.verdict_name}"
    if diff.verdict_name == "inconclusive" and diff.cpu is not None:
        words += f"; CPU time {_share_and_interval(diff.cpu)}"
    return words


def _share_and_interval(comparison: Comparison) -> str:
    return f"{100 * comparison.delta_ns / comparison.a_ns:+.1f} %, {interval_of(comparison)}"


if __name__ == "__main__":
    main()
