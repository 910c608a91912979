"""`traceq record` as a process of a test, and what it left running."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from paths import TESTS

INJECTED = Path(__file__).parent / "injected"
PEERS_GIVE_UP_S = 90  # what takes less was not waited for until a collective timed out
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
    """A command that runs in a session of its own. Its scratch files, and so its ranks' arguments, lie in `scratch`."""

    process: subprocess.Popen[str]
    out: Path
    scratch: Path

    def signal_when_measuring(self, number: signal.Signals) -> None:
        """Send a signal to the launcher alone once the first group is on disk."""
        samples = self.out / "steps" / "rank0.jsonl"
        deadline = time.monotonic() + 60
        while not (samples.is_file() and samples.stat().st_size):
            assert time.monotonic() < deadline
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.02)
        self.process.send_signal(number)

    def finish(self, seconds: float = PEERS_GIVE_UP_S - 5) -> Recording:
        """Wait for it, so long at most: a machine may be slow, but no rank may wait for one that is gone."""
        start = time.monotonic()
        try:
            stdout, stderr = self.process.communicate(timeout=seconds)
        finally:
            self.process.kill()  # nothing, once it has ended
        return Recording(self.out, self.process.returncode, stdout, stderr, time.monotonic() - start)

    def left_running(self) -> list[str]:
        """Command lines of its processes that still live, given two seconds to go."""
        deadline = time.monotonic() + 2
        while (found := _command_lines_with(str(self.scratch))) and time.monotonic() < deadline:
            time.sleep(0.05)
        return found


@dataclass(frozen=True)
class Fault:
    """What happens to one rank: SIGKILL (or another), _exit3, exit, raise or hang; `seconds` after its start, or after
    a file of that pattern is there. `program` is a word of the command line of ranks, `patience_s` what they give their
    peers.
    """

    rank: int
    seconds: float
    how: str
    after: str = ""
    program: str = "traceq.recorder.worker"
    patience_s: float = PEERS_GIVE_UP_S

    def variables(self, folder: Path) -> dict[str, str]:
        """By which it reaches the rank. When it happens there is a file `folder`/fired."""
        return {
            "PYTHONPATH": os.pathsep.join([str(INJECTED), os.environ.get("PYTHONPATH", "")]),
            "TRACEQ_TEST_PATIENCE": str(self.patience_s),
            "TRACEQ_TEST_FAULT": json.dumps(asdict(self) | {"fired": str(folder / "fired")}),
        }

    @property
    def texts(self) -> tuple[str, ...]:
        """In which words it may be told."""
        if self.how.startswith("SIG"):
            return (f"killed by {self.how}",)
        before_the_end = "left with exit code 0, before the recording was over"
        return {
            "exit": ("RuntimeError: the recipe left with sys.exit(0)", before_the_end),
            "raise": ("ValueError: a fault of my own",),
            "_exit0": (before_the_end,),
            "_exit3": ("left with exit code 3",),
            "hang": ("stopped answering; the other ranks waited for it until they gave up",),
        }[self.how]


def start(folder: Path, *options: str, recipe: str = str(LINEAR), fault: Fault | None = None) -> Started:
    """Start a recording into `folder`/run."""
    out, scratch = folder / "run", folder / "scratch"
    scratch.mkdir()
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
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in line:
            found.append(line)
    return found
