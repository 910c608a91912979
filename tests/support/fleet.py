"""An FSDP job of many ranks, played through for all at once and written as torch's profiler writes: 1 MB a rank.

    PYTHONPATH=tests/support python tests/support/fleet.py FOLDER
        [--ranks 1024] [--late-host 17] [--desync 700] [--plain]

No machine recorded it. A host issues work and streams run it in order; a collective ends when the last rank came and
has transferred. Every time is an array over ranks, so a thousand of them cost as much Python as one. Hosts of eight
ranks have clocks of their own. What is late, and by how much, is what `Fleet` says: the truth that tests compare with.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

try:
    from isal import igzip as gzip
except ImportError:
    import gzip  # type: ignore[no-redef]

Times = NDArray[np.int64]

US, MS = 1_000, 1_000_000
BASE_NS, ORIGIN_NS = 1_700_000_000_000_000_000, 4_458_000_000_000
MAIN, AUTOGRAD = 4711, 4802
COMPUTE, GATHER, REDUCE = 7, 21, 25
LAYER_ELEMENTS, ROOT_ELEMENTS = 201_326_592, 131_072_000
GATHER_NS, REDUCE_NS = 2 * MS, 3 * MS
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x"
POINTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::{}, std::array<char*, 3ul> >(int, ...)"
ATTENTION = (
    "pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<128, 128, 64, 4, cutlass::bfloat16_t> >"
)
LAYER = (
    ("aten::_fused_rms_norm", "void layer_norm_kernel<c10::BFloat16, float>(int, float, ...)", 300 * US),
    ("aten::mm", GEMM, 1600 * US),
    ("aten::_scaled_dot_product_flash_attention", ATTENTION, 900 * US),
    ("aten::mm", GEMM, 700 * US),
    ("aten::add", POINTWISE.format("CUDAFunctor_add<c10::BFloat16>"), 250 * US),
    ("aten::mm", GEMM, 1900 * US),
    ("aten::silu", POINTWISE.format("silu_kernel(at::TensorIteratorBase&)"), 400 * US),
    ("aten::mm", GEMM, 1900 * US),
)
"""Ops of one layer's forward: name, kernel, ns."""
LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
KERNELS = {"_allgather_base": "AllGather_RING_LL", "_reduce_scatter_base": "ReduceScatter_Sum_bf16_RING_LL"}
KERNELS["allreduce"] = "AllReduce_Sum_f32_RING_LL"


@dataclass(frozen=True)
class Fleet:
    """A job. `late_ranks` take `late_ns` longer in `late_in` (dataload, forward, backward, optimizer) of every step;
    `desync_rank` issues an all-reduce in the last step that nobody else does.
    """

    num_ranks: int = 1024
    ranks_per_host: int = 8
    layers: int = 8
    steps: int = 4
    seed: int = 0
    noise: float = 0.01
    late_ranks: tuple[int, ...] = ()
    late_ns: int = 41 * MS
    late_in: str = "forward"
    desync_rank: int = -1

    def host(self, rank: int) -> str:
        """Name of the host that a rank runs on."""
        return f"node{rank // self.ranks_per_host:03d}"

    def on_host(self, number: int) -> tuple[int, ...]:
        """Ranks of the n-th host."""
        return tuple(range(number * self.ranks_per_host, (number + 1) * self.ranks_per_host))


@dataclass(frozen=True)
class Row:
    """One event of all ranks, or of some: JSON with a place for each of its times, which are ns by the true clock."""

    text: str
    times: tuple[Times, ...]
    ranks: NDArray[np.bool_] | None = None


@dataclass
class Played:
    """All rows of a job that was played through, and the trace of each rank."""

    fleet: Fleet
    offset: Times
    rows: list[Row] = field(default_factory=list)
    _templates: dict[bytes, tuple[str, Times]] = field(default_factory=dict)

    def text(self, rank: int) -> str:
        """The trace of a rank, by the clock of its host."""
        template, which = self._template(rank)
        us = (self._times[which, rank] + int(self.offset[rank]) + ORIGIN_NS * self._is_start[which]) / 1000
        return self._head(rank) + template % tuple(us.tolist()) + "]}\n"

    def write(self, folder: Path, *, packed: bool = True) -> Path:
        """The folder with a file for each rank."""
        folder.mkdir(parents=True, exist_ok=True)
        for rank in range(self.fleet.num_ranks):
            content = self.text(rank).encode()
            file = folder / f"rank{rank}.json{'.gz' if packed else ''}"
            file.write_bytes(gzip.compress(content, 1) if packed else content)
        return folder

    def __post_init__(self) -> None:
        _play(self)
        self._times = np.array([time for row in self.rows for time in row.times])
        self._is_start = np.array([index != 1 for row in self.rows for index in range(len(row.times))])
        self._times -= np.where(self._is_start, 0, 1)[:, None] * self.offset  # a duration has no clock

    def _template(self, rank: int) -> tuple[str, Times]:
        """The rows of a rank as one text, and which of all times it takes: the same for all ranks but a few."""
        local = np.array([row.ranks is None or bool(row.ranks[rank]) for row in self.rows])
        if local.tobytes() not in self._templates:
            text = ",\n".join(row.text for row, selected in zip(self.rows, local, strict=True) if selected)
            which = np.flatnonzero(np.repeat(local, [len(row.times) for row in self.rows]))
            self._templates[local.tobytes()] = text, which
        return self._templates[local.tobytes()]

    def _head(self, rank: int) -> str:
        fleet = self.fleet
        ranks = ", ".join(map(str, range(fleet.num_ranks)))
        devices = ", ".join(f'{{"id": {n}, "name": "NVIDIA H100 80GB HBM3"}}' for n in range(fleet.ranks_per_host))
        return (
            f'{{"schemaVersion": 1, "deviceProperties": [{devices}], "record_shapes": 1,\n"distributedInfo": '
            f'{{"backend": "nccl", "rank": {rank}, "world_size": {fleet.num_ranks}, "pg_count": 1, "pg_config": '
            f'[{{"pg_name": "0", "pg_desc": "default_pg", "pg_size": {fleet.num_ranks}, "ranks": [{ranks}]}}]}},\n'
            f'"host_name": "{fleet.host(rank)}", "baseTimeNanoseconds": {BASE_NS}, "traceEvents": [\n'
        )


class _Job:
    """Where hosts and streams of all ranks are; a method for each kind of thing that happens."""

    def __init__(self, played: Played) -> None:
        self.fleet, self.rows = played.fleet, played.rows
        self.rng = np.random.default_rng(self.fleet.seed)
        self.late = np.isin(np.arange(self.fleet.num_ranks), self.fleet.late_ranks)
        self.now = self.zeros()
        self.free = {stream: self.zeros() for stream in (COMPUTE, GATHER, REDUCE)}
        self.thread, self.correlation, self.phase = MAIN, 0, ""
        self.only: NDArray[np.bool_] | None = None

    def zeros(self) -> Times:
        return np.zeros(self.fleet.num_ranks, np.int64)

    def about(self, ns: int) -> Times:
        """A duration that differs from rank to rank."""
        factor = 1 + self.fleet.noise * self.rng.standard_normal(self.fleet.num_ranks)
        return np.maximum(1, ns * factor).astype(np.int64)

    def row(self, cat: str, name: str, start: Times, end: Times, args: str, pid: int = MAIN, tid: int = 0) -> None:
        head = f'{{"ph": "X", "cat": "{cat}", "name": "{name}", "pid": {pid}, "tid": {tid or self.thread}'
        text = f'{head.replace("%", "%%")}, "ts": %.3f, "dur": %.3f, "args": {{{args}}}}}'
        self.rows.append(Row(text, (start.copy(), end - start), self.only))

    @contextmanager
    def inside(self, name: str, cat: str = "user_annotation", ns: int = 4 * US) -> Iterator[None]:
        """A host row around what happens inside; half of its own time before that and half after."""
        start, thread, index = self.now.copy(), self.thread, len(self.rows)
        self.correlation += 1
        args = f'"External id": {self.correlation}, "Record function id": 0, "Ev Idx": {self.correlation}'
        if cat == "cpu_op":
            args += ', "Input type": ["c10::BFloat16", "c10::BFloat16"], "Input Dims": [[8192, 4096], [4096, 4096]]'
        self.now = self.now + self.about(ns // 2)
        yield
        self.now = self.now + self.about(ns // 2)
        self.row(cat, name, start, self.now, args, tid=thread)
        self.rows.insert(index, self.rows.pop())

    def launch(self, name: str, ns: Times, stream: int, after: Times, message: str = "") -> Times:
        """A kernel, and the flow from its launch; when it ends. One with a `message` lasts from when all came to it."""
        self.correlation += 1
        ids = f'"External id": {self.correlation}, "correlation": {self.correlation}'
        called = self.now
        self.now = called + self.about(5 * US)
        self.row("cuda_runtime", "cudaLaunchKernel", called, self.now, f'{ids}, "cbid": 211')
        start = np.maximum.reduce([called + 8 * US, self.free[stream] + 1 * US, after])
        meet = start if self.only is None else start[self.only]
        end: Times = start + ns if message == "" else np.maximum(start, meet.max()) + ns
        shape = '"grid": [1056, 1, 1], "block": [256, 1, 1], "registers per thread": 128, "shared memory": 98304'
        args = f'{ids}, "device": 0, "stream": {stream}, {shape}{message}'
        self.row("kernel", name, start, end, args, pid=0, tid=stream)
        flow = f'"id": {self.correlation}, "cat": "ac2g", "name": "ac2g"'
        self.rows.append(Row(f'{{"ph": "s", {flow}, "pid": {MAIN}, "tid": {self.thread}, "ts": %.3f}}', (called,)))
        self.rows.append(Row(f'{{"ph": "f", {flow}, "pid": 0, "tid": {stream}, "ts": %.3f, "bp": "e"}}', (start,)))
        if self.only is None:
            self.free[stream] = end
        return end

    def op(self, name: str, kernel: str, ns: Times, after: Times) -> None:
        with self.inside(name, "cpu_op", 24 * US):
            self.launch(kernel, ns, COMPUTE, after)

    def collective(self, name: str, elements: int, ns: int, stream: int, after: Times) -> Times:
        """A collective of all ranks, or of those that issue it; when its kernel ends."""
        size = self.fleet.num_ranks
        ranks = ", ".join(map(str, range(min(size, 30)))) + (", ..." if size > 30 else "")  # torch writes no more
        sides = {"_allgather_base": (elements // size, elements), "_reduce_scatter_base": (elements, elements // size)}
        given, taken = sides.get(name, (elements, elements))
        message = (
            f', "Collective name": "{name}", "dtype": "BFloat16", "In msg nelems": {given}, "Out msg nelems": {taken}, '
            f'"Group size": {size}, "Process Group Name": "0", "Process Group Description": "default_pg", '
            f'"Process Group Ranks": "[{ranks}]"'
        )
        start, index = self.now.copy(), len(self.rows)
        self.correlation += 1
        args = f'"External id": {self.correlation}, "Record function id": 0{message}'
        self.now = self.now + self.about(12 * US)
        with self.inside(f"nccl:{name}"):
            kernel = f"ncclDevKernel_{KERNELS[name]}(ncclDevKernelArgsStorage<4096ul>)"
            end = self.launch(kernel, np.full(size, ns), stream, after, message)
        self.row("cpu_op", "record_param_comms", start, self.now, args)
        self.rows.insert(index, self.rows.pop())
        return end

    def lateness(self, phase: str, share: float = 1.0) -> Times:
        """What the late ranks take longer by: their share of a phase's."""
        late_ns = self.fleet.late_ns if phase == self.fleet.late_in else 0
        late: Times = self.late * np.int64(round(late_ns * share))
        return late


def _play(played: Played) -> None:
    job = _Job(played)
    for number in range(job.fleet.steps):
        with job.inside(f"ProfilerStep#{number + 10}"):
            with job.inside(LOADER):
                job.now = job.now + job.about(200 * US) + job.lateness("dataload")
            if number == job.fleet.steps - 1 and job.fleet.desync_rank >= 0:
                job.only = np.arange(job.fleet.num_ranks) == job.fleet.desync_rank
                job.collective("allreduce", 1, 20 * US, REDUCE, job.zeros())
                job.only = None
            _forward(job)
            _backward(job)
            _update(job)


def _forward(job: _Job) -> None:
    layer_ns = sum(ns for _, _, ns in LAYER)
    with job.inside("FSDP::root_pre_forward"):
        pass
    with job.inside("FSDP::pre_forward"):
        gathered = _gather(job, "", ROOT_ELEMENTS)
    for number in range(job.fleet.layers):
        name = f" (layers.{number})"
        with job.inside(f"FSDP::pre_forward{name}"):
            gathered = np.maximum(gathered, _gather(job, name, LAYER_ELEMENTS))
        for op, kernel, ns in LAYER:
            late = job.lateness("forward", ns / layer_ns / job.fleet.layers)
            job.op(op, kernel, job.about(ns) + late, gathered)
        with job.inside(f"FSDP::post_forward{name}"):
            pass


def _gather(job: _Job, name: str, elements: int) -> Times:
    with job.inside(f"FSDP::all_gather{name}"):
        return job.collective("_allgather_base", elements, GATHER_NS, GATHER, job.zeros())


def _backward(job: _Job) -> None:
    """Each layer gathers the one before it ahead of its own work, and reduces its gradients behind it."""
    job.thread, layer_ns = AUTOGRAD, sum(ns for _, _, ns in LAYER)
    last = job.fleet.layers - 1
    with job.inside("FSDP::pre_backward"):
        gathered = _gather(job, f" (layers.{last})", LAYER_ELEMENTS)
    for number in range(last, -1, -1):
        ready = gathered
        with job.inside(f"FSDP::pre_backward (layers.{number})"):
            if number:
                with job.inside(f"FSDP::backward_prefetch for layers.{number - 1}"):
                    gathered = _gather(job, f" (layers.{number - 1})", LAYER_ELEMENTS)
        for op, kernel, ns in reversed(LAYER):
            with job.inside(
                f"autograd::engine::evaluate_function: {op[6:].strip('_').capitalize()}Backward0", "cpu_op"
            ):
                for _ in range(2):  # of the input, and of the weight
                    late = job.lateness("backward", ns / layer_ns / job.fleet.layers / 2)
                    job.op(op, kernel, job.about(ns) + late, ready)
        with job.inside(f"FSDP::post_backward_reduce (layers.{number})"):
            job.collective("_reduce_scatter_base", LAYER_ELEMENTS, REDUCE_NS, REDUCE, job.free[COMPUTE])
    with job.inside("FSDP::root_post_backward_callback"), job.inside("FSDP::post_backward_reduce"):
        job.collective("_reduce_scatter_base", ROOT_ELEMENTS, REDUCE_NS, REDUCE, job.free[COMPUTE])
    job.thread = MAIN


def _update(job: _Job) -> None:
    """The optimizer follows the last reduction; then the host reads the loss, and waits for the device."""
    with job.inside("Optimizer.step#AdamW.step"):
        for _ in range(6):
            late = job.lateness("optimizer", 1 / 6)
            job.op(
                "aten::_fused_adamw_", "multi_tensor_apply_kernel<Adam>", job.about(700 * US) + late, job.free[REDUCE]
            )
    with job.inside("aten::item", "cpu_op"), job.inside("aten::_local_scalar_dense", "cpu_op"):
        job.correlation += 1
        called, ids = job.now, f'"External id": {job.correlation}, "correlation": {job.correlation}'
        copied = np.maximum(called + 8 * US, job.free[COMPUTE]) + 2 * US
        copy = f'{ids}, "device": 0, "stream": {COMPUTE}, "bytes": 4'
        job.row("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", copied - 1 * US, copied, copy, pid=0, tid=COMPUTE)
        job.now = called + job.about(6 * US)
        job.row("cuda_runtime", "cudaMemcpyAsync", called, job.now, f'{ids}, "cbid": 41')
        job.correlation += 1
        waited, job.free[COMPUTE] = np.maximum(job.now + 2 * US, copied + 5 * US), copied
        args = f'"External id": {job.correlation}, "correlation": {job.correlation}, "cbid": 131'
        job.row("cuda_runtime", "cudaStreamSynchronize", job.now + 300, waited, args)
        job.now = waited


def play(fleet: Fleet) -> Played:
    """The job with clocks that differ by milliseconds from host to host and by microseconds within one."""
    rng, hosts = np.random.default_rng((fleet.seed, 1)), np.arange(fleet.num_ranks) // fleet.ranks_per_host
    offset = rng.integers(-5 * MS, 5 * MS, hosts[-1] + 1)[hosts] + rng.integers(-2 * US, 2 * US, fleet.num_ranks)
    return Played(fleet, offset)


def main() -> None:
    """Write a job and say where."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--late-host", type=int, default=-1)
    parser.add_argument("--desync", type=int, default=-1, metavar="RANK")
    parser.add_argument("--plain", action="store_true", help="not packed")
    requested = parser.parse_args()
    fleet = Fleet(requested.ranks)
    late = fleet.on_host(requested.late_host) if requested.late_host >= 0 else ()
    fleet = Fleet(requested.ranks, late_ranks=late, desync_rank=requested.desync)
    print(play(fleet).write(requested.folder, packed=not requested.plain))  # noqa: T201


if __name__ == "__main__":
    main()
