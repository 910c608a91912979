"""Programs under torchrun, accelerate launch and srun, as processes of a test."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from recording import INJECTED

LAUNCHERS = Path(__file__).parent / "launchers"
LOOP = LAUNCHERS / "loop.py"


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def torchrun(num_ranks: int, *words: str, node: int = 0, num_nodes: int = 1, port: int = 0) -> list[str]:
    """Torchrun's command for one node; `words` is what each rank runs."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(num_ranks)]
    if num_nodes == 1:
        return [*launcher, "--standalone", *words]
    nodes = ["--nnodes", str(num_nodes), "--node-rank", str(node), "--rdzv-id", "7", "--rdzv-backend", "c10d"]
    return [*launcher, *nodes, "--rdzv-endpoint", f"127.0.0.1:{port}", *words]


def accelerate(config: str, *words: str) -> list[str]:
    """The command of `accelerate launch` with a configuration of this folder."""
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(LAUNCHERS / f"{config}.yaml")]
    return [*launcher, "--main_process_port", str(free_port()), *words]


def begun(command: Sequence[str], folder: Path, variables: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """The command as a process that writes into `folder`; `TRACEQ_TEST_HOST` is what its ranks take for their host."""
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


def ended(processes: Sequence[subprocess.Popen[str]], seconds: float = 170) -> list[tuple[int, str, str]]:
    """Exit code, stdout and stderr of each, in order."""
    try:
        texts = [process.communicate(timeout=seconds) for process in processes]
    finally:
        for process in processes:
            process.terminate()  # nothing, once it has ended
    return [(process.returncode, *text) for process, text in zip(processes, texts, strict=True)]
