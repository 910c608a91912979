"""A job of any kind does what it does without its recording: losses to the last bit, exit code, files, processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
from paths import ROOT, TESTS
from patience import patient
from recording import MAIN
from seeded_job import FAILS_AT, KINDS, NUM_STEPS

pytest.importorskip("torch", reason="recording needs torch")

pytestmark = [pytest.mark.torch, pytest.mark.slow]

JOB = str(TESTS / "support" / "seeded_job.py")
FAILING = {"exit_7": 7, "ctrl_c": 130}
RECORD = (*MAIN[:-2], "--out", "run", "--steps", "16", "--trace-steps", "1")


@dataclass(frozen=True)
class Ended:
    """A job that ended: its exit code as a shell has it, the files it wrote, and what it left."""

    code: int
    files: dict[str, str]
    temporary_files: list[str]
    processes: list[str]
    stderr: str

    @property
    def losses(self) -> dict[str, list[str]]:
        return {name: text.splitlines() for name, text in self.files.items() if name.startswith("losses")}

    @property
    def warnings(self) -> set[str]:
        """Source files of torch that wrote a line to stderr: `[W1130 05:23:06.386 CPUAllocator.cpp:245] ...`."""
        return set(re.findall(r"^\[[WE]\S+ \S+ (\S+):\d+\]", self.stderr, re.MULTILINE))


def run_all(folder: Path, *commands: Sequence[str]) -> list[Ended]:
    """Run the commands at the same time, each in a folder of its own and with cold caches of the compiler."""
    folders = [folder / str(number) for number in range(len(commands))]
    processes = [start(each, command) for each, command in zip(folders, commands, strict=True)]
    errors = [process.communicate(timeout=patient(150))[1] for process in processes]
    return [ended(*each) for each in zip(folders, processes, errors, strict=True)]


def start(folder: Path, command: Sequence[str]) -> subprocess.Popen[str]:
    work, temporary = folder / "work", folder / "temporary"
    work.mkdir(parents=True)
    temporary.mkdir()
    outer = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    environment = {key: value for key, value in os.environ.items() if key not in outer}
    environment |= {"PYTHONPATH": str(ROOT), "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    environment |= {"TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"), "TRITON_CACHE_DIR": str(folder / "cache")}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=work, env=environment, stderr=pipe, text=True, start_new_session=True)


def ended(folder: Path, process: subprocess.Popen[str], stderr: str) -> Ended:
    code = 128 - process.returncode if process.returncode < 0 else process.returncode
    work, temporary = folder / "work", folder / "temporary"
    files = {path.name: path.read_text() for path in sorted(work.iterdir()) if path.is_file()}
    return Ended(code, files, [path.name for path in temporary.iterdir()], of_session(process.pid), stderr)


def of_session(session: int) -> list[str]:
    """Return the commands of the session's processes that run."""
    running = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                running.append(path.with_name("cmdline").read_text().replace("\0", " "))
        except OSError:
            continue  # it has ended
    return running


@pytest.mark.parametrize("kind", KINDS)
def test_a_recorded_job_does_what_it_does_alone(kind: str, tmp_path: Path) -> None:
    if kind == "llama" and find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    job = [sys.executable, JOB, kind]
    alone, trained_on, stopped = run_all(
        tmp_path, job, [*RECORD, "--then", "continue", "--", *job], [*RECORD, "--", *job]
    )
    assert alone.code == FAILING.get(kind, 0), alone.stderr
    assert {len(losses) for losses in alone.losses.values()} == {FAILS_AT if kind in FAILING else NUM_STEPS}
    assert (trained_on.code, trained_on.files) == (alone.code, alone.files), trained_on.stderr
    assert stopped.code == alone.code, stopped.stderr
    for name, losses in stopped.losses.items():
        assert losses == alone.losses[name][: len(losses)]
    assert stopped.losses.keys() == alone.losses.keys()
    if kind not in FAILING:
        assert "the recording is complete" in trained_on.stderr
        assert "the recording is complete" in stopped.stderr
        assert min(map(len, stopped.losses.values())) < NUM_STEPS
    for each in (trained_on, stopped):
        assert each.processes == alone.processes == []
        assert each.warnings <= alone.warnings
        assert each.temporary_files == alone.temporary_files
