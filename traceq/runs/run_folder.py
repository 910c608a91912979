"""Layout of a run on disk, and its manifest. Shared by the writer and the reader.

Format 1 (2026): run.json, <arm>/rank<r>.json.gz, <arm>/rank<r>.stacks.json.gz, <arm>/rank<r>.flight.json,
steps/rank<r>.jsonl, logs/rank<r>.log; stalled/rank<r>.flight.json if a collective never ended; faults/rank<r>.json
if a rank that an external launcher started ended early, faults/hang.txt if all stood still.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from traceq.errors import UnreadableInput
from traceq.frozen import frozen
from traceq.locations import Most, Place, Remote, read_whole
from traceq.model import Manifest

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

FORMAT = 1
MANIFEST, STEPS = "run.json", "steps"
RUNS = "traceq-runs"
"""Folder of the runs of a working directory."""
_RESERVE_BYTES = 16_384  # several times the size of a manifest
_LONGEST_NAME = 255  # bytes of a folder's name on Linux


@frozen
class RunFolder:
    """Paths of the files of a run that is being recorded here."""

    path: Path

    @property
    def manifest_path(self) -> Path:
        """Path of `run.json`: a folder that has one is a run."""
        return self.path / MANIFEST

    @property
    def steps(self) -> Path:
        """Folder of the unprofiled samples, one file per rank."""
        return self.path / STEPS

    def samples(self, rank: int) -> Path:
        """Return the path of one rank's unprofiled steps, appended group by group."""
        return self.steps / f"rank{rank}.jsonl"

    def log(self, rank: int) -> Path:
        """Return the path of one rank's stdout and stderr."""
        return self.path / "logs" / f"rank{rank}.log"

    def trace(self, arm: str, rank: int) -> Path:
        """Return the path of the Kineto trace of one arm's profiled steps."""
        return self.path / arm / f"rank{rank}.json.gz"

    def window(self, arm: str, rank: int, turn: int) -> Path:
        """Return the path of one of several profiled windows, until they are joined to the trace."""
        return self.path / arm / f".rank{rank}.window{turn}.part"

    def stacks(self, arm: str, rank: int) -> Path:
        """Return the path of the Kineto trace of one step with Python frames."""
        return self.path / arm / f"rank{rank}.stacks.json.gz"

    def flight(self, arm: str, rank: int) -> Path:
        """Return the path of the flight recorder entries of the profiled window."""
        return self.path / arm / f"rank{rank}.flight.json"

    def stalled(self, rank: int) -> Path:
        """Return the path of all flight recorder entries of a rank whose peers never arrived."""
        return self.path / "stalled" / f"rank{rank}.flight.json"

    @property
    def faults(self) -> Path:
        """Folder of the exceptions that ended ranks of an external launcher."""
        return self.path / "faults"

    @property
    def toggles(self) -> Path:
        """File of the toggles that apply to a job, of a run that looked for them."""
        return self.path / "toggles.json"

    @property
    def improvement(self) -> Path:
        """File of what was predicted of remedies and what they gained, of a run of `traceq improve`."""
        return self.path / "improve.json"

    @property
    def hang(self) -> Path:
        """Path of where ranks stood that have made no progress since, with their stacks."""
        return self.faults / "hang.txt"

    def read_manifest(self) -> Manifest:
        """Return the manifest of this run; see the function of the same name."""
        return read_manifest(self.path)

    @property
    def is_complete(self) -> bool:
        """Whether everything that was to be recorded is on disk."""
        return self.read_manifest().status == "complete"

    def write_manifest(self, manifest: Manifest) -> None:
        """Replace `run.json` atomically: a reader sees the old one or the new one."""
        if manifest.status != "recording":
            self._reserve.unlink(missing_ok=True)
            if (descriptor := _locked.pop(self.path.absolute(), None)) is not None:
                os.close(descriptor)
        with atomic_write(self.manifest_path) as part:
            part.write_bytes(msgspec.json.format(to_json_bytes(manifest), indent=2) + b"\n")

    def reserve(self) -> None:
        """Reserve disk space for the final manifest, so that it can say why the run ended on a full disk.

        Raises FileExistsError if another process has: then the folder is that one's. It is locked until this process
        ends, or writes how the recording ended.
        """
        with self._reserve.open("xb") as file:
            file.write(os.urandom(_RESERVE_BYTES))
        with suppress(OSError):
            _locked[self.path.absolute()] = descriptor = os.open(self.path, os.O_RDONLY)
            _lock(descriptor, waits=False)

    @property
    def is_being_recorded(self) -> bool:
        """Whether a process that runs has reserved it; False where the file system has no locks."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY)
        except OSError:
            return False
        try:
            return not _lock(descriptor, waits=False)
        finally:
            os.close(descriptor)

    @property
    def deleted_text(self) -> str:
        """The cause of all that follows from a folder or a manifest that is gone."""
        return f"{self.manifest_path if self.path.is_dir() else self.path}: was deleted during the recording"

    @property
    def is_begun(self) -> bool:
        """Whether a recording was begun in this folder, be it complete or not."""
        return self.manifest_path.exists() or self._reserve.exists()

    @property
    def _reserve(self) -> Path:
        return self.path / ".reserve"

    def sweep(self) -> None:
        """Remove partial files of ranks that were killed while writing."""
        for part in self.path.rglob(".*.part"):
            part.unlink(missing_ok=True)


_locked: dict[Path, int] = {}
"""Descriptors of the folders that this process has reserved."""


def _lock(descriptor: int, *, waits: bool) -> bool:
    """Lock a folder until it is closed; False if another process has it. Does nothing where there are no locks."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as fault:
        return not isinstance(fault, BlockingIOError)
    return True


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder: of processes that replace the same run at once the last would remove the first's."""
    with ExitStack() as opened:
        with suppress(OSError):  # Windows opens none, and no lock is worth a recording
            descriptor = os.open(folder, os.O_RDONLY)
            opened.callback(os.close, descriptor)
            _lock(descriptor, waits=True)
        yield


def is_run(folder: Place) -> bool:
    """Return whether a folder has a manifest; nothing is asked of a server below a file."""
    is_file = isinstance(folder, Remote) and folder.has_name_of_a_file
    return not is_file and (folder / MANIFEST).is_file()


def read_manifest(folder: Place) -> Manifest:
    """Return the manifest of a run. Raises UnreadableInput if it is missing, damaged or of a newer format."""
    file = folder / MANIFEST
    where = str(file)
    try:
        manifest = msgspec.json.decode(read_whole(file, Most.MANIFEST), type=Manifest)
    except OSError as fault:
        raise UnreadableInput(where, fault.strerror or str(fault), "the manifest of a run") from fault
    except msgspec.MsgspecError as fault:
        raise UnreadableInput(where, str(fault), "the manifest of a run") from fault
    if manifest.version > FORMAT:
        raise UnreadableInput(where, f"format {manifest.version}", f"at most {FORMAT}: a newer traceq wrote it")
    try:
        check_manifest(manifest)
    except ValueError as fault:
        raise UnreadableInput(where, str(fault), "the manifest of a run") from fault
    return manifest


def check_manifest(manifest: Manifest) -> None:
    """Raise ValueError unless arms are distinct, one is the baseline, and each name is that of a folder of the run."""
    names = [arm.name for arm in manifest.arms]
    if len(set(names)) < len(names):
        raise ValueError("two arms of one name")
    if not any(arm.baseline for arm in manifest.arms):
        raise ValueError("no arm is the baseline")
    if outside := [
        name
        for name in names
        if name in ("", ".", "..") or set(name) & set("/\\\0") or len(name.encode()) > _LONGEST_NAME
    ]:
        raise ValueError(f"arm {outside[0][:_LONGEST_NAME]!r} is no folder of the run")
    if unknown := {name for arm in manifest.arms for name in (arm.against, arm.repeats)} - {"", *names}:
        raise ValueError(f"no arm {min(unknown)!r}, which others refer to")
    counts = [manifest.num_ranks, *(count for arm in manifest.arms for count in (arm.num_ranks, arm.samples_per_step))]
    if not all(0 <= count < 1 << 53 for count in counts):
        raise ValueError("a count that is negative or too large")


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`, which is moved onto it if the block succeeds, else removed.

    Of a link the target is written. Raises OSError for what is no regular file, such as a device or a pipe.
    """
    path = Path(os.path.realpath(path))  # resolve() raises where links form a circle
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    part = path.with_name(f".{path.name}.{os.urandom(4).hex()}.part")  # several ranks may write one file
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def to_json_bytes(value: object) -> bytes:
    """Return a value as JSON, with support for dataclasses, numpy arrays and numpy numbers."""
    return msgspec.json.encode(value, enc_hook=_without_numpy)


def _without_numpy(value: object) -> object:
    for name in ("tolist", "item"):  # numpy arrays, then numpy numbers
        if hasattr(value, name):
            return getattr(value, name)()
    raise NotImplementedError(type(value).__name__)
