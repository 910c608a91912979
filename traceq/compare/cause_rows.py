"""Causes of a delta from its contributions: what changed, the pace of unchanged work, run-to-run jitter, the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from traceq.causes.edges import IN_BOTH
from traceq.causes.host_line import ONCE
from traceq.compare.cause_names import LARGEST, MOST_OF_IT, cause_name, jitter_name, pace_name, phase_text
from traceq.compare.contributions import Contributions, Part
from traceq.compare.cost_centers import LAUNCHES
from traceq.compare.input_shapes import have_same_work
from traceq.compare.labels import Label, and_more
from traceq.compare.replaced_kernels import (
    fold_replacements,
    is_replacement,
    join_moved,
    replaced_name,
    replaced_together,
)
from traceq.compare.result import REPLACED_BY, Cause, Chain, share, sorted_causes
from traceq.compare.run_to_run import clear_change, comparable, error_of_mean, is_work, jitter, pace
from traceq.facts.events.forward_ops import RECOMPUTED
from traceq.facts.timeline.call_sites import line_function
from traceq.facts.timeline.data_loading import LOADING
from traceq.facts.timeline.host_pauses import PAUSES
from traceq.facts.timeline.python_places import PYTHON
from traceq.facts.timeline.steps import steps
from traceq.frozen import frozen
from traceq.grouping import Numbers
from traceq.intervals import sorted_unique

_SHARE_OF_DELTA, _SHARE_OF_STEP, _SHARE_OF_STEPS = 0.01, 0.001, 0.005
"""Smallest causes: of the delta and, for what both sides have, of the step, or of all paired steps if they are few."""

_ERRORS, _MANY_ERRORS, _MANY_STEPS, _LARGE = 5, 10, 5, 0.02
"""Standard deviations by which a cause exceeds its jitter, and by which that of all; steps of which fewer need more of
them, unless there are two and the cause is so large a part of them: where one is all, it may be a single pause.
"""

_STEADY_PART, _STEADY_STEPS = 0.3, 0.8
"""A change is in every step: at least this part of its mean, in at least this part of the steps. Else it is jitter."""

_FEWEST_CALLS = 0.75
"""Syncs per step that one side has to have more than the other to be listed whatever they cost."""

_HIDDEN = "work that only one side hides"
_CANCELS, _MOST, _MOST_OF_ROW = 2, 0.9, 0.75


@frozen
class _Row:
    """Labels of one row, its ns in all paired steps, its standard deviation."""

    labels: tuple[int, ...]
    ns: float
    sd_ns: float


@frozen
class _Unrounded:
    """Cause with its ns per step, and those by a change in number, before rounding."""

    cause: Cause
    ns: float
    count_ns: float


def cause_rows(parts: Contributions, delta_ns: int) -> tuple[Cause, ...]:
    """Return the causes of a traced delta, per step, in whole ns that add up to it; what names no change comes last."""
    num_steps = max(parts.num_paired, 1)
    sign = -1 if parts.is_swapped else 1
    total = parts.share * (parts.b_ns - parts.a_ns)
    alike = comparable(parts)
    works = {work: number for number, work in enumerate(dict.fromkeys(_work(label)[1:] for label in parts.labels))}
    work = np.array([works[_work(label)[1:]] for label in parts.labels], np.int32)
    has_same_work = have_same_work(*parts.traces)
    paced, paces = np.zeros(len(alike)), []
    is_python = np.array([label.name.startswith("Python") for label in parts.labels], np.bool_)[parts.label]
    for name, part in (("host ops", Part.HOST), *([("kernels", Part.KERNEL)] if has_same_work else [])):
        chosen = np.flatnonzero(alike & (parts.part == part) & ~is_python)
        ratio, paced[chosen] = pace(parts, work, chosen, _SHARE_OF_STEP * parts.steps_ns)
        paces.append((name, ratio, float(paced[chosen].sum())))
    sigma = jitter(parts, work, alike, paced, same_work=has_same_work)
    total -= paced
    table = _Table(parts, total, sigma)
    rows, minor, rest = table.rows()
    causes = [_cause(parts, row, total) for row in rows]
    for name, ratio, paced_ns in paces:
        if ratio != 1:
            causes.append(_other("pace", pace_name(name, ratio if sign > 0 else 1 / ratio), paced_ns / num_steps))
    if minor.labels:
        changes = "smaller change" if len(minor.labels) == 1 else "smaller changes"
        name = f"{len(minor.labels):,} {changes}"
        causes.append(_other("minor", name, minor.ns / num_steps, phase=table.most_in(minor.labels)))
    if rest.labels:
        largest = max(rest.labels, key=lambda number: abs(table.total[number]))
        row = _Row((largest,), float(table.total[largest]), 0)
        is_most = 2 * abs(row.ns) >= np.abs(table.total[list(rest.labels)]).sum()
        of_largest = _named(_cause(parts, row, total).cause)
        times = rest.ns / num_steps, rest.sd_ns / num_steps
        text = jitter_name(len(rest.labels), *times, of_largest if is_most else "", of_largest)
        phase = table.most_in(rest.labels)
        causes.append(_other("jitter", text, rest.ns / num_steps, rest.sd_ns / num_steps, phase))
    if table.hidden:
        hidden_ns = sum(row.ns for row in table.hidden)
        first = max(table.hidden, key=lambda row: row.ns * np.sign(hidden_ns))
        is_most = 2 * abs(first.ns) >= sum(abs(row.ns) for row in table.hidden)
        of_first = f", {MOST_OF_IT if is_most else LARGEST}{_named(_cause(parts, first, total).cause)}"
        text = _HIDDEN + ("" if replaced_name(parts, first.labels) else of_first)
        causes.append(_other("residual", text, hidden_ns / num_steps))
    ends = [steps(trace).by_device for trace in parts.traces]
    residual = "steps that only one side has" if ends[0] == ends[1] else "steps that do not both end with the device"
    return _whole(causes, sign, delta_ns, _common_phases(parts), residual, is_paired=parts.is_paired)


def _named(cause: Cause) -> str:
    return f"{cause_name(cause)} {phase_text(cause)}".strip()


def _common_phases(parts: Contributions) -> set[str]:
    """Return the phases in which both sides spend time."""
    of_a, of_b = (
        {label.phase for label, ns in zip(parts.labels, totals.tolist(), strict=True) if ns}
        for totals in (
            np.bincount(parts.label, weights=side, minlength=len(parts.labels)) for side in (parts.a_ns, parts.b_ns)
        )
    )
    return of_a & of_b


class _Table:
    """Contributions summed by label.

    `total`, `variance`, `squares` (of all contributions) float64[L] in all paired steps; `events`, `moved` float64[L]:
    B's events and bytes minus A's;
    `only_a`, `only_b` bool[L]: host time on one side only; `by_step` float64[L, K] ns by which the work itself is
    longer, on the path or not; `delta_by_step` float64[L, K] what of `total` is in each step.
    """

    def __init__(self, parts: Contributions, ns: NDArray[np.float64], sigma: NDArray[np.float64]) -> None:
        num = len(parts.labels)
        self.parts, self.num_steps = parts, parts.num_paired
        self.total = np.bincount(parts.label, weights=ns, minlength=num)
        longer = np.where(parts.part == Part.WAIT, 0, parts.b_ns - parts.a_ns)
        self.unpaired, self.unpaired_own = (
            np.bincount(parts.label, weights=weights * (parts.sides != IN_BOTH), minlength=num)
            for weights in (ns, longer)
        )
        self.hidden: list[_Row] = []
        self.squares = np.bincount(parts.label, weights=ns**2, minlength=num)
        self.variance = np.bincount(parts.label, weights=(parts.share * sigma) ** 2, minlength=num)
        self.events = np.bincount(parts.label, weights=parts.num, minlength=num)
        self.moved = np.bincount(parts.label, weights=parts.moved, minlength=num)
        self.only_a, self.only_b = (
            np.bincount(parts.label, weights=side, minlength=num) == 0 for side in (parts.b_ns, parts.a_ns)
        )
        inside, num_steps = parts.step >= 0, max(parts.num_paired, 1)
        cell = parts.label[inside].astype(np.int64) * num_steps + parts.step[inside]
        longer_ns = (parts.b_ns - parts.a_ns)[inside]
        self.by_step, self.delta_by_step = (
            np.bincount(cell, weights=weights, minlength=num * num_steps).reshape(num, num_steps)
            for weights in (longer_ns, ns[inside])
        )

    @cached_property
    def is_more_syncs(self) -> NDArray[np.bool_]:
        """bool[L]: syncs of which one side asks for more."""
        is_sync = np.array([label.kind == "sync" for label in self.parts.labels], np.bool_)
        return np.asarray(is_sync & (self.events != 0) & (np.abs(self.parts.calls) >= _FEWEST_CALLS))

    @cached_property
    def is_one_sided(self) -> NDArray[np.bool_]:
        """bool[L]: what only one side does, or does more often, or does with something else."""
        labels = self.parts.labels
        is_sync = np.array([label.kind == "sync" for label in labels], np.bool_)
        is_replaced = np.array([REPLACED_BY in label.name for label in labels], np.bool_)
        is_more = (self.events != 0) | self.only_a | self.only_b | is_replaced
        return np.asarray(self.is_more_syncs | (~is_sync & is_more))

    def _is_written(self, index: list[int]) -> bool:
        """Return whether a row differs in bytes, or in number: of collectives, or at a line of code.

        Such a row is listed even where it costs nothing.
        """
        labels = [self.parts.labels[number] for number in index]
        is_counted = any(label.line or label.kind == "collective" for label in labels)
        is_changed = bool(self.moved[index].sum()) or (is_counted and bool(self.events[index].sum()))
        return is_changed or bool(self.is_more_syncs[index].any())

    def rows(self) -> tuple[list[_Row], _Row, _Row]:
        """Return (rows that are causes, smaller changes as one row, jitter as one row)."""
        causes: list[_Row] = []
        minor: list[_Row] = []
        rest: list[_Row] = []
        regions: Sequence[tuple[int, ...]] = self._groups()
        if self.parts.is_paired:
            regions = self._whole_regions(replaced_together(regions, self.parts))
        for members, scatter_ns in zip(regions, self._scatter_of_one_step(regions), strict=True):
            row = self._within_own_change(self._row(members))
            is_cause, is_change = self._is_cause(row, scatter_ns)
            clear_ns = 0.0 if is_cause or is_change else self._clear_ns(row)
            if clear_ns:  # the rest are single long steps
                causes.append(replace(row, ns=clear_ns))
                rest.append(replace(row, labels=(), ns=row.ns - clear_ns))
            else:
                (causes if is_cause else minor if is_change else rest).append(row)
        for place_of in (_op_region, _code_region):
            together, minor = self._regions(minor, place_of)
            causes += together
        causes = _same_on_ranks(causes, self.parts.labels)
        causes, minor = self._with_all_replaced(causes, minor)
        jitter = self._joined(rest)
        index = list(jitter.labels)
        error_ns = error_of_mean(self.delta_by_step[index].sum(axis=0)) * self.num_steps
        scatter_ns = float(np.sqrt(self.squares[index].sum()))  # changes have long tails
        return causes, self._joined(minor), replace(jitter, sd_ns=max(jitter.sd_ns, error_ns, scatter_ns))

    def _regions(
        self, rows: Sequence[_Row], place_of: Callable[[Label], tuple[object, ...]]
    ) -> tuple[list[_Row], list[_Row]]:
        """Return (small changes of a place as one row, where that is a cause; the other ones).

        What one side alone does in one op, or at one line or module, is added or removed together; not where what the
        other side does there cancels it.
        """
        places: dict[tuple[object, ...], list[_Row]] = {}
        for row in rows:
            place = {place_of(self.parts.labels[number]) for number in row.labels}
            places.setdefault((len(place) == 1 and place.pop()) or row.labels, []).append(row)
        causes, others = list[_Row](), list[_Row]()
        for at_place in places.values():
            sides: dict[int, list[_Row]] = {}
            for row in at_place:
                side = {self._side_of(number) for number in row.labels}
                sides.setdefault(side.pop() if len(side) == 1 else 0, []).append(row)
            others += sides.pop(0, [])
            is_other = _cancel(np.array([row.ns for row in at_place]))
            for members in sides.values():
                row = self._row(tuple(number for each in members for number in each.labels))
                is_one = not is_other and len(members) > 1 and self._is_cause(row, 0.0)[0]
                (causes if is_one else others).extend([row] if is_one else members)
        return causes, others

    def _with_all_replaced(self, causes: list[_Row], minor: list[_Row]) -> tuple[list[_Row], list[_Row]]:
        """Return (the causes, with small kernels that were replaced, or replace others, where large ones do; the rest).

        `fold_replacements` joins all of a place: without the small ones it would count too few on one side.
        """
        labels, more, left = self.parts.labels, Counter[str](), causes
        for label, num in zip(labels, self.events.tolist(), strict=True):
            more[label.name] += num
        for place_of in (_call_of_kernel, _op_of_kernel):

            def placed(row: _Row, place_of: Callable[[Label], tuple[object, ...]] = place_of) -> tuple[object, ...]:
                head, num = labels[row.labels[0]], self.events[list(row.labels)].sum()
                return (num > 0, place_of(head)) if num * more[head.name] > 0 and place_of(head) else ()

            places = {placed(row) for row in left} - {()}
            replaced = {place for place in places if (not place[0], place[1]) in places}
            causes = causes + [row for row in minor if placed(row) in replaced]
            minor, left = ([row for row in rows if placed(row) not in replaced] for rows in (minor, left))
        return causes, minor

    def _side_of(self, number: int) -> int:
        """Return the side that alone has a label, or has it more often: -1 for A, 1 for B, 0 for both."""
        return int(np.sign(self.events[number])) or int(self.only_b[number]) - int(self.only_a[number])

    def _within_own_change(self, row: _Row) -> _Row:
        """Return a row of which kernels, collectives and host ops without a pair have no more ns than they take.

        Work that was not paired may be on the longest path of one side and hidden on the other, as where the order of
        two blocks changed: that is no change of it, but the rest, `hidden`.
        """
        head = self.parts.labels[row.labels[0]]
        is_own = head.kind in ("kernel", "host", "collective") and head.name != ONCE  # a load may wait for the device
        if not is_own or self.events[list(row.labels)].sum():
            return row
        ns, own_ns = (float(column[list(row.labels)].sum()) for column in (self.unpaired, self.unpaired_own))
        excess_ns = ns - min(max(ns, min(own_ns, 0.0)), max(own_ns, 0.0))
        self.hidden += [replace(row, ns=excess_ns)] if excess_ns else []
        return replace(row, ns=row.ns - excess_ns)

    def _row(self, members: tuple[int, ...]) -> _Row:
        index = list(members)
        sd_ns = float(np.sqrt(self.variance[index].sum()))
        row_ns, longer_ns = float(self.total[index].sum()), self.by_step[index].sum(axis=0)
        if self.num_steps >= _MANY_STEPS:  # of what steps differ by, the path has the part that it has of the change
            part = min(abs(row_ns) / max(abs(float(longer_ns.sum())), 1.0), 1.0)
            sd_ns = max(sd_ns, part * error_of_mean(longer_ns) * self.num_steps)
        return _Row(members, row_ns, sd_ns)

    @cached_property
    def _smallest_matched(self) -> float:
        """Smallest cause of what both sides do, ns."""
        part = max(_SHARE_OF_STEP, _SHARE_OF_STEPS / max(self.num_steps, 1))
        all_jitter = _MANY_ERRORS * float(np.sqrt(self.variance.sum()))
        return max(_SHARE_OF_DELTA * abs(float(self.total.sum())), min(part * self.parts.steps_ns, all_jitter))

    def _is_cause(self, row: _Row, scatter_ns: float) -> tuple[bool, bool]:
        """Return (whether a row is a cause, whether it is a change, be it a small one), as rows scatter at least."""
        index, steps_ns, head = list(row.labels), self.parts.steps_ns, self.parts.labels[row.labels[0]]
        if head.name == PAUSES:  # they would be elsewhere, or not at all, in another run
            return False, False
        if self.is_one_sided[index].all():
            is_cause, is_change = abs(row.ns) > _SHARE_OF_DELTA * abs(self.total.sum()), True
        else:
            is_large = self.num_steps > 1 and abs(row.ns) > _LARGE * steps_ns
            errors = _ERRORS if is_large else _ERRORS * max(1, _MANY_STEPS / max(self.num_steps, 1))
            least = _ERRORS if head.kind == "collective" else errors
            is_steady = self._is_steady(index)
            sd_ns = max(row.sd_ns, scatter_ns)
            is_told = head.kind == "residual" or (is_steady and abs(row.ns) > least * sd_ns)
            is_cause = abs(row.ns) > self._smallest_matched and is_told
            is_change = is_steady and abs(row.ns) > errors * sd_ns
        is_listed = self._is_written(index) or is_replacement(self.parts, row.labels, _SHARE_OF_STEP * steps_ns)
        return is_cause or is_listed, is_change

    def _clear_ns(self, row: _Row) -> float:
        """Return the ns of a change that is clear but for single long steps; 0 if it is none, or a small one."""
        if self.parts.labels[row.labels[0]].name == PAUSES:
            return 0.0
        clear_ns = clear_change(self.delta_by_step[list(row.labels)].sum(axis=0)) * self.num_steps
        return clear_ns if abs(clear_ns) > self._smallest_matched else 0.0

    def _scatter_of_one_step(self, rows: Sequence[tuple[int, ...]]) -> NDArray[np.float64]:
        """Return float64[R] ns: of a single step, the largest change among other rows of the host and of collectives.

        A host that is interrupted and a rank that is late make one call long, wherever they come: how many do, and by
        how much, tells how far such a row has to stand out. 0 of other rows.
        """
        change = np.array([abs(float(self.total[list(members)].sum())) for members in rows])
        heads = [self.parts.labels[members[0]] for members in rows]
        varies = np.array([each.kind in ("host", "collective") and is_work(each) for each in heads], np.bool_)
        varies &= ~np.array([self.is_one_sided[list(members)].all() for members in rows], np.bool_)
        if self.num_steps != 1 or not varies.any():
            return np.zeros(len(rows))
        second, largest = np.sort(np.r_[0, change[varies]])[-2:]
        return np.where(varies, np.where(change == largest, second, largest), 0.0)

    def _whole_regions(self, rows: Sequence[tuple[int, ...]]) -> Sequence[tuple[int, ...]]:
        """Return the rows, those of a place joined in which the host does something else and whose changes cancel.

        A place is an op with all in it, or else a line or module, or else a phase: it changed by their sum alone.
        """
        for place_of in (_op_place, _code_place):
            places: dict[tuple[object, ...], list[tuple[int, ...]]] = {}
            for members in rows:
                places.setdefault(place_of(self.parts.labels[members[0]]) or members, []).append(members)
            joined: list[tuple[int, ...]] = []
            for each in places.values():
                one = self._cancelling(each)
                joined += [tuple(number for members in one for number in members)] if one else []
                alone = set(each).difference(one)
                joined += [members for members in each if members in alone]
            rows = joined
        return rows

    def _cancelling(self, rows: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """Return the rows of one place whose changes cancel, where the host does something else there.

        What it does else and what became less by that, but for the largest of it that is too much: another change.
        """
        change = np.array([self.total[list(members)].sum() for members in rows])
        is_other = np.array([self._is_other[list(members)].any() for members in rows])
        chosen = is_other | (change * change[is_other].sum() < 0)
        while not _cancel(change[chosen]) and (chosen & ~is_other).any():
            chosen[np.abs(np.where(chosen & ~is_other, change, 0)).argmax()] = False
        is_one = chosen.sum() > 1 and is_other.any() and _cancel(change[chosen])
        return [members for members, is_chosen in zip(rows, chosen, strict=True) if is_chosen and is_one]

    @cached_property
    def _is_other(self) -> NDArray[np.bool_]:
        """bool[L]: what only one side's host does, there and elsewhere."""
        parts, is_other = self.parts, np.zeros(len(self.parts.labels), np.bool_)
        of_host = parts.part == Part.HOST
        sides = (parts.a_ns, parts.is_gone), (parts.b_ns, parts.is_new)
        for is_alone, (ns, is_only_here) in zip(parts.is_alone, sides, strict=True):
            num = np.bincount(parts.label[of_host & (ns > 0)], minlength=len(is_other))
            for number in np.flatnonzero(is_alone).tolist():
                is_other[number] |= is_only_here(parts.labels[number], int(num[number]))
        return is_other

    def _joined(self, rows: Sequence[_Row]) -> _Row:
        """Return some rows as one, with the labels that have time."""
        labels = tuple(label for row in rows for label in row.labels if self.total[label])
        return _Row(labels, sum(row.ns for row in rows), float(np.sqrt(sum(row.sd_ns**2 for row in rows))))

    def most_in(self, members: Sequence[int]) -> str:
        """Return the phase that has most of what some labels have by phase; "" without one."""
        by_phase: dict[str, float] = {}
        for number in members:
            phase = self.parts.labels[number].phase
            by_phase[phase] = by_phase.get(phase, 0.0) + float(self.total[number])
        most = max(by_phase, key=lambda name: abs(by_phase[name]), default="")
        is_most = abs(by_phase.get(most, 0.0)) >= _MOST_OF_ROW * sum(map(abs, by_phase.values()))
        return most if is_most and len(by_phase) > 1 else ""

    def _is_steady(self, index: list[int]) -> bool:
        """Return whether the work of these labels became longer, or shorter, in nearly every step."""
        by_step = self.by_step[index].sum(axis=0)
        mean = by_step.mean()
        return not mean or bool((by_step / mean >= _STEADY_PART).mean() >= _STEADY_STEPS)

    def _groups(self) -> list[tuple[int, ...]]:
        """Return the labels by row.

        A kernel that both sides run, or run as often, is one row, whatever op launches it. Work that is done less often
        here and more often there, so that the changes cancel, has moved.
        """
        rows: list[tuple[int, ...]] = []
        events = Counter[tuple[str, ...]]()
        for label, num in zip(self.parts.labels, self.events.tolist(), strict=True):
            events[_work(label)] += num
        kernels: dict[tuple[str, ...], list[int]] = {}
        others: dict[tuple[str, ...], list[int]] = {}
        for number, label in enumerate(self.parts.labels):
            is_moved = label.kind == "kernel" and not (events[_work(label)] or REPLACED_BY in label.name)
            if label.kind in ("kernel", "memcpy") and (is_moved or not self.is_one_sided[number]):
                kernels.setdefault(_work(label), []).append(number)
            elif label.kind == "host" or (self.is_one_sided[number] and label.kind not in ("sync", "collective")):
                others.setdefault(_work(label), []).append(number)
            else:
                rows.append((number,))
        for members in others.values():
            nums = self.events[members] * (not self.parts.is_paired)  # accounts of calls move by their number
            moved = self.is_one_sided[members].any() and _cancel(nums if nums.any() else self.total[members])
            rows += [tuple(members)] if moved else [(number,) for number in members]
        return [*rows, *map(tuple, kernels.values())]


def _cancel(changes: NDArray[np.float64] | Numbers) -> bool:
    return bool(_CANCELS * abs(changes.sum()) <= np.abs(changes).sum())


def _op_place(label: Label) -> tuple[object, ...]:
    """Return an op and where it is; nothing of what is no work of the host."""
    return (label.name, *label.place) if label.kind == "host" else ()


def _code_place(label: Label) -> tuple[object, ...]:
    """Return a place in the code without the op: a line or module, or where neither is known a phase.

    None in the data loader: what workers took over is not replaced by how the process receives it.
    """
    return ("", *label.place) if _op_place(label) and label.phase not in LOADING else ()


def _op_of_kernel(label: Label) -> tuple[object, ...]:
    """Return the rank, the phase and the op that launches a kernel, as `fold_replacements` has them; else nothing."""
    op = label.name.rpartition(LAUNCHES)[0] if label.kind == "kernel" else ""
    return (label.rank, label.phase, op) if op else ()


def _call_of_kernel(label: Label) -> tuple[object, ...]:
    """Return the same with the line and module; nothing where neither is known."""
    op = _op_of_kernel(label)
    return (*op, label.line, label.module) if op and (label.line or label.module) else ()


def _op_region(label: Label) -> tuple[object, ...]:
    """Return an op that calls others or launches kernels, and where it is; nothing of other work."""
    op = label.name if label.inner else label.name.rpartition(LAUNCHES)[0]
    return (label.kind, op, *label.place) if op and _is_of_region(label) else ()


def _code_region(label: Label) -> tuple[object, ...]:
    """Return a line or module, nothing where neither is known."""
    is_known = (label.line or label.module) and _is_of_region(label)
    return (label.kind, *label.place) if is_known else ()


def _is_of_region(label: Label) -> bool:
    is_replaced = REPLACED_BY in label.name
    return label.kind in ("host", "kernel") and not is_replaced and label.phase not in LOADING


def _same_on_ranks(rows: Sequence[_Row], labels: Sequence[Label]) -> list[_Row]:
    """Return the rows with those of several ranks joined in which the same work changed."""
    by_work: dict[tuple[Label, ...], list[_Row]] = {}
    for row in rows:
        by_work.setdefault(tuple(replace(labels[number], rank=-1) for number in row.labels), []).append(row)
    return [
        _Row(
            tuple(number for row in members for number in row.labels),
            sum(row.ns for row in members),
            float(np.sqrt(sum(row.sd_ns**2 for row in members))),
        )
        for members in by_work.values()
    ]


def _work(label: Label) -> tuple[str, ...]:
    """Return what work is, wherever it is done."""
    if label.kind in ("host", "sync"):
        return str(label.rank), label.kind, label.phase, label.inner or label.name
    if REPLACED_BY in label.name:
        return str(label.rank), label.kind, *sorted(label.name.split(REPLACED_BY))
    return str(label.rank), label.kind, label.name.rpartition(LAUNCHES)[2]


def _cause(parts: Contributions, row: _Row, ns: NDArray[np.float64]) -> _Unrounded:
    """Return the cause of a row; names and places are those of its labels that hold most of its time.

    Where several ranks are compared, the name starts with the rank.
    """
    num_steps = max(parts.num_paired, 1)
    index = np.flatnonzero(np.isin(parts.label, row.labels))
    by_label = np.abs(np.bincount(parts.label[index], weights=ns[index], minlength=len(parts.labels)))
    ordered = sorted(row.labels, key=lambda number: (-by_label[number], number))
    running = np.cumsum(by_label[ordered])
    named = ordered[: 1 + int(np.searchsorted(running, _MOST * running[-1]))]
    labels = [parts.labels[number] for number in named]
    label, first = labels[0], named[0]
    replaced = replaced_name(parts, row.labels)
    name, inner = _name_and_inner(labels, [parts.labels[number] for number in ordered])
    name, inner = (replaced, label.inner) if replaced else (name, inner)
    numbers = sorted(
        {parts.ranks[parts.labels[number].rank] for number in row.labels if parts.labels[number].rank >= 0}
    )
    num_ranks = max(len(numbers), 1)  # a row of several tells how many events each has more
    if numbers:
        name = f"{'rank' if len(numbers) == 1 else 'ranks'} {', '.join(map(str, numbers))}: {name}"
    phase = " and ".join(dict.fromkeys(sorted(entry.phase for entry in labels))) if len(labels) > 1 else label.phase
    line = parts.lines[first] if len({entry.line for entry in labels}) == 1 else ""
    module = label.module if len({entry.module for entry in labels}) == 1 else ""
    is_more_syncs = label.kind == "sync" and bool(parts.num[index].any())
    counted = index[(parts.sides[index] != IN_BOTH) & (parts.part[index] != Part.HOST)]
    is_as_often = not parts.num[index].sum()  # calls that were not paired: other sizes, or in another place
    count_ns = row.ns if is_more_syncs else 0.0 if is_as_often else float(ns[counted].sum())
    copied, waited = (float(ns[index[mask[index]]].sum()) for mask in (parts.is_copied, parts.is_waited))
    num = parts.num[index]
    changed, steps_of_rank = len(sorted_unique(parts.step[index[num != 0]])), int(parts.num_steps[index].max(initial=0))
    is_in_some = 0 < changed < steps_of_rank and (num >= 0).all() != (num <= 0).all()
    cause = Cause(
        key=_key(label.kind, phase, name, inner, line_function(line), module),
        kind=label.kind,
        phase=phase,
        name=name,
        line=line,
        delta_num=round(float((parts.num[index] / parts.num_steps[index]).sum()) / num_ranks, 9),
        delta_ns=0,
        count_ns=0,
        dur_ns=0,
        share_pct=None,
        module=module,
        self_op="" if replaced else inner or _inner_op(parts, row.labels, label.name),
        delta_bytes=round(float((parts.moved[index] / parts.num_steps[index]).sum()) / num_ranks),
        chain=Chain(round(copied / num_steps), round(waited / num_steps), 0) if is_more_syncs else None,
        sd_ns=round(row.sd_ns / num_steps),
        in_steps=f"{changed} of {steps_of_rank}" if is_in_some else "",
        python_ns=round(sum(parts.inner.get(number, {}).get(PYTHON, 0.0) for number in row.labels) / num_steps),
    )
    return _Unrounded(cause, row.ns / num_steps, count_ns / num_steps)


def _name_and_inner(most: Sequence[Label], labels: Sequence[Label]) -> tuple[str, str]:
    """Return (the name of a row, what is inside it) by its labels, the largest first, `most` of which hold its time."""
    first, works = labels[0], [_work(label)[-1] for label in labels]
    if len(set(works)) == 1:
        return first.name if len({label.name for label in most}) == 1 else works[0], first.inner
    if len({label.name for label in labels}) == 1:
        return first.name, and_more(works)
    ops = {label.name.rpartition(LAUNCHES)[0] for label in labels}
    op = ops.pop() if len(ops) == 1 else ""
    return (f"{op}{LAUNCHES}" if op else "") + and_more(works), ""


def _inner_op(parts: Contributions, members: Sequence[int], name: str) -> str:
    """Return the op inside a host op whose self time is most of the difference; "" if that is the op itself.

    `autograd::engine::evaluate_function: NllLossBackward0` is its node of that name.
    """
    more: Counter[str] = Counter()
    for number in members:
        more.update(parts.inner.get(number, {}))
    del more[PYTHON]
    total = sum(more.values())
    most = max(sorted(more), key=lambda op: more[op] * total, default="")
    is_other = most not in (name.removesuffix(RECOMPUTED), name.rpartition(": ")[2])
    return most if is_other and 2 * more[most] * total > total * total else ""


def _key(kind: str, phase: str, name: str, inner: str, function: str, module: str) -> str:
    """Return the key of a cause; a replacement has the same one in either direction."""
    if REPLACED_BY not in name:
        return "|".join((kind, phase, *filter(None, (name, inner)), function, *filter(None, [module])))
    names = sorted({part for both in name.split(REPLACED_BY) for part in both.split(LAUNCHES)})
    return "|".join((kind, phase, *names, *filter(None, (function, module)), "replaced"))


def _other(kind: str, name: str, ns: float, sd_ns: float = 0, phase: str = "") -> _Unrounded:
    """Return a row that names no change; `phase` where one has most of it."""
    cause = Cause(kind, kind, phase, name, "", 0, 0, 0, 0, None, sd_ns=round(sd_ns))
    return _Unrounded(cause, ns, 0)


def _whole(
    causes: Sequence[_Unrounded],
    sign: int,
    delta_ns: int,
    phases: Collection[str],
    residual: str,
    *,
    is_paired: bool,
) -> tuple[Cause, ...]:
    """Return the causes in whole ns that add up to the delta, what paired steps do not have as the `residual`."""
    ordered = sorted(causes, key=lambda row: (row.cause.kind == "jitter", -abs(row.ns), row.cause.key))
    running = np.rint(np.cumsum([0.0, *(row.ns for row in ordered)])).astype(np.int64)
    result = []
    for row, ns in zip(ordered, np.diff(running).tolist(), strict=True):
        count_ns = (
            min(max(round(row.count_ns), min(ns, 0)), max(ns, 0)) if row.count_ns * ns >= 0 else round(row.count_ns)
        )
        result.append(_signed(row.cause, sign, ns, count_ns, delta_ns))
    fewer, more = ({cause.key for cause in result if side * cause.delta_num > 0} for side in (-1, 1))
    result = join_moved(fold_replacements(result, fewer, more, delta_ns, within_ops=is_paired), delta_ns, phases)
    result = list(sorted_causes(result, delta_ns))
    rest_ns = delta_ns - sum(cause.delta_ns for cause in result)
    if result and abs(rest_ns) <= len(result):  # roundings of means
        last = result.pop()
        return *result, _signed(last, 1, last.delta_ns + rest_ns, last.count_ns, delta_ns)
    if not rest_ns:
        return tuple(result)
    rest = _other("residual", residual, rest_ns).cause
    return *result, _signed(rest, 1, rest_ns, 0, delta_ns)


def _signed(cause: Cause, sign: int, ns: int, count_ns: int, delta_ns: int) -> Cause:
    """Return a cause with its ns, of B against A as the caller has them."""
    chain = cause.chain
    if chain is not None:
        copied, waited = sign * chain.copied_ns, sign * chain.waited_ns
        chain = Chain(copied, waited, sign * ns - copied - waited)
    return replace(
        cause,
        delta_num=sign * cause.delta_num + 0.0,
        delta_ns=sign * ns,
        count_ns=sign * count_ns,
        dur_ns=sign * (ns - count_ns),
        share_pct=share(sign * ns, delta_ns),
        delta_bytes=sign * cause.delta_bytes,
        python_ns=sign * cause.python_ns,
        chain=chain,
    )
