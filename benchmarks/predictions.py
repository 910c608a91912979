"""What replay predicts beside what then happened: syncs removed from real traces, and public pairs of recordings.

    python benchmarks/predictions.py --traces TRACES --work DIR

The cases in DIR are those that `benchmarks/causes.py` made there: two versions of a real trace, one with added syncs.
The version with the syncs, replayed without them, is compared with the version that never had them. Of public pairs
the first recording is replayed without what the second does not have; they differ in more than that.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from traceq.causes.replay import replay_of
from traceq.facts.stalls.host_waits import host_waits
from traceq.facts.stalls.syncs import syncs
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import steps
from traceq.intervals import span_index
from traceq.model import Trace
from traceq.runs.read import read

_KINDS = ("item", "item8", "nonzero", "pageable", "devsync", "removed")
_PAIRS = (
    ("ep-moe-b200-ab/ref", "ep-moe-b200-ab/syncless", "syncs"),
    ("resnet50-2021/workers0", "resnet50-2021/workers4", "data loader"),
)
_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Prediction:
    """Delta of a step in ms, predicted (at least, and at most) and seen; `step_ms` is the longer step."""

    source: str
    change: str
    predicted_ms: float
    most_ms: float
    seen_ms: float
    step_ms: float

    @property
    def error_pct(self) -> float:
        """Predicted minus seen, in percent of the step."""
        return 100 * (self.predicted_ms - self.seen_ms) / self.step_ms

    @property
    def outside_pct(self) -> float:
        """How far what was seen lies outside the predicted range, in percent of the step."""
        least, most = sorted((self.predicted_ms, self.most_ms))
        return 100 * max(0.0, least - self.seen_ms, self.seen_ms - most) / self.step_ms


def step_ns(trace: Trace) -> float:
    """Return the mean counted step."""
    return float(replay_of(trace).step_ns[steps(trace).counted].mean())


def num_syncs(trace: Trace) -> float:
    """Return the syncs per counted step."""
    counted = steps(trace).host[steps(trace).counted]
    return int((span_index(counted, syncs(trace).start) >= 0).sum()) / len(counted)


def prediction(source: str, change: str, a: Trace, b: Trace, delta_ns: tuple[int, int]) -> Prediction:
    """Return a prediction of B's step minus A's, the smallest and the largest, beside what was seen."""
    steps_ns = step_ns(a), step_ns(b)
    least_ms, most_ms = (ns / _MS for ns in delta_ns)
    return Prediction(source, change, least_ms, most_ms, (steps_ns[1] - steps_ns[0]) / _MS, max(steps_ns) / _MS)


def of_cases(work: Path) -> list[Prediction]:
    """Return the predictions of all cases of one rank whose added syncs are told from those that both sides have."""
    predictions = []
    for folder in sorted(work.iterdir()):
        for kind in _KINDS:
            sides = folder / kind / "a", folder / kind / "b"
            if not all(side.exists() for side in sides):
                continue
            (a,), (b,) = (read(side).traces for side in sides)
            (num_a, *of_a), (num_b, *of_b) = one_sided_syncs(a, b), one_sided_syncs(b, a)
            num = abs(num_syncs(b) - num_syncs(a))
            if num and num == max(num_a, num_b):
                delta_ns = of_b[0] - of_a[0], of_b[1] - of_a[1]
                predictions.append(prediction(folder.name, kind, a, b, delta_ns))
    return predictions


def one_sided_syncs(trace: Trace, other: Trace) -> tuple[float, int, int]:
    """Return (syncs per step of kinds that `other` has not, ns that a step saves without them: at least, at most)."""
    kinds, elsewhere = _kinds(trace), set(_kinds(other))
    is_missing = np.array([kind not in elsewhere for kind in kinds], np.bool_)
    counted = steps(trace).host[steps(trace).counted]
    removed = np.r_[is_missing, False][host_waits(trace).call][None]
    (saving,) = replay_of(trace).saved_per_step(removed, everywhere=True)
    inside = span_index(counted, syncs(trace).start) >= 0
    return float((is_missing & inside).sum()) / len(counted), saving.least_ns, saving.most_ns


def _kinds(trace: Trace) -> list[tuple[int, str, str]]:
    """Return (kind, op or call, phase) of each sync."""
    waits, events = syncs(trace), trace.events
    ops = [waits.origin.texts[op] or events.text(row) for op, row in zip(waits.origin.op, waits.rows, strict=True)]
    names = [phases(trace).names[phase] for phase in waits.phase.tolist()]
    return list(zip(waits.kind.tolist(), ops, names, strict=True))


def of_pairs(traces: Path) -> list[Prediction]:
    """Return the predictions of the public pairs whose change is known."""
    predictions = []
    for *names, removed in _PAIRS:
        (a,), (b,) = (read(traces / f"{name}.json.gz").traces for name in names)
        if removed == "syncs":
            _, *saved_ns = one_sided_syncs(a, b)
        else:
            saving = replay_of(a).saved_per_step(host_waits(a).call[None] < 0)[0]
            saved_ns = [saving.least_ns, saving.most_ns]
        delta_ns = -saved_ns[0], -saved_ns[1]
        predictions.append(prediction(names[0], f"without {removed}, as {names[1]}", a, b, delta_ns))
    return predictions


def table(predictions: list[Prediction]) -> Table:
    """Return one row per prediction."""
    shown = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("source", "change", "predicted ms", "at most", "seen ms", "error, % of step"):
        shown.add_column(heading, justify="left" if heading in ("source", "change") else "right")
    for each in predictions:
        numbers = (f"{ms:+.4f}" for ms in (each.predicted_ms, each.most_ms, each.seen_ms))
        shown.add_row(each.source, each.change, *numbers, f"{each.error_pct:+.3f}")
    return shown


def main() -> None:
    """Print all predictions, and how far they are off."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, required=True, help="folder of recorded traces")
    parser.add_argument("--work", type=Path, required=True, help="where benchmarks/causes.py keeps its cases")
    options, console = parser.parse_args(), Console(width=150, highlight=False, markup=False)
    cases = of_cases(options.work)
    console.print(table(cases))
    errors = np.abs([each.error_pct for each in cases])
    is_within = np.array([each.outside_pct for each in cases]) <= 1
    console.print(
        f"\n{len(cases)} cases: error of the predicted step: median {np.median(errors):.3f} %, 9th decile "
        f"{np.quantile(errors, 0.9):.2f} %, largest {errors.max():.2f} %; within 1 % in {(errors <= 1).sum()}, "
        f"within 1 % of the predicted range in {is_within.sum()}\n",
        soft_wrap=True,
    )
    console.print(table(of_pairs(options.traces)))


if __name__ == "__main__":
    main()
