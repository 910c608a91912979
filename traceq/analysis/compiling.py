"""What does torch.compile compile in the traced steps, and does it recompile in steady ones?"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from traceq.analysis._basis import step_lengths, unprofiled_phase_ns, unprofiled_share
from traceq.analysis._rank_rows import of_all
from traceq.analysis._wording import more_rows, per_step
from traceq.analysis._worst_rank import on_the_worst_rank
from traceq.facts.ranks.job import Job
from traceq.facts.timeline.compilations import PASSES, Recompiled, compilations, recompiled
from traceq.facts.timeline.phases import COMPILING
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import TimeCategory, activity
from traceq.frozen import frozen
from traceq.intervals import measure_within, span_index
from traceq.model import Trace
from traceq.report import Finding, Report, Table, column, found
from traceq.short_texts import cut_end
from traceq.units import Unit, format_value

POSITION = 32

_LEAST_PCT, _HIGH_PCT = 5.0, 30.0
"""Percentages of the steps from which compiling is told, and from which it questions the rest."""
_TOP = 5
_NAMED = "TORCH_LOGS=recompiles names the guard"
_SIZES = "try dynamic=True, mark_dynamic or padding to a few sizes"
_VALUES = "keep values that change in tensors"
_REASON = f"a guard fails ({_NAMED}): {_SIZES}; {_VALUES}"
_OF_SIZES = re.compile(r"(size|stride) mismatch|\.size\(|\.stride\(")
_LONGEST_GUARD = 80
_PHASE = re.compile(f"^{COMPILING}$")
_ID = re.compile(r"^(?P<frame>\d+)/(?P<again>\d+)")


@frozen
class CompilingRow:
    """One time that a thread of a rank compiles.

    `step`: number of the step in which it begins, `index` that in its trace, None outside of all. `function` and
    `compile_id` ("0/7": frame 0, its eighth compilation) are "" where the trace does not tell them. `of_pass`: a
    backward pass is compiled apart, at its first run, and what is autotuned or captured then is of neither (`other`).
    `shapes` of its inputs, "" if unknown.
    """

    index: int | None
    rank: int = column("rank", Unit.COUNT)
    step: int | None = column("step", Unit.COUNT)
    function: str = column("function")
    compile_id: str = column("id")
    of_pass: str = column("pass", key="pass")
    shapes: str = column("inputs")
    dur_ns: int = column("time", Unit.NS)

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


@frozen
class _Compiling:
    """Compiling in the counted steps of a rank: `ns` of a mean one, `pct` of all, both in `words`.

    `num_again` of the `num_steps` recompile what `functions` names, for a `reason` by its inputs; `num`: most times
    that one function is compiled.
    """

    ns: int
    pct: float
    words: str
    num_again: int
    num_steps: int
    num: int
    functions: str
    reason: str


@frozen
class _Rank:
    """One rank's rows, and what they take of its counted steps; None where that is little."""

    rows: tuple[CompilingRow, ...]
    compiling: _Compiling | None


def summarize(trace: Trace) -> _Rank:
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
    return _Rank(rows, _compiling(trace, rows) if rows else None)


def merge(job: Job, parts: Sequence[_Rank]) -> Report:
    """Return the rows of all ranks; people see them by function."""
    rows, recorded = of_all(parts), recompiled(job.manifest)
    table = Table.of("compiling", "Compiling", CompilingRow, rows)
    of_ranks = (_finding(part.compiling, recorded) if part.compiling else None for part in parts)
    findings = on_the_worst_rank(job, of_ranks) or _unprofiled(job, recorded)
    return Report("compiling", (table,), (_view(rows),) if len(rows) else (), findings)


def _compiling(trace: Trace, rows: Sequence[CompilingRow]) -> _Compiling | None:
    all_steps = steps(trace)
    ns = measure_within(activity(trace).when(TimeCategory.COMPILING), *all_steps.window[all_steps.counted].T)
    pct = 100 * float(ns.sum()) / max(float(step_lengths(all_steps).sum()), 1.0)
    if pct < _LEAST_PCT or all(row.of_pass == "other" for row in rows):
        return None
    again, counted = _recompiles(rows), np.flatnonzero(all_steps.counted)
    num_again = int(np.isin(counted, [row.index for row in again if row.index is not None]).sum())
    is_steady = 2 * num_again > max(len(counted), 2)  # most steps, and not one alone
    return _Compiling(
        ns=round(float(ns.mean())),
        pct=pct,
        words=f"{format_value(float(ns.mean()), Unit.NS)} {per_step(all_steps)} ({format_value(pct, Unit.PERCENT)})",
        num_again=num_again if is_steady else 0,
        num_steps=len(counted),
        num=max(Counter(row.name for row in rows if row.of_pass == "forward").values(), default=1),
        functions=_longest(again if is_steady else rows),
        reason=_reason(again) if is_steady else "",
    )


def _finding(rank: _Compiling, recorded: Sequence[Recompiled]) -> Finding:
    """Return that most counted steps recompile, or how often these compile, as later ones need not."""
    if not rank.num_again:
        often = "once" if rank.num == 1 else f"{rank.num} times"
        lead = f"compiling {rank.functions} takes {rank.words}"
        return found("compiling", _severity(rank.pct), f"{lead}, {often}: trace later steps", rank.ns, lead=lead)
    text = (
        f"torch.compile compiles {_recorded_functions(recorded) or rank.functions} again in {rank.num_again} of "
        f"{rank.num_steps} traced steps, {rank.words}: {_recorded_reason(recorded) or rank.reason}"
    )
    return found("recompiles", _severity(rank.pct), text, rank.ns)


def _unprofiled(job: Job, recorded: Sequence[Recompiled]) -> tuple[Finding, ...]:
    """Return that most unprofiled steps compile, on the rank where that takes the largest part of them."""
    ns, share = unprofiled_phase_ns(job, _PHASE), unprofiled_share(job, _PHASE, _LEAST_PCT)
    if ns is None or share is None or not share.exceeds:
        return ()
    num = int(np.count_nonzero(ns[share.rank]))
    if 2 * num <= share.num_steps:
        return ()
    time = f"{format_value(share.ns, Unit.NS)} per step ({format_value(share.pct, Unit.PERCENT)})"
    text = (
        f"torch.compile compiles {_recorded_functions(recorded) or 'functions'} in {num:,} of {share.num_steps:,} "
        f"unprofiled steps, {time}: {_recorded_reason(recorded) or _REASON}"
    )
    return (found("recompiles", _severity(share.pct), text, share.ns),)


def _severity(pct: float) -> str:
    return "high" if pct >= _HIGH_PCT else "medium"


def _recompiles(rows: Sequence[CompilingRow]) -> list[CompilingRow]:
    """Return the compilations of forward that are not the first of their frame.

    Where the trace has no numbers: those after the first step that compiles.
    """
    forward = [row for row in rows if row.of_pass == "forward" and row.index is not None]
    first = min((row.index for row in forward if row.index is not None), default=0)
    return [row for row in forward if (row.index != first if row.again is None else row.again)]


def _recorded_functions(recorded: Sequence[Recompiled]) -> str:
    return _functions([each.function for each in recorded])


def _recorded_reason(recorded: Sequence[Recompiled]) -> str:
    """Return the guard that failed, where the recording has it, and what avoids it; "" else."""
    if not recorded:
        return ""
    guard = recorded[0].guard
    return f"guard failed: {cut_end(guard, _LONGEST_GUARD)}; {_SIZES if _OF_SIZES.search(guard) else _VALUES}"


def _reason(again: Sequence[CompilingRow]) -> str:
    """Return why a function is compiled again, as far as the shapes of its inputs tell, and what avoids it."""
    inputs = [_inputs(row.shapes) for row in again if row.name == again[0].name]
    if len(inputs) < 2 or not all(inputs):
        return _REASON
    pairs = ((old, new) for before, after in pairwise(inputs) for old, new in zip(before, after, strict=False))
    sizes = next(((old, new) for old, new in pairs if old != new), None)
    if sizes is None:
        return f"no input changes its size, so another value or mode does ({_NAMED}): {_VALUES}"
    return f"inputs change their size, as from {sizes[0]} to {sizes[1]}: {_SIZES}"


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
    return Table.of("compiling", "Compiling by function (whole trace)", _Mean, means[:_TOP], note=note)
