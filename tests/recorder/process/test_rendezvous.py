"""Variables of a launcher that are left over in a shell: every launch under them ends, and says what it waits for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launching import free_port, start_process, wait_for_all
from paths import ROOT
from patience import patient
from recording import LINEAR

pytest.importorskip("torch", reason="recording needs torch")

from traceq.errors import TraceqError
from traceq.recorder.process.environment_variables import rank_of_environment

pytestmark = pytest.mark.torch

RECIPE = ["-m", "traceq", "record", "--recipe", str(LINEAR), "--device", "cpu", "--steps", "2", "--trace-steps", "0"]
LOOP = ["-c", "import traceq\nwith traceq.record('run', device='cpu', steps=2) as rec:\n    list(rec.steps(range(9)))"]
NOBODY = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}


def start(words: list[str], folder: Path, variables: dict[str, str], patience_s: float = 90) -> subprocess.Popen[str]:
    given = {"PYTHONPATH": str(ROOT), "TRACEQ_TEST_PATIENCE": str(patience_s)} | variables
    if "MASTER_ADDR" in given:
        given = {"MASTER_PORT": str(free_port())} | given
    given["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[2] / "support" / "injected"), str(ROOT)])
    return start_process([sys.executable, *words], folder, given)


@pytest.mark.slow
@pytest.mark.parametrize("words", [RECIPE, LOOP], ids=["recipe", "loop"])
@pytest.mark.parametrize("rank", [1, 0])
def test_a_wait_for_nobody_is_told_within_ten_seconds_and_ctrl_c_ends_it_at_once(
    rank: int, words: list[str], tmp_path: Path
) -> None:
    began = time.monotonic()
    process = start(words, tmp_path, NOBODY | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
    assert process.stderr is not None
    line = next(line for line in process.stderr if line.startswith("traceq:"))
    assert time.monotonic() - began < patient(10)
    assert f" rank {rank} of 2 waits for rank {1 - rank} " in line
    assert " 127.0.0.1:" in line
    assert "unset RANK LOCAL_RANK WORLD_SIZE" in line
    interrupted = time.monotonic()
    process.send_signal(signal.SIGINT)
    ((code, _, stderr),) = wait_for_all([process], 20)
    assert time.monotonic() - interrupted < patient(3)
    assert code in (130, -signal.SIGINT)
    assert ("Traceback" in stderr) == (words == LOOP)
    assert not (tmp_path / "run").exists()


LEFT_OVER = {
    "a closed port": (NOBODY, "rank 1 of 2: not all ranks came to 127.0.0.1:"),
    "rank 0 alone": (NOBODY | {"RANK": "0", "LOCAL_RANK": "0"}, "rank 0 of 2: not all ranks came to 127.0.0.1:"),
    "no address": ({"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}, "RANK, WORLD_SIZE set, but not MASTER_ADDR, "),
    "an empty address": (NOBODY | {"MASTER_ADDR": ""}, "but not MASTER_ADDR"),
    "a rank too many": (NOBODY | {"RANK": "2"}, "RANK=2, WORLD_SIZE=2: expected a rank below"),
    "no number": (NOBODY | {"RANK": "one"}, "RANK=one: expected a number"),
    "no local number": (NOBODY | {"LOCAL_RANK": "-"}, "LOCAL_RANK=-: expected a number"),
    "no port": (NOBODY | {"MASTER_PORT": "?"}, "MASTER_PORT=?: expected a number"),
    "a world of one": ({"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}, ""),
    "a size alone": ({"WORLD_SIZE": "2"}, "WORLD_SIZE set, but not RANK, MASTER_ADDR"),
    "a store of elastic": (NOBODY | {"TORCHELASTIC_USE_AGENT_STORE": "True"}, "rank 1 of 2: not all ranks came to"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LEFT_OVER)
@pytest.mark.parametrize("words", [RECIPE, LOOP], ids=["recipe", "loop"])
def test_every_launch_under_left_over_variables_ends(name: str, words: list[str], tmp_path: Path) -> None:
    variables, message = LEFT_OVER[name]
    if name == "a size alone" and words == RECIPE:
        message = ""  # no launcher gave this process a rank: traceq starts its own
    ((code, _, stderr),) = wait_for_all([start(words, tmp_path, variables, patience_s=3)], 60)
    assert code == (1 if message else 0), stderr
    last = stderr.splitlines()[-1] if stderr else ""
    assert message in last
    if words == RECIPE:
        assert "Traceback" not in stderr


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RANK": "0", "WORLD_SIZE": "2"}, "RANK, WORLD_SIZE set, but not MASTER_ADDR, MASTER_PORT; .* unset RANK"),
        ({"RANK": "3", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, "RANK=3, WORLD_SIZE=2"),
        ({"RANK": "³", "WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, "RANK=³: expected a number"),
    ],
)
def test_variables_that_cannot_be_are_named(
    variables: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(key, raising=False)
    for key, value in variables.items():
        monkeypatch.setenv(key, value)
    with pytest.raises(TraceqError, match=message):
        rank_of_environment()
