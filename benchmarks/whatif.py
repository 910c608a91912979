"""What `traceq whatif` predicts beside what came of it: changes that were then made, on two CPU ranks, or in public.

    python benchmarks/whatif.py --work DIR [--minutes 20] [--traces TRACES] [--page docs/contributing/predictions.md]

Each job (`whatif_job.py`, with other parts of a step) is recorded once, with an arm per change, and kept in DIR: a
second call goes on where the first ended. Predicted from the traced steps of the baseline alone; measured are
unprofiled steps of arms that take turns. Of public pairs the first recording is replayed without what the second does
not have; they differ in more than that.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot
from pathlib import Path

import numpy as np
from rich.console import Console

from traceq.compare.diff import diff_run
from traceq.errors import TraceqError
from traceq.runs.read import read, with_traces
from traceq.whatif.intervention import Intervention
from traceq.whatif.interventions import HiddenComm, Scaled, WithoutLoader, WithoutStraggler, WithoutSyncs
from traceq.whatif.job_replay import job_replay
from traceq.whatif.predict import predict

JOBS = {
    "even parts": (),
    "long stall": ("stall_us=30000", "load_us=2000"),
    "slow loader": ("load_us=30000", "uneven_us=3000"),
    "much computed": ("products=120", "exchanged=4000000"),
    "far behind": ("uneven_us=40000", "stall_us=3000"),
    "much exchanged": ("exchanged=12000000", "uneven_us=0"),
}
"""Jobs by what their steps are made of, as parameters of the recipe."""

CHANGES: dict[str, Intervention] = {
    "no_stall": Scaled("stall", 0),
    "loader": WithoutLoader(),
    "cheaper": Scaled("forward", 0.5),
    "balanced": WithoutStraggler((1,)),
    "no_exchange": HiddenComm(),
}
PAIRS: tuple[tuple[str, str, Intervention], ...] = (
    ("ep-moe-b200-ab/ref", "ep-moe-b200-ab/syncless", WithoutSyncs()),
    ("resnet50-2021/workers0", "resnet50-2021/workers4", WithoutLoader()),
)
_MS = 1e6


@dataclass(frozen=True, slots=True)
class Outcome:
    """A step in ms: as it was, traced and unprofiled, predicted after the change from `least` to `most`, and measured.

    `again`: by how much the mean of other steps may be outside of the prediction; `saving_noise`, `noise`: two standard
    errors of the saving, and half of the 95 % interval of what was measured.
    """

    job: str
    change: str
    traced: float
    now: float
    least: float
    most: float
    again: float
    saving_noise: float
    then: float
    noise: float

    @property
    def error_pct(self) -> float:
        """Middle of the saving's ends minus what was measured, in percent of the step after the change."""
        return 100 * ((self.least + self.most) / 2 - self.then) / self.then

    @property
    def error_noise_pct(self) -> float:
        """By how much the error may be off by the scatter of both steps, likewise."""
        return 100 * hypot(self.saving_noise, self.noise) / self.then

    @property
    def is_inside(self) -> bool:
        """Whether what was measured is in the range predicted for other steps than those that were replayed."""
        return self.least - self.again <= self.then <= self.most + self.again


def record(work: Path, job: str, minutes: float) -> Path | None:
    """Return the recorded run of a job, recorded now if it is not there, or not whole; None if no time is left."""
    run = work / job.replace(" ", "_")
    manifest = run / "run.json"
    if manifest.exists() and json.loads(manifest.read_bytes())["status"] == "complete":
        return run
    if minutes <= 0:
        return None
    settings = [word for setting in JOBS[job] for word in ("--set", setting)]
    recipe = Path(__file__).with_name("whatif_job.py")
    command = ["-m", "traceq", "record", "--recipe", str(recipe), "--ranks", "2", "--device", "cpu", *settings]
    command += ["--steps", "32", "--trace-steps", "12", "--out", str(run), "--overwrite"]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stderr.write(f"{job}: {done.stderr[-500:]}\n")
        return None
    return run


def outcomes(job: str, run: Path) -> list[Outcome]:
    """Return the changes of one job. The traced step and the unprofiled one differ by what the profiler costs.

    So a change is predicted as a difference, which is taken from the unprofiled step.
    """
    replay, results = job_replay(with_traces(read(run / "base"))), []
    for diff in diff_run(run).diffs:
        comparison = diff.comparison
        if comparison is None or comparison.ci95_ns is None or diff.b_name not in CHANGES:
            continue
        change = predict(replay, [CHANGES[diff.b_name]], job).together
        now = comparison.a_ns
        low, high = comparison.ci95_ns
        least, most = now - change.most_saved_ns, now - change.least_saved_ns
        noises = change.again_ns or 0, change.noise_ns or 0
        times = (change.now_ns, now, least, most, *noises, now + comparison.delta_ns, (high - low) / 2)
        results.append(Outcome(job, change.option, *(ns / _MS for ns in times)))
    return results


def of_pairs(traces: Path) -> list[Outcome]:
    """Return the public pairs whose change is known, both steps as they are traced."""
    results = []
    for a, b, intervention in PAIRS:
        before, after = (job_replay(read(traces / f"{name}.json.gz")) for name in (a, b))
        change = predict(before, [intervention], a).together
        then = after.observed_ns
        noise = 2 * float(then.std(ddof=1)) / len(then) ** 0.5 if len(then) > 1 else 0.0
        least, most = change.now_ns - change.most_saved_ns, change.now_ns - change.least_saved_ns
        now, noises = change.now_ns, (change.again_ns or 0, change.noise_ns or 0)
        times = (now, now, least, most, *noises, float(then.mean()), noise)
        results.append(Outcome(a, change.option, *(ns / _MS for ns in times)))
    return results


HEADINGS = (
    "job", "change", "traced ms", "now ms", "predicted", "to", "again +-", "measured", "+-", "error %", "noise %",
    "inside",
)  # fmt: skip
_LEFT = ("job", "change", "inside")
PAGE = """# Predictions and what came of them

Written by `make whatif`, which records six jobs on two CPU ranks, where every change is then really made; [what the
columns mean](../whatif.md#what-the-numbers-are). `traced` is the mean traced step, which is replayed, `now` the same
step unprofiled, from which the saving is taken. `inside`: `measured` lies from `predicted` to `to`, plus or minus
`again`. `+-` is half of its 95 % confidence interval. `error` is that of the middle of the range, `noise` that
interval and two standard errors of the saving, both in percent of the measured step.

```text
{recorded}
```

{summary}

## Public pairs

The first of two public recordings is replayed without what the second does not have. They differ in more:
these errors are an upper bound.

```text
{pairs}
```
"""


def cells(row: Outcome) -> list[str]:
    """Return an outcome as texts, one for each heading."""
    numbers = (f"{ms:.2f}" for ms in (row.traced, row.now, row.least, row.most, row.again, row.then, row.noise))
    errors = f"{row.error_pct:+.1f}", f"{row.error_noise_pct:.1f}"
    return [row.job, row.change, *numbers, *errors, "yes" if row.is_inside else "no"]


def summary(rows: Sequence[Outcome]) -> str:
    """Return how many outcomes are inside their range, and how far off they are, beside the noise of that."""
    num, error = sum(row.is_inside for row in rows), np.median([abs(row.error_pct) for row in rows])
    noise = np.median([row.error_noise_pct for row in rows])
    return (
        f"{num} of {len(rows)} inside the range of other steps; median error {error:.1f} % of the step, "
        f"median noise of an error {noise:.1f} %"
    )


def business(rows: Sequence[Outcome]) -> str:
    """Return how much longer traced steps took, recorded at another time than those that measure."""
    ratios = [row.traced / row.now for row in rows]
    return (
        f"Traced steps took {min(ratios):.2f} to {max(ratios):.2f} times as long as unprofiled ones (median "
        f"{np.median(ratios):.2f}; on idle cores about 1)"
    )


def show(console: Console, rows: list[Outcome]) -> None:
    """Print a row for each outcome, and how many are inside their range."""
    console.print(table([cells(row) for row in rows]), soft_wrap=True)
    if rows:
        console.print(f"{summary(rows)}\n", soft_wrap=True)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows in columns, two spaces apart."""
    columns = []
    for heading, *texts in zip(HEADINGS, *rows, strict=True):
        width = max(map(len, (heading, *texts)))
        columns.append([text.ljust(width) if heading in _LEFT else text.rjust(width) for text in (heading, *texts)])
    return "\n".join("  ".join(line).rstrip() for line in zip(*columns, strict=True))


def write_page(page: Path, recorded: list[Outcome], pairs: list[Outcome]) -> None:
    """Write the table of predictions and outcomes as a page of the docs."""
    texts = {
        "recorded": table([cells(row) for row in recorded]),
        "summary": f"{summary(recorded)}. {business(recorded)}.",
        "pairs": table([cells(row) for row in pairs]),
    }
    page.write_text(PAGE.format(**texts), encoding="utf-8")


def main() -> None:
    """Record what is missing, as far as there is time, and print all outcomes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="where recordings are kept")
    parser.add_argument("--minutes", type=float, default=20.0, help="start no recording after so long")
    parser.add_argument("--traces", type=Path, help="folder of public traces")
    parser.add_argument("--page", type=Path, help="page of the docs to write, of the jobs and pairs that are there")
    options, console = parser.parse_args(), Console(width=150, highlight=False, markup=False)
    begun, rows = time.monotonic(), []
    for job in JOBS:
        run = record(options.work, job, options.minutes - (time.monotonic() - begun) / 60)
        try:
            rows += outcomes(job, run) if run is not None else []
        except TraceqError as fault:
            console.print(f"{job}: {fault}", soft_wrap=True)
    show(console, rows)
    if rows:
        console.print(f"{business(rows)}\n", soft_wrap=True)
    pairs = of_pairs(options.traces) if options.traces is not None and options.traces.is_dir() else []
    show(console, pairs)
    if options.page is not None and rows and pairs:
        write_page(options.page, rows, pairs)


if __name__ == "__main__":
    main()
