"""Which nn.Module takes the time, forward and backward?"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from traceq.analysis._parts import each_of, of_all
from traceq.analysis._wording import scope
from traceq.facts.events.device_work import device_work
from traceq.facts.events.kernels import launched_kernels
from traceq.facts.events.nesting import host_ops
from traceq.facts.ranks.job import Job
from traceq.facts.timeline.modules import modules, modules_at, modules_of_work
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import main_track, steps
from traceq.grouping import group
from traceq.intervals import contains, sorted_unique
from traceq.model import Category, Trace
from traceq.report import Cell, Column, Report, Table, Unknown
from traceq.units import Unit

POSITION = 68

_NO_MODULE = "(no module)"

_TOP = 10
_TELLING, _PASSES_ON = 0.03, 0.97
_COLUMNS = (
    Column("rank", "rank", Unit.COUNT),
    Column("phase", "phase"),
    Column("module", "module"),
    Column("host_ns", "host", Unit.NS),
    Column("gpu_ns", "GPU time", Unit.NS),
    Column("num_kernels", "kernels", Unit.COUNT),
    Column("tree_host_ns", "host, with inner", Unit.NS),
    Column("tree_gpu_ns", "GPU time, with inner", Unit.NS),
    Column("tree_num_kernels", "kernels, with inner", Unit.COUNT),
)
_KERNEL_COLUMNS = (
    Column("rank", "rank", Unit.COUNT),
    Column("phase", "phase"),
    Column("module", "module"),
    Column("name", "kernel"),
    Column("num", "num", Unit.COUNT),
    Column("gpu_ns", "GPU time", Unit.NS),
)
_NUM = Column("num", "num", Unit.COUNT)
_NUMBER = re.compile(r"_\d+(?=\.|$)")


@dataclass(frozen=True, slots=True, eq=False)
class _Tally:
    """`own`, `tree` int64[M + 1, P, 3]: host ns, GPU ns and kernels of each module and phase, the last row is outside
    all modules; `tree` has those of inner modules too.
    """

    own: NDArray[np.int64]
    tree: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Rank:
    """One rank's rows, those of its kernels, and what people see of it; None without modules."""

    rows: tuple[tuple[Cell, ...], ...]
    kernels: tuple[tuple[Cell, ...], ...]
    view: Table | None
    has_frames: bool
    has_lines: bool


def summarize(trace: Trace) -> _Rank:
    """Host time, device time and kernels of each module and phase over the whole trace; those of a phase add up to it.

    Backward counts to the module whose forward it differentiates.
    """
    has_frames = len(trace.events.rows(Category.PYTHON)) > 0
    has_lines = trace.lines is not None or len(trace.events.stacks.row) > 0
    if len(modules(trace)) == 0:
        return _Rank((), (), None, has_frames, has_lines)
    return _Rank(tuple(_rows(trace)), tuple(_kernel_rows(trace)), _view(trace), has_frames, has_lines)


def merge(job: Job, parts: Sequence[_Rank]) -> Report:
    """The rows of all ranks; people see the first that has modules."""
    tables = (
        Table("modules", "Modules", _COLUMNS, of_all(parts)),
        Table("module_kernels", "Kernels of modules", _KERNEL_COLUMNS, each_of(parts, lambda part: part.kernels)),
    )
    told = [(rank, part.view) for rank, part in zip(job.ranks, parts, strict=True) if part.view is not None]
    on = f"rank {told[0][0].rank}, " if len(parts) > 1 and told else ""
    views = tuple(replace(view, title=f"Modules ({on}{scope(job)})") for _, view in told[:1])
    has_lines = any(part.has_lines for part in parts)
    missing = Unknown("nn.Modules" if has_lines else "nn.Modules and Python lines", "with_stack=True")
    unknown = () if any(part.has_frames for part in parts) or not parts else (missing,)
    return Report("modules", tables, views, unknown=unknown)


def _tally(trace: Trace) -> _Tally:
    own = np.zeros((len(modules(trace)) + 1, len(phases(trace).names), 3), np.int64)
    work, at = device_work(trace), modules_of_work(trace)
    phase = phases(trace).of_work
    np.add.at(own[:, :, 1], (at, phase), work.end - work.start)
    np.add.at(own[:, :, 2], (at, phase), trace.events.category[work.rows] == Category.KERNEL)
    instants, ns = _host_pieces(trace)
    track = np.full(len(instants), main_track(trace))
    np.add.at(own[:, :, 0], (modules_at(trace, track, instants), phases(trace).at(instants)), ns)
    tree = own.copy()
    tree[:-1] = modules(trace).with_inner(own[:-1])
    return _Tally(own, tree)


def _host_pieces(trace: Trace) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The main thread's time in steps, cut where its phase, module or op changes: starts and lengths."""
    host, own = steps(trace).host, main_track(trace)
    cuts = [host.ravel(), phases(trace).main.parts.ravel()]
    for nests in (modules(trace).frames, host_ops(trace)):
        if own in nests:
            cuts += [nests[own].start, nests[own].end]
    edges = sorted_unique(*cuts)
    inside = contains(host, edges[:-1])
    return edges[:-1][inside], np.diff(edges)[inside]


def _rows(trace: Trace) -> list[tuple[Cell, ...]]:
    tally, names = _tally(trace), phases(trace).names
    paths = (*modules(trace).paths, _NO_MODULE)
    both = np.concatenate([tally.own, tally.tree], axis=2)
    return [
        (trace.rank, names[phase], paths[module], *both[module, phase].tolist())
        for phase, module in np.argwhere(tally.tree.any(axis=2).T).tolist()
    ]


def _kernel_rows(trace: Trace) -> list[tuple[Cell, ...]]:
    """Kernels of each module and phase by name, longest first."""
    kernels, events, names = launched_kernels(trace), trace.events, phases(trace).names
    paths = (*modules(trace).paths, _NO_MODULE)
    of_kernel = modules_of_work(trace)[kernels.work]
    name = events.name[device_work(trace).rows[kernels.work]]
    groups = group([phases(trace).of_work[kernels.work], of_kernel, name])
    num, gpu_ns = groups.count(), groups.sum(kernels.ns)
    return [
        (trace.rank, names[phase], paths[module], events.strings[text], num[at], gpu_ns[at])
        for at in np.argsort(-np.array(gpu_ns, np.int64), kind="stable").tolist()
        for phase, module, text in (groups.keys[at].tolist(),)
    ]


def _view(trace: Trace) -> Table:
    """The kinds of modules that take most, each with what is inside it, as a tree."""
    tree, known = _tally(trace).tree.sum(axis=1), modules(trace)
    kind = [_NUMBER.sub("", path) for path in known.paths]
    num = Counter(kind)
    sums = {path: np.zeros(3, np.int64) for path in num}
    for path, values in zip(kind, tree[:-1], strict=True):
        sums[path] += values
    by = 1 if tree[:, 1].any() else 0
    whole = int(tree[:-1][known.parent < 0, by].sum() + tree[-1, by]) or 1
    shown = _telling({path: int(values[by]) for path, values in sums.items()}, whole)
    lines: list[tuple[Cell, ...]] = []
    for path in shown:
        depth = sum(path.startswith(f"{other}.") for other in shown)
        name = "  " * depth + path.rpartition(".")[2]
        lines.append((name, num[path], *sums[path].tolist()[: 1 + 2 * by], 100 * int(sums[path][by]) / whole))
    lines.append((_NO_MODULE, None, *tree[-1].tolist()[: 1 + 2 * by], 100 * int(tree[-1, by]) / whole))
    columns = (_COLUMNS[2], _NUM, *_COLUMNS[3 : 4 + 2 * by], Column("share", "share", Unit.PERCENT))
    note = "A module counts with those inside it, and backward with the module it differentiates."
    return Table("modules", "Modules", columns, tuple(lines), note=note)


def _telling(ns: Mapping[str, int], whole: int) -> list[str]:
    """Paths that take a share worth a line, in the order of the tree; of a module and the one to which it passes all,
    the inner one.
    """
    largest_inner: dict[str, int] = {}
    for path, inner in ns.items():
        holder = path.rpartition(".")[0]
        largest_inner[holder] = max(largest_inner.get(holder, 0), inner)
    worth = [path for path in ns if ns[path] >= _TELLING * whole and largest_inner.get(path, 0) < _PASSES_ON * ns[path]]
    return sorted(sorted(worth, key=lambda path: -ns[path])[:_TOP], key=lambda path: path.split("."))
