"""`traceq check PATH --rule "dtoh in forward == 0"`: a trace as a test."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from traceq.commands._engine_options import CLUSTER, MEMORY
from traceq.errors import GateTripped, UsageFault

__all__ = ["command"]


def command(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH...", help="A trace, a folder of rank traces, a run, or RUN/ARM; or its URL."),
    ],
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
    memory: Annotated[str | None, MEMORY] = None,
    cluster: Annotated[str | None, CLUSTER] = None,
) -> None:
    """Check that rules hold on every rank; exit 3 when one is broken, 1 when the trace cannot answer it.

    A rule is METRIC in PHASE per step OP NUMBER UNIT; all but METRIC OP NUMBER can be left out. OP: == != < <= > >=

    Counts: dtoh htod stream event device alloc scalar and all syncs (the host waited); dtoh_copies htod_copies
    dtod_copies ptop_copies and all copies (waited for or not); all_gather reduce_scatter all_reduce ... and all
    collectives; kernels, gpu_ops. Times of a step: step, gpu_busy, sync_cost, and the parts of the step: exposed_comm,
    host_bound, ... (docs/check.md). Shares of the peak: mfu, hfu. One more rule: collectives identical across ranks.
    """
    from traceq.commands._engine import engine_for
    from traceq.commands._output import print_caveats
    from traceq.commands._progress import shown_work
    from traceq.engines.analyze_path import analyze_path
    from traceq.facts.roofline.peaks import replaced_peaks
    from traceq.locations import place
    from traceq.rules.collect_rows import analyses_for, refuse_missing_ranks
    from traceq.rules.evaluate import judge
    from traceq.rules.messages import annotation, line
    from traceq.rules.parse import parse
    from traceq.rules.rules_file import read_rules

    checked = (*(read_rules(rules) if rules else ()), *map(parse, rule or ()))
    if not checked:
        raise UsageFault("nothing to check; expected --rule 'dtoh in forward == 0' or --rules FILE.toml")
    names, engine, num_broken = analyses_for(checked), engine_for(memory, cluster), 0
    for path in map(engine.path, paths):
        with shown_work("checking") as on_progress, replaced_peaks(peak or ()):
            analyzed = analyze_path(
                path, names, start=engine.start, small=engine.small, strict=True, on_progress=on_progress
            )
        refuse_missing_ranks(analyzed.run, place(path))
        print_caveats(analyzed.run.caveats)
        for outcome in judge(analyzed.job, analyzed.reports, checked):
            typer.echo(line(outcome, path if len(paths) > 1 else ""))
            num_broken += not outcome.holds
            if not outcome.holds and os.environ.get("GITHUB_ACTIONS") == "true":
                typer.echo(annotation(outcome, path))
    if num_broken:
        raise GateTripped(f"{num_broken} of {len(checked) * len(paths)} rules broken")
