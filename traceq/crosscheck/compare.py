"""Three opinions side by side; a disagreement is explained only by a rule that predicts the other tool's number."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from traceq.crosscheck.opinions import (
    QUANTITIES,
    Classes,
    HtaOpinion,
    Opinion,
    PerfettoOpinion,
    Quantity,
    ask_hta,
    ask_perfetto,
    classes,
    quantities,
)
from traceq.facts.events.device_work import device_work
from traceq.grouping import group
from traceq.model import Category, Trace
from traceq.units import Unit

_ROUNDING_NS, _ROUNDING_PCT = 2_000, 0.01
"""HTA counts in float64 microseconds, and rounds shares to a hundredth of a percent."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One tool's number; `reasons` are indices of `Crosscheck.reasons` that explain it where it is not traceq's.

    None as reasons: nothing explains it.
    """

    number: float | None
    agrees: bool = True
    reasons: tuple[int, ...] | None = ()

    def to_dict(self, reasons: tuple[str, ...]) -> dict[str, object]:
        """Return the answer for JSON, its reasons as sentences."""
        why = None if self.reasons is None else [reasons[index] for index in self.reasons]
        return {"number": _or_none(self.number), "agrees": self.agrees, "reasons": why}


@dataclass(frozen=True, slots=True)
class Row:
    """One quantity as each tool counts it."""

    quantity: Quantity
    ours: float
    hta: Answer
    perfetto: Answer


@dataclass(frozen=True, slots=True)
class Crosscheck:
    """All quantities, and the reasons for disagreements."""

    tools: tuple[str, str]
    rows: tuple[Row, ...]
    reasons: tuple[str, ...]
    failed: tuple[str, ...]

    @property
    def unexplained(self) -> list[str]:
        """Titles of quantities on which a tool disagrees without a reason."""
        return [row.quantity.title for row in self.rows if None in (row.hta.reasons, row.perfetto.reasons)]

    @property
    def summary(self) -> str:
        """How many numbers agree, in one sentence."""
        answers = [answer for row in self.rows for answer in (row.hta, row.perfetto) if answer.number is not None]
        num_agree, num_open = (
            sum(answer.agrees for answer in answers),
            sum(answer.reasons is None for answer in answers),
        )
        if not answers:
            return "Nobody else was asked."
        explained = len(answers) - num_agree - num_open
        rest = [
            f"{explained} differ for the reasons above" * bool(explained),
            f"{num_open} unexplained" * bool(num_open),
        ]
        return ", ".join([f"{num_agree} of {len(answers)} numbers agree", *filter(None, rest)]) + "."

    def to_dict(self) -> dict[str, object]:
        """Return all of it for JSON; times in ns, null where a tool does not tell a number."""
        return {
            "tools": ["traceq", *self.tools],
            "quantities": [
                {
                    "quantity": row.quantity.key,
                    "traceq": _or_none(row.ours),
                    "hta": row.hta.to_dict(self.reasons),
                    "perfetto": row.perfetto.to_dict(self.reasons),
                }
                for row in self.rows
            ],
            "failed": list(self.failed),
            "unexplained": self.unexplained,
        }


def _or_none(number: float | None) -> float | None:
    return None if number is None or math.isnan(number) else number


@dataclass(frozen=True, slots=True)
class _Rule:
    """Something that a tool does otherwise, as one sentence."""

    key: str
    sentence: str


def crosscheck(trace: Trace, path: Path, binary: Path | None = None) -> Crosscheck:
    """Return what traceq, HTA and Perfetto say about the trace in a file; `binary` is Perfetto's engine."""
    ours, hta, perfetto = quantities(trace), ask_hta(path), ask_perfetto(path, binary)
    reasons: list[str] = []
    by_hta = _explained(ours, hta, *_hta_rules(trace, hta), reasons)
    by_perfetto = _explained(ours, perfetto, *_perfetto_rules(trace, perfetto), reasons)
    rows = [Row(of, ours[of.key], by_hta[of.key], by_perfetto[of.key]) for of in QUANTITIES]
    failed = [f"{opinion.tool} {why}" for opinion in (hta, perfetto) for why in opinion.failed]
    return Crosscheck((hta.tool, perfetto.tool), tuple(rows), tuple(reasons), tuple(failed))


_Predict = Callable[[frozenset[str]], tuple[Mapping[str, float], Mapping[str, float]]]
"""(our numbers, theirs) where traceq does as the tool by some rules, and the tool as traceq by others."""


def _explained(
    ours: Mapping[str, float], opinion: Opinion, rules: list[_Rule], predict: _Predict, reasons: list[str]
) -> dict[str, Answer]:
    """Return each quantity's answer with the fewest rules that explain it; their sentences join the reasons."""
    answers = {of.key: Answer(opinion.numbers.get(of.key)) for of in QUANTITIES}
    open_keys = {of for of in QUANTITIES if not _agree(of, ours[of.key], opinion.numbers.get(of.key))}
    for chosen in _subsets(rules):
        if not open_keys:
            break
        of_traceq, of_tool = predict(frozenset(rule.key for rule in chosen))
        for of in sorted(open_keys, key=QUANTITIES.index):
            if _agree(of, of_traceq[of.key], of_tool.get(of.key)):
                open_keys.discard(of)
                answers[of.key] = Answer(
                    opinion.numbers[of.key], False, tuple(_index(reasons, rule) for rule in chosen)
                )
    for of in open_keys:
        answers[of.key] = Answer(opinion.numbers.get(of.key), False, None)
    return answers


def _subsets(rules: list[_Rule]) -> Iterator[tuple[_Rule, ...]]:
    for size in range(1, len(rules) + 1):
        yield from combinations(rules, size)


def _index(reasons: list[str], rule: _Rule) -> int:
    if rule.sentence not in reasons:
        reasons.append(rule.sentence)
    return reasons.index(rule.sentence)


def _agree(of: Quantity, ours: float, theirs: float | None) -> bool:
    if theirs is None or (math.isnan(ours) and (math.isnan(theirs) or theirs == 0)):
        return True
    within = {Unit.NS: _ROUNDING_NS, Unit.PERCENT: _ROUNDING_PCT}.get(of.unit, 0)
    return abs(ours - theirs) <= within


def _hta_rules(trace: Trace, hta: HtaOpinion) -> tuple[list[_Rule], _Predict]:
    work, rules = device_work(trace), []
    unnamed = work.rows[trace.events.stream[work.rows] < 0]
    if len(unnamed):
        rules.append(_Rule("stream", f"HTA leaves out {len(unnamed):,} device rows that name no stream"))
    if num := int((~work.linked).sum()):
        rules.append(_Rule("launched", f"HTA leaves out {num:,} device rows whose launch the trace does not have"))
    if hta.device_numbers is not None:
        rules.append(
            _Rule("host", f"HTA counts {hta.num_of_host:,} rows of the host, which name a stream, as work of it")
        )
    of_hta = _hta_classes(trace, hta)
    of_traceq = classes(trace)
    differ = (of_traceq.computes != of_hta.computes) | (of_traceq.communicates != of_hta.communicates)
    if hta.kinds and differ.any():
        name = trace.events.strings[trace.events.name[work.rows[np.flatnonzero(differ)[0]]]]
        rules.append(_Rule("class", f"HTA puts {int(differ.sum()):,} kernels into another class, like {name[:60]}"))

    queues = np.array([name in hta.launches for name in trace.events.strings], np.bool_)[trace.events.name]
    calls = work.call[work.linked]
    if (others := np.flatnonzero(~queues[calls])).size:
        name = trace.events.strings[trace.events.name[calls[others[0]]]]
        rules.append(
            _Rule("queue", f"HTA's launch queue is without {len(others):,} rows launched by other calls, like {name}")
        )

    def predict(chosen: frozenset[str]) -> tuple[Mapping[str, float], Mapping[str, float]]:
        has = np.ones(len(trace.events), np.bool_)
        has[work.rows[~work.linked]] = "launched" not in chosen
        has[unnamed] &= "stream" not in chosen
        of, only = of_hta if "class" in chosen else of_traceq, queues if "queue" in chosen else None
        as_hta = quantities(trace, has, of, only)
        return as_hta, (hta.device_numbers or hta.numbers) if "host" in chosen else hta.numbers

    return rules, predict


def _hta_classes(trace: Trace, hta: HtaOpinion) -> Classes:
    """Return the classes as HTA sees them; kernels that it does not know stay as traceq sees them."""
    work, of_traceq = device_work(trace), classes(trace)
    names = trace.events.name[work.rows]
    kinds = np.full(len(trace.events.strings), "", dtype="U16")
    for number in np.flatnonzero(np.bincount(names, minlength=len(kinds))).tolist():
        kinds[number] = hta.kinds.get(trace.events.strings[number], "")
    kind, is_kernel = kinds[names], of_traceq.computes | of_traceq.communicates

    def of_kind(name: str, else_own: NDArray[np.bool_]) -> NDArray[np.bool_]:
        return is_kernel & np.where(kind == "", else_own, kind == name)

    return Classes(of_kind("COMPUTATION", of_traceq.computes), of_kind("COMMUNICATION", of_traceq.communicates))


def _perfetto_rules(trace: Trace, perfetto: PerfettoOpinion) -> tuple[list[_Rule], _Predict]:
    rules, num = [], perfetto.num_dropped
    if num:
        sentence = f"Perfetto drops {num:,} slices that overlap another one of their track in part, and says so"
        rules.append(_Rule("dropped", sentence))

    def predict(_: frozenset[str]) -> tuple[Mapping[str, float], Mapping[str, float]]:
        has = _kept(trace, perfetto)
        return quantities(trace, has if (~has).sum() <= num else None), perfetto.numbers

    return rules, predict


def _kept(trace: Trace, perfetto: PerfettoOpinion) -> NDArray[np.bool_]:
    """Return bool[N]: whether Perfetto kept each row of Events; other rows than device work and calls count as kept."""
    events, parts = trace.events, []
    for kind, category in enumerate((Category.KERNEL, Category.MEMCPY, Category.MEMSET, Category.RUNTIME)):
        rows = events.rows(category)
        parts.append(
            np.column_stack([events.ts[rows] - events.ts.min(), events.dur[rows], np.full(len(rows), kind), rows])
        )
    ours, theirs = np.concatenate(parts), perfetto.kept
    both = np.concatenate([theirs, ours[:, :3]])
    group_ids = group([both[:, 0], both[:, 1], both[:, 2]]).group_ids
    num_kept = np.bincount(group_ids[: len(theirs)], minlength=group_ids.max(initial=0) + 1)
    of_ours = group_ids[len(theirs) :]
    order = np.argsort(of_ours, kind="stable")
    first = np.searchsorted(of_ours[order], of_ours[order], "left")
    is_kept = np.arange(len(order)) - first < num_kept[of_ours[order]]  # as many of like rows as Perfetto has
    has = np.ones(len(events), np.bool_)
    has[ours[order, 3]] = is_kept
    return has
