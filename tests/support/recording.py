"""`traceq record` as a process of a test, and the processes it left running."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from paths import TESTS
from patience import patient

INJECTED = Path(__file__).parent / "injected"
PEERS_GIVE_UP_S = 90  # a faster end did not wait for the timeout of a collective
LINEAR = TESTS / "support" / "recipes" / "linear.py"
MAIN = [sys.executable, "-c", "from traceq.cli import main; main()", "record", "--device", "cpu"]


@dataclass(frozen=True)
class Recording:
    """A finished command."""

    out: Path
    code: int
    stdout: str
    stderr: str
    seconds: float


@dataclass(frozen=True)
class Started:
    """A running command in its own session; its scratch files, which its ranks get as arguments, are in `scratch`."""

    process: subprocess.Popen[str]
    out: Path
    scratch: Path

    def signal_when_measuring(self, number: signal.Signals) -> None:
        """Send a signal to the launcher alone once the first group is on disk."""
        samples = self.out / "steps" / "rank0.jsonl"
        deadline = time.monotonic() + patient(60)
        while not (samples.is_file() and samples.stat().st_size):
            assert time.monotonic() < deadline
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.02)
        self.process.send_signal(number)

    def finish(self, seconds: float = PEERS_GIVE_UP_S - 5) -> Recording:
        """Wait for it, at most that long: a machine may be slow, but no rank may wait for one that has exited."""
        start = time.monotonic()
        try:
            stdout, stderr = self.process.communicate(timeout=patient(seconds))
        finally:
            self.process.kill()  # has no effect once it has ended
        return Recording(self.out, self.process.returncode, stdout, stderr, time.monotonic() - start)

    def left_running(self) -> list[str]:
        """Return the command lines of its processes that still run after two seconds, or longer on a busy machine."""
        deadline = time.monotonic() + patient(2)
        while (running := _command_lines_with(str(self.scratch))) and time.monotonic() < deadline:
            time.sleep(0.05)
        return running


@dataclass(frozen=True)
class Fault:
    """A fault injected into one rank: `how` is SIGKILL (or another signal), _exit3, exit, raise or hang.

    It happens `seconds` after the rank's start, or after a file matching the pattern `after` exists. `program`: a word
    of the ranks' command line; `patience_s`: their timeout for peers.
    """

    rank: int
    seconds: float
    how: str
    after: str = ""
    program: str = "traceq.recorder.rank_recording"
    patience_s: float = PEERS_GIVE_UP_S

    def variables(self, folder: Path) -> dict[str, str]:
        """Return the environment variables that inject it; when it happens, the file `folder`/fired is created."""
        return {
            "PYTHONPATH": os.pathsep.join([str(INJECTED), os.environ.get("PYTHONPATH", "")]),
            "TRACEQ_TEST_PATIENCE": str(patient(self.patience_s)),
            "TRACEQ_TEST_FAULT": json.dumps(asdict(self) | {"fired": str(folder / "fired")}),
        }

    @property
    def texts(self) -> tuple[str, ...]:
        """The messages with which it may be reported."""
        if self.how.startswith("SIG"):
            return (f"killed by {self.how}",)
        before_the_end = "exited with code 0 before the recording was complete"
        return {
            "exit": ("RuntimeError: the recipe called sys.exit(0)", before_the_end),
            "raise": ("ValueError: an injected fault",),
            "_exit0": (before_the_end,),
            "_exit3": ("exited with code 3",),
            "hang": ("stopped responding; the other ranks waited for it until they gave up",),
        }[self.how]


def start(folder: Path, *options: str, recipe: str = str(LINEAR), fault: Fault | None = None) -> Started:
    """Start a recording into `folder`/run."""
    out, scratch = folder / "run", Path(tempfile.mkdtemp(prefix="tq-"))  # short: names of sockets end at 107 bytes
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    outer = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "COLUMNS")
    environment = {key: value for key, value in os.environ.items() if key not in outer} | {"TMPDIR": str(scratch)}
    if fault:
        environment |= fault.variables(folder)
    process = subprocess.Popen(
        [*MAIN, "--recipe", recipe, "--out", str(out), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    return Started(process, out, scratch)


def _command_lines_with(text: str) -> list[str]:
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in line:
            lines.append(line)
    return lines
