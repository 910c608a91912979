"""Programs under torchrun, accelerate launch and srun, as processes of a test."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from patience import patient
from recording import INJECTED

LAUNCHERS = Path(__file__).parent / "launchers"
LOOP = LAUNCHERS / "loop.py"


def free_port() -> int:
    """Return an unused port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def torchrun(num_ranks: int, *words: str, node: int = 0, num_nodes: int = 1, port: int = 0) -> list[str]:
    """Return torchrun's command for one node; `words` is the command of each rank."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(num_ranks)]
    if num_nodes == 1:
        return [*launcher, "--standalone", *words]
    nodes = ["--nnodes", str(num_nodes), "--node-rank", str(node), "--rdzv-id", "7", "--rdzv-backend", "c10d"]
    return [*launcher, *nodes, "--rdzv-endpoint", f"127.0.0.1:{port}", *words]


def accelerate(config: str, *words: str) -> list[str]:
    """Return the command of `accelerate launch` with a configuration in this folder."""
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(LAUNCHERS / f"{config}.yaml")]
    return [*launcher, "--main_process_port", str(free_port()), *words]


def start_process(
    command: Sequence[str], folder: Path, variables: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Start the command as a process in `folder`; `TRACEQ_TEST_HOST` is the host name that its ranks see."""
    outer = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "COLUMNS")
    environment = {key: value for key, value in os.environ.items() if key not in outer}
    environment["PYTHONPATH"] = os.pathsep.join([str(INJECTED), os.environ.get("PYTHONPATH", "")])
    environment |= dict(variables or {})
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_all(processes: Sequence[subprocess.Popen[str]], seconds: float = 170) -> list[tuple[int, str, str]]:
    """Wait for the processes; return exit code, stdout and stderr of each, in order."""
    try:
        texts = [process.communicate(timeout=patient(seconds)) for process in processes]
    finally:
        for process in processes:
            process.terminate()  # has no effect once it has ended
    return [(process.returncode, *text) for process, text in zip(processes, texts, strict=True)]
