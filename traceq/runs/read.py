"""Reader of any path as a Run: a trace file, a folder of rank traces, a recorded run, or one arm of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from traceq.errors import UnreadableInput, UsageFault
from traceq.facts.ranks.rank_outline import with_common_steps
from traceq.facts.timeline.single_step import select_events
from traceq.facts.timeline.steps import extent
from traceq.frozen import frozen
from traceq.intervals import sorted_unique
from traceq.kineto.read import rank_in_name, read_trace
from traceq.locations import Place, place
from traceq.model import NO_EFFECT, SLOWED_BY_STACKS, Category, Caveat, Flight, Manifest, Pairs, Processes, Run, Trace
from traceq.runs.flight_recorder import is_flight, read_flight, read_flights
from traceq.runs.run_folder import RUNS, STEPS, is_run, read_manifest
from traceq.runs.step_log import PairLine, StepLine, pairs_of, rank_files, read_lines, read_processes, timings_of
from traceq.runs.windows import latest_windows, with_captures
from traceq.units import name_ranks

_RANK = re.compile(r"\brank\s{0,4}[:#_-]?\s{0,4}(\d{1,9})(?!\d)", re.IGNORECASE)
_EXPECTED = "a file per rank, or processes whose `process_name` tells the rank, as in `RANK 0 - CPU`"

_TRACE_NAME = re.compile(r"^(?!\.).*(?<!\.stacks)(?<!\.flight)\.json(\.gz|\.zst)?$")

ReadTraces = Callable[[Sequence[Place]], Iterable[Trace | UnreadableInput]]
"""Reader of the traces of a folder: a trace per file, or why it cannot be read."""


def read(
    path: str | Place,
    *,
    strict: bool = False,
    ranks: Collection[int] | None = None,
    reader: ReadTraces | None = None,
    beside: Sequence[Place] = (),
) -> Run:
    """Return the run at a path; of a recorded run the baseline arm, without traces if others alone have results.

    `ranks` selects ranks; `reader` reads the traces of a folder, by default one after the other in this process. What a
    trace file replays may be captured in files `beside` it.
    Unreadable files or parts of them become caveats of the run; `strict` refuses them. Raises UnreadableInput.
    """
    reader = reader or _one_by_one(strict=strict)
    path = place(path)
    if is_run(path):
        manifest = read_manifest(path)
        read_arm = partial(_read_arm, path, manifest, manifest.baseline, _Unprofiled.of(path, manifest))
        run = _with_progress(read_arm(strict=strict, ranks=ranks, reader=reader), path)
        return run if run.processes else _without_failure(run)
    if not path.is_file() and is_run(path.parent):
        manifest = read_manifest(path.parent)
        if manifest.arm(path.name) is None and path.is_dir() and any(map(is_flight, path.iterdir())):  # stalled
            dumps = _read_folder(path, strict=strict, ranks=ranks, reader=reader)
            return replace(dumps, manifest=manifest, caveats=(*_run_caveats(manifest, ""), *dumps.caveats))
        if not path.is_dir() or not (manifest.arm(path.name) or trace_files(path, None)):  # timed only, or no arm
            return _without_failure(_untraced(path.parent, manifest, path.name))
        read_arm = partial(_read_arm, path.parent, manifest, path.name, _Unprofiled.of(path.parent, manifest))
        return _without_failure(read_arm(strict=strict, ranks=ranks, reader=reader))
    if path.is_dir():
        return _read_folder(path, strict=strict, ranks=ranks, reader=reader)
    if is_flight(path):
        return Run(str(path), (), flights=(read_flight(path),))
    traces = _split_by_rank(_with_embedded(read_trace(path, strict=strict)), path)
    selected = with_common_steps(trace for trace in traces if ranks is None or trace.rank in ranks)
    if not selected:
        raise _no_such_ranks(path, ranks or (), (trace.rank for trace in traces))
    trace, caveats = selected[0], [*_stacks_caveats(path), *selected[0].caveats]
    if len(selected) == 1:
        trace, captured = with_captures(trace, [partial(read_one, file, strict=strict) for file in beside])
        selected, caveats = (trace,), [*caveats, *captured]
    return Run(str(path), selected, trace.manifest, trace.arm, trace.pairs, tuple(caveats), processes=trace.processes)


def read_timing(path: str | Place) -> Run:
    """Return a recorded run or arm without its traces; anything else as `read` does. Raises UnreadableInput."""
    path = place(path)
    if is_run(path):
        return _untraced(path, read_manifest(path))
    if not path.is_file() and is_run(path.parent):
        return _without_failure(_untraced(path.parent, read_manifest(path.parent), path.name))
    return read(path)


def with_traces(run: Run) -> Run:
    """Return the same run. Raises UnreadableInput if it has no traces, only timings or dumps."""
    if not run.traces:
        raise UnreadableInput(run.path, "no traces", "a trace of each rank")
    return run


def arm_failure(run: Run) -> str:
    """Return why an arm has no results: skipped, out of memory too early, or nothing changed; "" if it has some."""
    arm = run.manifest.arm(run.arm) if run.manifest else None
    has_steps = any(processes.arm == run.arm for processes in run.processes)
    if arm is None or (arm.status != NO_EFFECT and (run.traces or has_steps)):
        return ""
    return arm.failure


def read_arms(path: str | Place, *, reader: ReadTraces | None = None) -> tuple[Run, ...]:
    """Return every arm of a recorded run, in the recipe's order; `reader` as of `read`."""
    path = place(path)
    manifest = read_manifest(path)
    reader, unprofiled = reader or _one_by_one(strict=False), _Unprofiled.of(path, manifest)
    return tuple(
        _read_arm(path, manifest, arm.name, unprofiled, strict=False, ranks=None, reader=reader)
        for arm in manifest.arms
    )


def _without_failure(run: Run) -> Run:
    """Return the same run. Raises UnreadableInput for an arm that ended without results."""
    if why := arm_failure(run):
        raise UnreadableInput(f"{run.path}: arm {run.arm}", why)
    return run


def _untraced(path: Place, manifest: Manifest, arm: str = "") -> Run:
    if arm and manifest.arm(arm) is None:
        names = ", ".join(known_arm.name for known_arm in manifest.arms)
        raise UnreadableInput(str(path / arm), "no such arm", f"one of {names}")
    arm, unprofiled = arm or manifest.baseline, _Unprofiled.of(path, manifest)
    caveats = tuple(_run_caveats(manifest, arm))
    timings, processes = timings_of(unprofiled.ranks, arm, manifest.phases), unprofiled.processes
    return Run(str(path / arm), (), manifest, arm, unprofiled.pairs, caveats, timings=timings, processes=processes)


@frozen
class _Unprofiled:
    """What the `steps` folder of a run holds, read once for all arms: the steps of each rank, pairs and processes."""

    ranks: tuple[tuple[StepLine, ...], ...]
    pairs: tuple[Pairs, ...]
    processes: tuple[Processes, ...]

    @classmethod
    def of(cls, path: Place, manifest: Manifest) -> _Unprofiled:
        folder = path / STEPS
        ranks = [tuple(read_lines(file)) for file in rank_files(folder)]
        return cls(
            tuple(tuple(line for line in lines if isinstance(line, StepLine)) for lines in ranks),
            pairs_of([[line for line in lines if isinstance(line, PairLine)] for lines in ranks]),
            read_processes(folder, manifest),
        )


def _read_arm(
    path: Place,
    manifest: Manifest,
    arm: str,
    unprofiled: _Unprofiled,
    *,
    strict: bool,
    ranks: Collection[int] | None,
    reader: ReadTraces,
) -> Run:
    """Return one arm's traces with the unprofiled samples of the whole run; an interrupted run may have no traces."""
    folder = path / arm
    caveats = list(_run_caveats(manifest, arm))
    traces: tuple[Trace, ...] = ()
    flights: tuple[Flight, ...] = ()
    if folder.is_dir() and trace_files(folder, ranks):
        traced = _read_folder(folder, strict=strict, ranks=ranks, reader=reader)
        traces, flights, caveats = traced.traces, traced.flights, [*caveats, *traced.caveats]
    elif folder.is_dir() and (others := _ranks_in(folder)):
        raise _no_such_ranks(folder, ranks or (), others)
    elif manifest.status == "complete" and any(
        known_arm.name == arm and known_arm.timed and not known_arm.status for known_arm in manifest.arms
    ):
        caveats.append(Caveat("no_traces", f"{folder}: no traces; the run was recorded for its timing only"))
    return Run(
        str(folder if traces else path),
        traces,
        manifest,
        arm,
        unprofiled.pairs,
        tuple(caveats),
        flights,
        timings=timings_of(unprofiled.ranks, arm, manifest.phases),
        processes=unprofiled.processes,
    )


def _with_progress(run: Run, path: Place) -> Run:
    """Return the same run; where it ended before a trace, its first caveat says how far it got, and what to type."""
    manifest = run.manifest
    if run.traces or manifest is None or manifest.status == "complete":
        return run
    num_counted = run.timings.step_ns.shape[1] if run.timings else 0
    files = [[line for line in read_lines(file) if isinstance(line, StepLine)] for file in rank_files(path / STEPS)]
    num_steps = max((sum(line.arm == run.arm for line in lines) for lines in files), default=0)
    counted = f"{num_counted:,} are measured" if num_counted else "none is measured (they warm up)"
    steps = (
        f"of {num_steps:,} steps of arm {run.arm} {counted}" if num_steps else f"no step of arm {run.arm} is measured"
    )
    command = f"traceq record --recipe {manifest.recipe}" if manifest.recipe else "traceq record -- COMMAND"
    again = f"; to record the rest: {command}" if manifest.status != "recording" else ""
    first, *others = run.caveats
    return replace(run, caveats=(Caveat(first.code, f"{first.text}; {steps}, and none traced{again}"), *others))


def _run_caveats(manifest: Manifest, arm: str) -> Iterable[Caveat]:
    if manifest.status != "complete":
        reason = f": {manifest.fault}" if manifest.fault else ""
        yield Caveat("incomplete_run", f"the recording is incomplete ({manifest.status}){reason}")
    if (known_arm := manifest.arm(arm)) and known_arm.failure:
        yield Caveat("arm_ended", f"arm {arm}: {known_arm.failure}")


def _stacks_caveats(path: Place) -> Iterable[Caveat]:
    """Yield that a file is the step of a recording with Python's stacks, and which one to show instead."""
    name, stacks, ending = path.name.rpartition(".stacks.json")
    if stacks:
        what = f"{path}: the one step of a recording with all Python stacks, which make it longer"
        remedy = f"no findings from it; show {path.parent / f'{name}.json{ending}'} instead"
        yield Caveat(SLOWED_BY_STACKS, f"{what}: {remedy}")


def _by_name(folder: Place) -> list[Place]:
    return sorted(folder.iterdir(), key=lambda path: path.name)


def is_trace_file(path: Place) -> bool:
    """Return whether this has the name of a trace and is no folder; what cannot be read is said once it is opened."""
    return _TRACE_NAME.match(path.name) is not None and not path.is_dir()


def trace_files(folder: Place, ranks: Collection[int] | None = None) -> list[Place]:
    """Return the trace files of a folder by name, or of its folders `rank0`, `rank1` ... where it has none itself.

    Without those whose name gives a rank that is not in `ranks`.
    """
    return [file for rank, file in _named_files(folder) if ranks is None or rank is None or rank in ranks]


def _named_files(folder: Place) -> list[tuple[int | None, Place]]:
    """Return the trace files of a folder, each with the rank that its name, or that of its own folder, gives."""
    names = [(rank_in_name(path.name), path) for path in _by_name(folder)]
    files = [(rank, path) for rank, path in names if is_trace_file(path)]
    of_ranks = [(rank, path) for rank, path in names if rank is not None and path.is_dir()]
    return files or [(rank, file) for rank, path in of_ranks for file in _by_name(path) if is_trace_file(file)]


def _ranks_in(folder: Place) -> list[int]:
    """Return the ranks that the names of the trace files of a folder give."""
    return [rank for rank, _ in _named_files(folder) if rank is not None]


def read_one(file: Place, *, strict: bool) -> Trace:
    """Return one rank's trace, with the recording data that traceq embedded in it. Raises UnreadableInput."""
    return _one_process(_with_embedded(read_trace(file, strict=strict)))


def read_or_fault(file: Place, *, strict: bool = False) -> Trace | UnreadableInput:
    """Return one rank's trace, or why it cannot be read."""
    try:
        return read_one(file, strict=strict)
    except UnreadableInput as fault:
        return fault
    except MemoryError:
        return UnreadableInput(str(file), "too little memory to read it")


def _one_by_one(*, strict: bool) -> ReadTraces:
    return partial(map, partial(read_or_fault, strict=strict))


def _read_folder(folder: Place, *, strict: bool, ranks: Collection[int] | None, reader: ReadTraces) -> Run:
    files = trace_files(folder, ranks)
    if not files and (layout := _tensorboard(folder, ranks)) is not None:
        run = _read_folder(layout[0], strict=strict, ranks=ranks, reader=reader)
        return replace(run, caveats=(*layout[1], *run.caveats))
    if not files and any(is_flight(file) for file in folder.iterdir()):
        flights, unread = read_flights(folder, ranks)
        if not flights:
            raise UnreadableInput(str(folder), unread[0].text if unread else "no dump of the selected ranks")
        return Run(str(folder), (), caveats=tuple(unread), flights=flights)
    if not files:
        if others := _ranks_in(folder):
            raise _no_such_ranks(folder, ranks or (), others)
        raise UnreadableInput(str(folder), "no trace files", f"*.json, *.json.gz or *.json.zst{_runs_in(folder)}")
    traces, caveats, others = [], [], []
    for file, trace in zip(files, reader(files), strict=True):
        if isinstance(trace, UnreadableInput):
            if strict or len(files) == 1:
                raise trace
            caveats.append(Caveat("unreadable_rank", str(trace)))
        elif ranks is None or trace.rank in ranks:
            traces.append(trace)
            caveats += [Caveat(caveat.code, f"{file}: {caveat.text}") for caveat in trace.caveats]
        else:
            others.append(trace.rank)
    if not traces and others:
        raise _no_such_ranks(folder, ranks or (), others)
    if not traces:
        raise UnreadableInput(str(folder), caveats[0].text)
    latest, window, several_windows = latest_windows(traces)
    latest = with_common_steps(latest)
    flights, unread = read_flights(folder, [trace.rank for trace in latest] if len(latest) > 1 else ())
    first = latest[0]
    caveats += [*several_windows, *unread, *_different_jobs(latest)]
    recording = first.manifest, first.arm, first.pairs
    return Run(str(folder), latest, *recording, tuple(caveats), flights, processes=first.processes, window=window)


def _runs_in(folder: Place) -> str:
    """Return which path to give instead of a folder that holds recorded runs, or the folder of runs; "" for others."""
    runs = [path for path in _by_name(folder) if is_run(path)]
    if runs:
        return f", or one of its {len(runs)} runs: {folder / runs[0].name}"
    runs_folder = folder / RUNS
    return f", or its folder of recorded runs: {runs_folder}" if runs_folder.is_dir() else ""


def _no_such_ranks(path: Place, selected: Collection[int], present: Iterable[int]) -> UsageFault:
    """Return the error of a selection of which nothing is there."""
    texts = [name_ranks(list(each)) for each in (selected, present)]
    return UsageFault(f"{path}: no trace of {texts[0]}; expected {texts[1]}")


def _tensorboard(folder: Place, ranks: Collection[int] | None) -> tuple[Place, tuple[Caveat, ...]] | None:
    """Return (the latest recording in a folder of TensorBoard's profile plugin, a caveat on others), None for others.

    The layout is `plugins/profile/<time>/<host>.<process>.<time>.pt.trace.json.gz`.
    """
    profile = folder / "plugins" / "profile"
    if not profile.is_dir():
        return None
    if trace_files(profile, ranks):
        return profile, ()
    recordings = [path for path in _by_name(profile) if path.is_dir() and trace_files(path, ranks)]
    if not recordings:
        return None
    text = f"{profile} has {len(recordings)} recordings; the latest is used: {recordings[-1].name}"
    return recordings[-1], (Caveat("several_windows", text),) if len(recordings) > 1 else ()


def _different_jobs(traces: tuple[Trace, ...]) -> list[Caveat]:
    """Return a caveat if the traces name different job sizes or devices; damaged ones may have lost theirs."""
    kinds = dict.fromkeys(f"{trace.device}, {trace.world_size} ranks" for trace in traces if not trace.caveats)
    if len(kinds) <= 1:
        return []
    return [Caveat("not_one_job", f"the traces come from different jobs: {'; '.join(kinds)}")]


def _with_embedded(trace: Trace) -> Trace:
    """Return the trace with the recording data that is embedded in it. Raises UnreadableInput if it lasts no time."""
    start, end = extent(trace)
    if start >= end:
        raise UnreadableInput(trace.path, "all its events last 0 ns together", "a step")
    if not trace.embedded:
        return trace
    from traceq.runs.embedded_recording import decode  # for traces of recordings alone

    try:
        embedded = decode(trace.embedded, num_events=len(trace.events))
    except UnreadableInput as fault:
        return replace(trace, caveats=(*trace.caveats, Caveat("metadata", str(fault))))
    hosts = embedded.manifest.hosts  # traces of older torch versions have no host name
    return replace(
        trace,
        manifest=embedded.manifest,
        arm=embedded.arm,
        pairs=embedded.pairs,
        lines=embedded.lines,
        processes=embedded.processes,
        host=trace.host or (hosts[trace.rank] if trace.rank < len(hosts) else ""),
    )


def _num_processes(trace: Trace) -> int:
    """Return how many processes run ops of PyTorch in a trace; device rows, whose process is a device, do not count."""
    return len(sorted_unique(trace.events.pid[trace.events.rows(Category.CPU_OP)]))


def _one_process(trace: Trace) -> Trace:
    """Return the same trace. Raises UnreadableInput for the merged traces of several processes."""
    if (num := _num_processes(trace)) > 1:
        raise UnreadableInput(trace.path, f"events of {num} processes in one file", "a file per rank in a folder")
    return trace


def _split_by_rank(trace: Trace, path: Place) -> tuple[Trace, ...]:
    """Return a trace for each rank whose processes the file names, the same trace if it has only one process.

    Raises UnreadableInput where events of several processes do not tell their rank.
    """
    if _num_processes(trace) < 2:
        return (trace,)
    events, rank_of = trace.events, _ranks_of_processes(trace)
    processes = sorted_unique(events.pid).tolist()
    ranks = {process: rank_of.get(events.strings[process], -1) for process in processes}
    unknown = sorted(events.strings[process] for process, rank in ranks.items() if rank < 0)
    if unknown:
        listed = ", ".join(unknown[:4]) + (", ..." if len(unknown) > 4 else "")
        content = f"events of {_num_processes(trace)} processes in one file; {listed} do not tell their rank"
        raise UnreadableInput(str(path), content, _EXPECTED)
    distinct = sorted(set(ranks.values()))
    size = max(trace.world_size, len(distinct), distinct[-1] + 1)
    return tuple(_of_rank(trace, rank, [n for n, other in ranks.items() if other == rank], size) for rank in distinct)


def _of_rank(trace: Trace, rank: int, processes: list[int], world_size: int) -> Trace:
    events, names = trace.events, {trace.events.strings[number] for number in processes}
    selected = select_events(events, np.isin(events.pid, processes), np.isin(events.allocations.pid, processes))
    threads = tuple(thread for thread in trace.threads if thread.pid in names)
    return replace(trace, events=selected, threads=threads, rank=rank, world_size=world_size)


def _ranks_of_processes(trace: Trace) -> dict[str, int]:
    """Return process -> rank by the names and labels of processes."""
    ranks: dict[str, int] = {}
    for process, name in trace.process_names:
        if match := _RANK.search(name):
            ranks.setdefault(process, int(match[1]))
    return ranks


def parse_ranks(text: str | None) -> set[int] | None:
    """Return `0,8,16-31` as a set; None for all ranks. Raises UsageFault."""
    if text is None:
        return None
    ranks: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,7})(?:-([0-9]{1,7}))?\s*", part)
        if match is None:
            raise UsageFault(f"--ranks {text}: '{part.strip()}' is not a rank; expected something like 0,8,16-31")
        ranks.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return ranks
