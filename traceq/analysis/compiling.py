"""What does torch.compile compile in the traced steps, and does it recompile in steady ones?"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from traceq.analysis import sentences
from traceq.analysis._basis import on_the_worst_rank, step_lengths, unprofiled_phase_ns, unprofiled_share
from traceq.analysis._rank_rows import Part, of_all
from traceq.analysis._wording import more_rows
from traceq.claims.claim import Basis, Claim, Measure, measured
from traceq.claims.limits import MODERATE
from traceq.facts.ranks.job import Job
from traceq.facts.timeline.compilations import PASSES, Recompiled, compilations, recompiled
from traceq.facts.timeline.phases import COMPILING
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import TimeCategory, activity
from traceq.frozen import frozen
from traceq.intervals import measure_within, span_index
from traceq.model import Trace
from traceq.report import Report, Table, column
from traceq.short_texts import cut_end
from traceq.units import Unit

_TOP = 5
_SIZES, _VALUES = "dynamic_sizes", "values_in_tensors"
"""Remedies of guards on sizes, and on other values; of an unknown guard that of the claim."""
_OF_SIZES = re.compile(r"(size|stride) mismatch|\.size\(|\.stride\(")
_LONGEST_GUARD = 80
_PHASE = re.compile(f"^{COMPILING}$")
_ID = re.compile(r"^(?P<frame>\d+)/(?P<again>\d+)")


@frozen
class CompilingRow:
    """One compilation by a thread."""

    index: int | None
    rank: int = column("rank", Unit.COUNT)
    step: int | None = column("step", Unit.COUNT)
    function: str = column("function")
    """`file.py:7 function`; "" without stacks."""
    compile_id: str = column("id")
    """`0/7`: frame 0, its eighth compilation; "" if unknown."""
    of_pass: str = column("pass", key="pass")
    """`forward`, `backward` (compiled at its first run), `other`: autotuning, capture."""
    shapes: str = column("inputs")
    dur_ns: int = column("time", Unit.NS)
    """On its thread, also while the device is busy."""

    @property
    def name(self) -> str:
        """The function, else the number of its frame."""
        match = _ID.match(self.compile_id)
        return self.function or (f"frame {match['frame']}" if match else "a function")

    @property
    def again(self) -> bool | None:
        """Whether its frame was compiled before; None where unknown."""
        match = _ID.match(self.compile_id)
        return int(match["again"]) > 0 if match else None


@frozen
class _Mean:
    """Compiling of one function, backward included: `num` times, in so many of the steps of all ranks."""

    function: str = column("function")
    num: int = column("compiled", Unit.COUNT)
    num_steps: int = column("in steps", Unit.COUNT)
    ns: int = column("time", Unit.NS)
    longest_ns: int = column("longest", Unit.NS)


def summarize(trace: Trace) -> Part[CompilingRow]:
    """Return a row per compilation, by start, and what those of the counted steps take."""
    times, all_steps = compilations(trace), steps(trace)
    number = all_steps.number.tolist()
    indices = [index if index >= 0 else None for index in span_index(all_steps.host, times.start).tolist()]
    rows = tuple(
        CompilingRow(index, trace.rank, None if index is None else number[index], *cells)
        for index, *cells in zip(
            indices,
            times.functions,
            times.compile_ids,
            [PASSES[number] for number in times.of_pass.tolist()],
            times.shapes,
            (times.end - times.start).tolist(),
            strict=True,
        )
    )
    return Part(rows, _compiling(trace, rows) if rows else None)


def merge(job: Job, parts: Sequence[Part[CompilingRow]]) -> Report:
    """Return the rows of all ranks; people see them by function."""
    rows, recorded = of_all(parts), recompiled(job.manifest)
    table = Table.of("compiling", "Compiling", CompilingRow, rows)
    claims = on_the_worst_rank(job, (part.finding for part in parts)) or _unprofiled(job)
    claims = tuple(_recorded(claim, recorded) if claim.code == "recompiles" and recorded else claim for claim in claims)
    return Report("compiling", (table,), (_view(rows),) if len(rows) else (), claims)


def _compiling(trace: Trace, rows: Sequence[CompilingRow]) -> Claim | None:
    """Return that most counted steps recompile, or how often these compile, as later ones need not."""
    all_steps = steps(trace)
    ns = measure_within(activity(trace).when(TimeCategory.COMPILING), *all_steps.window[all_steps.counted].T)
    share = float(ns.sum()) / max(float(step_lengths(all_steps).sum()), 1.0)
    if share < MODERATE or all(row.of_pass == "other" for row in rows):
        return None
    again, counted = _recompiles(rows), np.flatnonzero(all_steps.counted)
    num_again = int(np.isin(counted, [row.index for row in again if row.index is not None]).sum())
    mean_ns = round(float(ns.mean()))
    times = measured(compiling_ns=mean_ns, share_pct=100 * share)
    if 2 * num_again <= max(len(counted), 2):  # few steps, or one alone
        num = max(Counter(row.name for row in rows if row.of_pass == "forward").values(), default=1)
        return Claim("compiling", mean_ns, measures=measured(functions=_longest(rows), num_times=num, **times))
    remedy, why = _reason(again)
    measures = measured(functions=_longest(again), num_again=num_again, num_steps=len(counted), **times, **why)
    return Claim("recompiles", mean_ns, measures=measures, remedy=remedy)


def _recorded(claim: Claim, recorded: Sequence[Recompiled]) -> Claim:
    """Return a claim with the functions and the guard that the recording has, rather than those of the trace."""
    guard = recorded[0].guard
    names = measured(functions=_functions([each.function for each in recorded]), guard=cut_end(guard, _LONGEST_GUARD))
    return replace(claim, measures={**claim.measures, **names}, remedy=_SIZES if _OF_SIZES.search(guard) else _VALUES)


def _unprofiled(job: Job) -> tuple[Claim, ...]:
    """Return that most unprofiled steps compile, on the rank where that takes the largest part of them."""
    ns, share = unprofiled_phase_ns(job, _PHASE), unprofiled_share(job, _PHASE, 100 * MODERATE)
    if ns is None or share is None or not share.exceeds:
        return ()
    num = int(np.count_nonzero(ns[share.rank]))
    if 2 * num <= share.num_steps:
        return ()
    measures = measured(compiling_ns=share.ns, share_pct=share.pct, num_again=num, num_steps=share.num_steps)
    return (Claim("recompiles", share.ns, measures=measures, basis=Basis(share.num_steps, is_unprofiled=True)),)


def _recompiles(rows: Sequence[CompilingRow]) -> list[CompilingRow]:
    """Return the compilations of forward that are not the first of their frame.

    Where the trace has no numbers: those after the first step that compiles.
    """
    forward = [row for row in rows if row.of_pass == "forward" and row.index is not None]
    first = min((row.index for row in forward if row.index is not None), default=0)
    return [row for row in forward if (row.index != first if row.again is None else row.again)]


def _reason(again: Sequence[CompilingRow]) -> tuple[str, dict[str, Measure]]:
    """Return what avoids that a function is compiled again, as far as the shapes of its inputs tell why, and these."""
    inputs = [_inputs(row.shapes) for row in again if row.name == again[0].name]
    if len(inputs) < 2 or not all(inputs):
        return "", {}
    pairs = ((old, new) for before, after in pairwise(inputs) for old, new in zip(before, after, strict=False))
    sizes = next(((old, new) for old, new in pairs if old != new), None)
    return (_VALUES, {}) if sizes is None else (_SIZES, measured(old_size=str(sizes[0]), new_size=str(sizes[1])))


def _inputs(shapes: str) -> list[object]:
    inputs = json.loads(shapes) if shapes else []
    return inputs if isinstance(inputs, list) else []


def _longest(rows: Sequence[CompilingRow]) -> str:
    """Return the function that takes longest, and how many others there are."""
    ns = defaultdict[str, int](int)
    for row in rows:
        ns[row.name] += row.dur_ns
    return _functions(sorted(ns, key=lambda name: -ns[name]))


def _functions(names: Sequence[str]) -> str:
    """Return the first name, and how many others there are; "" without any."""
    others = len(names) - 1
    return f"{names[0]} and {others} other function{'s' * (others > 1)}" if others > 0 else "".join(names)


def _view(rows: Sequence[CompilingRow]) -> Table:
    by_function = defaultdict[str, list[CompilingRow]](list)
    for row in rows:
        by_function[row.name].append(row)
    means = [
        _Mean(
            function=name,
            num=sum(row.of_pass == "forward" for row in of_name),
            num_steps=len({(row.rank, row.index) for row in of_name if row.index is not None}),
            ns=sum(row.dur_ns for row in of_name),
            longest_ns=max(row.dur_ns for row in of_name),
        )
        for name, of_name in by_function.items()
    ]
    means.sort(key=lambda mean: -mean.ns)
    note = more_rows(len(means) - _TOP)
    return Table.of("compiling", sentences.COMPILED, _Mean, means[:_TOP], note=note)
