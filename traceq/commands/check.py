"""`traceq check PATH --rule "dtoh in forward == 0"`: a trace as a test."""

from __future__ import annotations

import os
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer

from traceq.commands._options import CLUSTER, MEMORY, PATH, engine_for
from traceq.commands._output import Form, open_replacing, print_caveats, refuse_input, shown_work, write_result
from traceq.display import RenderOptions
from traceq.engines.analyze_path import analyze_path
from traceq.errors import GateTripped, TraceqError, UsageFault
from traceq.facts.roofline.peaks import replaced_peaks
from traceq.locations import place
from traceq.renderers import find_renderer
from traceq.rules.evaluate import Checked, State, analyses_for, judge, missing_ranks
from traceq.rules.messages import SourceTree, annotation, line
from traceq.rules.parse import parse, read_rules


def command(
    paths: Annotated[list[str], PATH],
    rule: Annotated[
        list[str] | None,
        typer.Option(metavar="RULE", help='A rule, like "dtoh in forward == 0"; can be repeated.'),
    ] = None,
    rules: Annotated[
        Path | None, typer.Option(metavar="FILE.toml", help="A list `rules`, and tables `rule` with rule and why.")
    ] = None,
    peak: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=RATE", help="Peak of the device, for mfu and hfu: bf16=989 (TFLOP/s); repeatable."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="A row for each path and rule, as JSON.")] = False,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE.xml", help="Also write JUnit XML, a case for each path and rule.")
    ] = None,
    memory: Annotated[str | None, MEMORY] = None,
    cluster: Annotated[str | None, CLUSTER] = None,
) -> None:
    """Check that rules hold on every rank; exit 3 when one is broken, else 1 when a trace cannot tell.

    A rule is METRIC in PHASE per step OP NUMBER UNIT; all but METRIC OP NUMBER can be left out. OP: == != < <= > >=

    Counts: dtoh htod stream event device alloc scalar and all syncs (the host waited); dtoh_copies htod_copies
    dtod_copies ptop_copies and all copies (waited for or not); all_gather reduce_scatter all_reduce ... and all
    collectives; kernels, gpu_ops. Times of a step: step, gpu_busy, sync_cost, and the parts of the step: exposed_comm,
    host_bound, ... (docs/check.md). Shares of the peak: mfu, hfu. One more rule: collectives identical across ranks.

    Under GitHub Actions each rule that does not hold is also an annotation. Exit codes: docs/check.md#exit-codes
    """
    checked = (*(read_rules(rules) if rules else ()), *map(parse, rule or ()))
    if not checked:
        raise UsageFault("nothing to check; expected --rule 'dtoh in forward == 0' or --rules FILE.toml")
    names, engine, tree = analyses_for(checked), engine_for(memory, cluster), SourceTree()
    checks: list[Checked] = []
    if junit:
        refuse_input(junit, (*paths, str(rules) if rules else None))
    for path in map(engine.path, paths):
        with shown_work("checking") as on_progress, replaced_peaks(peak or ()):
            analyzed = analyze_path(
                path, names, start=engine.start, small=engine.small, strict=True, on_progress=on_progress
            )
        run = analyzed.run
        if junit:
            refuse_input(junit, (trace.path for trace in run.traces))
        print_caveats(run.caveats)
        outcomes = judge(analyzed.job, analyzed.reports, checked, missing_ranks(run, place(path)))
        checks.append(Checked(path, run.ranks, outcomes))
        for outcome in outcomes:
            if not as_json:
                typer.echo(line(outcome, path if len(paths) > 1 else ""))
            if not outcome.holds and os.environ.get("GITHUB_ACTIONS") == "true":
                typer.echo(annotation(outcome, path, tree.line_of(outcome)), err=as_json)  # GitHub reads both streams
    _write(checks, junit, as_json=as_json)
    _gate(checks)


def _write(checks: Sequence[Checked], junit: Path | None, *, as_json: bool) -> None:
    """Write outcomes in the forms that programs read: JSON on stdout, JUnit XML in a file."""
    if as_json:
        write_result("checks", checks, Form("json"), RenderOptions())
    if junit:
        with open_replacing(junit) as file:
            text = TextIOWrapper(file, encoding="utf-8", newline="")
            find_renderer("junit", "checks")(checks, text, RenderOptions())
            text.detach()


def _gate(checks: Sequence[Checked]) -> None:
    """Raise GateTripped if a rule is broken, else TraceqError if that is not known of one."""
    states = [outcome.state for checked in checks for outcome in checked.outcomes]
    num_broken, num_open = states.count(State.BROKEN), states.count(State.CANNOT_TELL)
    if num_broken:
        also = f", {num_open} cannot be told" if num_open else ""
        raise GateTripped(f"{num_broken} of {len(states)} rules broken{also}")
    if num_open:
        raise TraceqError(f"{num_open} of {len(states)} rules cannot be told")
