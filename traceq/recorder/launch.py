"""Start the ranks of a plan on this machine, wait for them, and say who is to blame when they fail."""

from __future__ import annotations

import json
import logging
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread, current_thread, main_thread

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from traceq.errors import RecordingFailed
from traceq.recorder.blame import Failure, find_cause
from traceq.recorder.ending import mark
from traceq.recorder.news import News
from traceq.recorder.plan import Plan
from traceq.recorder.pulse import create_pulses, read_pulses
from traceq.recorder.stalled import find_desync
from traceq.recorder.variables import inherited

__all__ = ["launch"]

_WORKER = "traceq.recorder.worker"
_TAIL_LINES = 15
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)  # those that elastic handles


def launch(plan: Plan, on_progress: Callable[[int, int], None], on_news: Callable[[str], None]) -> None:
    """Run every rank of the plan; RecordingFailed names the rank that failed first and why, with its log's tail.

    `on_progress(steps_ended, steps_planned)` and `on_news(line)` are called from another thread.
    KeyboardInterrupt and SystemExit(143) pass after the ranks are gone; the manifest then says so.
    """
    with _own_signals():
        try:
            _run_ranks(plan, on_progress, on_news)
        except (SignalException, KeyboardInterrupt) as stopped:
            _ignore_signals()  # elastic's handlers are still there: the next one would raise in whatever runs by then
            number = getattr(stopped, "sigval", signal.SIGINT)
            mark(plan.folder, "interrupted", f"ended by {signal.Signals(number).name}")
            if number == signal.SIGINT:
                raise KeyboardInterrupt from None
            raise SystemExit(128 + number) from None


def _run_ranks(plan: Plan, on_progress: Callable[[int, int], None], on_news: Callable[[str], None]) -> None:
    with tempfile.TemporaryDirectory(prefix="traceq-") as scratch:
        pulse = Path(scratch) / "pulse"
        create_pulses(pulse, plan.num_ranks)
        plan_path = Path(scratch) / "plan.json"
        news = Path(scratch) / "news"
        plan_path.write_bytes(replace(plan, pulse=str(pulse), news=str(news)).to_bytes())
        try:
            with _quiet(), inherited(plan.num_ranks), _watched(pulse, on_progress, News(news), on_news):
                elastic_launch(_config(plan, scratch), sys.executable)("-u", "-m", _WORKER, str(plan_path))
        except ChildFailedError as failed:
            raise _explain(plan, failed, pulse, Path(scratch)) from None


def _config(plan: Plan, scratch: str) -> LaunchConfig:
    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=plan.num_ranks,
        run_id=plan.run_id,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        monitor_interval=0.1,
        # each rank writes its own log; this catches what is said before it can
        logs_specs=DefaultLogsSpecs(log_dir=scratch, redirects=Std.ALL),
    )


def _explain(plan: Plan, failed: ChildFailedError, pulse: Path, scratch: Path) -> RecordingFailed:
    failures = [
        Failure(rank, failure.exitcode, _message(failure.error_file_data), _tail(plan, rank, scratch))
        for rank, failure in failed.failures.items()
    ]
    failures += _still_leaving(plan, {failure.rank for failure in failures}, scratch)
    desync = find_desync(plan.folder) if all(failure.is_secondary for failure in failures) else ""
    if desync:
        mark(plan.folder, "failed", desync)
        return RecordingFailed(f"{plan.folder.stalled(0).parent}: {desync}")
    beats = {rank: beats for rank, (_, _, beats) in enumerate(read_pulses(pulse))}
    cause = find_cause(failures, beats)
    mark(plan.folder, "failed", f"rank {cause.rank}: {cause.text}")
    log = plan.folder.log(cause.rank)
    return RecordingFailed(f"{log}: rank {cause.rank}: {cause.text}\n{_tail(plan, cause.rank, scratch)}".rstrip())


def _still_leaving(plan: Plan, known: set[int], scratch: Path) -> Iterator[Failure]:
    """Ranks that had told their fault and were not yet gone when elastic saw a peer of theirs fail."""
    for rank in set(range(plan.num_ranks)) - known:
        for path in scratch.glob(f"*/attempt_0/{rank}/error.json"):
            try:
                message = _message(json.loads(path.read_bytes()))
            except (OSError, ValueError):  # it was cut short, too
                continue
            if message:
                yield Failure(rank, 1, message, _tail(plan, rank, scratch))


def _message(error_file: object) -> str:
    """The exception elastic's error file tells of: `{"message": {"message": ...}}`, or a text, or nothing."""
    message = error_file.get("message", "") if isinstance(error_file, dict) else ""
    text = str(message.get("message", "") if isinstance(message, dict) else message).strip()
    return "" if text == "<NONE>" else text


def _tail(plan: Plan, rank: int, scratch: Path) -> str:
    """Last lines of a rank's log, or of what it said before it had one."""
    early = sorted(scratch.glob(f"*/attempt_0/{rank}/stderr.log"))
    for path in (plan.folder.log(rank), *early):
        text = path.read_text(errors="replace").strip() if path.is_file() else ""
        if text:
            return "\n".join(f"  {line}" for line in text.splitlines()[-_TAIL_LINES:])
    return ""


@contextmanager
def _own_signals() -> Iterator[None]:
    """Elastic leaves its handlers behind: after the block there are the ones from before, but after a signal none."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) != signal.SIG_IGN and current_thread() is main_thread():
                signal.signal(number, handler)


def _ignore_signals() -> None:
    """From here the process only ends; a second Ctrl-C has nothing left to stop, as ranks die with it."""
    if current_thread() is main_thread():
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)


@contextmanager
def _quiet() -> Iterator[None]:
    """Elastic reports every fault in its own long form; ours is one line and the rank's log."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # each of its loggers has a level of its own
    try:
        yield
    finally:
        logging.disable(before)


@contextmanager
def _watched(
    pulse: Path, on_progress: Callable[[int, int], None], news: News, on_news: Callable[[str], None]
) -> Iterator[None]:
    """Report the slowest rank's steps and all news, several times a second while the block runs and once after it."""
    over = Event()

    def watch() -> None:
        is_over = False
        while not is_over:
            is_over = over.wait(0.2)
            for line in news.take():
                on_news(line)
            ranks = read_pulses(pulse)
            on_progress(min(ended for ended, _, _ in ranks), max(planned for _, planned, _ in ranks))

    thread = Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
