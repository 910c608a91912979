"""What the manifest says of a recording that did not come to its end."""

from __future__ import annotations

from dataclasses import replace

from traceq.errors import TraceqError
from traceq.recorder.process.signals import Stopped
from traceq.runs.layout import RunFolder

__all__ = ["mark", "marked", "status_after"]


def mark(folder: RunFolder, status: str, fault: str) -> None:
    """Note why a recording ended; nothing when it is complete, or has no manifest: then there is no run.

    A disk that refuses is passed over: it must not hide the fault that is being noted.
    """
    try:
        manifest = folder.read_manifest()
        if manifest.status == "recording":
            folder.write_manifest(replace(manifest, status=status, fault=fault))
    except (TraceqError, OSError):
        return


def marked(folder: RunFolder) -> tuple[str, str]:
    """Status and fault of a recording that ended early; two empty texts for any other."""
    try:
        manifest = folder.read_manifest()
    except TraceqError:
        return "", ""
    return (manifest.status, manifest.fault) if manifest.status in ("failed", "interrupted") else ("", "")


def status_after(fault: BaseException) -> str:
    """Interrupted or failed."""
    return "interrupted" if isinstance(fault, (KeyboardInterrupt, Stopped)) else "failed"
