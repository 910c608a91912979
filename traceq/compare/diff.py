"""Compare B with A: decide from unprofiled steps, explain from the traces."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from traceq.analysis.facts import fact_tables
from traceq.analysis.registry import describe
from traceq.claims.claim import measured
from traceq.compare.cause_statements import cause_statements, is_jitter
from traceq.compare.caveats import (
    arm_ended,
    lost_device,
    other_loader,
    separate_builds,
    side_caveats,
    unmatched_ranks,
    unrecorded_work,
)
from traceq.compare.collective_volumes import exchanges
from traceq.compare.comparable import are_ranks_of_one_job, comparable, in_common_phases, on_common_steps
from traceq.compare.confounders import are_other_jobs, confounders
from traceq.compare.explain import MAX_PEERS, explain, waits_apart
from traceq.compare.inference import inference_deltas
from traceq.compare.loader import feeding, feeding_answer, loader_workers
from traceq.compare.ranks import collective_waited_in, explained_rank, only_changed_rank, rank_deltas
from traceq.compare.result import Cause, CellDelta, Comparable, Diff, Diffs, Feeding, RankDelta, Traced
from traceq.compare.sentences import TOO_FEW_STEPS, WHY_NOT
from traceq.compare.side import ReadArms, ReadRanks, Side, read_arms_into_memory, read_into_memory, side_names
from traceq.compare.statement import Statement, state
from traceq.compare.step_counts import count_deltas
from traceq.compare.step_times import compare_cpu, compare_sides, ranges_of_steps
from traceq.compare.verdict import answer, arm_interactions, basis, doubt, is_same_time
from traceq.compare.where_statements import (
    later_host,
    most_in_phase,
    of_ranks,
    python_line,
    shown_elsewhere,
    unprofiled_phase_times,
    waits_and_transfers,
)
from traceq.compare.work_deltas import work_deltas
from traceq.compare.work_statements import added_ops, graph_replays, op_work
from traceq.errors import UnreadableInput, UsageFault
from traceq.locations import Place, place
from traceq.model import Manifest, Run, Trace
from traceq.report import Source
from traceq.runs.run_folder import is_run, read_manifest
from traceq.runs.sides import recordings_in
from traceq.stats import samples_apart
from traceq.threshold import THRESHOLD_PCT


def diff(
    a: str | Path | Run,
    b: str | Path | Run,
    *,
    threshold_pct: float = THRESHOLD_PCT,
    read_ranks: ReadRanks = read_into_memory,
) -> Diff:
    """Return the diff of B against A, each a run, a path, or a path of several recordings of the same experiment.

    Raises UnreadableInput.
    """
    return diff_sides(Side.of(a, read_ranks), Side.of(b, read_ranks), threshold_pct=threshold_pct)


def diff_run(
    path: str | Path, *, threshold_pct: float = THRESHOLD_PCT, read_arm_ranks: ReadArms = read_arms_into_memory
) -> Diffs:
    """Return the diffs of a recorded run: every timed arm against the baseline, or against the arm that it names.

    Raises UnreadableInput, UsageFault.
    """
    return diff_arms(path, arms_of_run(path, read_arm_ranks), threshold_pct=threshold_pct)


def arms_of_run(path: str | Path, read_arm_ranks: ReadArms = read_arms_into_memory) -> tuple[Side, ...]:
    """Return the arms of a recorded run.

    Raises UnreadableInput, and UsageFault for a path that is no recorded run.
    """
    _check_is_run(path)
    return tuple(map(Side.of, read_arm_ranks(path)))


def diff_arms(path: str | Path, arms: Sequence[Side], *, threshold_pct: float = THRESHOLD_PCT) -> Diffs:
    """Return the diffs of the arms of the recorded run at `path`, as `diff_run` does."""
    manifest = arms[0].run.manifest
    assert manifest is not None
    by_name = {side.run.arm: side for side in arms}
    ended = {side.run.arm: caveat for side in arms for caveat in arm_ended(side.run)}
    timed = [arm for arm in manifest.arms if arm.timed and not arm.baseline]
    compared = [arm for arm in timed if not {arm.name, arm.against} & ended.keys()]
    if manifest.baseline in ended:
        raise UnreadableInput(str(path), ended[manifest.baseline].text, "the baseline, which others are compared with")
    if timed and not compared:
        raise UnreadableInput(str(path), "; ".join(caveat.text for caveat in ended.values()), "an arm to compare")
    if not compared:
        raise UsageFault(
            f"{path}: only one arm, {manifest.baseline}; compare it with another recording: traceq diff {path} OTHER; "
            "or record two arms: traceq record --toggle NAME=A,B"
        )
    reference = _reference(manifest, by_name)
    contexts = {arm.against for arm in timed}  # these have no change that could be switched off
    diffs = tuple(
        diff_sides(
            by_name[arm.against or manifest.baseline],
            by_name[arm.name],
            reference=None if arm.against or arm.name in contexts else reference,
            threshold_pct=threshold_pct,
        )
        for arm in compared
    )
    baseline = by_name[manifest.baseline].run
    return Diffs(
        manifest.baseline,
        tuple(replace(diff, caveats=(*diff.caveats, *ended.values())) for diff in diffs),
        baseline.caveats,
        baseline.pairs,
        tuple(arm_interactions(manifest.arms, diffs)),
        exchanges([by_name[arm.name] for arm in manifest.arms if arm.timed]),
        fact_tables(manifest) if manifest.facts else (),
    )


def _check_is_run(path: str | Path) -> None:
    """Raise UsageFault for a folder of several runs, and for a path that is not a recorded run."""
    if recordings := recordings_in(place(path)):
        raise UsageFault(f"{path}: {len(recordings)} recorded runs, one side of a diff; {_usage_of(recordings)}")
    if not place(path).exists():
        raise UnreadableInput(str(path), "no such file or directory", "a recorded run")
    if is_run(folder := place(path).parent):
        other = next((arm.name for arm in read_manifest(folder).arms if arm.name != place(path).name), "OTHER")
        raise UsageFault(f"{path}: one arm of a run; expected {folder}, or: traceq diff {folder / other} {path}")
    if not is_run(place(path)):
        raise UsageFault(f"{path}: not a recorded run; expected one, or a second path to compare it with")


def _usage_of(recordings: Sequence[Place]) -> str:
    """Return the command that compares several runs: if they have two arms, each arm is a side."""
    arms = [arm.name for arm in read_manifest(recordings[0]).arms if arm.timed]
    if len(arms) < 2:
        return "expected a second path to compare it with"
    return "to compare their arms: traceq diff " + " ".join(str(recordings[0].parent / arm) for arm in arms[:2])


def _reference(manifest: Manifest, by_name: dict[str, Side]) -> Side | None:
    """Return the first arm that was only traced: its step is without the change."""
    return next((by_name[arm.name] for arm in manifest.arms if not arm.timed and by_name[arm.name].run.traces), None)


def diff_runs(a: Run, b: Run, *, threshold_pct: float = THRESHOLD_PCT) -> Diff:
    """Return the diff of run B against run A."""
    return diff_sides(Side.of(a), Side.of(b), threshold_pct=threshold_pct)


def diff_sides(a: Side, b: Side, *, reference: Side | None = None, threshold_pct: float = THRESHOLD_PCT) -> Diff:
    """Return the diff of side B against side A, each of one process or of several.

    `reference` holds a traced step without the change at all; it shows whether the change costs A anything when off.
    """
    a, b = in_common_phases(*on_common_steps(a, b))
    if loader_and_steps := feeding(a.run, b.run):
        return _feeding_diff(a, b, loader_and_steps)
    comparability, samples = comparable(a, b), samples_apart(a.samples, b.samples)
    comparison = compare_sides(a, b, comparability, threshold_pct, samples)
    steps = compare_sides(a, b, comparability, threshold_pct, None) if samples else comparison
    ranks = rank_deltas(a.ranks, b.ranks)
    traced, cells, causes = _explained(a, b, ranks)
    is_other_job = are_other_jobs(a, b)
    if not comparability.ok or are_ranks_of_one_job(a, b) or is_other_job:
        causes = tuple(map(_of_unlike_runs, causes))
    a_name, b_name = side_names(a, b)
    cpu = compare_cpu(a, b, comparability, threshold_pct, samples)
    of_verdict = (*(comparison.caveats if comparison else ()), *separate_builds(a, b, comparison, cpu))
    of_ranks = (each for note in (lost_device, unrecorded_work) for each in note(a.ranks, b.ranks))
    of_sides = (*side_caveats(a), *side_caveats(b), *of_ranks, *confounders(a, b))
    per, traced_delta_ns = (traced.per, traced.delta_ns) if traced else ("per step", None)
    context = measured(a=a_name, b=b_name, per=per, traced_delta_ns=traced_delta_ns)
    why_not = doubt(traced, comparison, steps) if traced else None
    diff = Diff(
        a=_source(a),
        b=_source(b),
        a_name=a_name,
        b_name=b_name,
        comparable=comparability,
        comparison=comparison,
        steps=steps,
        traced=traced,
        cells=cells,
        causes=causes,
        answer=state("nothing_to_compare"),
        ranks=ranks,
        cpu=compare_cpu(a, b, comparability, threshold_pct, None),
        doubt=why_not.within(context) if why_not else None,
        free=added_ops(a.ranks, reference.ranks, _changed_phase(causes)) if traced and reference else None,
        inference=inference_deltas(a.ranks, b.ranks),
        work=work_deltas(*_traces_of(traced.rank, a, b)) if traced is not None else (),
        counts=count_deltas(*_traces_of(traced.rank, a, b)) if traced is not None else (),
        caveats=tuple(dict.fromkeys((*of_sides, *of_verdict, *unmatched_ranks(a.run, b.run)))),
    )
    diff = replace(diff, answer=answer(a, b, diff, is_other_job=is_other_job).within(context))
    rests_on = (each.within(context) for each in basis(a, b, diff, cpu, is_other_job=is_other_job))
    reasons = (each.within(context) for each in _reasons(a, b, diff, is_other_job=is_other_job))
    return replace(diff, basis=tuple(rests_on), reasons=tuple(reasons))


def _reasons(a: Side, b: Side, diff: Diff, *, is_other_job: bool) -> Iterator[Statement]:
    """Yield what makes the traced delta; with a doubt, only what does not rest on durations of traced steps."""
    traced, cells, causes = diff.traced, diff.cells, diff.causes
    if traced is None:
        return
    same_code, same_work = are_ranks_of_one_job(a, b), diff.comparable.ok and not is_other_job
    traces = _traces_of(traced.rank, a, b)
    of_causes = cause_statements(traced, causes, doubt=diff.doubt, same_work=same_work, same_code=same_code)
    if diff.doubt:
        yield from graph_replays(*traces, traced, cells, timed=False)
        yield from unprofiled_phase_times(a, b, diff.steps)
        yield from python_line(causes, diff.steps)
        yield from op_work(traced, diff.work, timed=False)
        yield from of_causes
        return
    waited_in = collective_waited_in(a.ranks, b.ranks, diff.ranks, traced.rank) if only_changed_rank(diff.ranks) else ""
    is_scatter = diff.comparison is not None and not diff.comparison.unprofiled and bool(ranges_of_steps(a, b))
    is_seen = not (is_same_time(diff.comparison) or is_jitter(traced, causes) or is_scatter)
    yield from graph_replays(*traces, traced, cells, is_seen=is_seen, timed=diff.comparable.ok)
    yield from of_ranks(traced, diff.ranks, cells, waited_in)
    if same_code:
        yield from later_host(traced, cells)
    yield from of_causes
    yield from loader_workers(a, b, causes)
    yield from waits_and_transfers(traced, cells, causes, num_ranks=len(diff.ranks))
    yield from op_work(traced, diff.work, timed=is_seen)
    yield from shown_elsewhere(*traces, traced, cells, causes)
    yield from most_in_phase(traced, cells) if is_seen else ()


def _of_unlike_runs(cause: Cause) -> Cause:
    """Return the row of jitter as one of single differences: two devices are not two runs of the same code."""
    if cause.kind != "jitter":
        return cause
    kinds = re.match(r"[\d,]+ kinds? of work", cause.name)
    what = kinds[0] if kinds else cause.name
    return replace(cause, kind="minor", name=TOO_FEW_STEPS.format(what=what))


def _feeding_diff(a: Side, b: Side, feeding: Feeding) -> Diff:
    """Return the diff of a data loader alone and steps, which have no delta."""
    a_name, b_name = side_names(a, b)
    return Diff(
        a=_source(a),
        b=_source(b),
        a_name=a_name,
        b_name=b_name,
        comparable=Comparable(ok=False, reasons=(WHY_NOT["loader"],)),
        comparison=None,
        steps=None,
        traced=None,
        cells=(),
        causes=(),
        answer=feeding_answer(feeding),
        caveats=tuple(dict.fromkeys((*side_caveats(a), *side_caveats(b), *other_loader(a.run, b.run)))),
        feeding=feeding,
    )


def _source(side: Side) -> Source:
    return replace(describe(side.run, side.ranks.job.ranks), path=side.path)


def _explained(
    a: Side, b: Side, ranks: Sequence[RankDelta]
) -> tuple[Traced | None, tuple[CellDelta, ...], tuple[Cause, ...]]:
    rank = explained_rank(a.run, b.run, ranks)
    if rank is None:
        return None, (), ()
    others = sorted((delta for delta in ranks if delta.rank != rank), key=lambda delta: -abs(delta.own_delta_ns))
    peers = [(a.ranks.trace(delta.rank), b.ranks.trace(delta.rank)) for delta in others[:MAX_PEERS]]
    traced, cells, causes = explain(*_traces_of(rank, a, b), peers)
    return traced, waits_apart(cells, a.ranks, b.ranks, rank), causes


def _traces_of(rank: int, a: Side, b: Side) -> tuple[Trace, Trace]:
    """Return the traces of a rank; of a side that lacks it the first one."""
    return a.trace_or_first(rank), b.trace_or_first(rank)


def _changed_phase(causes: tuple[Cause, ...]) -> str:
    """Return the phase in which most ops were added or removed; "" where none were."""
    changes: dict[str, float] = {}
    for cause in causes:
        if cause.delta_num:
            changes[cause.phase] = changes.get(cause.phase, 0.0) + abs(cause.delta_num)
    return max(changes, key=lambda phase: changes[phase], default="")
