"""The state of a watched run as Prometheus reads it, served to this machine alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from traceq.errors import TraceqError, UsageFault
from traceq.watch.onsets import KINDS
from traceq.watch.status import RankStatus, Status, read_status

_LOOPBACK = "127.0.0.1"


def metrics_text(status: Status) -> str:
    """Return gauges of each rank, `traceq_step_seconds{rank="0"}`, and how many onsets of each kind there were."""
    return "\n".join([*_gauges(status), *_onsets(status), ""])


def _gauges(status: Status) -> Iterator[str]:
    for each in fields(RankStatus):
        if each.name in ("rank", "host"):
            continue
        quantity, _, unit = each.name.rpartition("_")
        name, scale = (f"{quantity}_seconds", 1e-9) if unit == "ns" else (each.name.replace("_s", "_seconds"), 1.0)
        name = f"traceq_{name}"
        yield f"# TYPE {name} gauge"
        for rank in status.ranks:
            value = getattr(rank, each.name)
            if value is not None and math.isfinite(value):
                yield f'{name}{{rank="{rank.rank}"}} {value * scale:.9g}'


def _onsets(status: Status) -> Iterator[str]:
    yield "# TYPE traceq_onsets_total counter"
    for kind in KINDS:
        yield f'traceq_onsets_total{{kind="{kind}"}} {sum(onset.kind == kind for onset in status.onsets)}'


def serve_metrics(run: Path, port: int) -> int:
    """Serve the metrics of a run on a port of the loopback device, 0 for any, on a thread; return the port.

    Raises UsageFault for a port that is taken.
    """

    class _Metrics(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            try:
                code, text = 200, metrics_text(read_status(run))
            except TraceqError as fault:  # no step is known yet
                code, text = 503, f"{fault}\n"
            self.send_response(code)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            """Leave the terminal to the job."""

    try:
        server = ThreadingHTTPServer((_LOOPBACK, port), _Metrics)
    except (OSError, OverflowError) as fault:
        raise UsageFault(f"--metrics {port}: {fault}") from fault
    Thread(target=server.serve_forever, name="traceq-metrics", daemon=True).start()
    return int(server.server_address[1])
