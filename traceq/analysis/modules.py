"""Which nn.Module takes the time, forward and backward?"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from traceq.analysis import sentences
from traceq.analysis._rank_rows import each_of, of_all
from traceq.analysis._wording import in_graphs, scope
from traceq.facts.events.device_work import device_work
from traceq.facts.events.graph_replays import replay_times
from traceq.facts.events.kernels import launched_kernels
from traceq.facts.events.nesting import host_ops
from traceq.facts.ranks.job import Job
from traceq.facts.timeline.modules import modules, modules_at, modules_of_work
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import main_track, steps
from traceq.frozen import frozen
from traceq.grouping import group
from traceq.intervals import contains, sorted_unique
from traceq.model import Category, Trace
from traceq.report import Report, Table, Unknown, column
from traceq.units import Unit

_NO_MODULE = "(no module)"

_TOP = 10
_LEAST_SHARE, _PASSES_ON = 0.03, 0.97
"""Share of all time from which people see a module, and of its own time from which they see its inner one instead."""
_NUMBER = re.compile(r"_\d+(?=\.|$)")


@frozen
class ModuleRow:
    """Time and kernels of one module in one phase; `tree_*` with inner modules."""

    rank: int = column("rank", Unit.COUNT)
    phase: str = column("phase")
    module: str = column("module")
    host_ns: int = column("host", Unit.NS)
    gpu_ns: int = column("GPU time", Unit.NS)
    num_kernels: int = column("kernels", Unit.COUNT)
    tree_host_ns: int = column("host, with inner", Unit.NS)
    tree_gpu_ns: int = column("GPU time, with inner", Unit.NS)
    tree_num_kernels: int = column("kernels, with inner", Unit.COUNT)


@frozen
class ModuleKernelRow:
    """Kernels of one name, module and phase."""

    rank: int = column("rank", Unit.COUNT)
    phase: str = column("phase")
    module: str = column("module")
    name: str = column("kernel")
    num: int = column("num", Unit.COUNT)
    gpu_ns: int = column("GPU time", Unit.NS)


@frozen
class _TreeLine:
    """Modules of one kind and those inside them, over all phases; device columns are None where nothing ran on one."""

    module: str = column("module")
    num: int | None = column("num", Unit.COUNT)
    host_ns: int = column("host", Unit.NS)
    gpu_ns: int | None = column("GPU time", Unit.NS)
    num_kernels: int | None = column("kernels", Unit.COUNT)
    share: float = column("share", Unit.PERCENT)


@frozen(eq=False)
class _Tally:
    """Host ns, GPU ns and kernels of each module and phase: `self_`, `tree` int64[M + 1, P, 3].

    The last row is outside all modules; `tree` includes inner modules.
    """

    self_: NDArray[np.int64]
    tree: NDArray[np.int64]


@frozen
class _Rank:
    """One rank's rows, those of its kernels, and the tree that people see: all empty without modules.

    `in_graphs`: a sentence on the device time that replays of graphs launch.
    """

    rows: tuple[ModuleRow, ...]
    kernels: tuple[ModuleKernelRow, ...]
    lines: tuple[_TreeLine, ...]
    in_graphs: str
    has_frames: bool
    has_lines: bool


def summarize(trace: Trace) -> _Rank:
    """Return host time, device time and kernels of each module and phase, which add up to the phase, over the trace.

    Backward counts to the module whose forward it differentiates.
    """
    has_frames = len(trace.events.rows(Category.PYTHON)) > 0
    has_lines = trace.lines is not None or len(trace.events.stacks.row) > 0
    if len(modules(trace)) == 0:
        return _Rank((), (), (), "", has_frames, has_lines)
    rows, kernels, lines = _rows(trace), _kernel_rows(trace), _tree_lines(trace)
    return _Rank(tuple(rows), tuple(kernels), tuple(lines), in_graphs(replay_times(trace)), has_frames, has_lines)


def merge(job: Job, parts: Sequence[_Rank]) -> Report:
    """Return the rows of all ranks; people see the first rank that has modules."""
    tables = (
        Table.of("modules", "Modules", ModuleRow, of_all(parts)),
        Table.of("module_kernels", "Kernels of modules", ModuleKernelRow, each_of(parts, lambda part: part.kernels)),
    )
    has_lines = any(part.has_lines for part in parts)
    missing = Unknown("nn.Modules" if has_lines else "nn.Modules and Python lines", "with_stack=True")
    unknown = () if any(part.has_frames for part in parts) or not parts or job.is_foreign else (missing,)
    return Report("modules", tables, _views(job, parts), unknown=unknown)


def _views(job: Job, parts: Sequence[_Rank]) -> tuple[Table, ...]:
    for rank, part in zip(job.ranks, parts, strict=True):
        if part.lines:
            on_rank = f"rank {rank.rank}, " if len(parts) > 1 else ""
            notes = " ".join(filter(None, [sentences.MODULES, part.in_graphs]))
            return (Table.of("modules", f"Modules ({on_rank}{scope(job)})", _TreeLine, part.lines, note=notes),)
    return ()


def _tally(trace: Trace) -> _Tally:
    self_ = np.zeros((len(modules(trace)) + 1, len(phases(trace).names), 3), np.int64)
    work, module = device_work(trace), modules_of_work(trace)
    phase = phases(trace).work_phase
    np.add.at(self_[:, :, 1], (module, phase), work.end - work.start)
    np.add.at(self_[:, :, 2], (module, phase), trace.events.category[work.rows] == Category.KERNEL)
    instants, ns = _host_pieces(trace)
    track = np.full(len(instants), main_track(trace))
    np.add.at(self_[:, :, 0], (modules_at(trace, track, instants), phases(trace).main_phase_at(instants)), ns)
    tree = self_.copy()
    tree[:-1] = modules(trace).with_inner(self_[:-1])
    return _Tally(self_, tree)


def _host_pieces(trace: Trace) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (starts, lengths) ns of the main thread's time in steps, cut where its phase, module or op changes."""
    host, track = steps(trace).host, main_track(trace)
    cuts = [host.ravel(), phases(trace).main.parts.ravel()]
    for nests in (modules(trace).frames, host_ops(trace)):
        if track in nests:
            cuts += [nests[track].start, nests[track].end]
    edges = sorted_unique(*cuts)
    inside = contains(host, edges[:-1])
    return edges[:-1][inside], np.diff(edges)[inside]


def _rows(trace: Trace) -> list[ModuleRow]:
    tally, names = _tally(trace), phases(trace).names
    paths = (*modules(trace).paths, _NO_MODULE)
    both = np.concatenate([tally.self_, tally.tree], axis=2)
    return [
        ModuleRow(trace.rank, names[phase], paths[module], *both[module, phase].tolist())
        for phase, module in np.argwhere(tally.tree.any(axis=2).T).tolist()
    ]


def _kernel_rows(trace: Trace) -> list[ModuleKernelRow]:
    """Return kernels of each module and phase by name, longest first."""
    kernels, events, names = launched_kernels(trace), trace.events, phases(trace).names
    paths = (*modules(trace).paths, _NO_MODULE)
    module = modules_of_work(trace)[kernels.work]
    name = events.name[device_work(trace).rows[kernels.work]]
    groups = group([phases(trace).work_phase[kernels.work], module, name])
    rows = [
        ModuleKernelRow(trace.rank, names[phase], paths[module], events.strings[text], *sums)
        for (phase, module, text), *sums in zip(
            groups.keys.tolist(), groups.count(), groups.sum(kernels.ns), strict=True
        )
    ]
    return sorted(rows, key=lambda row: (-row.gpu_ns, row.phase, row.module, row.name))


def _tree_lines(trace: Trace) -> list[_TreeLine]:
    """Return the kinds of modules that take most time, each followed by those inside it, as a tree."""
    tree, parent = _tally(trace).tree.sum(axis=1), modules(trace).parent
    kinds = [_NUMBER.sub("", path) for path in modules(trace).paths]
    num = Counter(kinds)
    sums = {kind: np.zeros(3, np.int64) for kind in num}
    for kind, values in zip(kinds, tree[:-1], strict=True):
        sums[kind] += values
    has_device = bool(tree[:, 1].any())
    ranked = 1 if has_device else 0  # column of a tally: GPU ns, or host ns
    whole = int(tree[:-1][parent < 0, ranked].sum() + tree[-1, ranked]) or 1

    def line(name: str, num: int | None, values: NDArray[np.int64]) -> _TreeLine:
        host_ns, gpu_ns, num_kernels = values.tolist() if has_device else (int(values[0]), None, None)
        return _TreeLine(name, num, host_ns, gpu_ns, num_kernels, 100 * int(values[ranked]) / whole)

    shown = _largest({kind: int(values[ranked]) for kind, values in sums.items()}, whole)
    lines = []
    for kind in shown:
        depth = sum(kind.startswith(f"{outer}.") for outer in shown)
        lines.append(line("  " * depth + kind.rpartition(".")[2], num[kind], sums[kind]))
    return [*lines, line(_NO_MODULE, None, tree[-1])]


def _largest(ns: Mapping[str, int], whole_ns: int) -> list[str]:
    """Return the paths with a share worth a line, in the order of the tree.

    Of a module that passes all its time on to an inner one, only the inner one is listed.
    """
    largest_inner: dict[str, int] = {}
    for path, inner_ns in ns.items():
        outer = path.rpartition(".")[0]
        largest_inner[outer] = max(largest_inner.get(outer, 0), inner_ns)
    large = [
        path
        for path, path_ns in ns.items()
        if path_ns >= _LEAST_SHARE * whole_ns and largest_inner.get(path, 0) < _PASSES_ON * path_ns
    ]
    return sorted(sorted(large, key=lambda path: -ns[path])[:_TOP], key=lambda path: path.split("."))
