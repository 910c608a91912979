"""Tools over the events of a run: SQL, and rules that must hold."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Annotated

import numpy as np
from msgspec import Meta

from traceq.agent_tools.answer import CANNOT_TELL, Answer, Rows, command_line
from traceq.agent_tools.looked import why_not
from traceq.agent_tools.readings import Readings
from traceq.agent_tools.tool import PATH, RANKS, Tool
from traceq.errors import UnreadableInput
from traceq.frames.column_table import ColumnValues, Texts
from traceq.frames.sql import ask
from traceq.frames.tables import NAMES, frame
from traceq.model import Run
from traceq.rules.collect_rows import missing_ranks
from traceq.rules.evaluate import State, judge_run
from traceq.rules.messages import complaint
from traceq.rules.parse import parse
from traceq.runs.rank_selection import parse_ranks
from traceq.runs.read import with_traces
from traceq.units import format_ranks

__all__ = ["Check", "Query"]

_MOST_ROWS = 400
_MOST_SECONDS = 60
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
        result = ask(run, self.sql, most_seconds=_MOST_SECONDS)
        rows = [list(row) for row in islice(result.rows, _MOST_ROWS + 1)]
        empty, unknown = list(self._empty_tables(run, readings)), list(_unknown_columns(run, self.sql))
        none_known = [text for text, is_everywhere in unknown if is_everywhere]
        is_lost = len(result.columns) == 1 and none_known
        verdict = "answered"
        if is_lost or (empty and len(empty) == len(_tables_in(self.sql))):
            verdict = CANNOT_TELL
        elif empty or none_known:
            verdict = "answered in part"
        options = ("--ranks", self.ranks) if self.ranks else ()
        more = {"note": f"more than {_MOST_ROWS} rows: aggregate them"} if len(rows) > _MOST_ROWS else {}
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
