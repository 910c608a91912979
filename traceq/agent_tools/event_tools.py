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
from traceq.errors import TraceqError, UnreadableInput, UsageFault
from traceq.frames.column_table import Frame, Texts
from traceq.frames.sql import ask
from traceq.frames.tables import NAMES, frame
from traceq.model import Run
from traceq.rules.evaluate import RuleOutcome, judge
from traceq.rules.messages import line
from traceq.rules.parse import Rule, parse
from traceq.runs.rank_selection import parse_ranks
from traceq.runs.read import with_traces

__all__ = ["Check", "Query"]

_MOST_ROWS = 400
_MOST_SECONDS = 60
_LONGEST_SQL = 400
_ANALYSIS_OF = {"device_ops": "kernels", "launches": "launches", "syncs": "syncs", "collectives": "collectives"}
"""Analysis that says why a table is empty."""


class Query(Tool, frozen=True):
    """SQL (DuckDB) over the events of a run; times in ns, -1 and null are unknown; `rank` is in every table.

    Tables: events, device_ops, launches, syncs, collectives, phases, partition, steps. `describe syncs` lists columns.
    Aggregate: a few dozen rows fit. Verdict: "answered", or "cannot tell" where the tables are empty for lack of a
    recording or hold nothing but unknown values.
    """

    path: Annotated[str, PATH]
    sql: Annotated[str, Meta(description="Like: select line, count(*) n, sum(blocked_ns) ns from syncs group by 1")]
    ranks: Annotated[str, RANKS] = ""

    def answer(self, readings: Readings) -> Answer:
        """Return the rows, and which columns of the tables are unknown."""
        run = with_traces(readings.run(self.path, parse_ranks(self.ranks or None)))
        result = ask(run, self.sql, most_seconds=_MOST_SECONDS)
        rows = list(islice(result.rows, _MOST_ROWS + 1))
        num = len(rows)
        table = Rows(result.columns, [list(row) for row in rows], num)
        reasons = list(self._reasons(run, readings))
        unknown = list(_unknown_columns(run, self.sql))
        is_empty = bool(reasons) and len(reasons) == len(_tables_in(self.sql))
        is_unknown = bool(unknown) and not is_empty
        verdict = CANNOT_TELL if is_empty or is_unknown else "answered"
        options = ("--ranks", self.ranks) if self.ranks else ()
        sql = self.sql if len(self.sql) <= _LONGEST_SQL else "$SQL"
        more = {"note": f"more than {_MOST_ROWS} rows: aggregate them"} if num > _MOST_ROWS else {}
        return Answer(
            verdict,
            command_line("query", self.path, *options, sql, "--json"),
            "; ".join([*reasons, *unknown]) if verdict == CANNOT_TELL else "",
            {"answer": table, **more},
            {"could_not": reasons, "unknown": unknown} if reasons or unknown else None,
        )

    def _reasons(self, run: Run, readings: Readings) -> Iterator[str]:
        """Yield why tables of the query are empty."""
        for name in _tables_in(self.sql):
            if name in _ANALYSIS_OF and not _num_rows(frame(run, name)):
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
        run = readings.run(self.path)
        try:
            strict = readings.run(self.path, strict=True)
        except UnreadableInput as fault:
            return Answer(CANNOT_TELL, command, str(fault), {}, None)
        num_ranks = run.manifest.num_ranks_of(run.arm) if run.manifest else len(run.traces)
        outcomes = [_outcome(strict, rule) for rule in rules]
        verdicts = [verdict for verdict, _ in outcomes]
        verdict = next(each for each in ("broken", CANNOT_TELL, "holds") if each in verdicts)
        rows = [[rule.text, *outcome] for rule, outcome in zip(rules, outcomes, strict=True)]
        reason = next((text for each, text in outcomes if each == CANNOT_TELL), "")
        return Answer(
            verdict,
            command,
            reason if verdict == CANNOT_TELL else "",
            {"rules": Rows(("rule", "verdict", "why"), rows, len(rows))},
            {"ranks": f"{len(strict.traces)} of {num_ranks}"},
        )


def _outcome(run: Run, rule: Rule) -> tuple[str, str]:
    """Return the verdict on a rule and why."""
    try:
        [outcome] = judge(run, [rule])
    except UsageFault:
        raise
    except TraceqError as fault:
        return CANNOT_TELL, str(fault)
    return ("holds" if outcome.holds else "broken"), _why(outcome)


def _why(outcome: RuleOutcome) -> str:
    return "" if outcome.holds else line(outcome).removeprefix("BROKEN ").removeprefix(f"{outcome.rule.text}: ")


def _tables_in(sql: str) -> list[str]:
    """Return the tables that a query names."""
    return [name for name in NAMES if re.search(rf"\b{name}\b", sql, re.IGNORECASE)]


def _num_rows(table: Frame) -> int:
    column = table.columns["rank"]
    return len(column.ids if isinstance(column, Texts) else column)


def _unknown_columns(run: Run, sql: str) -> Iterator[str]:
    """Yield the numbers of a table that the query names, and that are -1 in every row: unknown."""
    for name in _tables_in(sql):
        table = frame(run, name)
        for column, values in table.columns.items():
            if isinstance(values, Texts):
                is_unknown, num = bool((values.ids < 0).all()), len(values.ids)
            else:
                numbers = np.asarray(values)
                is_unknown, num = bool((numbers == -1).all()), len(numbers)
            if num and is_unknown and re.search(rf"\b{column}\b", sql, re.IGNORECASE):
                yield f"{name}.{column} is unknown in all {num:,} rows"
