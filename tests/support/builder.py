"""Kineto traces that read like a picture: one call an event, times in microseconds as (start, duration).

    build(
        step(0, 100),
        launch(5, 2, corr=1),
        kernel("gemm", 10, 30, corr=1),
    )

is a Trace; `text` gives the same as JSON, `write` as a file. Device rows stand on stream 7 unless they say otherwise.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from traceq.analysis.registry import analyze
from traceq.kineto.read import read_trace
from traceq.model import Run, Trace

Event = dict[str, Any]

MAIN, AUTOGRAD, OTHER = 1, 2, 3
PID = 40

_encode = msgspec.json.Encoder(decimal_format="number").encode


def row(cat: str, name: str, start: Any, dur: Any, /, *, tid: Any = MAIN, **args: Any) -> Event:
    """Any complete event."""
    event = {"ph": "X", "cat": cat, "name": name, "pid": PID, "tid": tid, "ts": _exact(start), "dur": _exact(dur)}
    return event | ({"args": args} if args else {})


def step(start: Any, dur: Any, number: int = 0) -> Event:
    return annotation(f"ProfilerStep#{number}", start, dur)


def annotation(name: str, start: Any, dur: Any, **more: Any) -> Event:
    return row("user_annotation", name, start, dur, **more)


def op(name: str, start: Any, dur: Any, **more: Any) -> Event:
    return row("cpu_op", name, start, dur, **more)


def call(name: str, start: Any, dur: Any, corr: Any = 0, **more: Any) -> Event:
    return row("cuda_runtime", name, start, dur, correlation=corr, **more)


def launch(start: Any, dur: Any, corr: Any, **more: Any) -> Event:
    return call("cudaLaunchKernel", start, dur, corr, **more)


def kernel(name: str, start: Any, dur: Any, /, corr: Any = 0, stream: int = 7, device: int = 0, **args: Any) -> Event:
    return row("kernel", name, start, dur, tid=stream, correlation=corr, stream=stream, device=device, **args)


def memcpy(kind: str, start: Any, dur: Any, corr: Any = 0, stream: int = 7, size: int = 8) -> Event:
    args = {"correlation": corr, "stream": stream, "device": 0, "bytes": size}
    return row("gpu_memcpy", f"Memcpy {kind}", start, dur, tid=stream, **args)


def memset(start: Any, dur: Any, corr: Any = 0, stream: int = 7) -> Event:
    return row("gpu_memset", "Memset (Device)", start, dur, tid=stream, correlation=corr, stream=stream, device=0)


def frame(name: str, start: Any, dur: Any, **more: Any) -> Event:
    return row("python_function", name, start, dur, **more)


def memory(
    position: Any, change: int, allocated: int, reserved: int, *, tid: Any = MAIN, device_type: int = 1
) -> Event:
    """What the allocator gave or, negative, took back; a CUDA device's unless `device_type` says otherwise."""
    args = {"Bytes": change, "Total Allocated": allocated, "Total Reserved": reserved, "Addr": 4096}
    args |= {"Device Type": device_type, "Device Id": 0 if device_type else -1}
    return {"ph": "i", "s": "t", "name": "[memory]", "pid": PID, "tid": tid, "ts": _exact(position), "args": args}


def comms(name: str, start: Any, dur: Any, elements: Sequence[int] = (0, 0), **more: Any) -> Event:
    """A `record_param_comms` row: `elements` in and out, float32 among 4 ranks unless `more` says otherwise."""
    args = {"Collective name": name, "In msg nelems": elements[0], "Out msg nelems": elements[1]}
    return op("record_param_comms", start, dur, **args, **{"dtype": "Float", "Group size": 4} | more)


def text(*events: Event, origin: int = 0, **metadata: Any) -> bytes:
    """The trace as compact JSON; `origin` microseconds are added to every start."""
    moved = [{**event, "ts": event["ts"] + origin} if origin else event for event in events]
    return _encode({**metadata, "traceEvents": moved})


def write(path: Path, *events: Event, **metadata: Any) -> Path:
    """The trace as a file; packed where the name ends in .gz."""
    content = text(*events, **metadata)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content, 1) if path.suffix == ".gz" else content)
    return path


def world(rank: int, size: int, backend: str = "nccl") -> Event:
    """Metadata of one rank of a job."""
    return {"distributedInfo": {"backend": backend, "rank": rank, "world_size": size}}


def read_text(content: bytes, *, strict: bool = False) -> Trace:
    """The trace in some JSON, read as a file is."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        path.write_bytes(content)
        return read_trace(path, strict=strict)


def build(*events: Event, recorded: dict[str, Any] | None = None, **metadata: Any) -> Trace:
    """The trace; `recorded` are fields that a recording of traceq would have filled, like its manifest."""
    trace = read_text(text(*events, **metadata))
    return replace(trace, **recorded) if recorded else trace


def table(run: Run | Trace, analysis: str) -> list[dict[str, Any]]:
    """Rows of an analysis, complete as in the JSON."""
    run = run if isinstance(run, Run) else Run(run.path, (run,))
    result = analyze(run, analysis).tables[0]
    return [dict(zip((column.key for column in result.columns), line, strict=True)) for line in result.rows]


def _exact(value: Any) -> Any:
    return Decimal(str(value)) if isinstance(value, float) else value
