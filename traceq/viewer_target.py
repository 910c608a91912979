"""Which file of a path is opened, and which of its tracks are put on top."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from traceq.errors import UnreadableInput
from traceq.kineto.document import Document
from traceq.kineto.source import open_source
from traceq.runs.layout import RunFolder
from traceq.viewer import Command

__all__ = ["Target", "find_target", "startup_commands"]

TRACE_NAMES = (".json", ".json.gz")
SIDE_FILES = (".stacks.json.gz", ".flight.json", "run.json")
HEAD_BYTES = 1 << 16  # Kineto writes its distributedInfo before the events
PIECE_BYTES, NUM_PIECES = 1 << 20, 64
GZIP = b"\x1f\x8b"
UNKNOWN_RANK = 1 << 31
RANK = re.compile(rb'"distributedInfo"\s*:\s*\{[^}]*?"rank"\s*:\s*(\d+)')
RANK_IN_NAME = re.compile(r"rank[-_]?(\d+)")
STEP_PROCESS = re.compile(  # the host's row: with a device Kineto writes one of the same name for a stream
    rb'"cat":\s*"(?!gpu_)[^"]*",\s*"name":\s*"ProfilerStep[^"]*",\s*"pid":\s*"?(\d+)'
)

STEPS = "select ts, dur, name from slice where name glob 'ProfilerStep*' and category != 'gpu_user_annotation'"
PHASES = (
    "select phase.ts, phase.dur, phase.name from slice phase join slice step on phase.parent_id = step.id "
    "where step.name glob 'ProfilerStep*' and phase.category = 'user_annotation'"
)


@dataclass(frozen=True, slots=True)
class Target:
    """A trace file, and in words why it is the one; empty where the path left no choice."""

    path: Path
    choice: str = ""


def find_target(path: Path) -> Target:
    """The file itself; of a run the baseline's lowest rank; of another folder the lowest rank.

    Raises UnreadableInput where there is none, or none that the Perfetto UI reads.
    """
    if path.is_dir():
        target = _find_in_folder(path)
        _check_is_trace(target.path)
        return target
    if not path.exists():
        raise UnreadableInput(str(path), "no such file or folder", "a trace file, a folder of traces, or a run")
    if path.name.endswith(".zst"):
        raise UnreadableInput(str(path), "the Perfetto UI does not read zstd", ".json or .json.gz (zstd -d unpacks it)")
    _check_is_trace(path)
    return Target(path)


def _check_is_trace(file: Path) -> None:
    """Refuse what the other commands refuse, by its head; what is wrong further down the UI says itself."""
    source = open_source(file)
    try:
        if not any(Document(source).windows()):
            raise UnreadableInput(str(file), "no complete event", "events with ts and dur")
    finally:
        source.close()


def _find_in_folder(folder: Path) -> Target:
    run = RunFolder(folder)
    arm = run.read_manifest().baseline if run.manifest_path.is_file() else ""
    files = [file for file in (folder / arm).glob("*") if file.name.endswith(TRACE_NAMES)]
    traces = [file for file in files if not file.name.endswith(SIDE_FILES) and not file.name.startswith(".")]
    if not traces:
        raise UnreadableInput(str(folder / arm), "no trace in this folder", "a .json or .json.gz file for each rank")
    rank, chosen = min((_rank(file), file) for file in traces)
    choice = f"rank {rank}" if rank < UNKNOWN_RANK else "the first by name"
    return Target(chosen, f"{choice}, baseline arm {arm}" if arm else f"{choice}, of {len(traces):,} traces")


def _rank(file: Path) -> int:
    """From the head of the trace, else from its name."""
    found = RANK.search(next(_pieces(file, HEAD_BYTES), b"")) or RANK_IN_NAME.search(file.name)
    return int(found[1]) if found else UNKNOWN_RANK


def startup_commands(trace: Path) -> tuple[Command, ...]:
    """Perfetto UI commands that pin steps, phases and streams on top and unfold the threads of the training process.

    The main thread itself is not pinned: it may be a screen high, and would push steps and phases out of sight.
    """
    commands: list[Command] = [
        ("dev.perfetto.AddDebugSliceTrack", (STEPS, "steps")),
        ("dev.perfetto.AddDebugSliceTrack", (PHASES, "phases")),
        ("dev.perfetto.PinTracksByRegex", (r"^stream \d",)),
    ]
    process = _step_process(trace)
    if process:
        commands.append(("dev.perfetto.ExpandTracksByRegex", (rf"\b{process}$",)))
    return tuple(commands)


def _step_process(trace: Path) -> str:
    """Id of the process that carries the steps, from the first 64 MiB of text; empty where none is found."""
    tail = b""
    for piece in islice(_pieces(trace, PIECE_BYTES), NUM_PIECES):
        if found := STEP_PROCESS.search(tail + piece):
            return found[1].decode()
        tail = piece[-256:]  # a match may lie across the seam
    return ""


def _pieces(trace: Path, size: int) -> Iterator[bytes]:
    """Text of a trace. A damaged archive ends early: the UI says what is wrong with it."""
    with trace.open("rb") as file, gzip.GzipFile(fileobj=file) as unpacked:
        stream = unpacked if file.peek(2).startswith(GZIP) else file
        try:
            while piece := stream.read(size):
                yield piece
        except (OSError, EOFError, zlib.error):
            return
