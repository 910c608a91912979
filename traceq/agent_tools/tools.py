"""The tools: what a run is, its findings, what removing a wait saves, its rules, a line; two runs, and their causes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from traceq.agent_tools.answer import (
    CANNOT_TELL,
    PATH,
    RANKS,
    Answer,
    Rows,
    Tool,
    command_line,
    examined,
    findings_of,
    read_from,
    rows_of,
    why_not,
)
from traceq.agent_tools.limits import MOST_CELLS, MOST_LINES, MOST_ROWS, MOST_SECONDS
from traceq.agent_tools.readings import Readings
from traceq.claims.saying import text_of
from traceq.compare.result import Cause, Diff
from traceq.errors import UnreadableInput, UsageFault
from traceq.facts.timeline.call_sites import is_at_line
from traceq.frames.sql import ask
from traceq.frames.tables import NAMES, ColumnValues, Texts, frame
from traceq.locations import Place
from traceq.model import Run
from traceq.report import Cell, Sheet, Table
from traceq.rules.evaluate import State, judge_run, missing_ranks
from traceq.rules.messages import complaint
from traceq.rules.parse import parse
from traceq.runs.memory_snapshot import is_memory_snapshot
from traceq.runs.read import parse_ranks, with_traces
from traceq.runs.run_folder import is_run, read_manifest
from traceq.snapshots.compare import snapshot_diff
from traceq.threshold import THRESHOLD_PCT
from traceq.units import format_ranks

_OFTEN_NONE = {"step", "device", "stream", "correlation", "external_id", "launch_row", "module"}
"""Columns whose -1 means as often that there is none as that it is unknown."""
_ANALYSIS_OF = {"device_ops": "kernels", "launches": "launches", "syncs": "syncs", "collectives": "collectives"}
"""Analysis that says why a table is empty."""


class Query(Tool, frozen=True):
    """SQL (DuckDB) over the events of a run; times in ns, -1 and null are unknown; `rank` is in every table.

    Tables: events, device_ops, launches, syncs, collectives, phases, partition, steps. `describe syncs` lists columns.
    Aggregate: a few dozen rows fit. Verdict: "answered"; "answered in part" or "cannot tell" where tables are empty, or
    columns unknown, because something was not recorded.
    """

    path: Annotated[str, PATH]
    sql: Annotated[str, Meta(description="Like: select line, count(*) n, sum(blocked_ns) ns from syncs group by 1")]
    ranks: Annotated[str, RANKS] = ""

    def answer(self, readings: Readings) -> Answer:
        """Return the rows, and which columns of the tables are unknown."""
        run = with_traces(readings.run(self.path, parse_ranks(self.ranks or None)))
        result = ask(run, self.sql, most_seconds=MOST_SECONDS)
        rows = [list(row) for row in islice(result.rows, MOST_ROWS + 1)]
        empty, unknown = list(self._empty_tables(run, readings)), list(_unknown_columns(run, self.sql))
        none_known = [text for text, is_everywhere in unknown if is_everywhere]
        is_lost = len(result.columns) == 1 and none_known
        verdict = "answered"
        if is_lost or (empty and len(empty) == len(_tables_in(self.sql))):
            verdict = CANNOT_TELL
        elif empty or none_known:
            verdict = "answered in part"
        options = ("--ranks", self.ranks) if self.ranks else ()
        more = {"note": f"more than {MOST_ROWS} rows: aggregate them"} if len(rows) > MOST_ROWS else {}
        looked = {"could_not": empty, "unknown": [text for text, _ in unknown]}
        return Answer(
            verdict,
            command_line("query", self.path, *options, self.sql, "--json"),
            "; ".join([*empty, *none_known]),
            {"answer": Rows(result.columns, rows, len(rows)), **more},
            {name: texts for name, texts in looked.items() if texts} or None,
        )

    def _empty_tables(self, run: Run, readings: Readings) -> Iterator[str]:
        """Yield the tables of the query that are empty because something was not recorded, and why."""
        for name in _tables_in(self.sql):
            if name in _ANALYSIS_OF and not _length(frame(run, name).columns["rank"]):
                sheet = readings.sheet(self.path, parse_ranks(self.ranks or None))
                if why := why_not(sheet, _ANALYSIS_OF[name]):
                    yield f"{name} is empty: {why}"


class Check(Tool, frozen=True):
    """Whether rules hold on every rank: "dtoh in forward == 0", "exposed_comm < 10 %", "step p95 < 50 ms".

    Metrics: docs/check.md. Verdict: "holds", "broken", or "cannot tell" (never a pass) with the reason; one for each
    rule, too.
    """

    path: Annotated[str, PATH]
    rules: Annotated[
        list[str], Meta(description="METRIC [mean|p95|max] [in PHASE] [per step] OP NUMBER[UNIT]", min_length=1)
    ]

    def answer(self, readings: Readings) -> Answer:
        """Return the outcome of each rule."""
        rules = [parse(text) for text in self.rules]
        words = [word for rule in self.rules for word in ("--rule", rule)]
        command = command_line("check", self.path, *words)
        where = readings.place(self.path)
        readings.run(self.path)  # what cannot be read at all is a fault
        try:
            run = readings.run(self.path, strict=True)
            outcomes = judge_run(run, rules, missing_ranks(run, where))
        except UnreadableInput as fault:
            return Answer(CANNOT_TELL, command, str(fault))
        states = [outcome.state for outcome in outcomes]
        verdict = next(each for each in (State.BROKEN, State.CANNOT_TELL, State.HOLDS) if each in states)
        reason = outcomes[states.index(verdict)].unanswered if verdict is State.CANNOT_TELL else ""
        why = ["" if each.holds else complaint(each).removeprefix(f"{each.rule.text}: ") for each in outcomes]
        rows = [[each.rule.text, str(each.state), text] for each, text in zip(outcomes, why, strict=True)]
        looked = {"ranks": f"rank{'s' * (len(run.ranks) > 1)} {format_ranks(run.ranks)}"}
        return Answer(
            str(verdict), command, reason, {"rules": Rows(("rule", "verdict", "why"), rows, len(rows))}, looked
        )


_NOTHING = "nothing found"
_LINE_COLUMNS = ("line", "late_line", "waits_at")
_AS_IS, _EVERYTHING = "nothing", ""
_SYNC_COLUMNS = (
    *("rank", "kind", "line", "op", "phase", "num"),
    *("step_blocked_ns", "step_unrecorded_ns", "replay_ns", "most_replay_ns", "label"),
)


class Read(Tool, frozen=True):
    """What is at a path: kind, ranks, steps, device, arms, what was not recorded. Call it first.

    Verdict: "readable", or "readable in part" with warnings about what is damaged or missing.
    """

    path: Annotated[str, PATH]

    def answer(self, readings: Readings) -> Answer:
        """Return what was read, its steps, and how many rows each analysis has."""
        sheet = readings.sheet(self.path)
        source = sheet.source
        facts = {"device": source.device, "torch": source.torch, "arm": source.arm}
        numbers = {report.name: sum(len(table.rows) for table in report.tables) for report in sheet.reports}
        parts = {
            **{name: value for name, value in facts.items() if value},
            **_recording(readings.place(self.path)),
            **{key: rows_of(table) for key in ("steps",) if (table := _table(sheet, key)) and table.rows},
            "analyses": {name: number for name, number in numbers.items() if number},
            "num_findings": len(sheet.top_findings),
        }
        only = () if sheet.schema else ("--only", "steps")
        verdict = "readable in part" if sheet.caveats else "readable"
        return Answer(verdict, command_line("show", self.path, *only, "--json"), "", parts, examined(sheet))


class Findings(Tool, frozen=True):
    """Findings of a run, costliest first; with `analysis` the findings and tables of one analysis (times in ns).

    Verdict: "found", "nothing found", or "cannot tell" with the reason. "nothing found" is about what `looked` lists;
    what is under `could_not` was not examined and may be bad.
    """

    path: Annotated[str, PATH]
    analysis: Annotated[
        str,
        Meta(
            description="Only this one: partition (where time goes), syncs, collectives, ranks (straggler), phases, "
            "idle, memory, efficiency (MFU), pipeline, inference, desync, ...; `read` lists those with rows."
        ),
    ] = ""
    ranks: Annotated[str, RANKS] = ""

    def answer(self, readings: Readings) -> Answer:
        """Return all findings, or the report of one analysis: complete tables if they fit, else those for people."""
        sheet = readings.sheet(self.path, parse_ranks(self.ranks or None))
        options = ("--ranks", self.ranks) if self.ranks else ()
        if not self.analysis:
            findings = findings_of(sheet.top_findings)
            command = command_line("show", self.path, *options, "--json")
            verdict = "found" if findings.num else _NOTHING
            return Answer(verdict, command, "", {"findings": findings}, examined(sheet))
        reason = why_not(sheet, self.analysis)
        if reason and not any(report.name == self.analysis for report in sheet.reports):
            command = command_line("show", self.path, *options, "--json")
            return Answer(CANNOT_TELL, command, reason, {}, read_from(sheet))
        report = sheet.report(self.analysis)
        tables = [table for table in report.tables if table.rows]
        short = [table for table in tables if len(table.rows) * len(table.columns) <= MOST_CELLS]
        views = [view for view in report.views if view.rows] if len(short) < len(tables) or not tables else []
        short = short if views else tables
        parts: dict[str, object] = {"findings": findings_of(report.findings)} if report.findings else {}
        parts |= {table.key: rows_of(table) for table in short}
        words = ("show", self.path, "--only", self.analysis, *options)
        if views:
            summary = {view.title: rows_of(view.visible) for view in views}
            parts["summary"] = {**summary, "command": command_line(*words, "--full")}
        verdict = CANNOT_TELL if reason else "found" if tables or views else _NOTHING
        return Answer(verdict, command_line(*words, "--json"), reason, parts, read_from(sheet))


class WhatIf(Tool, frozen=True):
    """By how much a step would be shorter without its syncs, its data loader, communication or host time (replay).

    Verdict: "saves", "saves nothing", "nothing found" (there is nothing to remove), or "cannot tell". A saving is of
    one row alone and of its rank's step; several do not add up. `together`: what the step of all ranks would be, for
    the changes that gain most; `traceq whatif` has further ones.
    """

    path: Annotated[str, PATH]
    remove: Annotated[
        str,
        Meta(
            description="A row of `replay` (all syncs, dtoh syncs, data loader, ...) or a line of a sync: train.py:31."
        ),
    ] = _EVERYTHING

    def answer(self, readings: Readings) -> Answer:
        """Return rows of the tables `replay` and `syncs`: all, or those of what is removed."""
        sheet = readings.sheet(self.path)
        command = command_line("show", self.path, "--only", "replay", "--only", "syncs", "--json")
        replay, syncs = _table(sheet, "replay"), _table(sheet, "syncs")
        if replay is None or syncs is None:
            return Answer(CANNOT_TELL, command, why_not(sheet, "syncs"), {}, examined(sheet))
        removed = _where(replay, lambda row: row["removed"] != _AS_IS and self._is_chosen(row["removed"]))
        chosen = _where(syncs, lambda row: self._is_chosen(row["line"]))
        if self.remove and not (removed.rows or chosen.rows):
            names = {**_texts(replay, "removed"), **_texts(syncs, "line")}.keys() - {_AS_IS}
            choice = ", ".join(sorted(names)[:MOST_LINES]) or "nothing: there is no wait in this trace"
            raise UsageFault(f"remove {self.remove!r}: no such row, nor a sync at such a line; choose from {choice}")
        saved = [row["saved_ns"] for row in removed.to_dicts()] + [row["replay_ns"] for row in chosen.to_dicts()]
        unexplained = _where(replay, lambda row: row["removed"] == _AS_IS).select("rank", "step_ns", "saved_ns")
        findings = [finding for name in ("syncs", "replay") for finding in sheet.report(name).findings]
        parts: dict[str, object] = {
            "replay": rows_of(removed),
            "syncs": rows_of(chosen.largest_first("replay_ns").select(*_SYNC_COLUMNS)),
            "findings": findings_of(findings),
            "unexplained": rows_of(unexplained),
        }
        of_job = [view for view in sheet.report("replay").views if view.key == "whatif"]
        if of_job and not self.remove:
            parts["together"] = {"rows": rows_of(of_job[0]), "command": command_line("whatif", self.path, "--json")}
        is_open = CANNOT_TELL if None in saved else "saves nothing"
        verdict = "saves" if any(saved) else is_open if saved else _NOTHING
        reason = why_not(sheet, "replay")
        return Answer(CANNOT_TELL if reason else verdict, command, reason, parts, read_from(sheet))

    def _is_chosen(self, name: Cell) -> bool:
        text = str(name)
        return not self.remove or text.casefold() == self.remove.casefold() or is_at_line(text, self.remove)


class LineContext(Tool, frozen=True):
    """All that a trace knows of a line of Python: the syncs, idle time, critical path and memory that it causes.

    Verdict: "found", "nothing found" (lines are recorded, and this one has no row), or "cannot tell" (no stacks).
    """

    path: Annotated[str, PATH]
    line: Annotated[
        str, Meta(description="`train.py:31`, a file `train.py`, or a function, as other answers name them.")
    ]

    def answer(self, readings: Readings) -> Answer:
        """Return the rows of every table with a line, and the findings that name it."""
        if not self.line.strip():
            raise UsageFault("line: empty; expected something like train.py:31")
        sheet = readings.sheet(self.path)
        tables = [
            (report.name, table, column.key)
            for report in sheet.reports
            for table in report.tables
            for column in table.columns
            if column.key in _LINE_COLUMNS
        ]
        lines = [line for _, table, column in tables for line in _texts(table, column)]
        hits = {
            table.key: (name, rows)
            for name, table, column in tables
            if (rows := _rows_at(table, column, self.line)).rows
        }
        place = self.line.partition(" ")[0]
        findings = findings_of(finding for finding in sheet.findings if place in text_of(finding))
        parts: dict[str, object] = {key: rows_of(rows) for key, (_, rows) in hits.items()}
        parts |= {"findings": findings} if findings.num else {}
        parts |= {} if hits else {"lines": Rows.of_texts([*dict.fromkeys(lines)][:MOST_LINES])}
        names = dict.fromkeys(name for name, *_ in hits.values() or tables)
        only = [word for name in names for word in ("--only", name)]
        verdict = CANNOT_TELL if not lines else "found" if hits else _NOTHING
        reason = "" if lines else "no lines of Python are recorded (with_stack=True)"
        looked = {"tables": [table.key for _, table, _ in tables], "num_lines": len(set(lines)), **read_from(sheet)}
        return Answer(verdict, command_line("show", self.path, *only, "--json"), reason, parts, looked)


def _rows_at(table: Table, column: str, line: str) -> Table:
    return _where(table, lambda row: is_at_line(str(row[column] or ""), line))


def _recording(path: Place) -> Mapping[str, object]:
    """Return what a recorded run compares, as members of an answer; empty for other paths."""
    if not is_run(path):
        return {}
    manifest = read_manifest(path)
    arms = [(arm.name, arm.meaning, arm.baseline, arm.timed) for arm in manifest.arms]
    columns = ("name", "meaning", "baseline", "unprofiled_steps")
    return {"question": manifest.question, "arms": Rows(columns, arms, len(arms)), "status": manifest.status}


def _texts(table: Table, key: str) -> dict[str, None]:
    """Return the distinct texts of a column; of a column of lines those that are lines."""
    texts = dict.fromkeys(str(row[key]) for row in table.to_dicts() if row[key])
    return {text: None for text in texts if key not in _LINE_COLUMNS or ":" in text.partition(" ")[0]}


def _where(table: Table, is_selected: Callable[[Mapping[str, Cell]], bool]) -> Table:
    keys = [column.key for column in table.columns]
    rows = tuple(row for row in table.rows if is_selected(dict(zip(keys, row, strict=True))))
    return replace(table, rows=rows)


def _table(sheet: Sheet, key: str) -> Table | None:
    return next((table for report in sheet.reports for table in report.tables if table.key == key), None)


def _tables_in(sql: str) -> list[str]:
    """Return the tables that a query names."""
    return [name for name in NAMES if re.search(rf"\b{name}\b", sql, re.IGNORECASE)]


def _length(values: ColumnValues) -> int:
    return len(values.ids if isinstance(values, Texts) else values)


def _unknown_columns(run: Run, sql: str) -> Iterator[tuple[str, bool]]:
    """Yield (text, whether that is so in all rows) for the columns of a query with unknown values: -1, or no text."""
    words = {word.lower() for word in re.findall(r"\w+", sql)}
    for name in _tables_in(sql):
        columns = frame(run, name).columns
        for column in sorted(words & columns.keys() - _OFTEN_NONE):
            values = columns[column]
            is_unknown = values.ids < 0 if isinstance(values, Texts) else np.asarray(values) == -1
            num, num_unknown = _length(values), int(is_unknown.sum())
            if num_unknown:
                some = f"{num_unknown:,} of {num:,}" if num_unknown < num else f"all {num:,}"
                yield f"{name}.{column} is unknown in {some} rows", num_unknown == num


_SIDE = "A trace, a folder, RUN/ARM or a snapshot."
_BASELINE = Meta(description=f"The baseline. {_SIDE}")
_OTHER = Meta(description=f"What is compared with it. {_SIDE}")
_CHANGE = ("kind", "phase", "name", "line", "delta_num")
_COST = ("delta_ns", "sd_ns", "share_pct")


class Compare(Tool, frozen=True):
    """Does the difference between two runs matter? B against A, or every arm of a recorded run with its baseline.

    Verdict: "material", "detectable", "in the noise", or "cannot tell" with the reason: only unprofiled pairs or
    several processes decide, two traces never do. Times in ns per step; ci95_ns is the interval of the delta.
    """

    a: Annotated[str, Meta(description=f"The baseline, or a recorded run alone. {_SIDE}")]
    b: Annotated[str, _OTHER] = ""
    threshold_pct: Annotated[float, Meta(description="Difference that matters, % of A's step.", ge=0, le=100)] = (
        THRESHOLD_PCT
    )

    def answer(self, readings: Readings) -> Answer:
        """Return verdict, interval and sentences of each comparison."""
        paths = [self.a, *([self.b] if self.b else [])]
        options = ("--threshold", f"{self.threshold_pct}%") if self.threshold_pct != THRESHOLD_PCT else ()
        command = command_line("diff", *paths, *options, "--json")
        if self.b and (sheet := _snapshots(self.a, self.b, readings)) is not None:
            tables = [table for report in sheet.reports for table in report.tables]
            parts = {"findings": findings_of(sheet.findings), **{table.key: rows_of(table) for table in tables}}
            return Answer("bytes compared", command, "", parts, read_from(sheet))
        diffs = readings.diffs(self.a, self.b, self.threshold_pct).diffs
        answers = [_compared(diff) for diff in diffs]
        verdicts = {str(each["verdict"]) for each in answers}
        reason = "; ".join(f"{each['b']}: {each['reason']}" for each in answers if each["verdict"] == CANNOT_TELL)
        warnings = list(dict.fromkeys(caveat.text for diff in diffs for caveat in diff.caveats))
        return Answer(
            verdicts.pop() if len(verdicts) == 1 else "see each",
            command,
            reason,
            {"comparisons": answers},
            {"warnings": Rows.of_texts(warnings)} if warnings else {},
        )


class Causes(Tool, frozen=True):
    """What causes the difference between B and A: ops, syncs, collectives, lines; costs in ns per step add up to it.

    Verdict: "explained", or "cannot tell". Where it cannot tell durations, delta_num (ops added or
    removed per step) can still be trusted.
    """

    a: Annotated[str, _BASELINE]
    b: Annotated[str, _OTHER]

    def answer(self, readings: Readings) -> Answer:
        """Return the causes of one comparison."""
        command = command_line("diff", self.a, self.b, "--json")
        if _snapshots(self.a, self.b, readings) is not None:
            raise UsageFault(f"{self.a}: memory snapshots have no steps; compare them with the tool compare")
        [diff] = readings.diffs(self.a, self.b, THRESHOLD_PCT).diffs
        verdict, reason = _explained(diff)
        is_sure = not diff.doubt
        columns = (*_CHANGE, *_COST) if is_sure else _CHANGE
        rows = [[_value(cause, key) for key in columns] for cause in diff.causes if is_sure or cause.delta_num]
        traced = diff.traced
        parts: dict[str, object] = {}
        if traced is not None:
            numbers = {key: getattr(traced, key) for key in ("rank", "a_ns", "b_ns", "delta_ns", "num_a", "num_b")}
            parts["traced"] = {**numbers, "residual_ns": diff.residual_ns}
        parts["causes"] = Rows(columns, rows, len(rows))
        warnings = [caveat.text for caveat in diff.caveats]
        return Answer(verdict, command, reason, parts, {"warnings": Rows.of_texts(warnings)} if warnings else {})


def _snapshots(a: str, b: str, readings: Readings) -> Any:
    """Return the comparison of two memory snapshots, None for other files. Raises UsageFault if only one is."""
    are = [is_memory_snapshot(readings.place(path)) for path in (a, b)]
    if not any(are):
        return None
    if not all(are):
        raise UsageFault(f"{a if are[0] else b}: a memory snapshot, which is compared with another one only")
    return snapshot_diff(a, b)


def _compared(diff: Diff) -> Mapping[str, object]:
    """Return one comparison as a JSON object."""
    comparison = diff.comparison
    answer: dict[str, object] = {"a": diff.a_name, "b": diff.b_name, "state": diff.answer.code}
    if comparison is None:
        why = "; ".join(diff.comparable.reasons) or diff.answer.lead
        return answer | {"verdict": CANNOT_TELL, "reason": why, "words": _words(diff)}
    verdict = comparison.verdict
    is_open = verdict.is_open or not diff.comparable.ok
    keys = ("a_ns", "b_ns", "delta_ns", "ci95_ns", "noise_floor_ns", "num_pairs", "unprofiled")
    return answer | {
        "verdict": CANNOT_TELL if is_open else verdict.name.replace("_", " "),
        "reason": verdict.reason if diff.comparable.ok else "; ".join(diff.comparable.reasons),
        **{key: getattr(comparison, key) for key in keys},
        "delta_pct": float(f"{comparison.delta_pct:.6g}"),
        "threshold_pct": verdict.threshold_pct,
        **({"pairs_needed": verdict.pairs_needed} if verdict.pairs_needed else {}),
        "words": _words(diff),
        **({"free": str(diff.free)} if diff.free else {}),
    }


def _words(diff: Diff) -> Rows:
    """Return the answer and what it rests on, a text each."""
    return Rows.of_texts([str(each) for each in (diff.answer, *diff.basis, *diff.reasons)])


def _explained(diff: Diff) -> tuple[str, str]:
    """Return the verdict on the causes of a comparison, and why they are not known."""
    traced = diff.traced
    if traced is None:
        return CANNOT_TELL, "no rank was traced on both sides"
    if not diff.comparable.ok:
        return CANNOT_TELL, "; ".join(diff.comparable.reasons)
    if diff.doubt:
        return CANNOT_TELL, str(diff.doubt)
    return "explained", ""


def _value(cause: Cause, key: str) -> Any:
    if key == "name":
        return cause.path
    value = getattr(cause, key)
    return float(f"{value:.6g}") if isinstance(value, float) else value
