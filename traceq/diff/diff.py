"""B against A: decide from unprofiled steps, explain from the traces, say it in words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from traceq.analyses.sheet import describe
from traceq.diff.comparable import comparable, confounders, ranks_apart
from traceq.diff.decide import decide, decide_cpu
from traceq.diff.explain import explain
from traceq.diff.free import is_free
from traceq.diff.rank_words import rank_words
from traceq.diff.ranks import alone, explained_rank, rank_deltas, waits_in
from traceq.diff.result import Cause, CellDelta, Diff, Diffs, RankDelta, Traced
from traceq.diff.words import cause_words, cpu_words, verdict_words
from traceq.errors import UsageFault
from traceq.model import Caveat, Run
from traceq.runs.layout import RunFolder
from traceq.runs.read import read, read_arms
from traceq.stats import Comparison

__all__ = ["THRESHOLD_PCT", "diff", "diff_run", "diff_runs"]

THRESHOLD_PCT = 0.5


def diff(a: str | Path | Run, b: str | Path | Run, *, threshold_pct: float = THRESHOLD_PCT) -> Diff:
    """B against A, each a path or a run. Raises UnreadableInput."""
    sides = [side if isinstance(side, Run) else read(side) for side in (a, b)]
    return diff_runs(sides[0], sides[1], threshold_pct=threshold_pct)


def diff_run(path: str | Path, *, threshold_pct: float = THRESHOLD_PCT) -> Diffs:
    """Every other timed arm of a recorded run against its baseline. Raises UnreadableInput, UsageFault."""
    if Path(path).exists() and not RunFolder(Path(path)).manifest_path.is_file():
        raise UsageFault(f"{path}: no recorded run; expected one, or a second path to compare it with")
    arms = read_arms(path)
    manifest = arms[0].manifest
    assert manifest is not None
    timed = {arm.name for arm in manifest.arms if arm.timed}
    baseline = next(run for run in arms if run.arm == manifest.baseline)
    others = [run for run in arms if run.arm in timed and run.arm != manifest.baseline]
    if not others:
        raise UsageFault(
            f"{path}: only one arm, {manifest.baseline}; expected two, or a second path to compare it with"
        )
    reference = next((run for run in arms if run.arm not in timed and run.traces), None)
    diffs = tuple(diff_runs(baseline, other, reference=reference, threshold_pct=threshold_pct) for other in others)
    return Diffs(manifest.baseline, diffs, baseline.caveats)


def diff_runs(a: Run, b: Run, *, reference: Run | None = None, threshold_pct: float = THRESHOLD_PCT) -> Diff:
    """B against A. `reference` is a traced step without the change at all, which says whether A is truly free of it."""
    can = comparable(a, b)
    decided = decide(a, b, can, threshold_pct)
    ranks = rank_deltas(a, b)
    traced, cells, causes = _explained(a, b, ranks)
    a_name, b_name = _names(a, b)
    doubts = _doubts(decided, traced)
    cpu = decide_cpu(a, b, threshold_pct)
    words = (*verdict_words(a_name, b_name, can, decided, _missing(a, b)), *cpu_words(cpu))
    if traced is not None:
        believable = all(doubt.code != "traced_disagrees" for doubt in doubts)
        waited_in = waits_in(a, b, ranks, traced.rank) if alone(ranks) else ""
        words = (*words, *rank_words(traced.rank, ranks, cells, waited_in))
        words = (*words, *cause_words(b_name, traced, causes, believable=believable))
    return Diff(
        a=describe(a),
        b=describe(b),
        a_name=a_name,
        b_name=b_name,
        comparable=can,
        comparison=decided,
        traced=traced,
        cells=cells,
        causes=causes,
        words=words,
        ranks=ranks,
        cpu=cpu,
        free=is_free(a, reference, _changed_phase(causes)) if traced and reference else "",
        caveats=tuple(
            dict.fromkeys(
                (*a.caveats, *b.caveats, *confounders(a, b), *doubts, *ranks_apart(a, b)),
            )
        ),
    )


def _missing(a: Run, b: Run) -> str:
    """Why there is no step to compare, if there is none."""
    empty = [name for name, run in zip(_names(a, b), (a, b), strict=True) if not run.traces]
    return "no unprofiled pairs yet" + (f", and no trace of {' or of '.join(empty)}" if empty else "")


def _explained(
    a: Run, b: Run, ranks: Sequence[RankDelta]
) -> tuple[Traced | None, tuple[CellDelta, ...], tuple[Cause, ...]]:
    rank = explained_rank(a, b, ranks)
    if rank is None:
        return None, (), ()
    ours, theirs = (next((trace for trace in run.traces if trace.rank == rank), run.traces[0]) for run in (a, b))
    return explain(ours, theirs)


def _changed_phase(causes: tuple[Cause, ...]) -> str:
    """The phase in which most ops came or went: where the change is; "" where none did."""
    changes: dict[str, float] = {}
    for cause in causes:
        if cause.delta_num:
            changes[cause.phase] = changes.get(cause.phase, 0.0) + abs(cause.delta_num)
    return max(changes, key=lambda phase: changes[phase], default="")


def _names(a: Run, b: Run) -> tuple[str, str]:
    """What the sides are called: their arms, else their files, else A and B."""
    names = [run.arm or Path(run.path).name.partition(".")[0] for run in (a, b)]
    return (names[0], names[1]) if names[0] != names[1] else ("A", "B")


def _doubts(found: Comparison | None, traced: Traced | None) -> tuple[Caveat, ...]:
    """Those of the verdict; and whether the traced delta, which is profiled, lies within its interval."""
    if found is None:
        return ()
    doubts = list(found.caveats)
    if traced is not None and found.unprofiled and found.ci95_ns is not None:
        low, high = found.ci95_ns
        if not low <= traced.delta_ns <= high:
            text = "the traced delta lies outside the interval of the unprofiled steps: profiling and chance are in it"
            doubts.append(Caveat("traced_disagrees", text))
    return tuple(doubts)
