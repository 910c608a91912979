"""A diff as tables: the waterfall of cells, ranks, causes, arms, collectives."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from traceq.analysis._wording import category_heading, more_rows
from traceq.analysis.sentences import OWN_TIME
from traceq.compare import sentences
from traceq.compare.cause_names import named_python_ns, short_name, sync_name
from traceq.compare.cause_statements import jitter_text
from traceq.compare.collective_volumes import EXCHANGED_KINDS, CollectiveVolume
from traceq.compare.result import REPLACED_BY, Cause, Diff, Diffs, share
from traceq.compare.work_deltas import WorkDelta
from traceq.report import BECOMES, Cell, Column, Table
from traceq.stats import Comparison
from traceq.units import Unit, format_value

_MOST_SHARE = 1
"""Multiple of the delta up to which a part of it has a share; with larger ones parts cancel, and times say more."""
_TOP = 12
_LONGEST_NAME = 24
_TOP_RANKS = 8
_CANCELS = 2
_LEAST_WORK, _SAME_WORK = 0.01, 0.01
"""Part of a delta from which ops are worth a table; part of the FLOPs by which both sides may differ."""
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1, ""))
_SIDE = 32
_WIDE, _NARROW = 120, 80
_CAUSES = (
    Column("kind", "kind"),
    Column("name", "cause"),
    Column("line", "line"),
    Column("module", "module"),
    Column("phase", "phase"),
    Column("delta_num", "more per step", Unit.MEAN),
    Column("delta_bytes", "bytes", Unit.DELTA_BYTES),
    Column("delta_ns", "delta", Unit.DELTA_NS),
    Column("count_ns", "by count", Unit.DELTA_NS),
    Column("dur_ns", "by duration", Unit.DELTA_NS),
    Column("share_pct", "share", Unit.DELTA_PERCENT),
)


def _cancel(whole_ns: int, parts_ns: Sequence[int]) -> bool:
    """Return whether parts cancel so far that shares of the whole mean nothing."""
    return max(map(abs, parts_ns), default=0) > _MOST_SHARE * abs(whole_ns)


def waterfall(diff: Diff, *, top: int = _TOP) -> Table:
    """Return the `top` phases and categories that differ most, the rest in one row, then residual and total."""
    assert diff.traced is not None
    changed = sorted((cell for cell in diff.cells if cell.delta_ns), key=lambda cell: -abs(cell.delta_ns))
    whole = diff.traced.delta_ns
    rows: list[tuple[Cell, ...]] = [
        (cell.phase, category_heading(cell.category), cell.a_ns, cell.b_ns, cell.delta_ns, share(cell.delta_ns, whole))
        for cell in changed[:top]
    ]
    rest = [*changed[top:], *(cell for cell in diff.cells if not cell.delta_ns)]
    if rest:
        a_ns, b_ns = sum(cell.a_ns for cell in rest), sum(cell.b_ns for cell in rest)
        name = f"{len(rest)} more" if changed[top:] else f"{len(rest)} unchanged"
        rows.append((name, "", a_ns, b_ns, b_ns - a_ns, share(b_ns - a_ns, whole)))
    rows.append(("residual", "", None, None, diff.residual_ns, share(diff.residual_ns, whole)))
    rows.append(("total", "", diff.traced.a_ns, diff.traced.b_ns, whole, share(whole, whole)))
    columns: tuple[Column, ...] = (
        Column("phase", "phase"),
        Column("category", "category"),
        *_both_sides(diff, "", "a_ns", "b_ns", Unit.NS),
        Column("delta_ns", "delta", Unit.DELTA_NS),
        Column("share", "share", Unit.DELTA_PERCENT),
    )
    if _cancel(whole, [cell.delta_ns for cell in changed]):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    windows = f"{diff.traced.windows_text} of {diff.traced.ranks_text}"
    return Table("cells", sentences.CELLS.format(windows=windows), columns, tuple(rows))


def _both_sides(diff: Diff, what: str, a_key: str, b_key: str, unit: Unit) -> tuple[Column, Column]:
    """Return the columns of A and B, `what` before their names; long ones, as of files, are cut to what differs."""
    a, b = names = diff.a_name, diff.b_name
    if max(map(len, names)) > _LONGEST_NAME:
        a, b = _distinct(*names)
        if not a or not b or max(len(a), len(b)) > _LONGEST_NAME:
            a, b = "A", "B"
    return Column(a_key, f"{what}{a}", unit), Column(b_key, f"{what}{b}", unit)


def _distinct(a: str, b: str) -> tuple[str, str]:
    """Return both names without the words that they begin or end with in common."""
    sides = [re.findall(r"[^\W_]+|[\W_]+", name) for name in (a, b)]
    for end in (0, -1):
        while all(sides) and sides[0][end] == sides[1][end]:
            sides = [side[1:] if end == 0 else side[:-1] for side in sides]
    first, second = map("".join, sides)
    return first, second


def counts_table(diff: Diff, *, top: int = _TOP) -> Table:
    """Return the syncs and collectives of a step of which the sides have other numbers or bytes, most first.

    A title without rows says that they have the same.
    """
    per = diff.traced.per if diff.traced is not None else "per step"
    changed = [each for each in diff.counts if each.is_change]
    if not changed:
        sums = [(sum(each.a_num for each in diff.counts if each.kind == kind), kind) for kind in ("sync", "collective")]
        syncs, collectives = (f"{format_value(num, Unit.MEAN)} {kind}{'s' * (num != 1)}" for num, kind in sums)
        is_unknown = any(caveat.code == "no_device_work" for caveat in diff.caveats)
        title = sentences.NO_COLLECTIVES if is_unknown else sentences.NO_COUNTS
        return Table("counts", title.format(per=per, syncs=syncs, collectives=collectives), (), ())
    columns = (
        Column("name", "what"),
        Column("line", "where, or for"),
        Column("phase", "phase"),
        *_both_sides(diff, "", "a_num", "b_num", Unit.MEAN),
        *_both_sides(diff, "bytes ", "a_bytes", "b_bytes", Unit.BYTES),
    )
    rows = tuple(
        (
            f"{each.name} sync" if each.kind == "sync" else each.name,
            (each.line or each.what) if each.kind == "sync" else each.what.replace("_", " "),
            each.phase.strip("# "),
            each.a_num,
            each.b_num,
            *(
                (each.a_bytes, each.b_bytes)
                if each.kind == "collective" and (each.a_bytes or each.b_bytes)
                else ("", "")
            ),
        )
        for each in changed[:top]
    )
    alike = len(diff.counts) - len(changed)
    more = sentences.SAME_COUNTS.format(num=alike) if alike else ""
    title = sentences.COUNTS.format(per=per, more=more)
    note = sentences.MORE_WITH_FULL.format(num=len(changed) - top) if len(changed) > top else ""
    return Table("counts", title, columns, rows, note=note).non_empty_columns


def ranks_table(diff: Diff) -> Table:
    """Return the ranks of both sides, by change outside exposed communication; no rows for one rank."""
    shown = sorted(diff.ranks, key=lambda rank: (-abs(rank.own_delta_ns), rank.rank))[:_TOP_RANKS]
    rows = tuple((r.rank, r.a_ns, r.b_ns, r.delta_ns, r.own_a_ns, r.own_b_ns, r.own_delta_ns) for r in shown)
    columns = (
        Column("rank", "rank", Unit.COUNT),
        *_both_sides(diff, "", "a_ns", "b_ns", Unit.NS),
        Column("delta_ns", "delta", Unit.DELTA_NS),
        *_both_sides(diff, "own ", "own_a_ns", "own_b_ns", Unit.NS),
        Column("own_delta_ns", "own delta", Unit.DELTA_NS),
    )
    note = f"{OWN_TIME} {more_rows(len(diff.ranks) - len(shown))}".strip()
    return Table("ranks", "Step time by rank", columns, rows if len(diff.ranks) > 1 else (), note=note)


def inference_table(diff: Diff) -> Table:
    """Return the steps of an inference engine by kind and batch size; no rows for other programs."""
    columns = (
        Column("kind", "step"),
        Column("batch", "batch", Unit.COUNT),
        *_both_sides(diff, "steps ", "num_a", "num_b", Unit.COUNT),
        *_both_sides(diff, "", "a_ns", "b_ns", Unit.NS),
        Column("delta_ns", "delta", Unit.DELTA_NS),
        Column("delta_pct", "delta", Unit.DELTA_PERCENT),
        Column("token_delta_ns", "per token", Unit.DELTA_NS),
    )
    rows = tuple(
        (
            each.kind,
            each.batch,
            each.num_a,
            each.num_b,
            each.a_ns,
            each.b_ns,
            each.delta_ns,
            share(each.delta_ns, each.a_ns),
            each.token_delta_ns,
        )
        for each in diff.inference[:_TOP]
    )
    note = more_rows(len(diff.inference) - len(rows))
    return Table("inference", sentences.INFERENCE, columns, rows, note=note)


def shown_causes(diff: Diff, *, top: int = _TOP) -> tuple[list[Cause], list[Cause]]:
    """Return (the `top` largest causes, the rest), in the order of all: none of the rest is larger than one shown.

    What costs nothing, as another name does, is shown only where nothing does.
    """
    by_size = sorted(range(len(diff.causes)), key=lambda number: -abs(diff.causes[number].delta_ns))
    num_costly = sum(1 for cause in diff.causes if cause.delta_ns or cause.delta_num)
    top = min(top, num_costly) or top
    shown, rest = ([diff.causes[number] for number in sorted(part)] for part in (by_size[:top], by_size[top:]))
    return shown, rest


def causes_table(diff: Diff, *, width: int = _WIDE, top: int = _TOP) -> Table:
    """Return the `top` largest causes in the order of all, with fewer columns for a narrow `width` in characters.

    Columns that are empty for all of them are left out. So is the split by count and duration if no cause has both
    parts; where the parts nearly cancel, as for few large copies that replace many small ones, their cells are empty.
    Run-to-run jitter has its standard deviation beside it.
    """
    shown, rest = shown_causes(diff, top=top)
    optional = ("line", "module", "delta_num", "delta_bytes")
    left_out = {key for key in optional if not any(_shown(cause, key) for cause in shown)}
    if width < _WIDE or not any(_shown(cause, "count_ns") and _shown(cause, "dur_ns") for cause in shown):
        left_out |= {"count_ns", "dur_ns"}
    left_out |= {"kind", "module", "share_pct", "delta_bytes"} if width < _NARROW else set()
    if diff.traced is not None and _cancel(diff.traced.delta_ns, [cause.delta_ns for cause in diff.causes]):
        left_out.add("share_pct")
    columns = tuple(column for column in _CAUSES if column.key not in left_out)
    if diff.traced is not None and diff.traced.window != "step":
        columns = tuple(replace(column, title="more") if column.key == "delta_num" else column for column in columns)
    rows = tuple(tuple(_shown(cause, column.key) for column in columns) for cause in shown)
    net = format_value(sum(cause.delta_ns for cause in rest), Unit.DELTA_NS)
    absolute = format_value(sum(abs(cause.delta_ns) for cause in rest), Unit.NS)
    note = sentences.MORE_CAUSES.format(num=len(rest), s="s" * (len(rest) > 1), net=net, sum=absolute) if rest else ""
    return Table("causes", "Causes of the delta", columns, rows, note=note)


def work_table(diff: Diff, *, top: int = _TOP) -> Table:
    """Return the `top` kinds of work whose time differs most, divided in calls, work per call and speed; the total.

    No rows where nothing has a model, or no more than a hundredth of the delta differs.
    """
    parts = [("calls_ns", "by calls"), ("per_call_ns", "by work per call"), ("slower_ns", "by speed")]
    parts = [(key, title) for key, title in parts if any(getattr(work, key) for work in diff.work)]
    columns = (
        Column("role", "work"),
        Column("phase", "phase"),
        *_both_sides(diff, "", "a_ns", "b_ns", Unit.NS),
        Column("delta_ns", "delta", Unit.DELTA_NS),
        *(Column(key, title, Unit.DELTA_NS) for key, title in parts),
        Column("work_pct", "change of work", Unit.DELTA_PERCENT),
    )
    changed = sum(abs(work.delta_ns) for work in diff.work)
    whole = abs(diff.traced.delta_ns) if diff.traced is not None else 0
    if not changed or changed < _LEAST_WORK * whole:
        return Table("work", "", columns, ())
    rows: list[tuple[Cell, ...]] = [
        (
            f"{work.role} (at most)" if work.is_bound else work.role,
            work.phase,
            work.a_ns,
            work.b_ns,
            work.delta_ns,
            *(getattr(work, key) for key, _ in parts),
            share(work.b_work - work.a_work, work.a_work),
        )
        for work in diff.work[:top]
    ]
    keys = ("a_ns", "b_ns", "delta_ns", *(key for key, _ in parts))
    rows.append(("total", "", *(sum(getattr(work, key) for work in diff.work) for key in keys), None))
    note = " ".join(filter(None, (_other_work(diff.work), more_rows(len(diff.work) - top))))
    return Table("work", sentences.WORK, columns, tuple(rows), note=note)


def _other_work(deltas: Sequence[WorkDelta]) -> str:
    """Return `The sides differ in what they compute: 4.2 against 8.4 TFLOP.`; "" where not, or it is a bound."""
    counted = [work for work in deltas if work.is_flops and not work.is_bound]
    flops = [sum(work.a_work for work in counted), sum(work.b_work for work in counted)]
    if not flops[0] or abs(flops[1] - flops[0]) <= _SAME_WORK * flops[0]:
        return ""
    size, prefix = next((size, prefix) for size, prefix in _PREFIXES if max(flops) >= size)
    a, b = (format_value(each / size, Unit.NUMBER) for each in flops)
    return sentences.OTHER_WORK.format(a=a, b=b, prefix=prefix)


def matrix(diffs: Diffs, *, narrow: bool = False) -> Table:
    """Return one row per arm: its step, and its delta to the baseline or to the arm in the column `against`.

    A `narrow` table leaves out what the sentences say as well.
    """
    are_processes = any(diff.comparison and _num_processes(diff.comparison) for diff in diffs.diffs)
    columns = (
        Column("arm", "arm"),
        Column("against", "against"),
        Column("step", "step", Unit.NS),
        Column("delta", "delta", Unit.DELTA_NS),
        Column("pct", "delta", Unit.DELTA_PERCENT),
        Column("low", "95 % from", Unit.DELTA_NS),
        Column("high", "to", Unit.DELTA_NS),
        Column("pairs", "processes" if are_processes else "pairs", Unit.COUNT),
        Column("verdict", "verdict"),
    )
    one_baseline = {diff.a_name for diff in diffs.diffs} == {diffs.baseline}
    left_out = {"against"} if one_baseline else set()
    left_out |= {"delta", "low", "high", "pairs"} if narrow else set()
    shown = tuple(column for column in columns if column.key not in left_out)
    rows = (*_baseline_rows(diffs, shown), *(_matrix_row(diff, shown) for diff in diffs.diffs))
    by_sample = any(diff.comparison and diff.comparison.samples for diff in diffs.diffs)
    notes = [sentences.BY_SAMPLE] if by_sample else []
    num_questions = max((diff.comparison.num_questions for diff in diffs.diffs if diff.comparison), default=1)
    if num_questions > 1:
        notes.append(sentences.QUESTIONS.format(num=num_questions))
    if not narrow and any(diff.comparison and diff.comparison.num_pairs for diff in diffs.diffs):
        notes.append(sentences.ESTIMATES)
    title = "Unprofiled steps" + f", against {diffs.baseline}" * one_baseline
    return Table("matrix", title, shown, rows, note=" ".join(notes))


def exchanges_table(diffs: Diffs) -> Table:
    """Return one row per arm: collectives per step, throughput and memory; no rows where all arms use one strategy."""
    columns = (
        Column("arm", "arm"),
        Column("strategy", "strategy"),
        Column("verdict", "prediction"),
        *(Column(name, f"{name.replace('_', '-')}s") for name in EXCHANGED_KINDS),
        Column("samples_per_second", "samples", Unit.RATE),
        Column("peak_bytes", "memory", Unit.BYTES),
        Column("state_bytes", "weights, moments", Unit.BYTES),
    )
    rows = tuple(
        (
            exchange.arm,
            exchange.strategy,
            exchange.verdict,
            *map(_volume, exchange.moved),
            exchange.samples_per_second,
            exchange.peak_bytes,
            exchange.state_bytes,
        )
        for exchange in diffs.exchanges
    )
    return Table("exchanges", "Collectives per step", columns, rows, note=sentences.EXCHANGES).non_empty_columns


def facts_table(diffs: Diffs) -> Table | None:
    """Return what the recipe measured besides time, one row per arm; None where it declares nothing."""
    view = diffs.facts[-1] if diffs.facts else None
    return view if view is not None and (view.rows or view.note) else None


def _volume(volume: CollectiveVolume) -> str:
    """Return `15, 9.42 MiB`, "" for no calls."""
    size = f", {format_value(volume.bytes, Unit.BYTES)}" if volume.bytes >= 0 else ""
    return f"{format_value(volume.num, Unit.MEAN)}{size}" if volume.num else ""


def _matrix_row(diff: Diff, columns: tuple[Column, ...]) -> tuple[Cell, ...]:
    c = diff.comparison
    if c is None or diff.steps is None:
        return tuple(
            {"arm": diff.b_name, "against": diff.a_name, "verdict": "no steps"}.get(column.key) for column in columns
        )
    low, high = (None, None) if c.ci95_ns is None else map(c.each, c.ci95_ns)
    cells: dict[str, Cell] = {
        "arm": diff.b_name,
        "against": diff.a_name,
        "step": diff.steps.b_ns,
        "delta": c.each(c.delta_ns),
        "pct": c.delta_pct,
        "low": low,
        "high": high,
        "pairs": c.num_pairs or _num_processes(c),
        "verdict": c.verdict.text,
    }
    return tuple(cells[column.key] for column in columns)


def _baseline_rows(diffs: Diffs, columns: tuple[Column, ...]) -> list[tuple[Cell, ...]]:
    """Return the rows of arms that others are compared with and that are compared with none, with their step."""
    of_baseline = {diff.a_name: diff.steps for diff in reversed(diffs.diffs) if diff.steps is not None}
    for diff in diffs.diffs:
        of_baseline.pop(diff.b_name, None)
    rows: list[dict[str, Cell]] = [
        {"arm": name, "step": steps.a_ns, "verdict": "baseline"} for name, steps in of_baseline.items()
    ]
    return [tuple(row.get(column.key) for column in columns) for row in rows]


def _num_processes(comparison: Comparison) -> int:
    """Return the processes per side, of the side with fewer; 0 where steps are paired or traced."""
    return min(comparison.num_a, comparison.num_b) if comparison.unprofiled and not comparison.num_pairs else 0


def _cell(cause: Cause, key: str) -> Cell:
    value: Cell = getattr(cause, key)
    return value


def _shown(cause: Cause, key: str) -> Cell:
    """Return the value to show: no split into effects much larger than the delta that they explain."""
    if key in ("count_ns", "dur_ns") and abs(cause.count_ns) + abs(cause.dur_ns) > _CANCELS * abs(cause.delta_ns):
        return None
    is_counted = cause.kind != "host" or cause.delta_num  # the common graph has host time, and not how many ops
    if key in ("delta_num", "count_ns", "dur_ns") and (
        cause.kind == "pace" or not cause.names_a_change or not is_counted
    ):
        return None  # of all unchanged work, or of none
    if key == "delta_ns" and cause.kind == "jitter":
        return jitter_text(cause)
    if key == "delta_bytes" and cause.kind not in ("collective", "memcpy"):
        return None  # of a sync the time matters, not the few bytes
    if key == "phase":
        return cause.moved.removeprefix("from ") or cause.phase
    if key == "name":
        name = sync_name(cause) if cause.kind == "sync" else short_name(cause.path, _SIDE)
        python_ns = named_python_ns(cause)
        python = f" ({format_value(python_ns, Unit.DELTA_NS)} Python between)" if python_ns else ""
        return name.replace(REPLACED_BY, BECOMES) + python
    return _cell(cause, key)
