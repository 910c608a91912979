"""Any path as a Run: a trace file, a folder of rank traces, a recorded run, or one arm of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from traceq.errors import UnreadableInput
from traceq.kineto.read import read_trace
from traceq.locations import Place, place
from traceq.model import Caveat, Flight, Manifest, Run, Trace
from traceq.runs.embedded import decode
from traceq.runs.flight_recorder import is_flight, read_flight, read_flights
from traceq.runs.layout import STEPS, is_run, read_manifest
from traceq.runs.processes import read_processes
from traceq.runs.step_log import read_pairs
from traceq.runs.timings import read_timings

__all__ = ["ReadTraces", "left_nothing", "read", "read_arms", "read_one", "read_timing", "with_traces"]

_TRACE_NAME = re.compile(r"^(?!\.).*(?<!\.stacks)(?<!\.flight)\.json(\.gz|\.zst)?$")
_RANK_NAME = re.compile(r"rank[-_]?(\d+)")


ReadTraces = Callable[[Sequence[Place]], Iterable[Trace | UnreadableInput]]
"""How the traces of a folder are read: each file as a trace, or why it is none."""


def read(
    path: str | Place, *, strict: bool = False, ranks: Collection[int] | None = None, each: ReadTraces | None = None
) -> Run:
    """The run at a path; of a recorded run the baseline arm. `ranks` leaves out the others; `each` reads the traces of
    a folder, else it is done here, one after the other.

    What a file cannot give is a caveat of the run; `strict` refuses it. Raises UnreadableInput.
    """
    each = each or _one_by_one(strict=strict)
    path = place(path)
    if is_run(path):
        manifest = read_manifest(path)
        return _checked(_read_arm(path, manifest, manifest.baseline, strict=strict, ranks=ranks, each=each))
    if not path.is_file() and is_run(path.parent):
        manifest = read_manifest(path.parent)
        if manifest.arm(path.name) is None and path.is_dir() and any(map(is_flight, path.iterdir())):  # stalled
            left = _read_folder(path, strict=strict, ranks=ranks, each=each)
            return replace(left, manifest=manifest, caveats=(*_run_caveats(manifest, ""), *left.caveats))
        if not path.is_dir() or not (manifest.arm(path.name) or _trace_files(path, None)):  # timed only, or no arm
            return _checked(_untraced(path.parent, manifest, path.name))
        return _checked(_read_arm(path.parent, manifest, path.name, strict=strict, ranks=ranks, each=each))
    if path.is_dir():
        return _read_folder(path, strict=strict, ranks=ranks, each=each)
    if is_flight(path):
        return Run(str(path), (), flights=(read_flight(path),))
    trace = read_one(path, strict=strict)
    if ranks is not None and trace.rank not in ranks:
        raise UnreadableInput(str(path), f"it is rank {trace.rank}'s", "a trace of the ranks asked for")
    return Run(str(path), (trace,), trace.manifest, trace.arm, trace.pairs, trace.caveats, processes=trace.processes)


def read_timing(path: str | Place) -> Run:
    """A recorded run or arm without its traces; whatever is neither as `read` has it. Raises UnreadableInput."""
    path = place(path)
    if is_run(path):
        return _untraced(path, read_manifest(path))
    if not path.is_file() and is_run(path.parent):
        return _checked(_untraced(path.parent, read_manifest(path.parent), path.name))
    return read(path)


def with_traces(run: Run) -> Run:
    """The same run. Raises UnreadableInput where nothing was traced: a timing alone, or dumps alone."""
    if not run.traces:
        raise UnreadableInput(run.path, "no traces", "a trace of each rank")
    return run


def left_nothing(run: Run) -> str:
    """Why there is nothing of this arm: it was skipped, or out of memory too soon; "" where there is something."""
    arm = run.manifest.arm(run.arm) if run.manifest else None
    has_steps = any(found.arm == run.arm for found in run.processes)
    return arm.ended if arm and not run.traces and not has_steps else ""


def read_arms(path: str | Place) -> tuple[Run, ...]:
    """Every traced arm of a recorded run, in the recipe's order; the run itself where nothing was traced."""
    path = place(path)
    manifest = read_manifest(path)
    each = _one_by_one(strict=False)
    return tuple(_read_arm(path, manifest, arm.name, strict=False, ranks=None, each=each) for arm in manifest.arms)


def _checked(run: Run) -> Run:
    """The same run. Raises UnreadableInput for an arm that ended before it left anything."""
    if why := left_nothing(run):
        raise UnreadableInput(f"{run.path}: arm {run.arm}", why)
    return run


def _untraced(path: Place, manifest: Manifest, arm: str = "") -> Run:
    if arm and manifest.arm(arm) is None:
        known = ", ".join(each.name for each in manifest.arms)
        raise UnreadableInput(str(path / arm), "no such arm", f"one of {known}")
    arm, pairs = arm or manifest.baseline, read_pairs(path / STEPS)
    steps, caveats = path / STEPS, tuple(_run_caveats(manifest, arm))
    timings, processes = read_timings(steps, arm, manifest.phases), read_processes(steps, manifest)
    return Run(str(path / arm), (), manifest, arm, pairs, caveats, timings=timings, processes=processes)


def _read_arm(
    path: Place, manifest: Manifest, arm: str, *, strict: bool, ranks: Collection[int] | None, each: ReadTraces
) -> Run:
    """Traces of one arm with the unprofiled samples of the whole run; a run cut short may have none."""
    folder = path / arm
    pairs, processes = read_pairs(path / STEPS), read_processes(path / STEPS, manifest)
    caveats = list(_run_caveats(manifest, arm))
    traces: tuple[Trace, ...] = ()
    flights: tuple[Flight, ...] = ()
    if folder.is_dir() and _trace_files(folder, ranks):
        found = _read_folder(folder, strict=strict, ranks=ranks, each=each)
        traces, flights, caveats = found.traces, found.flights, [*caveats, *found.caveats]
    elif manifest.status == "complete" and any(
        known.name == arm and known.timed and not known.status for known in manifest.arms
    ):
        caveats.append(Caveat("no_traces", f"{folder}: no traces; the run was recorded for its timing only"))
    timings = read_timings(path / STEPS, arm, manifest.phases)
    where, doubts = str(folder if traces else path), tuple(caveats)
    return Run(where, traces, manifest, arm, pairs, doubts, flights, timings=timings, processes=processes)


def _run_caveats(manifest: Manifest, arm: str) -> Iterable[Caveat]:
    if manifest.status != "complete":
        reason = f": {manifest.fault}" if manifest.fault else ""
        yield Caveat("incomplete_run", f"the recording is incomplete ({manifest.status}){reason}")
    if (known := manifest.arm(arm)) and known.ended:
        yield Caveat("arm_ended", f"arm {arm}: {known.ended}")


def _by_name(folder: Place) -> list[Place]:
    return sorted(folder.iterdir(), key=lambda found: found.name)


def _trace_files(folder: Place, ranks: Collection[int] | None) -> list[Place]:
    """Trace files of a folder, by name; those whose name gives a rank that is not asked for are left out."""
    files = [file for file in _by_name(folder) if _TRACE_NAME.match(file.name) and file.is_file()]

    def asked_for(file: Place) -> bool:
        found = _RANK_NAME.search(file.name)
        return ranks is None or found is None or int(found[1]) in ranks

    return [file for file in files if asked_for(file)]


def read_one(file: Place, *, strict: bool) -> Trace:
    """One trace, with what a recording of traceq wrote into it. Raises UnreadableInput."""
    return _unpacked(read_trace(file, strict=strict))


def _one_by_one(*, strict: bool) -> ReadTraces:
    def read_or_fault(file: Place) -> Trace | UnreadableInput:
        try:
            return read_one(file, strict=strict)
        except UnreadableInput as fault:
            return fault

    return lambda files: map(read_or_fault, files)


def _read_folder(folder: Place, *, strict: bool, ranks: Collection[int] | None, each: ReadTraces) -> Run:
    files = _trace_files(folder, ranks)
    if not files and any(is_flight(file) for file in folder.iterdir()):
        flights, unread = read_flights(folder, ranks)
        if not flights:
            raise UnreadableInput(str(folder), unread[0].text if unread else "no dump of the ranks asked for")
        return Run(str(folder), (), caveats=tuple(unread), flights=flights)
    if not files:
        asked = "" if ranks is None else " of the ranks asked for"
        inside = [found.name for found in _by_name(folder) if is_run(found)]
        one_run = f", or one of its {len(inside)} runs: {folder / inside[0]}" if inside else ""
        raise UnreadableInput(str(folder), f"no trace files{asked}", f"*.json, *.json.gz or *.json.zst{one_run}")
    traces, caveats = [], []
    for file, trace in zip(files, each(files), strict=True):
        if isinstance(trace, UnreadableInput):
            if strict or len(files) == 1:
                raise trace
            caveats.append(Caveat("unreadable_rank", str(trace)))
        elif ranks is None or trace.rank in ranks:
            traces.append(trace)
            caveats += [Caveat(found.code, f"{file}: {found.text}") for found in trace.caveats]
    if not traces:
        raise UnreadableInput(str(folder), caveats[0].text if caveats else "no trace of the ranks asked for")
    latest, left_out = _one_window_a_rank(traces)
    flights, unread = read_flights(folder, [trace.rank for trace in latest] if len(latest) > 1 else ())
    first = latest[0]
    doubts = (*caveats, *left_out, *unread, *_not_one_job(latest))
    return Run(str(folder), latest, first.manifest, first.arm, first.pairs, doubts, flights, processes=first.processes)


def _one_window_a_rank(traces: list[Trace]) -> tuple[tuple[Trace, ...], list[Caveat]]:
    """The latest window of each rank, by rank; a folder can hold several."""
    by_rank: dict[int, list[Trace]] = {}
    for trace in traces:
        by_rank.setdefault(trace.rank, []).append(trace)
    caveats = []
    for rank, windows in sorted(by_rank.items()):
        windows.sort(key=lambda trace: trace.base_time_ns + int(trace.events.ts.min()))
        if len(windows) > 1:
            text = f"rank {rank} has {len(windows)} windows; the latest is used: {windows[-1].path}"
            caveats.append(Caveat("several_windows", text))
    return tuple(by_rank[rank][-1] for rank in sorted(by_rank)), caveats


def _not_one_job(traces: tuple[Trace, ...]) -> list[Caveat]:
    """Traces that say they come from jobs of different sizes or devices; a damaged one may have lost what it said."""
    kinds = dict.fromkeys(f"{trace.device}, {trace.world_size} ranks" for trace in traces if not trace.caveats)
    if len(kinds) <= 1:
        return []
    return [Caveat("not_one_job", f"the traces are not of one job: {'; '.join(kinds)}")]


def _unpacked(trace: Trace) -> Trace:
    """The trace with what a recording of traceq wrote into it."""
    if not trace.embedded:
        return trace
    try:
        told = decode(trace.embedded)
    except UnreadableInput as fault:
        return replace(trace, caveats=(*trace.caveats, Caveat("metadata", str(fault))))
    hosts = told.manifest.hosts  # older torch does not note them
    return replace(
        trace,
        manifest=told.manifest,
        arm=told.arm,
        pairs=told.pairs,
        lines=told.lines,
        processes=told.processes,
        host=trace.host or (hosts[trace.rank] if trace.rank < len(hosts) else ""),
    )
