"""How a watched run is, also as Prometheus reads it: its ranks, their steps now and in the run so far, what began."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import fields
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np

from traceq.errors import TraceqError, UsageFault
from traceq.frozen import frozen
from traceq.long_runs.onsets import KINDS, Onset
from traceq.long_runs.step_store import REGULAR, TIMES, last_reading, last_rows, quantile, read_sketches
from traceq.long_runs.watch_folder import WatchFolder
from traceq.report import Table, column
from traceq.units import Unit

_RECENT_S = 60.0


@frozen
class RankStatus:
    """A rank: medians of its steps in the last minute, and of the run before; ns."""

    rank: int = column("rank", Unit.NUMBER)
    host: str = column("host")
    step: int = column("step", Unit.COUNT)
    age_s: float = column("ended, s ago", Unit.NUMBER)
    step_ns: float | None = column("step", Unit.NS)
    before_ns: float | None = column("before", Unit.NS)
    p99_ns: float | None = column("p99", Unit.NS)
    loader_ns: float | None = column("loader", Unit.NS)
    forward_ns: float | None = column("forward", Unit.NS)
    backward_ns: float | None = column("backward", Unit.NS)
    optimizer_ns: float | None = column("optimizer", Unit.NS)
    gc_ns: float | None = column("collector", Unit.NS)
    memory_bytes: float | None = column("memory", Unit.BYTES)
    clock_mhz: float | None = column("clock, MHz", Unit.COUNT)
    throttled: bool | None = column("throttled")


@frozen
class Status:
    """A watched run."""

    path: str
    pattern: str
    ranks: tuple[RankStatus, ...]
    onsets: tuple[Onset, ...]

    @property
    def table(self) -> Table:
        """Its ranks."""
        return Table.of("ranks", f"{self.path}: steps {self.pattern}", RankStatus, self.ranks)


def read_status(path: Path) -> Status:
    """Return how a run is. Raises UnreadableInput for a folder that is none of a watched run."""
    folder = WatchFolder(path)
    job = folder.read_job()
    ranks = tuple(_rank_status(folder, rank, host) for rank, host in enumerate(job.hosts))
    return Status(str(path), job.pattern, ranks, tuple(folder.read_onsets()))


def _rank_status(folder: WatchFolder, rank: int, host: str) -> RankStatus:
    rows, sketches = last_rows(folder.steps, rank), read_sketches(folder.steps, rank)
    last_s = float(rows["time"][-1]) if len(rows) else float("nan")
    recent = rows[(rows["time"] > last_s - _RECENT_S) & (rows["flags"] == REGULAR)]
    memory_bytes, clock_hz, throttled = (last_reading(rows, name) for name in ("memory", "clock", "throttled"))
    before = sketches["counts"].sum(axis=0, dtype=np.uint32)[TIMES.index("wall")] if len(sketches) else None
    means = {
        f"{name}_ns": 1e9 * float(recent[name].mean()) if len(recent) else None
        for name in ("loader", "forward", "backward", "optimizer", "gc")
    }
    return RankStatus(
        rank=rank,
        host=host,
        step=int(rows["step"][-1]) if len(rows) else 0,
        age_s=round(time.time() - last_s, 1) if len(rows) else 0.0,
        step_ns=1e9 * float(np.median(recent["wall"])) if len(recent) else None,
        before_ns=None if before is None else 1e9 * quantile(before, 0.5),
        p99_ns=None if before is None else 1e9 * quantile(before, 0.99),
        memory_bytes=None if math.isnan(memory_bytes) else memory_bytes,
        clock_mhz=None if math.isnan(clock_hz) else round(clock_hz * 1e-6),
        throttled=None if math.isnan(throttled) else throttled > 0,
        **means,
    )


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
        server = ThreadingHTTPServer(("127.0.0.1", port), _Metrics)
    except (OSError, OverflowError) as fault:
        raise UsageFault(f"--metrics {port}: {fault}") from fault
    Thread(target=server.serve_forever, name="traceq-metrics", daemon=True).start()
    return int(server.server_address[1])
