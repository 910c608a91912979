"""A command with the recorder injected into its Python processes."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from traceq.recorder.jobs.injection import Injection

__all__ = ["run_injected"]

_ATTACHED_WITHIN_S = 60.0


def run_injected(
    command: Sequence[str],
    injection: Injection,
    on_message: Callable[[str], None],
    variables: Mapping[str, str] | None = None,
) -> int:
    """Return the exit code of the command, 128 + the number of a signal; signals to this process reach it.

    It has this process's terminal and environment, extended by `variables`.
    """
    with _forwarded_signals() as forward_to:
        job = subprocess.Popen(command, env={**os.environ, **(variables or {}), **injection.variables})
        forward_to(job)
        try:
            job.wait(_ATTACHED_WITHIN_S)
        except subprocess.TimeoutExpired:
            if not injection.is_attached:
                on_message(f"traceq: after {_ATTACHED_WITHIN_S:.0f} s no Python process of the job has imported torch")
        code = job.wait()
    return 128 - code if code < 0 else code


@contextmanager
def _forwarded_signals() -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    """Pass SIGTERM and SIGHUP on to the job, and leave Ctrl-C to it: a terminal sends that to both."""
    jobs: list[subprocess.Popen[bytes]] = []

    def forward(number: int, _: object) -> None:
        for job in jobs:
            job.send_signal(number)

    before = {number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGHUP)}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield jobs.append
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
