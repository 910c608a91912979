"""Fixture for pytest that profiles a training step and checks rules on it.

def test_forward_does_not_sync(traceq_step):
    traceq_step(step).check("syncs in forward == 0")
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from traceq.model import Run


@dataclass(frozen=True, slots=True, repr=False)
class Sync:
    """Waits of one kind, at one line and in one phase: `num` of them in all profiled calls."""

    line: str
    op: str
    kind: str
    phase: str
    num: int

    def __repr__(self) -> str:
        return f"<{self.num:,} {self.kind} at {self.line or 'an unknown line'} in {self.phase} by {self.op}>"


@dataclass(frozen=True, slots=True)
class StepReport:
    """Profiled calls of a step; `traceq.analyze(report.run)` has all that is known about them."""

    run: Run

    @property
    def syncs(self) -> list[Sync]:
        """Calls in which the host waited for the device, or would wait with one; the costliest first."""
        from traceq.analysis.registry import analyze
        from traceq.rules.evaluate import integer

        return [
            Sync(
                str(row["line"]),
                str(row["op"] or row["call"]),
                str(row["kind"]),
                str(row["phase"]),
                integer(row, "num"),
            )
            for row in analyze(self.run, "syncs").table("syncs").to_dicts()
        ]

    def check(self, rule: str, *more: str) -> None:
        """Fail the test, with the lines to blame, unless these rules of `traceq check` hold."""
        __tracebackhide__ = True
        complaints = _complaints(self.run, (rule, *more))
        if complaints:
            pytest.fail("\n".join([*complaints, f"traceq open {self.run.traces[0].path}"]))


def _complaints(run: Run, texts: Sequence[str]) -> list[str]:
    """Return a line for each rule that is broken, or the one fault of a rule that cannot be parsed or answered."""
    from traceq.errors import TraceqError, UsageFault
    from traceq.rules.evaluate import judge_run
    from traceq.rules.messages import line
    from traceq.rules.parse import Measure, parse

    try:
        rules = [parse(text) for text in texts]
        for rule in rules:
            if rule.measure in (Measure.NS, Measure.SHARE):
                raise UsageFault(f"rule '{rule.text}': a watched step takes longer; use traceq check on a recording")
        return [line(outcome) for outcome in judge_run(run, rules) if not outcome.holds]
    except TraceqError as fault:
        return [str(fault)]


class TraceStep(Protocol):
    """The fixture `traceq_step`: a function that profiles a step."""

    def __call__(self, step: Callable[[], object], *, trace_steps: int = 3) -> StepReport:
        """Call the step twice to warm up, then `trace_steps` times under the profiler."""


@pytest.fixture
def traceq_step(tmp_path_factory: pytest.TempPathFactory) -> TraceStep:
    """Return a function that profiles a step; `check` on what it returns fails the test where a rule is broken."""

    def profile(step: Callable[[], object], *, trace_steps: int = 3) -> StepReport:
        if not find_spec("torch"):
            pytest.fail("traceq_step needs torch: pip install 'traceq-torch[record]'")
        from traceq.model import Run
        from traceq.recorder.tracing.profiler_window import profiled_calls

        path = tmp_path_factory.mktemp("traceq") / "step.json.gz"
        trace = profiled_calls(step, trace_steps, path)
        return StepReport(Run("traceq_step", (trace,), caveats=trace.caveats))

    return profile
