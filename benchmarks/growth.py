"""Processor time and memory of commands on inputs that grow: long recordings, many streams, deep nesting.

Exits with 1 where a bar is missed: what grows faster than its input misses one.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from builder import Event, call, frame, kernel, launch, memcpy, op, step, write

_MEASURE = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(code, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)
"""


@dataclass(frozen=True)
class Bar:
    """A command on an input, and the most seconds of CPU time and MB that it may take."""

    name: str
    words: Sequence[str]
    most_s: float
    most_mb: float


def recording(folder: Path, num_steps: int) -> Path:
    """Write a recording of unprofiled steps, half of each arm."""
    arms = [{"name": name, "meaning": name, "baseline": name == "off"} for name in ("off", "on")]
    manifest = {"version": 1, "run_id": "x", "recipe": "r", "question": "q", "parameters": {}, "arms": arms}
    manifest |= {"phases": ["forward"], "num_ranks": 1, "seed": 0, "status": "complete"}
    (folder / "steps").mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(manifest))
    dice = random.Random(1)
    with (folder / "steps" / "rank0.jsonl").open("w") as file:
        for pair in range(num_steps // 2):
            common: dict[str, object] = {"a": "off", "b": "on", "pair": pair}
            times = [10**6 + dice.randrange(10**5) for _ in range(2)]
            for half, ns in enumerate(times):
                step = {"kind": "step", "arm": ("off", "on")[half ^ pair % 2], "half": half, "index": 0, "wall_ns": ns}
                times_of = {"phases": {"forward": ns}, "cpu_ns": ns, "device_ns": 0, "peak_bytes": 1}
                file.write(json.dumps({**common, **step, **times_of}) + "\n")
            line = {"kind": "pair", "b_second": pair % 2 == 0, "first_ns": times[0], "second_ns": times[1]}
            file.write(json.dumps(common | line) + "\n")
    return folder


def traced_steps(path: Path, num: int) -> Path:
    """Write a trace of many short steps."""
    return write(
        path,
        *(step(100 * index, 100, index) for index in range(num)),
        *(launch(100 * index + 5, 2, index + 1) for index in range(num)),
        *(kernel("gemm", 100 * index + 10, 30 + index % 20, index + 1) for index in range(num)),
    )


def streams(path: Path, num: int) -> Path:
    """Write a trace of streams that all overlap, each of which waits for what the others were given before."""
    events = [step(0, 20 * num + 70_000)]
    for index in range(num):
        events += [launch(2 * index, 1, 2 * index + 1), kernel("a", 2 * index + 1, 1, 2 * index + 1, stream=index + 1)]
    for index in range(num):
        start, corr = 2 * num + 4 * index, 2 * num + 2 * index + 1
        events += [call("cudaStreamWaitEvent", start, 1, corr + 1), launch(start + 2, 1, corr)]
        events += [kernel("b", start + 3, 50_000, corr, stream=index + 1)]
    return write(path, *events)


def nested(path: Path, depth: int, made: Callable[[str, int, int], Event] = op, num_names: int = 9) -> Path:
    """Write a trace of ops, Python frames or modules, each inside the one before."""
    inside = (made(f"level{index % num_names}", 1 + index, 4 * depth - 2 * index - 2) for index in range(depth))
    return write(path, step(0, 4 * depth), *inside, launch(depth + 2, 1, 1), kernel("k", depth + 5, 10, 1))


def threads(path: Path, num: int, num_events: int) -> Path:
    """Write a trace of so many threads, one after the other, each of which launches."""
    events, num_calls = [step(0, 10 * num_events)], num_events // 3
    for index in range(num_calls):
        start, tid = 20 * index + 10, 100 + index * num // num_calls
        events += [op("aten::mm", start, 10, tid=tid), launch(start + 2, 2, index + 1, tid=tid)]
        events.append(kernel("gemm", start + 5, 10, index + 1))
    return write(path, *events)


def busy_threads(path: Path, num: int, num_events: int) -> Path:
    """Write the same with Python frames, modules, and an op that waits for a copy, in each thread."""
    events, num_rounds = [step(0, 20 * num_events)], num_events // 10
    for index in range(num_rounds):
        start, tid = 200 * index + 10, 100 + index * num // num_rounds
        events += [frame("train.py(10): loop", start, 150, tid=tid), module("Linear_0", start + 1, 140, tid=tid)]
        events += [op("aten::item", start + 3, 60, tid=tid), op("aten::_local_scalar_dense", start + 4, 50, tid=tid)]
        events += [call("cudaMemcpyAsync", start + 6, 4, 2 * index + 1, tid=tid)]
        events += [call("cudaStreamSynchronize", start + 11, 30, tid=tid), op("aten::mm", start + 70, 20, tid=tid)]
        events += [launch(start + 72, 2, 2 * index + 2, tid=tid), kernel("gemm", start + 80, 10, 2 * index + 2)]
        events += [memcpy("DtoH (Device -> Pinned)", start + 20, 5, 2 * index + 1)]
    return write(path, *events)


def merged(path: Path, num: int) -> Path:
    """Write the traces of four ranks with so many launches each as one file."""
    events: list[Event] = []
    for rank in range(4):
        pid = f"rank {rank}"
        events.append({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": pid}})
        work = [step(0, 20 * num), *(launch(20 * index, 2, index + 1) for index in range(num))]
        work += [op("aten::mm", 20 * index, 10) for index in range(num)]
        work += [kernel(f"gemm{index % 99}", 20 * index + 5, 10, index + 1) for index in range(num)]
        events += [event | {"pid": pid} for event in work]
    return write(path, *events)


def module(name: str, start: int, dur: int, **args: object) -> Event:
    """Return the frame of a call of a module."""
    return frame(f"nn.Module: {name}", start, dur, **args)


def bars(folder: Path) -> Iterator[Bar]:
    """Yield inputs and bars, each made when it is asked for."""
    run = str(recording(folder / "run", 100_000))
    yield Bar("diff of 100,000 unprofiled steps", ("diff", run), 5, 1000)
    yield Bar("show of 100,000 unprofiled steps", ("show", run), 5, 1000)
    path = str(traced_steps(folder / "steps.json", 30_000))
    yield Bar("show of 30,000 traced steps", ("show", path), 10, 1000)
    path = str(streams(folder / "streams.json", 8000))
    yield Bar("show of 8,000 overlapping streams", ("show", path), 15, 1000)
    for what, made in (("ops", op), ("Python frames", frame)):
        path = str(nested(folder / "nested.json", 100_000, made))
        yield Bar(f"show of {what} nested 100,000 deep, above an empty trace", ("show", path), 1, 1000)
    for spread, what in ((threads, "ops"), (busy_threads, "ops, frames and syncs")):  # real traces have up to 64
        path = str(spread(folder / "threads.json", 100, 60_000))
        yield Bar(f"show of 60,000 events, {what} on 100 threads", ("show", path), 2, 300)
    path = str(merged(folder / "merged.json", 50_000))
    yield Bar("show of a file of 71 MB with four ranks", ("show", path), 5, 320)
    path = str(nested(folder / "modules.json", 20_000, module, 20_000))
    yield Bar("show of nn.Modules nested 20,000 deep", ("show", path), 2, 200)


def cost(words: Sequence[str]) -> tuple[float, float]:
    """Return seconds of CPU time and MB of a command."""
    command = [sys.executable, "-c", _MEASURE, sys.executable, "-m", "traceq", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | {"TRACEQ_CACHE": "0"})
    code, seconds, size_mb = done.stdout.split()
    assert code == "0", done.stderr
    return float(seconds), float(size_mb)


def main() -> int:
    """Print each cost beside its bar; return 1 where one is missed."""
    missed = 0
    with TemporaryDirectory() as name:
        folder = Path(name)
        start_s, _ = cost(("show", str(nested(folder / "empty.json", 1))))
        for bar in bars(folder):
            seconds, size_mb = cost(bar.words)
            seconds -= start_s if "above" in bar.name else 0
            is_missed = seconds > bar.most_s or size_mb > bar.most_mb
            missed += is_missed
            print(  # noqa: T201
                f"{bar.name}: {seconds:.1f} s of {bar.most_s:g} s, {size_mb:.0f} MB of {bar.most_mb:g} MB"
                f"{' MISSED' if is_missed else ''}"
            )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
