"""`traceq diff A B` and `traceq diff RUN`: does it matter, and what is it."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceq.commands._options import CLUSTER, HTML, JSON, MEMORY, TO, WIDTH, Reading, engine_for
from traceq.errors import GateTripped, TraceqError, Unanswerable, UsageFault
from traceq.threshold import THRESHOLD_PCT

if TYPE_CHECKING:
    from traceq.compare.result import Diff
    from traceq.compare.side import Side
    from traceq.model import Caveat, Trace
    from traceq.stats import VerdictName

_VERDICTS: tuple[VerdictName, ...] = ("material", "detectable", "inconclusive")


def command(
    a: Annotated[str, typer.Argument(metavar="A", help="The baseline: a trace, a folder, RUN/ARM; or a run alone.")],
    b: Annotated[str | None, typer.Argument(metavar="B", help="What is compared with it.")] = None,
    threshold: Annotated[
        str, typer.Option(help="Difference that matters, in percent of A's step.")
    ] = f"{THRESHOLD_PCT}%",
    as_json: Annotated[bool, JSON] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Markdown for an issue.")] = False,
    width: Annotated[int | None, WIDTH] = None,
    full: Annotated[
        bool, typer.Option("--full", help="All tables, even of traced durations that are no evidence.")
    ] = False,
    html: Annotated[Path | None, HTML] = None,
    fail_on: Annotated[
        list[str] | None, typer.Option(metavar="VERDICT", help="Exit 3 on material, detectable or inconclusive.")
    ] = None,
    fail_on_delta: Annotated[
        str | None, typer.Option(metavar="PERCENT", help="Exit 3 if B's step is longer than A's by more, like 5%.")
    ] = None,
    to: Annotated[str | None, TO] = None,
    memory: Annotated[str | None, MEMORY] = None,
    cluster: Annotated[str | None, CLUSTER] = None,
) -> None:
    """Say what a change costs a step: whether that is in the noise, and what it comes from.

    A side can be several recordings, each of a separate process: a folder of runs (before/), an arm of each
    (before/on), or a pattern in quotes ('before-*').

    --fail-on-delta holds for the whole interval of unprofiled steps; one that includes the limit decides nothing, and
    exits with 0. Two traces have no interval, and are taken as they are. Exit codes: docs/check.md#exit-codes
    """
    from traceq.engines.process_tuning import tune_process

    tune_process([a, b or ""])
    from traceq.commands._output import chosen_form, print_caveats, refuse_input, shown_work, write_result, write_sheet
    from traceq.compare.diff import diff_arms, diff_sides
    from traceq.compare.result import Diffs
    from traceq.display import RenderOptions

    form = chosen_form(as_json=as_json, as_markdown=as_markdown, html=html, to=to)
    if html is not None:
        refuse_input(html, (a, b))
    percent, verdicts = parse_percent("--threshold", threshold, most=100), _checked(fail_on or [])
    limit = None if fail_on_delta is None else parse_percent("--fail-on-delta", fail_on_delta)
    if b is not None and _are_snapshots(a, b):
        if verdicts or limit is not None:
            raise UsageFault("--fail-on, --fail-on-delta: a comparison of memory snapshots has no verdict")
        from traceq.snapshots.compare import snapshot_diff

        write_sheet(snapshot_diff(a, b), form, RenderOptions(width, full=full))
        return
    with shown_work("comparing") as on_progress:
        sides = _read_sides(a, b, engine_for(memory, cluster), on_progress)
        if b is None:
            diffs, by_name = diff_arms(a, sides, threshold_pct=percent), {side.run.arm: side for side in sides}
        else:
            pair = diff_sides(*sides, threshold_pct=percent)
            diffs, by_name = Diffs(pair.a_name, (pair,)), dict(zip((pair.a_name, pair.b_name), sides, strict=True))

    def explained_traces(diff: Diff) -> tuple[Trace, Trace]:
        rank = diff.traced.rank if diff.traced else -1
        return by_name[diff.a_name].trace_or_first(rank), by_name[diff.b_name].trace_or_first(rank)

    if html is not None:
        for diff in diffs.diffs:
            typer.echo(diff.answer.lead)
    write_result("diffs", diffs, form, RenderOptions(width, full=full, sides=explained_traces))
    if not form.holds_caveats:
        print_caveats(dict.fromkeys(caveat for each in diffs.diffs for caveat in each.caveats))
    if verdicts:
        print_caveats(_without_verdict(diffs.diffs))
    _gate(diffs.diffs, verdicts, limit)


def _read_sides(a: str, b: str | None, engine: Reading, on_progress: Callable[[int, int], None]) -> tuple[Side, ...]:
    """Return both sides, or the arms of the recorded run `a`; one engine reads the ranks of all."""
    from traceq.compare.diff import arms_of_run
    from traceq.compare.side import Side
    from traceq.engines.analyze_path import PathReader

    with ExitStack() as stack:
        reader = PathReader(cache(lambda: stack.enter_context(engine.start())), engine.small, on_progress)
        if b is None:
            return arms_of_run(engine.path(a), reader.arms)
        return Side.of(engine.path(a), reader.ranks), Side.of(engine.path(b), reader.ranks)


def _are_snapshots(a: str, b: str) -> bool:
    """Return whether both sides are memory snapshots. Raises UsageFault if one is, and the other is not."""
    from traceq.locations import place
    from traceq.runs.memory_snapshot import is_memory_snapshot

    is_a, is_b = (is_memory_snapshot(place(path)) for path in (a, b))
    if is_a != is_b:
        raise UsageFault(f"{a if is_a else b}: a memory snapshot, which is compared with another memory snapshot only")
    return is_a


def parse_percent(option: str, text: str, most: float = math.inf) -> float:
    """Return `0.5%`, `0.5 %` or `0.5` as a number of percent. Raises UsageFault."""
    try:
        percent = float(text.strip().removesuffix("%"))
    except ValueError:
        raise UsageFault(f"{option} {text}: no percentage; expected something like {THRESHOLD_PCT}%") from None
    if not 0 <= percent <= most or math.isinf(percent):
        raise UsageFault(f"{option} {text}: expected 0 % {'or more' if math.isinf(most) else f'to {most:g} %'}")
    return percent


def _checked(verdicts: list[str]) -> set[str]:
    for verdict in verdicts:
        if verdict not in _VERDICTS:
            raise UsageFault(f"--fail-on {verdict}: no such verdict; choose from {', '.join(_VERDICTS)}")
    return set(verdicts)


def _without_verdict(diffs: tuple[Diff, ...]) -> list[Caveat]:
    """Return a doubt where no verdict can trip the gate: traced windows alone are never `material`."""
    from traceq.model import Caveat

    if all(diff.comparison is None or diff.comparison.unprofiled for diff in diffs):
        return []
    text = (
        "--fail-on: profiled windows give no verdict; compare a recording (traceq record, or traceq.record(...) around "
        "your own loop), or use --fail-on inconclusive"
    )
    return [Caveat("no_verdict", text)]


def _gate(diffs: tuple[Diff, ...], verdicts: set[str], limit_pct: float | None) -> None:
    """Raise GateTripped for a verdict of --fail-on or a step above --fail-on-delta, else TraceqError without a step.

    `detectable` includes material, which is more than that.
    """
    from traceq.compare.verdict import DeltaState, judge_delta

    if "detectable" in verdicts:
        verdicts = verdicts | {"material"}
    names = [f"{diff.b_name} is {diff.verdict_name}" for diff in diffs if diff.verdict_name in verdicts]
    tripped, unanswered = [f"--fail-on: {', '.join(names)}"] if names else [], []
    for diff in diffs:
        if limit_pct is None:
            break
        try:
            outcome = judge_delta(diff, limit_pct)
        except Unanswerable as reason:
            unanswered.append(f"--fail-on-delta: {reason}")
            continue
        if outcome.state is DeltaState.EXCEEDED:
            tripped.append(f"--fail-on-delta: {outcome.text}")
        else:
            typer.echo(f"traceq: --fail-on-delta: {outcome.text}", err=True)
    if tripped:
        raise GateTripped("; ".join(tripped))
    if unanswered:
        raise TraceqError("; ".join(unanswered))
