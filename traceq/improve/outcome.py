"""The outcome: what each remedy should gain and what it gained, as a table, as sentences and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from traceq.claims.claim import Claim
from traceq.claims.saying import lead_of
from traceq.frozen import frozen
from traceq.improve.candidates import Candidate, gain_ns, line_of, remedy_of
from traceq.improve.sentences import LINES, VERDICTS
from traceq.report import Table, column
from traceq.units import Unit, format_ends, format_value

if TYPE_CHECKING:
    from traceq.compare.result import Diff
    from traceq.model import Manifest
    from traceq.stats import Comparison


@frozen
class Trial:
    """A remedy and what came of it; `verdict` is a key of `VERDICTS`.

    `predicted_ns` is what a step should gain; `measured_ns` what it gains by the 95 % interval, and `estimate_ns`, of
    steps as they are that take `step_ns`; None where unknown. `loss`: how the arm's differs. `line` is that of the
    script where `code` would go, 0 where it is not known; `why` an arm has no verdict. `cpu_ns`: what the main thread's
    CPU time gains, where that is decided, and the step's time is not.
    """

    toggle: str
    value: str
    verdict: str
    lead: str = ""
    predicted_ns: tuple[int, int] | None = None
    predicted_by: str = ""
    measured_ns: tuple[int, int] | None = None
    estimate_ns: int | None = None
    cpu_ns: tuple[int, int] | None = None
    step_ns: int = 0
    loss: str = ""
    code: str = ""
    line: int = 0
    why: str = ""

    @property
    def name(self) -> str:
        """As the option of an arm: `@optimizer=fused`."""
        return f"{self.toggle}={self.value}"


@frozen
class Lead:
    """A claim that nothing that gains answers: its code, what it says, and what a step would gain."""

    code: str
    text: str
    predicted_ns: tuple[int, int]


@frozen
class _Row:
    """A row of the table of remedies; both ends of an interval are in one cell."""

    remedy: str = column("remedy")
    predicted: str = column("should save", Unit.NS)
    predicted_share: str = column("of a step", Unit.PERCENT)
    measured: str = column("saves (95 % CI)", Unit.NS)
    measured_share: str = column("of a step", Unit.PERCENT)
    verdict: str = column()


@frozen
class Outcome:
    """What was tried, best first, and what those that were started `afresh` gain `together`, as one arm.

    `script` is its path, `step_ns` a step of the job as it is; `minutes` how long all of it took.
    """

    command: str
    script: str
    step_ns: int
    trials: tuple[Trial, ...]
    afresh: tuple[Trial, ...] = ()
    together: Trial | None = None
    leads: tuple[Lead, ...] = ()
    minutes: float = 0.0
    schema: str = "traceq.improve/1"

    @property
    def table(self) -> Table:
        """Remedies, what they should save and what they save."""
        rows = [_row(trial, self.step_ns) for trial in self.trials]
        if self.together is not None:
            rows.append(replace(_row(self.together, self.step_ns), remedy=LINES["together"]))
        title = LINES["title"].format(step=format_value(self.step_ns, Unit.NS))
        return Table.of("remedies", title, _Row, tuple(rows))

    @property
    def gaining(self) -> tuple[Trial, ...]:
        """Trials that make the step shorter beyond doubt: by themselves, or all that were started afresh."""
        is_confirmed = self.together is not None and self.together.verdict == "gains"
        return tuple(trial for trial in self.afresh if is_confirmed or trial.verdict == "gains")

    def lines(self) -> Iterator[str]:
        """Yield what to change, and what remains."""
        for trial in self.gaining:
            template = LINES["change_at" if trial.line else "change"]
            yield template.format(remedy=trial.name, script=self.script, line=trial.line, code=trial.code)
            if trial.loss:
                yield LINES["loss"].format(remedy=trial.name, loss=trial.loss)
        names = ", ".join(trial.name for trial in self.afresh)
        if self.together is not None and self.together.measured_ns is not None:
            saves, share = _saved(self.together.measured_ns, self.together.step_ns)
            yield LINES[self.together.verdict].format(remedy=names, saves=saves, share=share)
        by_cpu = {trial.name: trial.cpu_ns for trial in self.trials}
        by_cpu |= {names: self.together.cpu_ns} if self.together else {}
        for name, cpu_ns in by_cpu.items():
            if cpu_ns is not None:
                yield LINES["cpu"].format(remedy=name, saves=format_ends(*cpu_ns, Unit.NS))
        if not self.gaining:
            is_tried = any(trial.verdict != "hopeless" for trial in self.trials)
            yield LINES["nothing_gains" if is_tried else "nothing_to_try"]
        for lead in self.leads:
            yield LINES["lead"].format(lead=lead.text, gain=format_ends(*lead.predicted_ns, Unit.NS))


def trials_of(tried: Sequence[Candidate], diffs: Sequence[Diff], manifest: Manifest, source: str) -> tuple[Trial, ...]:
    """Return the candidates that ran, those that save most first; `source` is that of the script."""
    by_arm = {diff.b_name: diff for diff in diffs}
    arms = {(name, value): arm for arm in manifest.arms for name, value in arm.varied.items()}
    trials = []
    for each in tried:
        arm, remedy = arms[each.toggle, each.value], remedy_of(each.toggle, each.value)
        trial = replace(
            _untried(each, "not_measured"),
            code=remedy.code,
            line=line_of(remedy.pattern, source),
            loss=str(manifest.environment.get(f"loss.{arm.name}", "")),
            why=arm.failure,
        )
        trials.append(trial if arm.status else _measured(trial, by_arm.get(arm.name)))
    return tuple(sorted(trials, key=lambda trial: (trial.estimate_ns is None, -(trial.estimate_ns or 0))))


def not_tried(candidates: Sequence[Candidate], verdict: str) -> tuple[Trial, ...]:
    """Return candidates that did not run, as `hopeless` or beyond the time (`no_time`)."""
    return tuple(_untried(each, verdict) for each in candidates)


def _untried(each: Candidate, verdict: str) -> Trial:
    return Trial(each.toggle, each.value, verdict, each.lead, each.predicted_ns, each.predicted_by)


def promising(trials: Sequence[Trial]) -> tuple[Trial, ...]:
    """Return the trials to start afresh: of each toggle that gains the best value, else one that is not decided.

    What may gain too little to matter is among the former; of the latter an answer to a lead comes before the best.
    """
    of_toggle: dict[str, Trial] = {}
    for trial in trials:
        if trial.verdict in ("gains", "may_gain"):
            of_toggle.setdefault(trial.toggle, trial)
    is_open = (trial for trial in trials if trial.verdict == "not_decided" and (trial.estimate_ns or 0) > 0)
    return tuple(of_toggle.values()) or tuple(sorted(is_open, key=lambda trial: not trial.lead)[:1])


def together_trial(diff: Diff | None) -> Trial:
    """Return all that gains as one trial, by a comparison of its own."""
    return _measured(Trial("", "", "not_decided"), diff)


def leads_of(claims: Sequence[Claim], traced: float = 1.0) -> tuple[Lead, ...]:
    """Return claims that have a gain as leads, for steps without the profiler (`gain_ns`)."""
    gains = ((claim, gain_ns(claim, traced)) for claim in claims)
    return tuple(Lead(claim.code, lead_of(claim), ends_ns) for claim, ends_ns in gains if ends_ns)


_NAMES = {
    "material": ("gains", "costs"),
    "detectable": ("may_gain", "not_decided"),
    "inconclusive": ("not_decided", "not_decided"),
    "in_the_noise": ("in_the_noise", "in_the_noise"),
}
"""Verdicts by those of a comparison, where B is faster, and where it is slower."""


def _measured(trial: Trial, diff: Diff | None) -> Trial:
    """Return a trial with what a comparison knows."""
    comparison = diff.comparison if diff else None
    if comparison is None or comparison.ci95_ns is None:
        return replace(trial, verdict="not_decided")
    saves, costs = _NAMES[comparison.verdict.name]
    cpu = diff.cpu if diff and comparison.verdict.is_open and diff.cpu and diff.cpu.verdict.is_final else None
    return replace(
        trial,
        verdict=saves if comparison.delta_ns < 0 else costs,
        measured_ns=_saved_ns(comparison),
        cpu_ns=_saved_ns(cpu) if cpu else None,
        estimate_ns=-round(comparison.delta_ns),
        step_ns=round(comparison.a_ns),
    )


def _saved_ns(comparison: Comparison) -> tuple[int, int] | None:
    """Return the 95 % interval as what is saved."""
    low, high = comparison.ci95_ns or (0, 0)
    return (-round(high), -round(low)) if comparison.ci95_ns else None


def _row(trial: Trial, step_ns: int) -> _Row:
    verdict = trial.why or VERDICTS[trial.verdict]
    return _Row(trial.name, *_saved(trial.predicted_ns, step_ns), *_saved(trial.measured_ns, trial.step_ns), verdict)


def _saved(ends_ns: tuple[int, int] | None, step_ns: int) -> tuple[str, str]:
    """Return (`1.2 to 1.4 ms`, `3.1 to 3.5 %`, of a step); "" where it is not known."""
    if ends_ns is None:
        return "", ""
    least, most = (100 * ns / max(step_ns, 1) for ns in ends_ns)
    return format_ends(*ends_ns, Unit.NS), format_ends(least, most, Unit.PERCENT)
