"""Several profiled windows of one arm as one trace."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from traceq.errors import RecordingFailed
from traceq.runs.embedded_recording import KEY
from traceq.runs.run_folder import atomic_write

__all__ = ["join_windows", "write_joined"]

_IDS = ("External id", "correlation", "wait_on_cuda_event_record_corr_id", "Ev Idx", "Record function id")
_STEP = re.compile(r"^ProfilerStep#(\d+)$")

Event = dict[str, Any]


def write_joined(windows: Sequence[Path], path: Path, embedded: str) -> None:
    """Write the windows, files of plain JSON, as one compressed trace that carries `embedded`, and remove them.

    They are read one after the other. Raises RecordingFailed if the profiler wrote invalid JSON.
    """
    documents = map(_document, windows)
    first = next(documents)
    described = {key: value for key, value in first.items() if key != "traceEvents"}
    events = _joined(chain([first], documents))
    del first
    with atomic_write(path) as part, gzip.open(part, "wt", 5) as file:
        file.write(f'{json.dumps({**described, KEY: embedded}, indent=1)[:-2]},\n "traceEvents": [')
        for index, event in enumerate(events):
            file.write(f"{',' if index else ''}\n{json.dumps(event)}")
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
    return {**windows[0], "traceEvents": list(_joined(windows))}


def _joined(windows: Iterable[dict[str, Any]]) -> Iterator[Event]:
    """Yield the events of all windows; rows that describe processes and threads only once."""
    described: set[str] = set()
    base_ns, first_id, first_step = None, 0, 0
    for index, window in enumerate(windows):
        base_ns = base_ns if index else window.get("baseTimeNanoseconds")
        if window.get("baseTimeNanoseconds") != base_ns:
            raise RecordingFailed(
                f"the profiler's windows have different base times: {base_ns}, {window.get('baseTimeNanoseconds')}"
            )
        last_id, last_step = first_id - 1, first_step - 1
        for event in _shifted(window["traceEvents"], first_id, first_step):
            last_id, last_step = max(last_id, *_ids(event)), max(last_step, _step(event))
            if event.get("ph") == "M":
                text = json.dumps(event, sort_keys=True)
                if text in described:
                    continue
                described.add(text)
            yield event
        first_id, first_step = last_id + 1, last_step + 1


def _shifted(events: Sequence[Event], first_id: int, first_step: int) -> Iterator[Event]:
    """Yield the events with their ids and step numbers raised by these; 0 and less is no id, but none."""
    for event in events:
        args = event.get("args", {})
        changes = {key: args[key] + first_id for key in _IDS if isinstance(args.get(key), int) and args[key] > 0}
        shifted = {**event, "args": {**args, **changes}} if changes else dict(event)
        if isinstance(event.get("id"), int) and event["id"] > 0:
            shifted["id"] = event["id"] + first_id
        if (number := _step(event)) >= 0:
            shifted["name"] = f"ProfilerStep#{number + first_step}"
        yield shifted


def _ids(event: Event) -> Iterator[int]:
    """Yield the ids of an event, and 0."""
    args = event.get("args", {})
    return (number for number in (0, event.get("id"), *map(args.get, _IDS)) if isinstance(number, int))


def _step(event: Event) -> int:
    """Return the number of the step that an event marks, -1 for others."""
    match = _STEP.match(str(event.get("name", "")))
    return int(match[1]) if match else -1
