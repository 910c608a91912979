"""Several profiled windows of one arm as one trace."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from traceq.errors import RecordingFailed
from traceq.runs.embedded_recording import KEY
from traceq.runs.run_folder import atomic_write

__all__ = ["join_windows", "write_joined"]

_IDS = ("External id", "correlation", "Ev Idx", "Record function id")
_STEP = re.compile(r"^ProfilerStep#(\d+)$")

Event = dict[str, Any]


def write_joined(windows: Sequence[Path], path: Path, embedded: str) -> None:
    """Write the windows, files of plain JSON, as one compressed trace that carries `embedded`, and remove them.

    Raises RecordingFailed if the profiler wrote invalid JSON.
    """
    joined = join_windows([_document(window) for window in windows])
    events = joined.pop("traceEvents")
    head = json.dumps({**joined, KEY: embedded}, indent=1)[:-2]
    with atomic_write(path) as part, gzip.open(part, "wt", 5) as file:
        file.write(f'{head},\n "traceEvents": [\n')
        file.write(",\n".join(map(json.dumps, events)))
        file.write("\n]}\n")
    for window in windows:
        window.unlink()


def _document(window: Path) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(window.read_bytes())
    except ValueError as error:
        raise RecordingFailed(f"{window}: the profiler wrote invalid JSON: {error}") from error
    return document


def join_windows(windows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return one document with the events of all windows of a process, each the JSON of one profiler session.

    A session counts its steps and ids from the start again. Here ids stay unique, and steps are numbered on: numbers
    that are left out, of warm-up steps at least, mark where a window begins. Raises RecordingFailed if the windows do
    not share a clock.
    """
    bases = {window.get("baseTimeNanoseconds") for window in windows}
    if len(bases) > 1:
        raise RecordingFailed(f"the profiler's windows have different base times: {sorted(map(str, bases))}")
    events: list[Event] = []
    described: set[str] = set()
    first_id, first_step = 0, 0
    for window in windows:
        shifted = list(_shifted(window["traceEvents"], first_id, first_step))
        for event in shifted:
            if event.get("ph") == "M":
                text = json.dumps(event, sort_keys=True)
                if text in described:
                    continue
                described.add(text)
            events.append(event)
        first_id = 1 + max((number for event in shifted for number in _ids(event)), default=first_id)
        first_step = 1 + max((_step(event) for event in shifted), default=first_step)
    return {**windows[0], "traceEvents": events}


def _shifted(events: Sequence[Event], first_id: int, first_step: int) -> Iterator[Event]:
    """Yield the events with their ids and step numbers raised by these; 0 is no id, but none."""
    for event in events:
        args = event.get("args", {})
        changes = {key: args[key] + first_id for key in _IDS if isinstance(args.get(key), int) and args[key]}
        shifted = {**event, "args": {**args, **changes}} if changes else dict(event)
        if isinstance(event.get("id"), int) and event["id"]:
            shifted["id"] = event["id"] + first_id
        if (number := _step(event)) >= 0:
            shifted["name"] = f"ProfilerStep#{number + first_step}"
        yield shifted


def _ids(event: Event) -> Iterator[int]:
    args = event.get("args", {})
    return (number for number in (event.get("id"), *map(args.get, _IDS)) if isinstance(number, int))


def _step(event: Event) -> int:
    """Return the number of the step that an event marks, -1 for others."""
    match = _STEP.match(str(event.get("name", "")))
    return int(match[1]) if match else -1
