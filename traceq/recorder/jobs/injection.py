"""The folder that makes every Python process of a job load the recorder, and the variables that point to it."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from traceq.locations import Most, read_whole
from traceq.recorder.jobs.job_request import JobRequest
from traceq.recorder.process.environment_variables import KINETO_IS_QUIET

DRY_RUN = "dry run"

_REQUEST, _ATTACHED, _REASON, _ERROR, _ELSEWHERE = "job.json", "attached", "reason", "error", "elsewhere"
_INTERRUPTED, _STOPPED = "interrupted", "stopped"
_LOAD_ERROR = "load_error"
"""Written by the module that is injected, which imports nothing of the package before."""
_MODULE = "sitecustomize.py"
_OF_RUN = ".inject"


@dataclass(frozen=True, slots=True)
class Injection:
    """The folder, as launcher and processes of the job use it; on other nodes they find it by the same path."""

    folder: Path

    @staticmethod
    def of_run(out: str | Path) -> Injection:
        """Return the folder of a run that is being recorded."""
        return Injection(Path(out) / _OF_RUN)

    def write(self, request: JobRequest) -> None:
        """Write the module that is injected, and the request beside it."""
        self.folder.mkdir(parents=True)
        shutil.copyfile(Path(__file__).parents[1] / _MODULE, self.folder / _MODULE)
        request.write(self.folder / _REQUEST)

    @property
    def variables(self) -> dict[str, str]:
        """Variables of the job: the folder comes first on PYTHONPATH, Kineto is quiet, and wandb uploads nothing."""
        paths = [str(self.folder), *filter(None, [os.environ.get("PYTHONPATH")])]
        defaults = {"KINETO_LOG_LEVEL": KINETO_IS_QUIET, "WANDB_MODE": "offline"}
        unset = {key: value for key, value in defaults.items() if key not in os.environ}
        return {"PYTHONPATH": os.pathsep.join(paths)} | unset

    def attach(self) -> JobRequest:
        """Return the request, and note that a process of the job has loaded the recorder."""
        with suppress(OSError):
            (self.folder / _ATTACHED).touch()
        return JobRequest.read(self.folder / _REQUEST)

    @property
    def is_attached(self) -> bool:
        """True once a process of the job has loaded the recorder."""
        return (self.folder / _ATTACHED).exists()

    @property
    def load_error(self) -> str:
        """That a process of the job, which imported torch, could not load the recorder, and why; else ""."""
        text = self._load_failure()[1]
        return f"the job's Python cannot load the recorder: {text}" if text else ""

    @property
    def unloaded_pid(self) -> int:
        """The process of the job that could not load the recorder, the first of them; 0 without one."""
        return int(self._load_failure()[0] or 0)

    def _load_failure(self) -> tuple[str, str]:
        pid, _, text = self._text(_LOAD_ERROR).partition("\n")
        return pid, text

    def note_interrupt(self) -> None:
        """Note that the launcher was interrupted by Ctrl-C now."""
        with suppress(OSError):
            (self.folder / _INTERRUPTED).touch()

    @property
    def interrupted_at_s(self) -> float | None:
        """When the launcher was interrupted by Ctrl-C, s since the epoch; None if it was not."""
        with suppress(OSError):
            return (self.folder / _INTERRUPTED).stat().st_mtime
        return None

    def note_stop(self) -> None:
        """Note that a process of the job is told to end now."""
        with suppress(OSError), (self.folder / _STOPPED).open("x"):
            pass

    @property
    def stopped_at_s(self) -> float | None:
        """When the first process of the job was told to end, s since the epoch; None if none was."""
        with suppress(OSError):
            return (self.folder / _STOPPED).stat().st_mtime
        return None

    def note_reason(self, text: str) -> None:
        """Note why nothing is recorded; the first reason counts."""
        with suppress(OSError), (self.folder / _REASON).open("x", encoding="utf-8") as file:
            file.write(text)

    def note_error(self, text: str) -> None:
        """Note an exception that no one caught; the first one counts, as peers and launchers follow it."""
        with suppress(OSError), (self.folder / _ERROR).open("x", encoding="utf-8") as file:
            file.write(text)

    @property
    def error(self) -> str:
        """The first exception that no one caught in a process of the job; else ""."""
        return self._text(_ERROR)

    def note_elsewhere(self, out: str) -> None:
        """Note that the ranks of this launcher are recorded into the run that another one made."""
        with suppress(OSError):
            (self.folder / _ELSEWHERE).write_text(out, encoding="utf-8")

    @property
    def elsewhere(self) -> str:
        """The run of another launcher that the ranks of this one are recorded into; else ""."""
        return self._text(_ELSEWHERE)

    @property
    def reason(self) -> str:
        """Why nothing was recorded, as far as the job knows; else ""."""
        return self._text(_REASON)

    def _text(self, name: str) -> str:
        with suppress(OSError):
            return read_whole(self.folder / name, Most.STATUS).decode(errors="replace")
        return ""
