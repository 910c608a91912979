"""`traceq show PATH`: steps, phases, syncs, collectives and copies of any Kineto trace."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from traceq.claims.saying import lead_of
from traceq.commands._options import CLUSTER, HTML, JSON, MARKDOWN, MEMORY, RANKS, TO, WIDTH, engine_for
from traceq.errors import UsageFault

_NO_ROWS = "what it is about is not in this recording, or takes too little time to be worth a table (--json has all)"
_WHY_NOTHING = {
    "loader": "neither a recording of a loader alone (traceq record --recipe dataloader -- COMMAND), nor one of steps "
    "with CPU clocks (Linux, baseline arm); `dataload` and the phase dataload_wait say how long steps wait for data"
}


def command(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH", help="A trace, a folder of rank traces, RUN, RUN/ARM, a snapshot; or its URL."),
    ],
    only: Annotated[
        list[str] | None, typer.Option(metavar="ANALYSIS", help="Only this analysis; can be repeated.")
    ] = None,
    ranks: Annotated[str | None, RANKS] = None,
    step: Annotated[
        int | None, typer.Option(metavar="K", help="Only ProfilerStep#K: its window, what it launched.")
    ] = None,
    strict: Annotated[bool, typer.Option(help="Refuse a trace that is damaged in any way.")] = False,
    as_json: Annotated[bool, JSON] = False,
    as_markdown: Annotated[bool, MARKDOWN] = False,
    full: Annotated[bool, typer.Option("--full", help="All tables, not one screen; as JSON, all ranks.")] = False,
    width: Annotated[int | None, WIDTH] = None,
    memory: Annotated[str | None, MEMORY] = None,
    cluster: Annotated[str | None, CLUSTER] = None,
    html: Annotated[Path | None, HTML] = None,
    peak: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=RATE", help="Peak of the device: bf16=989 (TFLOP/s), memory=3350 (GB/s); repeatable."
        ),
    ] = None,
    to: Annotated[str | None, TO] = None,
) -> None:
    """Show what a trace holds: the step, where its time goes, what the host waited for, what the ranks exchanged."""
    from traceq.engines.process_tuning import tune_process

    tune_process(paths)
    from traceq.commands._output import chosen_form, shown_work, write_sheet
    from traceq.display import RenderOptions
    from traceq.engines.analyze_path import sheet_of, with_ranks
    from traceq.facts.roofline.peaks import replaced_peaks
    from traceq.locations import place
    from traceq.runs.memory_snapshot import is_memory_snapshot
    from traceq.runs.read import is_trace_file, parse_ranks
    from traceq.runs.sides import holds_runs

    form = chosen_form(as_json=as_json, as_markdown=as_markdown, html=html, to=to)
    if html is not None and len(paths) > 1:
        raise UsageFault(f"--html {html}: one file holds one path, and here are {len(paths)}")
    if html is not None:
        from traceq.commands._output import refuse_input

        refuse_input(html, paths)
    chosen, engine = parse_ranks(ranks), engine_for(memory, cluster)
    files, captured = list(filter(is_trace_file, map(place, paths))) if len(paths) > 1 else [], set[str]()
    for path in map(engine.path, paths):
        if str(place(path)) in captured:
            continue
        if holds_runs(place(path)):
            from traceq.compare.run_list import runs_sheet

            write_sheet(runs_sheet(place(path)), form, RenderOptions(width, full=True))
            continue
        if is_memory_snapshot(place(path)):
            if ranks is not None or step is not None:
                raise UsageFault(f"{path}: a memory snapshot has neither ranks nor steps to choose from")
            from traceq.snapshots.show import snapshot_sheet

            write_sheet(snapshot_sheet(path, only or ()), form, RenderOptions(width, full=full or bool(only)))
            continue
        with shown_work("analysing") as on_progress, replaced_peaks(peak or ()):
            sheet, run = sheet_of(
                path,
                only or (),
                start=engine.start,
                small=engine.small,
                strict=strict,
                ranks=chosen,
                step=step,
                beside=[each for each in files if each != place(path)],
                on_progress=on_progress,
            )
        captured |= {each for trace in run.traces if trace.captured is not None for each in trace.captured.paths}
        if form.renderer == "json" and not (full or only):
            from traceq.engines.notable_ranks import without_like_ranks

            sheet = without_like_ranks(sheet)
        traces = partial(with_ranks, run, path, strict=strict, step=step)
        if html is not None and sheet.leads:
            typer.echo(lead_of(sheet.leads[0]))
        write_sheet(sheet, form, RenderOptions(width, traces, full=full or bool(only)))
        for report in sheet.reports if only and not as_json else ():
            if not (report.views or report.findings):
                why = _WHY_NOTHING.get(report.name, _NO_ROWS)
                typer.echo(f"traceq: note: {report.name}: nothing to show: {why}", err=True)
