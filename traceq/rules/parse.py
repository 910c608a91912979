"""Parser of rules: `METRIC [mean|median|p95|max|min] [in PHASE] [per step] OP NUMBER[UNIT]`, one without a number.

A file of rules is TOML: `rules = ["..."]`, and `[[rule]]` tables with `rule` and `why`.
"""

from __future__ import annotations

import operator
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from enum import Enum
from fractions import Fraction
from pathlib import Path
from statistics import mean, median
from typing import NoReturn

from traceq.errors import UnreadableInput, UsageFault
from traceq.facts.comm.collectives import COLLECTIVE_NAMES
from traceq.facts.events.copies import DIRECTIONS
from traceq.facts.ranks.exposed_waits import EXPOSED_TRANSFER, EXPOSED_WAIT
from traceq.facts.stalls.syncs import SYNC_KINDS
from traceq.facts.timeline.time_partition import BUSY, TimeCategory
from traceq.frozen import frozen
from traceq.locations import Most, read_whole
from traceq.rules.sentences import EXPECTED, IDENTICAL, IN_FILE
from traceq.units import Unit


class Measure(Enum):
    """Kind of number that a rule compares with, by its unit; the value reads after "expected"."""

    COUNT = "a number without a unit (0)"
    BYTES = "a size (2 GiB)"
    NS = "a time (3 ms)"
    SHARE = "a share of the step (5 %)"


UNITS = {Measure.COUNT: Unit.MEAN, Measure.BYTES: Unit.BYTES, Measure.NS: Unit.NS, Measure.SHARE: Unit.PERCENT}
"""Units in which values are written, by what a rule compares with."""


@frozen
class Metric:
    """Rows of `table` whose `key` is one of `values` (all rows without a key), and the column to sum for each measure.

    `phase_key` is the column that names the phase, "" where rows have none. `is_ratio`: the only row has the value
    itself, in percent, and a bound without a unit is a share of 1. `on_device`: to answer, a trace must have device
    work, or none: else every number would be 0 and every `== 0` would pass; None where either does.
    """

    table: str
    columns: Mapping[Measure, str]
    key: str = ""
    values: tuple[str, ...] = ()
    on_device: bool | None = None
    phase_key: str = "phase"
    is_ratio: bool = False

    @property
    def by_step(self) -> bool:
        """Whether the table has rows for each step, so that a median or a maximum over steps exists."""
        return self.table == "partition"

    @property
    def accepts(self) -> str:
        """Numbers a rule can compare it with."""
        return " or ".join(measure.value for measure in self.columns)


_SIZED = {Measure.COUNT: "num", Measure.BYTES: "bytes"}
_TIMED = {Measure.NS: "dur_ns", Measure.SHARE: "dur_ns"}
_ON_CPU_ONLY = (TimeCategory.CPU_COMPUTE, TimeCategory.DATALOAD_WAIT, TimeCategory.PYTHON)
_ANYWHERE = (TimeCategory.EXPOSED_COMM, TimeCategory.COMPILING)


def _sync(kind: str) -> Metric:
    return Metric("syncs", _SIZED, "kind", (kind,), kind != "scalar")


def _utilisation(column: str) -> Metric:
    return Metric("efficiency", {Measure.SHARE: column}, phase_key="", is_ratio=True)


def _time(*categories: TimeCategory) -> Metric:
    """Return the time of each step in some categories; exposed communication and compiling need no device."""
    on_device = None if set(categories) <= set(_ANYWHERE) else not set(categories) <= set(_ON_CPU_ONLY)
    names = tuple(category.name.lower() for category in categories)
    if categories == (TimeCategory.EXPOSED_COMM,):
        names = (*names, EXPOSED_WAIT, EXPOSED_TRANSFER)  # its two parts, of several ranks
    return Metric("partition", _TIMED, "category", names, on_device)


METRICS: Mapping[str, Metric] = {
    **{kind: _sync(kind) for kind in SYNC_KINDS},
    "syncs": Metric("syncs", _SIZED),
    "sync_cost": Metric("syncs", {Measure.NS: "cost_ns", Measure.SHARE: "cost_ns"}, on_device=True),
    **{name: Metric("collectives", _SIZED, "name", (name,)) for name in COLLECTIVE_NAMES},
    "collectives": Metric("collectives", _SIZED),
    **{
        f"{kind.lower()}_copies": Metric("memcpy", _SIZED, "kind", (kind,), on_device=True, phase_key="")
        for kind in DIRECTIONS
    },
    "copies": Metric("memcpy", _SIZED, on_device=True, phase_key=""),
    "kernels": Metric("kernels", {Measure.COUNT: "num"}, on_device=True),
    "gpu_ops": Metric("phases", {Measure.COUNT: "num_gpu_ops"}, on_device=True, phase_key="name"),
    "mfu": _utilisation("mfu_pct"),
    "hfu": _utilisation("hfu_pct"),
    "step": Metric("partition", _TIMED),
    "gpu_busy": _time(*BUSY),
    **{category.name.lower(): _time(category) for category in TimeCategory},
}
"""All metrics by name. Copies are those the device carried out; `dtoh` and `htod` those the host waited for."""


def over_steps(statistic: str, ns: Mapping[int, int], windows: Mapping[int, int], *, is_share: bool) -> Fraction:
    """Return a statistic over steps of their times, or of their shares of the steps' windows; both ns by step.

    A mean share is the share of all steps together.
    """
    if is_share and statistic == "mean":
        return Fraction(sum(ns.values()), sum(windows.values()))
    divisors = windows if is_share else dict.fromkeys(windows, 1)
    return STATISTICS[statistic](sorted(Fraction(ns[index], divisors[index]) for index in windows))


def _p95(values: Sequence[Fraction]) -> Fraction:
    """Return the nearest rank of sorted values, which is their maximum where there are fewer than 20."""
    return values[-(-95 * len(values) // 100) - 1]


STATISTICS: Mapping[str, Callable[[Sequence[Fraction]], Fraction]] = {
    "mean": mean,
    "median": median,
    "p95": _p95,
    "max": max,
    "min": min,
}
"""Statistics of sorted values, by the word in a rule."""


_OPERATORS: dict[str, Callable[[Fraction, Fraction], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    "<": operator.lt,
    ">=": operator.ge,
    ">": operator.gt,
}
_UNITS = {
    "": (Measure.COUNT, Fraction(1)),
    "ns": (Measure.NS, Fraction(1)),
    "us": (Measure.NS, Fraction(10**3)),
    "ms": (Measure.NS, Fraction(10**6)),
    "s": (Measure.NS, Fraction(10**9)),
    "B": (Measure.BYTES, Fraction(1)),
    "KiB": (Measure.BYTES, Fraction(2**10)),
    "MiB": (Measure.BYTES, Fraction(2**20)),
    "GiB": (Measure.BYTES, Fraction(2**30)),
    "kB": (Measure.BYTES, Fraction(10**3)),
    "MB": (Measure.BYTES, Fraction(10**6)),
    "GB": (Measure.BYTES, Fraction(10**9)),
    "%": (Measure.SHARE, Fraction(1, 100)),
}
_WORD = re.compile(r'"[^"]*"|[=!<>]+|[^\s"=!<>]+|\S')
_LONGEST = 200
"""Characters of a rule that a message repeats."""

_NUMBER = re.compile(r"(?P<number>\d{1,30}(?:\.\d{1,30})?) ?(?P<unit>\S*)", re.ASCII)


@frozen
class Rule:
    """Comparison of a metric with `bound`: a count, bytes, ns, or a share from 0 to 1.

    `phase` is "" for the whole trace; `why` is printed when the rule is broken.
    """

    text: str
    metric: str
    statistic: str
    phase: str
    per_step: bool
    comparison: str
    bound: Fraction
    measure: Measure
    why: str = ""

    @property
    def has_number(self) -> bool:
        """Whether a metric is compared with a number: all but the rule about the collectives of all ranks."""
        return self.metric in METRICS

    def holds(self, value: Fraction) -> bool:
        """Return whether the comparison is true; exact."""
        return _OPERATORS[self.comparison](value, self.bound)


def parse(text: str, why: str = "") -> Rule:
    """Return the rule of a text. Raises UsageFault, which names the rule, what was found and what is expected."""
    text = " ".join(text.split())
    if text == IDENTICAL:
        return Rule(text, IDENTICAL, "mean", "", False, "==", Fraction(0), Measure.COUNT, why)
    words = _WORD.findall(text)
    split = next((index for index, word in enumerate(words) if word[0] in "=!<>"), len(words))
    subject, comparison, number = words[:split], "".join(words[split : split + 1]), " ".join(words[split + 1 :])
    name = subject.pop(0) if subject else ""
    if name not in METRICS:
        _refuse(text, f"'{name}'" if name else "no metric", _choice("a metric", name, METRICS))
    if "identical" in subject:
        _refuse(text, f"'{' '.join(words[1:])}'", f"'{IDENTICAL}'")
    if comparison not in _OPERATORS:
        _refuse(text, f"'{comparison}'" if comparison else "no comparison", " ".join(_OPERATORS))
    metric = METRICS[name]
    statistic = subject.pop(0) if subject and subject[0] in STATISTICS else ""
    per_step = subject[-2:] == ["per", "step"]
    phase = _phase(text, subject[:-2] if per_step else subject)
    if statistic and not metric.by_step:
        _refuse(text, f"'{statistic}'", EXPECTED["no_statistic"].format(metric=name))
    if phase and not metric.phase_key:
        instead = "of_whole_step" if metric.is_ratio else "no_phases"
        _refuse(text, f"'in {phase}'", EXPECTED[instead].format(metric=name))
    bound, measure = _bound(text, number, metric)
    return Rule(text, name, statistic or "mean", phase, per_step, comparison, bound, measure, why)


def closest_name(word: str, names: Iterable[str]) -> str:
    """Return the name that a misspelt word most likely means, "" where none is close; case does not count."""
    by_folded = {name.casefold(): name for name in names}
    close = get_close_matches(word.casefold(), by_folded, n=1)
    return by_folded[close[0]] if close else ""


def _phase(text: str, words: list[str]) -> str:
    phase = " ".join(words[1:]).strip('"')
    if words and (words[0] != "in" or not phase):
        _refuse(text, f"'{' '.join(words)}'", EXPECTED["order"])
    return phase


def _bound(text: str, number: str, metric: Metric) -> tuple[Fraction, Measure]:
    parsed = _NUMBER.fullmatch(number)
    if parsed is None:
        _refuse(text, f"'{number}'" if number else "no number", metric.accepts)
    unit = parsed["unit"]
    if unit not in _UNITS:
        _refuse(text, f"'{unit}'", _choice("a unit", unit, filter(None, _UNITS)))
    measure, size = _UNITS[unit]
    bound = Fraction(parsed["number"]) * size
    if measure is Measure.COUNT and (bound == 0 or metric.is_ratio):
        measure = next(iter(metric.columns))
    if measure not in metric.columns:
        _refuse(text, f"'{number}'", metric.accepts)
    return bound, measure


def _choice(what: str, word: str, names: Iterable[str]) -> str:
    names = tuple(names)
    close = closest_name(word, names)
    return f"{what}; did you mean '{close}'?" if close else f"{what}: {' '.join(names)}"


def _refuse(text: str, actual: str, expected: str) -> NoReturn:
    raise UsageFault(f"rule '{_cut(text)}': found {_cut(actual)}; expected {expected}")


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def read_rules(path: Path) -> tuple[Rule, ...]:
    """Return all rules of a TOML file, in order. Raises UnreadableInput, and UsageFault for an invalid rule."""
    try:
        content = tomllib.loads(read_whole(path, Most.RULES).decode())
    except OSError as fault:
        raise UnreadableInput(str(path), fault.strerror or str(fault), "a TOML file of rules") from None
    except RecursionError:
        raise UsageFault(IN_FILE["nested"].format(path=path)) from None
    except ValueError as fault:  # of TOML, UTF-8, or a number of thousands of digits
        raise UsageFault(f"{path}: {fault}; expected TOML") from None
    texts, tables = content.pop("rules", []), content.pop("rule", [])
    is_list = isinstance(texts, list) and all(isinstance(text, str) for text in texts)
    is_tables = isinstance(tables, list) and all(_is_rule(table) for table in tables)
    if content or not is_list or not is_tables or not (texts or tables):
        unexpected = f"found '{next(iter(content))}'; " if content else ""
        raise UsageFault(IN_FILE["no_rules"].format(path=path, found=unexpected))
    try:
        return (*map(parse, texts), *(parse(table["rule"], table.get("why", "")) for table in tables))
    except UsageFault as fault:
        raise UsageFault(f"{path}: {fault}") from None


def _is_rule(table: object) -> bool:
    if not isinstance(table, dict) or "rule" not in table or not table.keys() <= {"rule", "why"}:
        return False
    return all(isinstance(value, str) for value in table.values())
