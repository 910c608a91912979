"""Tools about two runs: whether the difference matters, and what causes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta

from traceq.agent_tools.answer import CANNOT_TELL, Answer, Rows, Tool, command_line, findings_of, rows_of
from traceq.agent_tools.looked import read_from
from traceq.agent_tools.readings import Readings
from traceq.compare.result import Cause, Diff
from traceq.errors import UsageFault
from traceq.runs.memory_snapshot import is_memory_snapshot
from traceq.snapshots.compare import snapshot_diff
from traceq.threshold import THRESHOLD_PCT

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
