"""What a comparison claims, walked: numbers of sentences found again in its rows, and rows that agree with each other.

Each function yields sentences, one per contradiction.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from io import StringIO
from math import exp, log, prod
from statistics import median
from typing import Any

from traceq.compare.cause_sentences import cause_text

from traceq.compare.attribution import line_function
from traceq.compare.result import Cause, Diff, Diffs
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
from traceq.units import Unit, format_range, format_value

__all__ = ["contradictions_of_diffs"]

TIME = r"(?:[\d.,]+ (?:ns|us|ms|s))"
DELTA = rf"(?:[+-]{TIME}|0)"
PER = r"(?:per step|in the trace|from trace to step|from step to trace)"


def contradictions_of_diffs(diffs: Diffs) -> Iterator[str]:
    """Every contradiction of a comparison, each with its two sides."""
    for diff in diffs.diffs:
        for text in (*of_rows(diff), *of_tables(diff), *of_words(diff), *of_factor(diff), *of_traced(diff)):
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


def of_words(diff: Diff) -> Iterator[str]:
    """Each sentence is one of a known kind, and says the numbers of its rows."""
    kinds = [re.compile(pattern) for pattern in (*OF_COMPARISON, *OF_TRACED)]
    for line in diff.words:
        if not any(pattern.match(line) for pattern in kinds):
            yield f"a sentence of no known kind: {line}"
    first, comparison = diff.words[0], diff.comparison
    if comparison is None:
        return
    if taken := re.match(rf"(.*?) takes ({TIME}) (more|less) (.*? \(.*?\))( but does other work)?(,|:)", first):
        if taken[5] and not any(line.startswith("The sides differ in what they compute: ") for line in diff.words):
            yield f"what other work: {first}"
        paced = delta_text(sum(cause.delta_ns for cause in diff.causes if cause.kind == "pace"))
        others = any(re.search(f", no interval: {pattern}", first) for pattern in NEITHER)
        if not taken[5] and f", no interval: {paced} is the pace of " not in first and not others:
            yield f"the pace is {paced}: {first}"
        verb = "costs" if taken[3] == "more" else "saves"
        first = f"{taken[1]} {verb} {taken[2]} {taken[4]}{first[taken.end(6) - 1 :]}"
    if comparison.unprofiled and comparison.verdict.is_open and diff.comparable.ok:
        yield from of_open(diff, first)
        return
    if (
        size := re.match(
            rf"(.*?) (costs|saves) (nothing|{TIME}) (per step|per sample|in the trace) \(([+-]?[\d.,]+ %)", first
        )
    ) is None:
        is_none = first.startswith("No difference in time seen") and abs(comparison.delta_pct) < 0.005
        longer = "longer" if comparison.delta_ns > 0 else "shorter"
        of_ranks = f"The step of {diff.b_name} is {format_value(abs(comparison.delta_ns), Unit.NS)} {longer} than that"
        of_jitter = f"{diff.a_name} and {diff.b_name}: {delta_text(comparison.each(comparison.delta_ns))} "
        is_scatter = f"No difference beyond the scatter of steps seen between {of_jitter}" in first
        is_jitter = f"No difference beyond jitter seen between {of_jitter}" in first
        named = is_jitter and any(cause.names_a_change for cause in diff.causes)
        if diff.comparable.ok and (named or not (is_none or is_jitter or is_scatter or first.startswith(of_ranks))):
            yield f"no size: {first}"
        return
    each_ns = comparison.each(comparison.delta_ns)
    verb = {1: "costs", -1: "saves"}.get((each_ns > 0) - (each_ns < 0), "costs")
    expected = (diff.b_name, verb, "nothing" if not each_ns else format_value(abs(each_ns), Unit.NS))
    if size.groups()[:3] != expected:
        yield f"{size.groups()[:3]}, the comparison has {expected}"
    if size[5] != format_value(comparison.delta_pct, Unit.DELTA_PERCENT):
        yield f"{size[5]}, the comparison has {comparison.delta_pct}"
    if comparison.unprofiled and f": {comparison.verdict.text} at the " not in first:
        yield f"the verdict is {comparison.verdict.text}: {first}"
    if comparison.ci95_ns is not None:
        ends = " to ".join(delta_text(comparison.each(end)) for end in comparison.ci95_ns)
        if f"95 % CI {ends}" not in first:
            yield f"the interval is {ends}: {first}"
    is_one_rank = diff.traced is not None and not diff.ranks  # of several, the slowest decides
    if diff.traced and is_one_rank and not comparison.unprofiled and comparison.delta_ns != diff.traced.delta_ns:
        yield f"two sizes: {comparison.delta_ns}, traced {diff.traced.delta_ns}"


def of_factor(diff: Diff) -> Iterator[str]:
    """All work changes by one factor, and the step by that of the lead."""
    for line in diff.words:
        pattern = r"([\d.]+) times the (FLOPs|bytes).* in ([\d.]+) times the time: ([\d.,]+) % (less|more) time per"
        if not (ratios := re.match(pattern, line)) or diff.steps is None:
            continue
        works = [row for row in diff.work if row.a_work and row.is_flops == (ratios[2] == "FLOPs")]
        factors = [row.b_work / row.a_work for row in works if abs(row.b_work / row.a_work - float(ratios[1])) < 0.006]
        slower = diff.steps.b_ns / diff.steps.a_ns
        if abs(slower - float(ratios[3])) > 0.006:
            yield f"steps of {diff.steps.a_ns} and {diff.steps.b_ns}: {line}"
        percent = float(ratios[4].replace(",", "")) * (1 if ratios[5] == "more" else -1)
        if not any(abs(100 * (slower / factor - 1) - percent) < 0.06 for factor in factors):
            yield f"no work has this factor: {line}"


def of_open(diff: Diff, first: str) -> Iterator[str]:
    """A verdict that is not decided begins with that, and names neither a cost nor a saving."""
    comparison = diff.comparison
    assert comparison is not None
    if (
        not first.startswith(f"Not decided: {diff.b_name} against {diff.a_name} ")
        or "inconclusive at the " not in first
    ):
        yield f"an open verdict: {first}"
    numbers = [*(comparison.ci95_ns or ()), comparison.delta_ns]
    texts = [
        *(delta_text(comparison.each(ns)) for ns in numbers),
        format_value(comparison.delta_pct, Unit.DELTA_PERCENT),
    ]
    for text in texts:
        if text not in first:
            yield f"lacks {text}: {first}"


def of_traced(diff: Diff) -> Iterator[str]:
    """Sentences on the traced delta name rows with their numbers."""
    if diff.traced is None:
        return
    whole = diff.traced.delta_ns
    is_one_job = "they are ranks of one job" in diff.words[0]
    host = "idle device during " if diff.traced.says_where_only else "host time of "
    texts = {
        f"{delta_text(each.delta_ns)} {of_host}{cause_text(listed_as, diff.traced.per)}": each.delta_ns
        for each in diff.causes
        for listed_as in (as_listed(each, is_one_job),)
        for of_host in ("", *([host] if each.kind == "host" else []))
    }
    for line in diff.words:
        for text in re.findall(rf"(?:the traced|The traced delta is|the traced delta is) ({DELTA})", line):
            if text != delta_text(whole):
                yield f"a traced delta of {text}, it is {whole}: {line}"
        for amount, percent in re.findall(rf"({DELTA}) {PER}[^,]*, ([\d.,]+ %|-[\d.,]+ %) of the traced", line):
            if not any(abs(sum_ns - in_ns(amount)) <= 0.006 * abs(sum_ns) + 1 for sum_ns in sums(diff)):
                yield f"{amount} is no sum of causes: {line}"
            if (
                abs(100 * in_ns(amount) / whole - float(percent[:-2].replace(",", "")))
                > 0.06 + 0.01 * abs(in_ns(amount) / whole) * 100
            ):
                yield f"{amount} is not {percent} of {whole}: {line}"
        if listed := re.match(
            rf"(?:Causes of|Differences in|Other causes|Other differences)(?: the traced {DELTA} {PER})?: (.*)\.$", line
        ):
            remaining, rest_ns = listed[1], whole
            while remaining:
                if rest := re.match(rf"all else ({DELTA})( \([^;]*\))?$", remaining):
                    if abs(in_ns(rest[1]) - rest_ns) > 0.006 * abs(rest_ns) + 1:
                        yield f"all else is {rest_ns}: {line}"
                    break
                text = next((text for text in sorted(texts, key=len, reverse=True) if remaining.startswith(text)), None)
                if text is None:
                    yield f"no row says {remaining!r}"
                    break
                rest_ns -= texts[text]
                remaining = remaining[len(text) :].removeprefix("; ")
            if not remaining and not line.startswith("Other") and abs(rest_ns) > 0.1 * abs(whole) + 1:
                yield f"{rest_ns} of {whole} is left out: {line}"
        for verb, number in re.findall(rf"\b(adds|removes) ([\d.,]+) syncs? {PER}", line):
            sign = 1 if verb == "adds" else -1
            nums = [cause.delta_num for cause in diff.causes if cause.kind == "sync" and sign * cause.delta_num > 0]
            if float(number.replace(",", "")) > sum(map(abs, nums)) + 0.01:
                yield f"{verb} {number}, rows have {sum(nums)}: {line}"
        if part := re.match(r"(\d+) % of the difference is in (.*)\.$", line):
            phase = "before_window" if part[2] == "work launched before the trace began" else part[2]
            phase_ns = sum(cell.delta_ns for cell in diff.cells if cell.phase == phase)
            if abs(100 * phase_ns / whole - int(part[1])) > 0.51:
                yield f"{phase_ns} of {whole}: {line}"
        if late := re.match(
            rf"(.*) is later: its device waits ({TIME}) more for its host than that of (.*), and ({TIME}) less in", line
        ):
            sign = 1 if late[1] == diff.b_name else -1
            of_host, in_comm = (
                sign * sum(cell.delta_ns for cell in diff.cells if cell.category.startswith(prefixes))
                for prefixes in (("host_bound",), ("exposed_comm", "exposed_wait", "exposed_transfer"))
            )
            if [format_value(of_host, Unit.NS), format_value(-in_comm, Unit.NS)] != [late[2], late[4]]:
                yield f"{of_host}, {in_comm}: {line}"
        if apart := re.match(rf"Of exposed .* ranks differs by ({DELTA}) and transfer by ({DELTA})\.$", line):
            parts_ns = [
                sum(cell.delta_ns for cell in diff.cells if cell.category == category)
                for category in ("exposed_wait", "exposed_transfer")
            ]
            if [delta_text(ns) for ns in parts_ns] != list(apart.groups()):
                yield f"{parts_ns}: {line}"
        if shown := re.match(rf"It shows as ({DELTA}) of (host-bound time|alloc wait) in ([^,]*),", line):
            category = "alloc_wait" if shown[2] == "alloc wait" else "host_bound"
            cells = [c.delta_ns for c in diff.cells if (c.phase, c.category) == (shown[3], category)]
            if [delta_text(ns) for ns in cells] != [shown[1]]:
                yield f"{cells}: {line}"
        if only := re.match(rf"Only rank (\d+) is (slower|faster), by ({TIME}) {PER}", line):
            own_ns = [rank.own_delta_ns for rank in diff.ranks if rank.rank == int(only[1])]
            if [(ns > 0, format_value(abs(ns), Unit.NS)) for ns in own_ns] != [(only[2] == "slower", only[3])]:
                yield f"{own_ns}: {line}"
        yield from of_replays(diff, line)
        yield from of_work(diff, line)
        matched = re.match(r"Only (\d+) % of the host's calls are on both sides", line)
        if matched and round(diff.traced.matched_pct or 0) != int(matched[1]):
            yield f"{diff.traced.matched_pct} %: {line}"
        lead = "(?:The same rank has the most own time on both sides|Most own time of both sides together)"
        if late := re.match(rf"{lead}: rank (\d+), .* is ({TIME}) and ({TIME});", line):
            own_ns = [(rank.own_a_ns, rank.own_b_ns) for rank in diff.ranks if rank.rank == int(late[1])]
            if [tuple(format_value(ns, Unit.NS) for ns in pair) for pair in own_ns] != [(late[2], late[3])]:
                yield f"{own_ns}: {line}"
            others = [rank for rank in diff.ranks if rank.rank != int(late[1])]
            medians = " and ".join(
                format_value(median(times_ns), Unit.NS)
                for times_ns in ([rank.own_a_ns for rank in others], [rank.own_b_ns for rank in others])
            )
            if not line.split("the median of the others is ")[1].startswith(f"{medians}."):
                yield f"{medians}: {line}"


def as_listed(cause: Cause, is_one_job: bool) -> Cause:
    """Of ranks of one job, which run the same code, no number of events is told."""
    return replace(cause, delta_num=0.0, delta_bytes=0) if is_one_job else cause


def of_work(diff: Diff, line: str) -> Iterator[str]:
    """The factors of an op's time multiply to it, and its delta is that of its rows."""
    if not line.startswith("By recorded shapes"):
        return
    for text in line.rstrip(".").partition(": ")[2].split("; "):
        if not (parts := re.match(rf"(.+) ({DELTA}), (.*?)(, each shape)? at (.*) speed$", text)):
            continue
        unit_is_flops = "FLOPs" in parts[3]
        rows = [row for row in diff.work if (row.role, row.is_flops) == (parts[1], unit_is_flops)]
        a_ns, b_ns = sum(row.a_ns for row in rows), sum(row.b_ns for row in rows)
        if delta_text(b_ns - a_ns) != parts[2]:
            yield f"{b_ns - a_ns} ns: {line}"
        factors = [float(number) for number in re.findall(r"([\d.]+) times the (?:calls|FLOPs|bytes)", parts[3])]
        speed = re.match(r"([\d.]+) times", parts[5])
        ratio = prod(factors) / (float(speed[1]) if speed else 1)
        truth = b_ns / a_ns
        if parts[4]:  # the mix of shapes changed: the speed is that of what takes neither more calls nor more work
            ratio, truth = (
                1 / (float(speed[1]) if speed else 1),
                exp(sum(row.slower_ns for row in rows) * log(b_ns / a_ns) / (b_ns - a_ns)),
            )
        if abs(ratio / truth - 1) > 0.06:  # rounded to two digits, and small changes left out
            yield f"{ratio} is not {truth}: {line}"


def of_replays(diff: Diff, line: str) -> Iterator[str]:
    """Sentences on a side alone, replayed, name it with what its replay saves."""
    if diff.traced is None or "by replay" not in line:
        return
    if diff.traced.replays is None:
        yield f"no replays: {line}"
        return
    a, b = diff.traced.replays
    replays = {diff.a_name: a, diff.b_name: b}
    expected = [(name, each.host_ns, each.host_most_ns) for name, each in replays.items()]
    if " syncs " in line:
        expected = [(name, each.syncs_ns, each.syncs_most_ns) for name, each in replays.items() if each.num_syncs]
        expected = [each for each in expected if f"without them {each[0]} would " in line]
        if "would take as long by replay" in line:
            if any(most for _, _, most in expected):
                yield f"{expected}: {line}"
            return
    matches = [
        any(
            f"{name}{verb} {format_range(least, most, Unit.NS, grain=0.01 * diff.traced.a_ns)}" in line
            for verb in (" would be", "")
        )
        for name, least, most in expected
    ]
    if not matches or not all(matches):
        yield f"{expected}: {line}"


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
        for line in diff.words:
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
    if document["words"] != list(diff.words):
        yield "JSON: other words"
    if document["verdict"]["name"] != diff.verdict_name:
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


NEITHER = (
    r"both sides issue the same ops, and one run each does not tell a change from another process, ",
    rf"{DELTA} is in ops that both sides run as often, and one run each does not tell a change from another process, ",
    rf"{DELTA} is work that .* does, and .* less often or never\.$",
    r"a cold start is a part of what is compared\.$",
)
"""Why a difference neither costs nor saves, besides a pace."""

OF_COMPARISON = (
    r".* (costs|saves) .*(, no interval|: .* at the .* threshold.*)\.$",
    r".* costs nothing per",
    rf".* takes (as long|{TIME} (more|less)) {PER} \(.*\) but does other work(, .*no interval|: .* threshold.*)\.$",
    rf".* takes {TIME} (more|less) {PER} \(.*\), .*no interval: {DELTA} is the pace of work that both sides do ",
    *(rf".* takes {TIME} (more|less) {PER} \(.*\), .*no interval: {pattern}" for pattern in NEITHER),
    r"Not decided: .*: inconclusive at the .* threshold.*\.$",
    r"No difference in time seen between ",
    rf"No difference beyond jitter seen between .*: {DELTA} {PER} \(",
    rf"No difference beyond the scatter of steps seen between .*: {DELTA} {PER} \(.*\), from .* of .* to .* and .* to ",
    rf"The step of .* is {TIME} (longer|shorter) than that of .*: they are ranks of one job, ",
    r"[AB] captures .* in what is compared: that, with its warm-up, is paid once\.$",
    r"What is compared( of rank \d+)? holds a cold start, once per process: .* and .*; trace steps after a warm-up\.$",
    r"Not comparable \(.*\): ",
    r"Nothing to compare: ",
    r"Why: ",
    r"CPU time of the main thread ",
    r"A step trains on ",
    r"The sides differ in what they compute: (dtype|shapes|calls|layers|backward pass): ",
    r"[\d.]+ times the (FLOPs|bytes of ops with recorded shapes) in [\d.]+ times the time: ",
    r"Host times are not comparable: ",
    r"Steps that do more or less than the others, [\d.]+ %( of .*)? by time, do not count: nothing is said of these\.$",
    r"Shapes are not recorded: kernels that others replaced may have computed on inputs of another size ",
    r"\S+ begins its first step ",
    r"Device: .*not recorded.*: it may be another one\.$",
)
OF_TRACED = (
    rf".* replays CUDA graphs \([\d.,]+ {PER}, .* none\): [\d.,]+ kernel launches {PER} instead of [\d.,]+(,|\.)",
    r".* is later: its device waits ",
    r".* (adds|removes) ",
    r"(Causes of|Differences in) the traced ",
    r"Other (causes|differences): ",
    r"Only rank \d+ is ",
    rf"The slowest is rank \d+ (in .* and rank \d+ in|on both sides).*; rank \d+, which is explained, .* {PER}\.$",
    r"The same rank has the most own time on both sides: ",
    r"Most own time of both sides together: ",
    r"It shows as ",
    r"\d+ % of the difference is in ",
    r"Most of the traced ",
    r".* does other work: .* replaced by ",
    r".* issues elsewhere: .* moved from ",
    r"Of exposed communication(?: of rank \d+)?, waiting for other ranks ",
    r"The traced delta, ",
    r"By recorded shapes( \(device time\))?: ",
    r"The unprofiled steps (show no difference|do not decide, and the traced) ",
    r"With a host that takes no time, ",
    r".*: the table shows where the time went, not why\.$",
)


def sums(diff: Diff) -> list[int]:
    """The sums of causes that a sentence may speak of: a line, the syncs without one, those of one direction.

    And what replaced other work, each by itself.
    """
    by_function: dict[str, int] = {}
    for cause in diff.causes:
        if cause.line and cause.delta_num and not cause.is_replacement:
            function = line_function(cause.line)
            by_function[function] = by_function.get(function, 0) + cause.delta_ns
    syncs = [cause for cause in diff.causes if cause.kind == "sync" and cause.delta_num]
    replaced = [cause.delta_ns for cause in diff.causes if cause.is_replacement]
    return [*by_function.values(), *replaced, *(ns for some in _subsets(syncs) for ns in some)]


def _subsets(syncs: list[Cause]) -> Iterator[list[int]]:
    """Sums of syncs with and without those of listed lines and small allocations, by direction."""
    for chosen in (
        syncs,
        [cause for cause in syncs if not cause.work.startswith("alloc")],
        [cause for cause in syncs if not cause.line],
        [cause for cause in syncs if not cause.line and not cause.work.startswith("alloc")],
    ):
        yield [sum(c.delta_ns for c in chosen if sign * c.delta_num > 0) for sign in (1, -1)]
        yield [sum(c.delta_ns for c in chosen)]


def delta_text(ns: float) -> str:
    return format_value(ns, Unit.DELTA_NS)


def in_ns(time: str) -> float:
    """`+1.19 s` in ns."""
    if time == "0":
        return 0
    number, unit = time.replace(",", "").split()
    return float(number) * {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}[unit]
