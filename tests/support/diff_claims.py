"""What a comparison claims, walked: numbers of sentences found again in its rows, and rows that agree with each other.

Each function yields sentences, one per contradiction.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from html import unescape
from io import StringIO
from math import exp, log
from statistics import median
from typing import Any

from statements import statements

from traceq.claims.claim import Measure
from traceq.compare.result import Diff, Diffs, Traced
from traceq.compare.tables import (
    causes_table,
    facts_table,
    inference_table,
    matrix,
    ranks_table,
    shown_causes,
    waterfall,
    work_table,
)
from traceq.escaped_console import EscapedConsole
from traceq.renderers.diff_json import diffs_to_json
from traceq.renderers.diff_text import print_diffs
from traceq.renderers.html.diff import diffs_to_html
from traceq.renderers.markdown import diffs_to_markdown
from traceq.report import Table
from traceq.units import Unit, format_value

__all__ = ["contradictions_of_diffs"]

TIME = r"(?:[\d.,]+ (?:ns|us|ms|s))"
DELTA = rf"(?:[+-]{TIME}|0)"


def contradictions_of_diffs(diffs: Diffs) -> Iterator[str]:
    """Every contradiction of a comparison, each with its two sides."""
    for diff in diffs.diffs:
        for text in (*of_rows(diff), *of_tables(diff), *of_statements(diff)):
            yield f"{diff.b_name} against {diff.a_name}: {text}"
    yield from of_overview(diffs)
    yield from of_renderers(diffs)


def of_rows(diff: Diff) -> Iterator[str]:
    """Cells and causes add up to the traced delta, and the parts of a cause to it."""
    if diff.traced is None:
        if diff.cells or diff.causes:
            yield "rows of no trace"
        return
    whole = diff.traced.delta_ns
    for side in ("a_ns", "b_ns"):
        cells_ns, step_ns = sum(getattr(cell, side) for cell in diff.cells), getattr(diff.traced, side)
        if abs(cells_ns - step_ns) > len(diff.cells) + 1:
            yield f"cells make {cells_ns} ns, {side} is {step_ns}"
    if diff.residual_ns:
        yield f"a residual of {diff.residual_ns}"
    if diff.causes and sum(cause.delta_ns for cause in diff.causes) != whole:
        yield f"causes make {sum(cause.delta_ns for cause in diff.causes)} ns, the traced delta is {whole}"
    for cause in diff.causes:
        if cause.count_ns + cause.dur_ns != cause.delta_ns:
            yield f"cause {cause.key}: {cause.count_ns} + {cause.dur_ns} is not {cause.delta_ns}"
        if cause.chain and cause.chain.copied_ns + cause.chain.waited_ns + cause.chain.rest_ns != cause.delta_ns:
            yield f"cause {cause.key}: its chain is not {cause.delta_ns}"
        if whole and cause.share_pct is not None and abs(cause.share_pct - 100 * cause.delta_ns / whole) > 1e-6:
            yield f"cause {cause.key}: {cause.share_pct} % is not {cause.delta_ns} of {whole}"
    for rank in diff.ranks:
        if rank.rank == diff.traced.rank and (rank.a_ns, rank.b_ns) != (diff.traced.a_ns, diff.traced.b_ns):
            yield f"rank {rank.rank}: {rank.a_ns} and {rank.b_ns}, traced {diff.traced.a_ns} and {diff.traced.b_ns}"
        if not (0 <= rank.own_a_ns <= rank.a_ns and 0 <= rank.own_b_ns <= rank.b_ns):
            yield f"rank {rank.rank}: own time outside its step"


def of_tables(diff: Diff) -> Iterator[str]:
    """The rows that are shown, and what they leave out, make the total."""
    if diff.traced is None:
        return
    for top in (5, 12):
        table = waterfall(diff, top=top)
        *parts, total = table.rows
        for index in (2, 3, 4):
            shown = sum(int(row[index] or 0) for row in parts)
            if abs(shown - int(total[index] or 0)) > len(diff.cells) + 1:
                yield f"{table.title}: {table.columns[index].heading}: {shown}, total {total[index]}"
        shares = [float(share) for row in parts for share in row[5:] if share is not None]  # none where parts cancel
        if shares and abs(sum(shares) - 100) > 0.01:
            yield f"{table.title}: shares make {sum(shares)} %"
        causes = causes_table(diff, top=top)
        column = next((index for index, each in enumerate(causes.columns) if each.key == "delta_ns"), None)
        if column is not None:
            rest_ns = diff.traced.delta_ns - sum(cause.delta_ns for cause in shown_causes(diff, top=top)[0])
            least = min((abs(cause.delta_ns) for cause in shown_causes(diff, top=top)[0]), default=0)
            if any(abs(cause.delta_ns) > least for cause in shown_causes(diff, top=top)[1]):
                yield f"{causes.title}: the rest has a larger row than {least}"
            note = re.search(rf"(\d+) more causes? in --json: net ({DELTA}),", causes.note)
            if (len(diff.causes) > top) != bool(note):
                yield f"{causes.title}: {len(diff.causes)} causes, note {causes.note!r}"
            if note and (int(note[1]), note[2]) != (len(diff.causes) - top, delta_text(rest_ns)):
                yield f"{causes.title}: {causes.note!r}, the rest is {rest_ns}"
    for row, each in zip(inference_table(diff).rows, diff.inference, strict=False):
        if row[6] != each.delta_ns or each.b_ns - each.a_ns != each.delta_ns:
            yield f"inference: {row}"
    for each in diff.work:
        if abs(each.calls_ns + each.per_call_ns + each.slower_ns - each.delta_ns) > 2:
            yield f"work: {each}"
    *rows, total = work_table(diff, top=len(diff.work)).rows or ((),)
    for index, column in enumerate(work_table(diff).columns):
        is_time = column.unit in (Unit.NS, Unit.DELTA_NS)
        if rows and is_time and sum(int(row[index] or 0) for row in rows) != total[index]:
            yield f"work: {column.heading}: rows are not {total[index]}"
    for table_row in ranks_table(diff).rows:
        a, b, delta, own_a, own_b, own_delta = (int(value or 0) for value in table_row[1:])
        if (b - a, own_b - own_a) != (delta, own_delta):
            yield f"ranks: {table_row}"


def of_statements(diff: Diff) -> Iterator[str]:
    """Each statement has its sentence, and the numbers of the rows that it is about."""
    rows = {**of_comparison(diff), **(of_traced(diff, diff.traced) if diff.traced else {})}
    for statement in (*statements(diff), *filter(None, (diff.doubt, diff.free))):
        if statement.lead == statement.code or "{" in f"{statement}":
            yield f"no sentence: {statement}"
        expected = rows.get(statement.code)
        for name, value in statement.measures.items() if expected else ():
            number = expected(statement.measures).get(name)
            if number is not None and not isinstance(value, str) and abs(value - number) > 1e-6 * abs(number) + 1:
                yield f"{name} is {number}: {statement.code} {statement.measures}"


Numbers = Mapping[str, float | None]
Expected = dict[str, Callable[[Mapping[str, Measure]], Numbers]]
"""By code of a statement: what its measures are by the rows, those that these know."""


def of_comparison(diff: Diff) -> Expected:
    """What statements on the verdict say."""
    comparison, steps = diff.comparison, diff.steps
    if comparison is None or steps is None:
        return {}
    low, high = comparison.ci95_ns or (None, None)
    verdict: Numbers = {
        "delta_ns": comparison.each(comparison.delta_ns),
        "delta_pct": comparison.delta_pct,
        "least_ci_delta_ns": None if low is None else comparison.each(low),
        "most_ci_delta_ns": None if high is None else comparison.each(high),
        "num_a": comparison.num_a,
        "num_b": comparison.num_b,
        "threshold_pct": comparison.verdict.threshold_pct,
    }
    slower = steps.b_ns / max(steps.a_ns, 1)

    def factor(measures: Mapping[str, Measure]) -> Numbers:
        ratio = float(measures["work_ratio"])
        works = [row.b_work / row.a_work for row in diff.work if row.a_work]
        return {
            "work_ratio": min(works, key=lambda each: abs(each - ratio)),
            "time_ratio": slower,
            "per_work_delta_pct": 100 * (slower / ratio - 1),
        }

    pace_ns = sum(cause.delta_ns for cause in diff.causes if cause.kind == "pace")
    return {
        diff.answer.code: lambda _: verdict,
        "work_factor": factor,
        "pace": lambda _: {"paced_delta_ns": pace_ns},
        "why": lambda _: {"noise_floor_ns": comparison.noise_floor_ns},
        "slowest_decides": lambda _: {"num_ranks": len(diff.ranks)},
    }


def of_traced(diff: Diff, traced: Traced) -> Expected:
    """What statements on the traced delta say."""
    whole_ns, causes, cells = traced.delta_ns, {cause.key: cause for cause in diff.causes}, diff.cells

    def of_cells(*categories: str, phase: str = "") -> int:
        return sum(each.delta_ns for each in cells if each.category in categories and phase in ("", each.phase))

    def cause(measures: Mapping[str, Measure]) -> Numbers:
        row = causes[str(measures["cause"])]
        return {
            "delta_ns": row.delta_ns,
            "of_delta_ns": whole_ns,
            "share_pct": row.share_pct,
            "more_mean": row.delta_num,
            "fewer_mean": -row.delta_num,
            "moved_delta_bytes": row.delta_bytes,
        }

    def changes(measures: Mapping[str, Measure]) -> Numbers:
        nums = [row.delta_num for row in causes.values() if row.kind == "sync"]
        added, removed = (sum(abs(num) for num in nums if sign * num > 0) for sign in (1, -1))
        delta_ns = measures.get("delta_ns")
        chains = [row.chain for row in causes.values() if row.chain]
        parts = [float(measures.get(f"{part}_delta_ns", 0)) for part in ("copied", "waited", "rest")]
        return {
            "added_syncs_mean": min(added, float(measures.get("added_syncs_mean", 0))),
            "removed_syncs_mean": min(removed, float(measures.get("removed_syncs_mean", 0))),
            "delta_ns": sum(parts) if chains and any(parts) else None,
            "share_pct": 100 * float(delta_ns) / whole_ns if whole_ns and delta_ns is not None else None,
        }

    def all_else(_: Mapping[str, Measure]) -> Numbers:
        listed = [each.measures for each in diff.reasons if each.code.startswith("cause")]
        return {"delta_ns": whole_ns - sum(causes[str(each["cause"])].delta_ns for each in listed)}

    def of_rank(measures: Mapping[str, Measure]) -> Numbers:
        row = next((each for each in diff.ranks if each.rank == int(measures["rank"])), None)
        if row is None:
            return {"rank": traced.rank}
        others = [each for each in diff.ranks if each is not row]
        return {
            "rank": traced.rank,
            "delta_ns": row.own_delta_ns,
            "own_a_ns": row.own_a_ns,
            "own_b_ns": row.own_b_ns,
            "others_a_ns": median(each.own_a_ns for each in others),
            "others_b_ns": median(each.own_b_ns for each in others),
            "cell_delta_ns": of_cells(*_categories(measures), phase=str(measures.get("phase", ""))),
        }

    def op_work(measures: Mapping[str, Measure]) -> Numbers:
        of_op = [row for row in diff.work if row.role == measures["op"]]
        of_op = [row for row in of_op if row.is_flops == (measures["work"] == "FLOPs")]
        a_ns, b_ns, calls, work = (sum(getattr(row, f"{each}") for row in of_op) for each in _WORK)
        calls_ratio, work_ratio = sum(row.b_calls for row in of_op) / calls, sum(row.b_work for row in of_op) / work
        return {
            "delta_ns": b_ns - a_ns,
            "calls_ratio": calls_ratio,
            "per_call_ratio": work_ratio / calls_ratio,
            "overall_ratio": work_ratio * a_ns / b_ns,
            "speed_ratio": exp(-sum(row.slower_ns for row in of_op) * log(b_ns / a_ns) / (b_ns - a_ns)),
        }

    exposed = ("exposed_comm", "exposed_wait", "exposed_transfer")
    in_cell = {
        "starts_elsewhere": lambda m: {"delta_ns": of_cells(*_categories(m), phase=str(m["phase"]))},
        "traded_with_kernels": lambda m: {"delta_ns": of_cells(*_categories(m), phase=str(m["phase"]))},
    }
    return {
        **dict.fromkeys(("cause", "cause_of_host", "cause_of_collective"), cause),
        **dict.fromkeys(("moved", "replaced"), cause),
        **dict.fromkeys(("syncs", "value_reads", "line_changes"), changes),
        **dict.fromkeys(("only_rank", "slowest_rank"), of_rank),
        **dict.fromkeys(
            ("outside_interval", "unlike_unprofiled", "undecided", "not_seen"), lambda _: {"delta_ns": whole_ns}
        ),
        **in_cell,
        "all_else": all_else,
        "op_work": op_work,
        "most_in_phase": lambda m: {"share_pct": 100 * _of_phase(diff, str(m["phase"])) / whole_ns},
        "later_host": lambda _: {
            "host_bound_ns": abs(of_cells("host_bound")),
            "in_collectives_ns": abs(of_cells(*exposed)),
        },
        "waits_and_transfers": lambda _: {
            "rank": traced.rank,
            "wait_delta_ns": of_cells("exposed_wait"),
            "transfer_delta_ns": of_cells("exposed_transfer"),
        },
    }


_DOUBTS = ("outside_interval", "unlike_unprofiled", "undecided", "not_seen")
_WORK = ("a_ns", "b_ns", "a_calls", "a_work")


def _categories(measures: Mapping[str, Measure]) -> tuple[str, ...]:
    """The category of cells that a statement names: `host-bound time` is `host_bound`."""
    return (str(measures.get("category", "")).removesuffix(" time").replace("-", "_").replace(" ", "_"),)


def _of_phase(diff: Diff, phase: str) -> int:
    early = phase.startswith("work launched before")
    return sum(cell.delta_ns for cell in diff.cells if cell.phase == ("before_window" if early else phase))


def of_overview(diffs: Diffs) -> Iterator[str]:
    """The table of arms has each arm's numbers."""
    table = matrix(diffs)
    keys = [column.key for column in table.columns]
    baselines = len({diff.a_name for diff in diffs.diffs if diff.steps} - {diff.b_name for diff in diffs.diffs})
    for row, diff in zip(table.rows[baselines:], diffs.diffs, strict=True):
        values, comparison = dict(zip(keys, row, strict=True)), diff.comparison
        if comparison is not None and (
            values["delta"] != comparison.each(comparison.delta_ns)
            or values["pct"] != comparison.delta_pct
            or values["verdict"] != comparison.verdict.text
        ):
            yield f"matrix: {values}"


def of_renderers(diffs: Diffs) -> Iterator[str]:
    """Text, Markdown, page and JSON have each sentence; the page each cell of the tables, and JSON the rows."""
    file = StringIO()
    print_diffs(diffs, EscapedConsole(file, width=100_000, no_color=True), full=True)
    markdown = re.sub(r"\\(.)", r"\1", diffs_to_markdown(diffs))
    page = text_of(diffs_to_html(diffs))
    documents = json.loads(diffs_to_json(diffs))
    documents = [documents] if len(diffs.diffs) == 1 else documents["diffs"]
    for diff, document in zip(diffs.diffs, documents, strict=True):
        for line in [text for each in statements(diff) for text in (each.lead, *each.evidence)]:
            for name, text in (("text", file.getvalue()), ("Markdown", markdown), ("page", page)):
                if line not in text:
                    yield f"{name}: lacks {line}"
        for cell in cells_of(diff):
            for name, text in (("text", file.getvalue()), ("page", page)):
                if cell not in text:
                    yield f"{name}: lacks {cell} of a table"
        yield from of_json(diff, document)
    for each in (matrix(diffs), facts_table(diffs)):
        if len(diffs.diffs) > 1 and each is not None:
            for cell in texts_of(each):
                if cell not in page:
                    yield f"page: lacks {cell} of {each.title}"


def text_of(page: str) -> str:
    """What a page shows, scripts and data left out; what is held together on one line may be broken anywhere."""
    shown = re.sub(r"<(script|style)\b.*?</\1>", "", page, flags=re.DOTALL)
    return unescape(re.sub(r"<[^>]*>", "", shown)).replace("\u00a0", " ").replace("\u2060", "")


def cells_of(diff: Diff) -> list[str]:
    """The numbers of the tables of a traced delta as they are shown."""
    if diff.traced is None:
        return []
    tables = (waterfall(diff), causes_table(diff), ranks_table(diff), work_table(diff), inference_table(diff))
    return [text for table in tables for text in texts_of(table)]


def texts_of(table: Table) -> list[str]:
    """Each cell of numbers of a table, formatted."""
    return [
        format_value(cell, column.unit)
        for row in table.rows
        for cell, column in zip(row, table.columns, strict=True)
        if column.unit is not Unit.TEXT and cell is not None
    ]


def of_json(diff: Diff, document: dict[str, Any]) -> Iterator[str]:
    """Every row and number of the JSON is that of the comparison."""
    of_document = (document["verdict"], *document["basis"], *document["reasons"])
    if [each["measures"] for each in of_document] != [dict(each.measures) for each in statements(diff)]:
        yield "JSON: other measures"
    if (document["verdict"]["name"], document["verdict"]["state"]) != (diff.verdict_name, diff.answer.code):
        yield "JSON: another verdict"
    for name, keys in (
        ("causes", ("delta_ns", "count_ns", "dur_ns", "delta_num", "name", "line")),
        ("cells", ("phase", "category", "a_ns", "b_ns", "delta_ns")),
        ("ranks", ("rank", "a_ns", "b_ns", "own_a_ns", "own_b_ns")),
        ("work", ("role", "phase", "a_ns", "b_ns", "calls_ns", "more_ns", "slower_ns")),
        ("inference", ("a_ns", "b_ns")),
    ):
        expected = [[getattr(row, key) for key in keys] for row in getattr(diff, name)]
        if [[row[key] for key in keys] for row in document[name]] != expected:
            yield f"JSON: other {name}"
    if diff.traced:
        for key in ("a_ns", "b_ns", "delta_ns", "rank", "num_a", "num_b"):
            if document["traced"][key] != getattr(diff.traced, key):
                yield f"JSON: traced.{key} is {document['traced'][key]}"
    if diff.steps:
        interval = diff.steps.ci95_ns
        if (document["step"]["delta_ns"], document["step"]["ci95_ns"]) != (
            diff.steps.delta_ns,
            list(interval) if interval else None,
        ):
            yield f"JSON: step {document['step']}"
        if document["verdict"]["num_questions"] != (diff.comparison or diff.steps).num_questions:
            yield "JSON: another number of questions"


def delta_text(ns: float) -> str:
    return format_value(ns, Unit.DELTA_NS)
