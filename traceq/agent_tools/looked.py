"""What a sheet could examine and what it could not, so that nothing reads as healthy that nobody looked at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from traceq.agent_tools.answer import Rows
from traceq.report import Cell, Report, Sheet
from traceq.units import ranks_of

_SEVERAL_RANKS = ("clusters", "desync", "ranks")
_RECORDED = ("arms", "batches", "perturbation", "step_profile", "unprofiled")
_DEVICE = ("devices", "duplicates", "efficiency", "kernels", "launches", "memcpy")
_WAITS_FOR_DEVICE = ("collectives", "critical", "idle", "partition", "replay", "syncs")
_OF_STEPS = ("steps", "phases", "kernels", *_WAITS_FOR_DEVICE)
_DUMPS = ("arrivals", "stalled")
_NO_TRACE_NEEDED = (*_RECORDED, *_DUMPS, "desync", "facts", "loader")
_LOST_DEVICE, _LOST_HOST = "no_device_work", "no_host_ops"
_MODULES = "modules"
"""Analysis whose rows are of no module where none is recorded."""
_MARKLESS = "whole trace"


@dataclass(frozen=True, slots=True)
class Missing:
    """Analyses or facts that what was recorded cannot answer, and why."""

    what: tuple[str, ...]
    why: str


def why_not(sheet: Sheet, analysis: str) -> str:
    """Return why a sheet cannot answer an analysis; "" where it can."""
    return "; ".join(each.why for each in _missing(sheet) if analysis in each.what)


def examined(sheet: Sheet) -> dict[str, object]:
    """Return what was read, the analyses that found nothing there, and what could not be examined."""
    reasons = list(_missing(sheet))
    out_of_reach = {name for each in reasons for name in each.what}
    empty = [report.name for report in sheet.reports if not _num_rows(report) and report.name not in out_of_reach]
    return {
        **({"nothing_in": empty} if empty else {}),
        "could_not": [{"what": each.what, "why": each.why} for each in reasons],
        **read_from(sheet),
    }


def read_from(sheet: Sheet) -> dict[str, object]:
    """Return the events, ranks and steps that were read, and the doubts about them and the results."""
    source, steps = sheet.source, _rows(sheet, "steps")
    ranks = ranks_of(source.ranks, source.world_size)
    texts = [caveat.text for caveat in sheet.all_caveats]
    return {
        "events": source.num_events,
        **({"ranks": ranks} if source.ranks else {}),
        **({"steps": f"{_num_counted(steps)} counted of {len(steps)}"} if steps else {}),
        **({"warnings": Rows.of_texts(texts)} if texts else {}),
    }


def _missing(sheet: Sheet) -> Iterator[Missing]:
    """Yield in the order in which a reader should know: no trace, no device, one rank, then what was not recorded."""
    names = [report.name for report in sheet.reports]
    if sheet.schema:
        yield Missing(_OF_STEPS, "a memory snapshot holds the allocator's actions alone")
    elif not sheet.source.num_events:
        why = "no trace was recorded, only timings or dumps of the flight recorder"
        yield Missing(tuple(name for name in names if name not in _NO_TRACE_NEEDED), why)
    else:
        yield from _not_traced(sheet)
    if "arrivals" in names and not _rows(sheet, "arrivals") and not _rows(sheet, "stalled"):
        yield Missing(_DUMPS, "no dumps of the flight recorder, which a job writes that hangs")
    answered = {name for name in _RECORDED if name in names and _num_rows(sheet.report(name))}
    of_trace = {"step_profile"} if _rows(sheet, "step_kinds") else set()
    if "step_profile" in names and answered <= of_trace and not _rows(sheet, "step_phases"):
        why = "no unprofiled steps: a trace alone says where time goes, not how long a step takes without the profiler"
        yield Missing(tuple(name for name in _RECORDED if name not in answered), why)
    for unknown in sheet.unknown:
        what = dict.fromkeys((*_analyses_of(sheet, unknown.argument), unknown.what))
        yield Missing(tuple(what), f"not recorded ({unknown.argument})")


def _not_traced(sheet: Sheet) -> Iterator[Missing]:
    source, caveats = sheet.source, {caveat.code: caveat.text for caveat in sheet.all_caveats}
    is_lost = _LOST_DEVICE in caveats and not _rows(sheet, "devices")
    if _LOST_DEVICE in caveats:
        yield Missing((*_DEVICE, *_WAITS_FOR_DEVICE) if is_lost else ("some ranks",), caveats[_LOST_DEVICE])
    elif source.device == "cpu":
        yield Missing(_DEVICE, "the trace is of a CPU: no device did any work")
    elif why := _no_efficiency(sheet):
        yield Missing(("efficiency",), why)
    if _LOST_HOST in caveats:
        yield Missing(("phases", "host", "modules"), caveats[_LOST_HOST])
    if len(source.ranks) == 1:
        others = f"only rank {source.ranks[0]} of {source.world_size} was read"
        alone = "only one rank was read, and the trace names no others"
        yield Missing(_SEVERAL_RANKS, f"{others if source.world_size > 1 else alone}: ranks cannot be compared")
    if [row["name"] for row in _rows(sheet, "steps")] == [_MARKLESS] * len(source.ranks):
        yield Missing(("steps",), "no whole step is marked (profiler.step()): the whole trace counts as one")
    if (lines := [row["line"] for row in _rows(sheet, "syncs")]) and not any(lines):
        yield Missing(("lines of syncs",), "no Python stacks are recorded (with_stack=True)")


def _no_efficiency(sheet: Sheet) -> str:
    """Return why no rank has an MFU; "" where one has."""
    rows = _rows(sheet, "efficiency")
    if any(row["mfu_pct"] is not None for row in rows):
        return ""
    if any(row["model_flops"] for row in rows):
        return f"the peaks of '{sheet.source.device}' are not known (--peak bf16=989), or wrong"
    return "no shapes of matrix products are recorded (record_shapes=True)"


def _analyses_of(sheet: Sheet, argument: str) -> tuple[str, ...]:
    """Return the analyses that have nothing to say without what an argument of the profiler records."""
    return tuple(
        report.name
        for report in sheet.reports
        if any(unknown.argument == argument for unknown in report.unknown)
        and (report.name == _MODULES or not _num_rows(report))
    )


def _num_counted(steps: Sequence[Mapping[str, Cell]]) -> int:
    """Return how many steps are in means: those of a rank that are not partial, or its only one."""
    complete = Counter(row["rank"] for row in steps if not row["partial"])
    return sum(complete[rank] or 1 for rank in {row["rank"] for row in steps})


def _num_rows(report: Report) -> int:
    return sum(len(table.rows) for table in (*report.tables, *report.views))


def _rows(sheet: Sheet, key: str) -> Sequence[Mapping[str, Cell]]:
    return next((table.to_dicts() for report in sheet.reports for table in report.tables if table.key == key), [])
