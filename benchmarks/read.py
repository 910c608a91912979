"""How fast, and in how much memory, a trace becomes columns: one table from one run, each reader in a fresh process.

    python benchmarks/read.py                  100 and 500 MB of generated traces, plain and gzip
    python benchmarks/read.py --sizes 2000     2 GB
    python benchmarks/read.py --repeat 1       once instead of the median of five

The traces repeat a training step in Kineto's own layout: indented, times with and without decimals, host operators with
shapes, runtime calls, kernels with grids, flows, collectives with their arguments. MB are of plain text, whatever the
file; memory is the peak resident set, the interpreter included. A rate is of CPU time, all threads added up.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir

READERS = ("traceq native", "traceq python", "gzip alone", "msgspec untyped", "orjson", "json.load", "HTA", "DuckDB")
CHILD = "import sys; sys.path.insert(0, {here!r}); import read; read.child({reader!r}, {warm!r}, {path!r})"


@dataclass(frozen=True, slots=True)
class Cost:
    """One reading of one file."""

    wall_s: float
    cpu_s: float
    peak_bytes: int


# ---- traces -------------------------------------------------------------------------------------------------------


def step(index: int, number: Callable[[float], str]) -> Iterator[str]:
    """Events of one training step, as Kineto writes them."""
    at = 4458677009853.422 + index * 40_000
    yield _row("user_annotation", f"ProfilerStep#{index}", 7, number(at), number(39_000), '"External id": 1')
    for i in range(200):
        corr, ts = index * 200 + i, at + 150 * i
        launch = f'"External id": {corr},\n      "cbid": 211, "correlation": {corr}'
        yield _row("cpu_op", f"aten::op_{i % 60}", 7, number(ts), number(31.5), OPERATOR.format(corr=corr, i=i))
        yield _row("cuda_runtime", "cudaLaunchKernel", 7, number(ts + 5.2), number(4.75), launch)
        yield FLOW.format(ph="s", corr=corr, ts=number(ts + 5.2), more="")
        yield FLOW.format(ph="f", corr=corr, ts=number(ts + 9), more=', "bp": "e"')
        yield _row("kernel", KERNELS[i % len(KERNELS)], 7, number(ts + 9), number(88.25), DEVICE.format(corr=corr, i=i))
    for i in range(6):
        corr, ts = 10**7 + index * 6 + i, at + 31_000 + 900 * i
        on_device = DEVICE.format(corr=corr, i=i) + ", " + MESSAGE
        yield _row("cpu_op", "record_param_comms", 7, number(ts), number(40), f'"External id": {corr}, {MESSAGE}')
        yield _row("kernel", NCCL, 20, number(ts + 50), number(800), on_device)


def _row(cat: str, name: str, tid: int, ts: str, dur: str, args: str) -> str:
    pid = 0 if cat == "kernel" else 1419017
    return (
        f'  {{\n    "ph": "X", "cat": "{cat}", "name": "{name}", "pid": {pid}, "tid": {tid},\n'
        f'    "ts": {ts}, "dur": {dur},\n    "args": {{\n      {args}\n    }}\n  }}'
    )


KERNELS = [
    f"void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_{i}<float>, std::array<char*, 3ul> >()"
    for i in range(25)
]
NCCL = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
FLOW = (
    '  {{\n    "ph": "{ph}", "id": {corr}, "pid": 0, "tid": 7, "ts": {ts},\n'
    '    "cat": "ac2g", "name": "ac2g"{more}\n  }}'
)
OPERATOR = (
    '"External id": {corr},"Sequence number": {corr}, "Fwd thread id": 0, "Record function id": {corr}, '
    '"Concrete Inputs": ["", "", "[1, 1]", "1"], "Input type": ["float", "float", "ScalarList", "Scalar"], '
    '"Input Strides": [[{i}, 1], [1, 768], [], []], "Input Dims": [[{i}, 768], [768, 3072], [], []], "Ev Idx": {i}'
)
DEVICE = (
    '"External id": {corr},\n      "queued": 0, "device": 0, "context": 1,\n'
    '      "stream": 7, "correlation": {corr},\n'
    '      "registers per thread": 32, "shared memory": 0,\n'
    '      "blocks per SM": 1.939394, "warps per SM": 7.757576,\n'
    '      "grid": [{i}, 1, 1],\n      "block": [128, 1, 1],\n      "est. achieved occupancy %": 12'
)
MESSAGE = (
    '"Collective name": "_allgather_base", "dtype": "BFloat16", "In msg nelems": 2359296, "Out msg nelems": 18874368, '
    '"Group size": 8, "Process Group Name": "0", "Process Group Description": "default_pg", '
    '"Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]"'
)
HEAD = (
    '{{\n  "schemaVersion": 1,\n  "deviceProperties": [{{"id": 0, "name": "NVIDIA H100"}}],\n'
    '  "kind": "{kind}",\n  "traceEvents": [\n'
)
NUMBERS: dict[str, Callable[[float], str]] = {"integer": lambda us: str(int(us)), "decimal": lambda us: f"{us:.3f}"}


def make(folder: Path, size_mb: int, kind: str) -> Path:
    """A trace of about that size; made once."""
    path = folder / f"traceq-bench-{kind}-{size_mb}.json"
    if not path.exists():
        with path.open("w") as file:
            file.write(HEAD.format(kind=kind))
            index = 0
            while file.tell() < size_mb * 1e6:
                file.write((",\n" if index else "") + ",\n".join(step(index, NUMBERS[kind])))
                index += 1
            file.write('\n  ],\n  "traceName": "bench.json"\n}\n')
    return path


def pack(path: Path) -> Path:
    """The same file as gzip."""
    packed = path.with_suffix(".json.gz")
    if not packed.exists():
        with path.open("rb") as source, gzip.open(packed, "wb", compresslevel=6) as target:
            while chunk := source.read(1 << 20):
                target.write(chunk)
    return packed


# ---- readers ------------------------------------------------------------------------------------------------------


def read_with(reader: str, path: Path) -> int:
    """Events that one reader finds. ImportError where it is not installed."""
    if reader.startswith("traceq"):
        os.environ["TRACEQ_READER"] = reader.split()[1]
        from traceq.kineto.read import read_trace

        return len(read_trace(path).events)
    if reader == "gzip alone":
        from traceq.kineto.source import open_source

        source, room = open_source(path), memoryview(bytearray(1 << 19))
        while source.readinto(room):
            pass
        return 1
    if reader == "HTA":
        os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"
        from hta.common.trace_parser import parse_trace_file

        return len(parse_trace_file(str(path))[1])
    if reader == "DuckDB":
        import duckdb

        source = f"select unnest(traceEvents) e from read_json('{path}', maximum_object_size=4000000000)"
        query = f"select count(*), max(e.ts), max(e.dur), min(e.name) from ({source})"
        return int(duckdb.sql(query).fetchone()[0])
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if reader == "msgspec untyped":
        import msgspec

        return len(msgspec.json.decode(content)["traceEvents"])
    if reader == "orjson":
        import orjson

        return len(orjson.loads(content)["traceEvents"])
    return len(json.loads(content)["traceEvents"])


def child(reader: str, warm: str, path: str) -> None:
    """In a fresh process: read, and print what it cost; a small file is read first, for the imports."""
    try:
        read_with(reader, Path(warm))
    except ImportError as fault:
        print(json.dumps({"missing": str(fault)}))  # noqa: T201
        return
    wall, cpu = time.perf_counter(), time.process_time()
    read_with(reader, Path(path))
    print(json.dumps({"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu, "peak": peak_bytes()}))  # noqa: T201


def peak_bytes(usage: resource.struct_rusage | None = None) -> int:
    """Peak resident set of this process, or of one that ended."""
    usage = usage or resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


# ---- table --------------------------------------------------------------------------------------------------------


def cost_of(reader: str, warm: Path, path: Path, repeat: int) -> Cost | str:
    """Medians of some readings, each in its own process; or the reason why there are none."""
    costs = []
    code = CHILD.format(here=str(Path(__file__).parent), reader=reader, warm=str(warm), path=str(path))
    for _ in range(repeat):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]
        found = json.loads(done.stdout.splitlines()[-1])
        if "missing" in found:
            return str(found["missing"])
        costs.append(found)
    medians = {key: statistics.median(cost[key] for cost in costs) for key in ("wall_s", "cpu_s", "peak")}
    return Cost(medians["wall_s"], medians["cpu_s"], int(medians["peak"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 500], help="MB of plain text")
    parser.add_argument("--kinds", nargs="+", default=sorted(NUMBERS), choices=sorted(NUMBERS))
    parser.add_argument("--readers", nargs="+", default=list(READERS), choices=READERS)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path(gettempdir()))
    options = parser.parse_args()
    print(f"medians of {options.repeat}, {os.cpu_count()} cores")  # noqa: T201
    print(f"{'file':24} {'reader':16} {'wall s':>8} {'CPU s':>8} {'MB/s CPU':>9} {'peak/size':>9}")  # noqa: T201
    for size_mb in options.sizes:
        for kind in options.kinds:
            plain, warm = make(options.folder, size_mb, kind), make(options.folder, 1, kind)
            size = plain.stat().st_size
            for path, warm_path in ((plain, warm), (pack(plain), pack(warm))):
                for reader in options.readers:
                    if path == plain and reader == "gzip alone":
                        continue
                    cost = cost_of(reader, warm_path, path, options.repeat)
                    _print_row(f"{kind} {size_mb} MB{path.suffix}", reader, cost, size)


def _print_row(file: str, reader: str, cost: Cost | str, size: int) -> None:
    if isinstance(cost, str):
        print(f"{file:24} {reader:16} skipped: {cost[:70]}", flush=True)  # noqa: T201
        return
    rate, share = size / 1e6 / cost.cpu_s, cost.peak_bytes / size
    print(f"{file:24} {reader:16} {cost.wall_s:8.2f} {cost.cpu_s:8.2f} {rate:9.0f} {share:9.2f}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
