"""`traceq export PATH --to perfetto|parquet`: a run in another program's format, with traceq's findings."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from traceq.analysis.registry import sheet
from traceq.claims.claim import Claim
from traceq.commands._options import CLUSTER, MEMORY, PATH, RANKS, Reading, engine_for
from traceq.commands._output import open_replacing, print_caveats, refuse_input, shown_work
from traceq.compare.diff import diff_runs
from traceq.compare.result import Diff
from traceq.engines.analyze_path import opened_tables
from traceq.errors import TraceqError, UsageFault
from traceq.frames import NAMES
from traceq.frames.tables import concat_ranks
from traceq.frozen import frozen
from traceq.locations import place
from traceq.model import Caveat, Run
from traceq.renderers import export_suffix, find_renderer, renders
from traceq.runs.read import parse_ranks, read, with_traces


def command(
    path: Annotated[str, PATH],
    other: Annotated[
        str | None, typer.Argument(metavar="B", help="With a second one: both, one above the other (Perfetto).")
    ] = None,
    *,
    to: Annotated[
        str,
        typer.Option(
            metavar="perfetto|parquet|NAME", help="A trace for the Perfetto UI, a folder of tables, or a plugin's form."
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The file, packed if its name ends in .gz; or the folder.")
    ] = None,
    ranks: Annotated[str | None, RANKS] = None,
    memory: Annotated[str | None, MEMORY] = None,
    cluster: Annotated[str | None, CLUSTER] = None,
) -> None:
    """Write a run for other programs: exact times, all ranks, and traceq's findings beside the recorded events."""
    is_folder = renders(to, "tables")
    if other is not None and is_folder:
        raise UsageFault(f"--to {to}: tables are of one run; export the two one by one")
    find_renderer(to, "tables" if is_folder else "run" if other is None else "pair")  # or refuse, before reading
    target = output or Path(export_name(path, other, export_suffix(to)))
    if output is None and target.exists():
        raise UsageFault(f"{target} exists; name the file with -o to replace it")
    refuse_input(target, (path, other))
    chosen = parse_ranks(ranks)
    if is_folder:
        caveats = _write_folder(path, chosen, to, target, engine_for(memory, cluster))
    else:
        caveats = _write_file(path, other, chosen, to, target)
    typer.echo(target)
    print_caveats(caveats)


def _write_file(path: str, other: str | None, ranks: set[int] | None, to: str, target: Path) -> Iterable[Caveat]:
    subject = read_subject(path, other, ranks)
    refuse_input(target, subject.files)
    with open_replacing(target) as file:
        subject.write(to, file)
    return subject.caveats


def _write_folder(path: str, ranks: set[int] | None, to: str, target: Path, engine: Reading) -> Iterable[Caveat]:
    with (
        shown_work("writing") as on_progress,
        opened_tables(
            engine.path(path), start=engine.start, small=engine.small, ranks=ranks, on_progress=on_progress
        ) as (run, tables),
    ):
        try:
            target.mkdir(exist_ok=True)
            if odd := [file for file in target.iterdir() if not (file.is_file() or file.is_dir())]:
                raise TraceqError(f"{odd[0]}: not a regular file; expected a folder of tables, or none")
            of_ranks = tables(NAMES)
            rows = chain.from_iterable(of_ranks) if to == "parquet" else concat_ranks(of_ranks)  # a plugin's are whole
            find_renderer(to, "tables")(rows, target)
        except OSError as fault:
            raise TraceqError(f"{target}: {(fault.strerror or str(fault)).lower()}") from fault
    return run.caveats


@frozen
class OneRun:
    """A run and what was concluded about it."""

    run: Run
    findings: tuple[Claim, ...]
    caveats: tuple[Caveat, ...]

    @property
    def files(self) -> tuple[str, ...]:
        """Files that were read."""
        return tuple(trace.path for trace in self.run.traces)

    def write(self, renderer: str, file: BinaryIO) -> None:
        """Write it with a renderer. Raises UsageFault where no renderer of that name writes runs."""
        find_renderer(renderer, "run")(self.run, self.findings, file)


@frozen
class RunPair:
    """Two runs and their comparison, which has a rank that was traced on both sides."""

    a: Run
    b: Run
    diff: Diff

    @property
    def caveats(self) -> tuple[Caveat, ...]:
        """Doubts about the comparison."""
        return self.diff.caveats

    @property
    def files(self) -> tuple[str, ...]:
        """Files that were read."""
        return tuple(trace.path for run in (self.a, self.b) for trace in run.traces)

    def write(self, renderer: str, file: BinaryIO) -> None:
        """Write it with a renderer. Raises UsageFault where no renderer of that name writes pairs of runs."""
        find_renderer(renderer, "pair")(self.a, self.b, self.diff, file)


def read_subject(path: str, other: str | None, ranks: set[int] | None) -> OneRun | RunPair:
    """Return the run at one path, or the pair at two. Raises UnreadableInput, UsageFault."""
    run = with_traces(read(path, ranks=ranks))
    if other is None:
        reports = sheet(run)
        return OneRun(run, reports.findings, reports.all_caveats)
    pair = RunPair(run, b := with_traces(read(other, ranks=ranks)), diff_runs(run, b))
    if pair.diff.traced is None:
        raise UsageFault(f"{path} and {other}: no rank was traced on both sides, so there is no pair to show")
    return pair


def export_name(path: str, other: str | None, suffix: str) -> str:
    """Return the name of what is written: `trace.json.gz` -> `trace` and the suffix; for a pair both names.

    A run or arm has the name of its folder.
    """
    names = []
    for where in map(place, filter(None, (path, other))):
        name = os.path.basename(os.path.realpath(where)) if isinstance(where, Path) else where.name
        for ending in (".gz", ".zst", ".json"):
            name = name.removesuffix(ending)
        names.append(name)
    return "-against-".join(name for name in reversed(names) if name) + suffix
