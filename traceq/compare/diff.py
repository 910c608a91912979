"""B against A: decide from unprofiled steps, explain from the traces, say it in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from traceq.analysis.registry import describe
from traceq.compare.comparable import comparable, confounders, ranks_apart
from traceq.compare.decide import compare_sides, decide_cpu, separate_builds
from traceq.compare.exchanges import exchanges
from traceq.compare.explain import explain
from traceq.compare.interaction import joint
from traceq.compare.loader_starvation import feeding, feeding_doubts, feeding_words
from traceq.compare.off_is_free import is_free
from traceq.compare.rank_sentences import rank_words
from traceq.compare.ranks import alone, explained_rank, rank_deltas, waits_in
from traceq.compare.result import Cause, CellDelta, Comparable, Diff, Diffs, Feeding, RankDelta, Traced
from traceq.compare.sentences import cause_words, cpu_words, sample_words, verdict_words
from traceq.compare.side import Side
from traceq.errors import UnreadableInput, UsageFault
from traceq.locations import Place, place
from traceq.model import Caveat, Run
from traceq.runs.layout import is_run, read_manifest
from traceq.runs.read import left_nothing, read_arms
from traceq.runs.sides import recordings_in
from traceq.stats import Comparison, samples_apart

__all__ = ["THRESHOLD_PCT", "diff", "diff_run", "diff_runs"]

THRESHOLD_PCT = 0.5


def diff(a: str | Path | Run, b: str | Path | Run, *, threshold_pct: float = THRESHOLD_PCT) -> Diff:
    """B against A, each a run, a path, or a path that holds several recordings of one thing. Raises UnreadableInput."""
    return diff_sides(Side.of(a), Side.of(b), threshold_pct=threshold_pct)


def diff_run(path: str | Path, *, threshold_pct: float = THRESHOLD_PCT) -> Diffs:
    """Every other timed arm of a recorded run against its baseline, or the arm that it stands against.

    Raises UnreadableInput, UsageFault.
    """
    if recordings := recordings_in(place(path)):
        raise UsageFault(f"{path}: {len(recordings)} recorded runs, one side of a diff; {_sides_of(recordings)}")
    if place(path).exists() and not is_run(place(path)):
        raise UsageFault(f"{path}: no recorded run; expected one, or a second path to compare it with")
    arms = read_arms(path)
    manifest = arms[0].manifest
    assert manifest is not None
    by_name = {run.arm: run for run in arms}
    ended = {run.arm: Caveat("arm_ended", f"arm {run.arm}: {why}") for run in arms if (why := left_nothing(run))}
    if manifest.baseline in ended:
        raise UnreadableInput(str(path), ended[manifest.baseline].text, "the baseline, which others are compared with")
    timed = [arm for arm in manifest.arms if arm.timed and not arm.baseline]
    baseline, others = by_name[manifest.baseline], [arm for arm in timed if not {arm.name, arm.against} & ended.keys()]
    if timed and not others:
        raise UnreadableInput(str(path), "; ".join(found.text for found in ended.values()), "an arm to compare")
    if not others:
        raise UsageFault(
            f"{path}: only one arm, {manifest.baseline}; expected two, or a second path to compare it with"
        )
    reference = next((by_name[arm.name] for arm in manifest.arms if not arm.timed and by_name[arm.name].traces), None)
    surroundings = {arm.against for arm in timed}  # another place, and no change that could be switched off
    diffs = tuple(
        diff_runs(
            by_name[arm.against or manifest.baseline],
            by_name[arm.name],
            reference=None if arm.against or arm.name in surroundings else reference,
            threshold_pct=threshold_pct,
        )
        for arm in others
    )
    told = tuple(replace(found, caveats=(*found.caveats, *ended.values())) for found in diffs)
    return Diffs(
        manifest.baseline,
        told,
        baseline.caveats,
        baseline.pairs,
        tuple(joint(manifest.arms, diffs)),
        exchanges([by_name[arm.name] for arm in manifest.arms if arm.timed]),
    )


def _sides_of(recordings: Sequence[Place]) -> str:
    """What to type for several runs at once: their arms are sides, if they have two."""
    arms = [arm.name for arm in read_manifest(recordings[0]).arms if arm.timed]
    if len(arms) < 2:
        return "expected a second path to compare it with"
    return "to compare their arms: traceq diff " + " ".join(str(recordings[0].parent / arm) for arm in arms[:2])


def diff_runs(a: Run, b: Run, *, reference: Run | None = None, threshold_pct: float = THRESHOLD_PCT) -> Diff:
    """B against A. `reference` is a traced step without the change at all, which says whether A is truly free of it."""
    return diff_sides(Side.of(a), Side.of(b), reference=reference, threshold_pct=threshold_pct)


def diff_sides(a: Side, b: Side, *, reference: Run | None = None, threshold_pct: float = THRESHOLD_PCT) -> Diff:
    """B against A, each of one process or of several. `reference` as for two runs."""
    if fed := feeding(a.run, b.run):
        return _feeding_diff(a, b, fed)
    can, samples = comparable(a, b), samples_apart(a.samples, b.samples)
    decided = compare_sides(a, b, can, threshold_pct, samples)
    steps = compare_sides(a, b, can, threshold_pct, None) if samples else decided
    ranks = rank_deltas(a.run, b.run)
    traced, cells, causes = _explained(a.run, b.run, ranks)
    a_name, b_name = _names(a, b)
    on_cpu = decide_cpu(a, b, threshold_pct, samples)
    doubts = (*_doubts(decided, steps, traced), *separate_builds(a, b, decided, on_cpu))
    per = traced.per if traced else "a step"
    words = verdict_words(a_name, b_name, can, decided, missing=_missing(a, b), control=_control(a), per=per)
    words = (*words, *cpu_words(on_cpu), *sample_words(decided, steps))
    if traced is not None:
        believable = all(doubt.code != "traced_disagrees" for doubt in doubts)
        if believable and not _is_noise(decided):
            waited_in = waits_in(a.run, b.run, ranks, traced.rank) if alone(ranks) else ""
            words = (*words, *rank_words(traced, ranks, cells, waited_in))
        words = (*words, *cause_words(b_name, traced, causes, believable=believable, alike=can.ok))
    return Diff(
        a=replace(describe(a.run), path=a.path),
        b=replace(describe(b.run), path=b.path),
        a_name=a_name,
        b_name=b_name,
        comparable=can,
        comparison=decided,
        steps=steps,
        traced=traced,
        cells=cells,
        causes=causes,
        words=words,
        ranks=ranks,
        cpu=decide_cpu(a, b, threshold_pct, None),
        free=is_free(a.run, reference, _changed_phase(causes)) if traced and reference else "",
        caveats=tuple(
            dict.fromkeys(
                (*a.caveats, *b.caveats, *confounders(a, b), *doubts, *ranks_apart(a.run, b.run)),
            )
        ),
    )


def _feeding_diff(a: Side, b: Side, found: Feeding) -> Diff:
    """A loader alone and steps: nothing that could be subtracted."""
    a_name, b_name = _names(a, b)
    return Diff(
        a=replace(describe(a.run), path=a.path),
        b=replace(describe(b.run), path=b.path),
        a_name=a_name,
        b_name=b_name,
        comparable=Comparable(ok=False, reasons=("one side is a loader alone",)),
        comparison=None,
        steps=None,
        traced=None,
        cells=(),
        causes=(),
        words=feeding_words(found),
        caveats=tuple(dict.fromkeys((*a.caveats, *b.caveats, *feeding_doubts(a.run, b.run)))),
        feeding=found,
    )


def _control(a: Side) -> str:
    """The arm that a recording runs against itself; "" where there is none."""
    return a.run.manifest.baseline if a.run.manifest else ""


def _is_noise(found: Comparison | None) -> bool:
    """Whether the unprofiled steps deny or doubt that there is a difference which one rank could have made."""
    return found is not None and found.unprofiled and found.verdict.name in ("in_the_noise", "inconclusive")


def _missing(a: Side, b: Side) -> str:
    """Why there is no step to compare, if there is none."""
    empty = [name for name, side in zip(_names(a, b), (a, b), strict=True) if not side.run.traces]
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


def _names(a: Side, b: Side) -> tuple[str, str]:
    """What the sides are called: their arms or files, else the folders those are in, else A and B."""
    for names in ([side.run.arm or _stem(Path(side.path)) for side in (a, b)], [_folder(side) for side in (a, b)]):
        if names[0] != names[1]:
            return names[0], names[1]
    return "A", "B"


def _folder(side: Side) -> str:
    path = Path(side.path)
    return _stem(path.parent if path.name == side.run.arm else path)


def _stem(path: Path) -> str:
    return path.name.partition(".")[0]


def _doubts(found: Comparison | None, steps: Comparison | None, traced: Traced | None) -> tuple[Caveat, ...]:
    """Those of the verdict; and whether the traced delta, which is profiled, lies within the interval of the steps."""
    if found is None:
        return ()
    doubts = list(found.caveats)
    if traced is not None and steps is not None and steps.unprofiled and steps.ci95_ns is not None:
        low, high = steps.ci95_ns
        if not low <= traced.delta_ns <= high:
            text = "the traced delta lies outside the interval of the unprofiled steps: profiling and chance are in it"
            doubts.append(Caveat("traced_disagrees", text))
    return tuple(doubts)
