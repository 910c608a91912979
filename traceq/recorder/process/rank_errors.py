"""What a rank tells of the exception that ends it: a small file, written before any peer can notice."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import msgspec

from traceq.recorder.process.signals import Stopped
from traceq.runs.layout import replaced

__all__ = ["RankError", "error_text", "note_arm", "read_told", "tell_fault"]


_STEP_OF = "in a step of arm "


class RankError(msgspec.Struct, frozen=True):
    """The exception, when it was caught, ns since the epoch, and in a step of which arm; "" for none."""

    text: str
    at_ns: int
    arm: str = ""


def tell_fault(folder: str, rank: int, fault: BaseException) -> None:
    """Leave the fault in the folder; a disk that refuses is passed over, as the rank's log has it too."""
    path = _path(folder, rank)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replaced(path) as part:
            part.write_bytes(msgspec.json.encode(RankError(error_text(fault), time.time_ns(), _arm(fault))))


def read_told(folder: str, rank: int) -> RankError | None:
    """What that rank told, if it did."""
    with suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode(_path(folder, rank).read_bytes(), type=RankError)
    return None


def note_arm(fault: BaseException, arm: str) -> None:
    """Note on an exception that it ended a step of this arm."""
    fault.add_note(f"{_STEP_OF}{arm}")


def _arm(fault: BaseException) -> str:
    notes: list[str] = getattr(fault, "__notes__", [])
    return next((note.removeprefix(_STEP_OF) for note in notes if note.startswith(_STEP_OF)), "")


def error_text(fault: BaseException) -> str:
    """`ValueError: what it says`, or `ended by SIGTERM`."""
    if isinstance(fault, Stopped):
        return f"ended by {fault.number.name}"
    return f"{type(fault).__name__}: {fault}".rstrip(": \n")


def _path(folder: str, rank: int) -> Path:
    return Path(folder) / f"rank{rank}.json"
