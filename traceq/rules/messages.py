"""Wording of the outcome of rules: a line for people, an annotation for GitHub, numbers with their unit."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from fractions import Fraction
from pathlib import Path

from traceq.errors import TraceqError
from traceq.escaping import visible
from traceq.frozen import frozen
from traceq.locations import Most, read_whole
from traceq.rules.evaluate import RankValue, RuleOutcome, State
from traceq.rules.parse import UNITS, Measure, Rule
from traceq.units import format_value

_LINE = re.compile(r"^(?P<file>[^/:]+\.py):(?P<line>[0-9]{1,7}) (?P<function>.+)")
_MOST_FILES = 100_000
"""Files of a tree that are looked through: about a second. What a larger tree holds is not known to be unique."""


@frozen
class _SourceLine:
    """A line of a file, whose path is relative to the working tree."""

    file: str
    line: int


class SourceTree:
    """Python files of the checkout of a CI job that is in one (GITHUB_WORKSPACE), else below the working directory.

    Without hidden folders and environments. It is looked through when a line is first asked for.
    """

    def __init__(self) -> None:
        self._root = Path()
        self._files: Mapping[str, list[Path]] | None = None

    def line_of(self, outcome: RuleOutcome) -> _SourceLine | None:
        """Return the line of the largest cause that has one in this tree."""
        causes = outcome.shown.causes if outcome.shown else ()
        return next(filter(None, (self.find(cause.line) for cause in causes)), None)

    def find(self, recorded: str) -> _SourceLine | None:
        """Return `train.py:41 forward` with its path; None unless exactly one file of that name has that line."""
        match = _LINE.fullmatch(recorded)
        if match is None:
            return None
        if self._files is None:
            self._files = {}
            with suppress(FileNotFoundError):  # the working directory is gone
                self._root = _root()
                self._files = _by_name(self._root)
        number = int(match["line"])
        holding = [path for path in self._files.get(match["file"], ()) if _has(path, number, match["function"])]
        return _SourceLine(holding[0].relative_to(self._root).as_posix(), number) if len(holding) == 1 else None


_MANY_RANKS = 16
_BASE_UNITS = {Measure.COUNT: "", Measure.BYTES: "B", Measure.NS: "ns", Measure.SHARE: "%"}


def line(outcome: RuleOutcome, path: str = "") -> str:
    """Return `ok     dtoh in forward == 0`, or the value that breaks the rule; `path` where there are several."""
    where = f"{path}: " if path else ""
    if outcome.holds:
        return f"ok     {where}{outcome.rule.text}"
    return f"{outcome.state.upper():6} {where}{complaint(outcome)}"


def annotation(outcome: RuleOutcome, path: str, source: _SourceLine | None = None) -> str:
    """Return the workflow command that shows a rule that does not hold on the pull request, at a line if it has one."""
    where = f"file={_escaped(source.file, ':,')},line={source.line}," if source else ""
    return f"::error {where}title=traceq check::{_escaped(f'{path}: {complaint(outcome)}')}"


def complaint(outcome: RuleOutcome) -> str:
    """Return the rule and why it does not hold, in one line."""
    rule = outcome.rule
    why = f"; {rule.why}" if rule.why else ""
    if outcome.mismatch or outcome.state is State.CANNOT_TELL:
        return visible(f"{rule.text}: {outcome.mismatch or outcome.unanswered}{why}")
    worst = outcome.breaches[0]
    others = sorted(breach.rank for breach in outcome.breaches[1:])
    named = f"rank {', '.join(map(str, others))}" if len(others) < _MANY_RANKS else f"{len(others)} other ranks"
    also = f"; also broken on {named}" if others else ""
    # a line break before `::` would be a command to GitHub
    return visible(f"{rule.text}: {measured(outcome)}{_causes(rule, worst)}{also}{why}")


def measured(outcome: RuleOutcome) -> str:
    """Return the value of the rank to show, `2 on rank 0`; what the state is where there is none."""
    shown = outcome.shown
    return f"{_value_text(outcome.rule, shown.value)} on rank {shown.rank}" if shown else str(outcome.state)


def _causes(rule: Rule, breach: RankValue) -> str:
    causes = [f"{_amount(rule, cause.value)} {cause.name}" for cause in breach.causes]
    more = [f"{breach.num_more_causes} more"] if breach.num_more_causes else []
    return f" ({', '.join([*causes, *more])})" if causes else ""


def _value_text(rule: Rule, value: Fraction) -> str:
    """Return the value, with every digit where it would read like the bound that it misses."""
    text = _amount(rule, value)
    if value == rule.bound or text != _amount(rule, rule.bound):
        return text
    unit = unit_of(rule)
    return f"{number(rule, value):,.12g}" + (f" {unit}" if unit else "")


def _amount(rule: Rule, value: Fraction) -> str:
    return format_value(number(rule, value), UNITS[rule.measure])


def number(rule: Rule, value: Fraction) -> int | float:
    """Return a value of the rule in its unit; an integer where it is one."""
    exact = 100 * value if rule.measure is Measure.SHARE else value
    is_whole = exact.denominator == 1 and abs(exact) < 1 << 53  # what JSON holds exactly
    return exact.numerator if is_whole else float(exact)


def unit_of(rule: Rule) -> str:
    """Return the unit of the numbers of a rule: "" for a count, `B`, `ns`, `%`."""
    return _BASE_UNITS[rule.measure]


def _escaped(text: str, more: str = "") -> str:
    """Return a text as workflow commands have it; in values of properties ':' and ',' are escaped, too."""
    return "".join(f"%{ord(each):02X}" if each in f"%\r\n{more}" else each for each in text)


def _root() -> Path:
    here, workspace = Path.cwd(), os.environ.get("GITHUB_WORKSPACE")
    root = Path(workspace).resolve() if workspace else here
    return root if here.is_relative_to(root) else here


def _by_name(root: Path) -> Mapping[str, list[Path]]:
    """Return the Python files below a folder by name; none of a folder that has too many files."""
    files: dict[str, list[Path]] = {}
    num_files = 0
    for folder, folders, names in os.walk(root):
        num_files += len(names)
        if num_files > _MOST_FILES:
            return {}
        if "pyvenv.cfg" in names:
            folders.clear()
            continue
        folders[:] = (each for each in folders if not each.startswith("."))
        for name in names:
            if name.endswith(".py"):
                files.setdefault(name, []).append(Path(folder, name))
    return files


def _has(path: Path, number: int, function: str) -> bool:
    """Return whether a file has a line of that number, and defines the function."""
    try:
        text = read_whole(path, Most.SOURCE).decode(errors="replace")
    except (OSError, TraceqError):
        return False
    is_defined = not function.isidentifier() or re.search(rf"\bdef {function}\b", text)
    return bool(is_defined) and number <= text.count("\n") + (not text.endswith("\n"))
