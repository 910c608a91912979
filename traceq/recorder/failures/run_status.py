"""Status in the manifest of a recording that ended early."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from traceq.errors import PeerLeft, RecordingFailed, TraceqError
from traceq.locations import Most, read_whole
from traceq.recorder.process.signals import Stopped
from traceq.runs.run_folder import RunFolder

LOOP_ENDED = "the loop ended after"
"""Begin of the fault of a recording whose loop was too short, behind the rank."""
RUN_LONGER = "; let the job run longer"
"""Advice behind that fault, to a job that did not fail."""
_TOGETHER_S = 1.0
"""A terminal interrupts all processes at once, and a rank may be the first to act."""


def mark_ended(folder: RunFolder, status: str, fault: str) -> None:
    """Write why a recording ended into its manifest, unless it is complete or has no manifest.

    Where its ranks stood is added, if they had stopped making progress.

    Disk errors are ignored: they must not hide the fault that is being written.
    """
    try:
        manifest = folder.read_manifest()
        if manifest.status == "recording":
            fault = "; ".join(filter(None, (fault, read_hang(folder))))
            folder.write_manifest(replace(manifest, status=status, fault=fault))
    except (TraceqError, OSError):
        return


def mark_interrupted(folder: RunFolder, at_s: float) -> None:
    """Write that Ctrl-C at a time, s since the epoch, ended a recording whose rank has since noted that its loop ended.

    Processes that torch.multiprocessing.spawn started ignore the exception of Ctrl-C.
    """
    with suppress(TraceqError, OSError):
        manifest = folder.read_manifest()
        is_later = folder.manifest_path.stat().st_mtime >= at_s - _TOGETHER_S
        if manifest.status == "failed" and LOOP_ENDED in manifest.fault and is_later:
            folder.write_manifest(replace(manifest, status="interrupted", fault="KeyboardInterrupt"))


def mark_exit(folder: RunFolder, code: int) -> None:
    """Write the exit code of a job that failed in place of the advice that its rank has noted, which does not know it.

    With several ranks it is the launcher's code.
    """
    with suppress(TraceqError, OSError):
        manifest = folder.read_manifest()
        ended, advice, _ = manifest.fault.partition(RUN_LONGER)
        if manifest.status == "failed" and advice:
            exited = f"the job exited with {code}"
            is_alone = ended.startswith(LOOP_ENDED)
            fault = ended.replace(LOOP_ENDED, f"{exited} after") if is_alone else f"{ended}; {exited}"
            folder.write_manifest(replace(manifest, fault=fault))


def read_early_end(folder: RunFolder) -> tuple[str, str]:
    """Return status and fault of a recording that ended early; two empty texts for any other."""
    try:
        manifest = folder.read_manifest()
    except TraceqError:
        return "", ""
    return (manifest.status, manifest.fault) if manifest.status in ("failed", "interrupted") else ("", "")


def named_deletion(folder: RunFolder, steps: Generator[str, None, None]) -> Generator[str, None, None]:
    """Yield the steps of a recording; what fails since its folder, or a part of it, is gone is raised as that."""
    try:
        yield from steps
    except PeerLeft:
        raise
    except (OSError, TraceqError) as error:
        if (gone := _gone(folder.path, error)) is None:
            raise
        raise RecordingFailed(f"{gone}: was deleted during the recording") from None


def _gone(folder: Path, error: Exception) -> Path | None:
    """Return the folder if it is gone, or the outermost part of it that an error misses; else None."""
    missing = Path(error.filename) if isinstance(error, FileNotFoundError) and error.filename else folder
    parts = (path for path in (*reversed(missing.parents), missing) if path.is_relative_to(folder))
    return next((path for path in (folder, *parts) if not path.exists()), None)


def status_for(error: BaseException) -> str:
    """Return "interrupted" for Ctrl-C and signals, else "failed"."""
    return "interrupted" if isinstance(error, (KeyboardInterrupt, Stopped)) else "failed"


def read_hang(folder: RunFolder) -> str:
    """Return where ranks stood that had made no progress when they ended; "" if they had."""
    try:
        return read_whole(folder.hang, Most.STATUS).decode(errors="replace").partition("\n")[0]
    except OSError:
        return ""
