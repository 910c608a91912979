"""Whichever rank ends, at any time and in any way: it is named, and nothing is left behind. `make faults`."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from recording import Fault, start

from traceq.runs.run_folder import RunFolder

pytest.importorskip("torch", reason="recording needs torch")
pytestmark = [pytest.mark.torch, pytest.mark.faults]

WAYS = ("SIGKILL", "SIGTERM", "SIGSEGV", "_exit3", "_exit0", "exit", "raise")
CACHE = "torchinductor_"  # torch keeps it, and finds it again
SHORT = ("--steps", "16", "--trace-steps", "1")


@pytest.fixture(scope="module")
def life_s(tmp_path_factory: pytest.TempPathFactory) -> float:
    """How long a recording takes on this machine, just now."""
    done = start(tmp_path_factory.mktemp("whole"), "--ranks", "3", *SHORT).finish()
    assert done.code == 0, done.stderr
    return done.seconds


@pytest.mark.parametrize("seed", range(60))
def test_a_rank_that_ends_at_a_random_moment_is_named(tmp_path: Path, life_s: float, seed: int) -> None:
    draw = random.Random(seed)
    num_ranks = draw.randint(2, 4)
    fault = Fault(draw.randrange(num_ranks), draw.uniform(0, life_s), WAYS[seed % len(WAYS)])
    check(tmp_path, fault, num_ranks)


def check(folder: Path, fault: Fault, num_ranks: int) -> None:
    """Assert that the fault is reported and in the manifest, unless the recording was complete by then."""
    started = start(folder, "--ranks", str(num_ranks), *SHORT, fault=fault)
    done = started.finish()
    gone_s = time.time()
    run, fired = RunFolder(done.out), folder / "fired"
    manifest = run.read_manifest()
    if done.code == 0:
        assert manifest.status == "complete"
        was_over = not fired.exists() or fired.stat().st_mtime >= run.manifest_path.stat().st_mtime
        swallowed = fault.how in ("raise", "exit")  # by a library that tries to import another
        assert was_over or swallowed
    else:
        (message,) = [line for line in done.stderr.splitlines() if line.startswith("traceq:")]
        assert (done.code, manifest.status) == (1, "failed")
        assert manifest.fault in [f"rank {fault.rank}: {text}" for text in fault.texts]
        assert message.endswith(manifest.fault), done.stderr
        assert gone_s - fired.stat().st_mtime < 30
    assert started.left_running() == []
    assert [path for path in started.scratch.iterdir() if not path.name.startswith(CACHE)] == []
    assert not list(run.path.rglob("*.part"))
