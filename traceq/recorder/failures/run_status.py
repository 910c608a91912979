"""Status in the manifest of a recording that ended early."""

from __future__ import annotations

from dataclasses import replace

from traceq.errors import TraceqError
from traceq.recorder.process.signals import Stopped
from traceq.runs.run_folder import RunFolder

__all__ = ["mark_ended", "read_early_end", "read_hang", "status_for"]


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


def read_early_end(folder: RunFolder) -> tuple[str, str]:
    """Return status and fault of a recording that ended early; two empty texts for any other."""
    try:
        manifest = folder.read_manifest()
    except TraceqError:
        return "", ""
    return (manifest.status, manifest.fault) if manifest.status in ("failed", "interrupted") else ("", "")


def status_for(error: BaseException) -> str:
    """Return "interrupted" for Ctrl-C and signals, else "failed"."""
    return "interrupted" if isinstance(error, (KeyboardInterrupt, Stopped)) else "failed"


def read_hang(folder: RunFolder) -> str:
    """Return where ranks stood that had made no progress when they ended; "" if they had."""
    try:
        return folder.hang.read_text(encoding="utf-8").partition("\n")[0]
    except OSError:
        return ""
