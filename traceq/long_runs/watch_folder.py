"""Layout of a watched run on disk, and what is agreed through it.

Format 1 (2026): watch.json, node.json of several launchers, steps/rank<r>.<n>.rows, steps/rank<r>.sketches,
onsets.jsonl, capture.json; the folders healthy, onset-<n> and capture-<n> are runs of a few traced steps.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from traceq.errors import UnreadableInput
from traceq.frozen import frozen
from traceq.locations import Most, read_whole
from traceq.long_runs.onsets import Onset
from traceq.runs.run_folder import RunFolder, atomic_write

T = TypeVar("T")
FORMAT = 1
HEALTHY = "healthy"


class WatchedJob(msgspec.Struct, frozen=True):
    """What is watched: `hosts` and `pids` by rank; `pattern`: the events of a usual step; `started`: UTC."""

    version: int
    hosts: tuple[str, ...]
    pattern: str
    started: str
    command: tuple[str, ...]
    pids: tuple[int, ...] = ()


class WatchNode(msgspec.Struct, frozen=True):
    """A launcher of several, for `ranks` of the job in the folder `run`; `store`: where its ranks meet, host:port."""

    number: int
    num_nodes: int
    ranks: tuple[int, ...]
    run: str
    store: str


class CaptureRequest(msgspec.Struct, frozen=True):
    """Steps that all ranks are to trace: those from `first_step` on, into the folder `name` of the run."""

    name: str
    first_step: int
    num_steps: int
    started: str


@frozen
class WatchFolder:
    """Paths of a watched run, and its small files, which are replaced as a whole."""

    path: Path

    @property
    def steps(self) -> Path:
        """Folder of the steps of all ranks."""
        return self.path / "steps"

    @property
    def capture_path(self) -> Path:
        """Path of the latest request to trace."""
        return self.path / "capture.json"

    @property
    def _job_path(self) -> Path:
        return self.path / "watch.json"

    @property
    def _node_path(self) -> Path:
        return self.path / "node.json"

    @property
    def _onsets_path(self) -> Path:
        return self.path / "onsets.jsonl"

    @property
    def is_watched(self) -> bool:
        """Whether the steps of a job are known here."""
        return self._job_path.is_file()

    def captured(self, name: str) -> RunFolder:
        """Return the run of traced steps of a name."""
        return RunFolder(self.path / name)

    def has_captured(self, name: str) -> bool:
        """Return whether the traced steps of a name are complete."""
        folder = self.captured(name)
        return folder.manifest_path.is_file() and folder.is_complete

    def is_capturing(self, name: str) -> bool:
        """Return whether steps are being traced under a name."""
        folder = self.captured(name)
        return folder.manifest_path.is_file() and folder.read_manifest().status == "recording"

    def write_job(self, job: WatchedJob) -> None:
        """Write what is watched."""
        self._write(self._job_path, job)

    def read_job(self) -> WatchedJob:
        """Return what is watched. Raises UnreadableInput where that is missing, damaged or newer."""
        job = self._read(self._job_path, WatchedJob, "a run of `traceq watch`")
        if job.version > FORMAT:
            raise UnreadableInput(str(self._job_path), f"format {job.version}", f"at most {FORMAT}: a newer one")
        return job

    def write_node(self, node: WatchNode) -> None:
        """Write which ranks the launcher of this folder has, of a job with several launchers."""
        self._write(self._node_path, node)

    def read_node(self) -> WatchNode | None:
        """Return which ranks the launcher of this folder has; None if all."""
        if not self._node_path.is_file():
            return None
        return self._read(self._node_path, WatchNode, "a launcher of several")

    def write_capture(self, request: CaptureRequest) -> None:
        """Ask all ranks for traced steps."""
        self.captured(request.name).path.mkdir(exist_ok=True)
        self._write(self.capture_path, request)

    def read_capture(self) -> CaptureRequest:
        """Return the latest request to trace. Raises UnreadableInput."""
        return self._read(self.capture_path, CaptureRequest, "a request to trace steps")

    def append_onset(self, onset: Onset) -> None:
        """Append an onset as a line of JSON."""
        with self._onsets_path.open("ab") as file:
            file.write(msgspec.json.encode(onset) + b"\n")

    def read_onsets(self) -> list[Onset]:
        """Return the onsets so far, oldest first; a last line that is cut short is none."""
        if not self._onsets_path.is_file():
            return []
        lines = read_whole(self._onsets_path, Most.MANIFEST).splitlines(keepends=True)
        return [msgspec.json.decode(line, type=Onset) for line in lines if line.endswith(b"\n")]

    @staticmethod
    def _write(path: Path, value: msgspec.Struct) -> None:
        with atomic_write(path) as part:
            part.write_bytes(msgspec.json.encode(value))

    @staticmethod
    def _read(path: Path, kind: type[T], expected: str) -> T:
        try:
            return msgspec.json.decode(read_whole(path, Most.STATUS), type=kind)
        except OSError as fault:
            raise UnreadableInput(str(path), fault.strerror or str(fault), expected) from fault
        except msgspec.MsgspecError as fault:
            raise UnreadableInput(str(path), str(fault), expected) from fault
