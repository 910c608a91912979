"""Requests to trace that an operator makes by `dyno gputrace`, through dynolog, the daemon of Kineto on each host.

The launcher asks the daemon for each rank of its host, as the rank's Kineto would: dyno names the same processes and
files. A message is a datagram: a length, a type of 32 bytes, and a payload. That of a request is the job and a process
with its ancestors; the answer is text, mostly "".
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
import socket
import struct
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from traceq.errors import TraceqError
from traceq.frozen import frozen
from traceq.locations import Most, open_binary, read_whole
from traceq.long_runs.limits import DYNOLOG_EVERY_S, EVERY_S, MAX_TRACED_STEPS
from traceq.long_runs.run_watch import Captures, latest_step, on_demand_name
from traceq.long_runs.watch_folder import WatchFolder

USE_DAEMON = "KINETO_USE_DAEMON"
"""Variable with which Kineto asks the daemon."""
_HEADER, _REQUEST = struct.Struct("=Q32s"), struct.Struct("=iiq")
_DATAGRAM_BYTES = 1 << 16
_ACTIVITIES = 2  # of the types of configurations the one for traces
_MAX_ANCESTORS = 10
_ARM = "run"


@frozen
class DynologRequest:
    """What is to be traced: `iterations`, or if that is 0 for `duration_s`, not before `start_s` since the epoch."""

    log_file: str
    iterations: int
    duration_s: float
    start_s: float

    @staticmethod
    def parse(text: str) -> DynologRequest:
        """Return the request of a configuration of Kineto; what it lacks is as in Kineto."""
        options = dict(re.findall(r"^[ \t]*(\w+)[ \t]*=[ \t]*([^#\n]*?)[ \t]*(?:#.*)?$", text, re.MULTILINE))

        def number(key: str, default: int) -> int:
            return int(options[key]) if options.get(key, "").isdecimal() else default

        return DynologRequest(
            log_file=options.get("ACTIVITIES_LOG_FILE", "/tmp/libkineto_activities.json"),
            iterations=number("ACTIVITIES_ITERATIONS", 0),
            duration_s=number("ACTIVITIES_DURATION_MSECS", 500) / 1000,
            start_s=number("PROFILE_START_TIME", 0) / 1000,
        )

    def num_steps(self, step_s: float) -> int:
        """Return how many steps that are, of such a length."""
        return min(max(self.iterations or round(self.duration_s / step_s), 1), MAX_TRACED_STEPS)


class DynologWatch:
    """Watch of the daemon by the launcher on one of the hosts of a run, whose folder is known once its ranks are."""

    def __init__(self, find_folder: Callable[[], WatchFolder]) -> None:
        self._find_folder = find_folder
        self._clients: dict[int, _Client] = {}  # by rank
        self._requests: dict[int, DynologRequest] = {}  # of ranks whose steps are to be traced, or are being
        self._captures: Captures | None = None
        self._name = ""
        self._looked_at = self._polled_at = float("-inf")
        self._is_over = False

    def look(self) -> list[str]:
        """Ask, have steps traced and write them where they are wanted; return the lines to print, of a fault one."""
        if self._is_over or time.monotonic() < self._looked_at + EVERY_S:
            return []
        self._looked_at = time.monotonic()
        try:
            return list(self._look())
        except TraceqError:  # no step has ended yet
            return []
        except Exception as error:  # noqa: BLE001 (whatever it is, the job of this launcher goes on)
            self._is_over = True
            return [f"traceq: dynolog is not asked any more: {type(error).__name__}: {error}"]

    def _look(self) -> Iterator[str]:
        for rank, client in self._clients.items():
            for text in client.answers():
                self._requests[rank] = DynologRequest.parse(text)
        folder = self._find_folder()
        if self._requests:  # the daemon keeps what comes meanwhile
            yield from self._trace(folder)
        elif self._looked_at >= self._polled_at + DYNOLOG_EVERY_S and folder.is_watched:
            self._polled_at = self._looked_at
            self._poll(folder)

    def _poll(self, folder: WatchFolder) -> None:
        """Ask for each rank that runs on this host."""
        job, here = folder.read_job(), socket.gethostname()
        pids = {rank: pid for rank, pid in enumerate(job.pids) if job.hosts[rank] == here}
        for rank, client in list(self._clients.items()):
            if pids.get(rank) != client.pid:  # the job was started again
                self._clients.pop(rank).close()
        for rank in pids.keys() - self._clients.keys():
            self._clients[rank] = _Client(pids[rank])
        for client in self._clients.values():
            client.ask()

    def _trace(self, folder: WatchFolder) -> Iterator[str]:
        last_step, step_s = latest_step(folder)
        if self._captures is None:
            if time.time() < max(request.start_s for request in self._requests.values()):
                return
            num_steps = max(request.num_steps(step_s) for request in self._requests.values())
            self._name, self._captures = on_demand_name(folder), Captures(folder, waiting=())
            self._captures.ask(self._name, num_steps)
        is_traced = bool(list(self._captures.look(last_step, step_s)))
        if self._captures.is_waiting:
            return
        if not is_traced:
            yield f"traceq: dynolog: {self._name} could not be traced"
        for rank, request in self._requests.items() if is_traced else ():
            yield self._deliver(folder.captured(self._name).trace(_ARM, rank), request, self._clients[rank].pid)
        self._captures = None
        self._requests.clear()

    @staticmethod
    def _deliver(trace: Path, request: DynologRequest, pid: int) -> str:
        """Copy the trace of a process to where it was asked for, by Kineto's name, and return the line that says so.

        As anyone may ask the daemon, that has to be below /tmp or $KINETO_ONDEMAND_TRACE_DIR, and no link is followed.
        """
        path = Path(re.sub(r"(\.pt\.trace)?\.json", rf"_{pid}\g<0>", request.log_file, count=1))
        allowed = Path(os.environ.get("KINETO_ONDEMAND_TRACE_DIR") or "/tmp")
        parent = Path(os.path.realpath(path.parent))
        if not parent.is_relative_to(os.path.realpath(allowed)):
            return f"traceq: dynolog: {trace} (not copied to {path}: outside {allowed}, KINETO_ONDEMAND_TRACE_DIR)"
        part = parent / f".{path.name}.{os.urandom(4).hex()}.part"
        try:
            with open_binary(trace) as packed, gzip.GzipFile(fileobj=packed) as source, part.open("xb") as file:
                shutil.copyfileobj(source, file)
            part.replace(parent / path.name)
        except OSError as fault:
            part.unlink(missing_ok=True)
            return f"traceq: dynolog: {trace} (not copied to {path}: {fault.strerror or fault})"
        return f"traceq: dynolog: {path}, of {trace.parents[1]}"

    def close(self) -> None:
        """Leave the daemon."""
        for client in self._clients.values():
            client.close()


class _Client:
    """What asks the daemon for one process; where there is no daemon, nothing happens."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._address = _address(f"dynoconfigclient{uuid.uuid4()}")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(self._address)
        if isinstance(self._address, str):
            os.chmod(self._address, 0o666)  # the daemon may be another user's

    def ask(self) -> None:
        """Ask whether steps of the process are to be traced; of one that has ended not."""
        pids = _with_ancestors(self.pid)
        job = os.environ.get("SLURM_JOB_ID", "")
        payload = _REQUEST.pack(_ACTIVITIES, len(pids), int(job) if job.isdecimal() else 0)
        payload += struct.pack(f"={len(pids)}i", *pids)
        with suppress(OSError):
            if pids:
                self._socket.sendto(_HEADER.pack(len(payload), b"req") + payload, _address("dynolog"))

    def answers(self) -> Iterator[str]:
        """Yield the configurations that have come."""
        with suppress(OSError):  # there are no more
            while True:
                message = self._socket.recv(_DATAGRAM_BYTES)
                if text := message[_HEADER.size :].decode(errors="replace"):
                    yield text

    def close(self) -> None:
        """Close the socket, and remove its file if it has one."""
        self._socket.close()
        if isinstance(self._address, str):
            Path(self._address).unlink(missing_ok=True)


def _address(name: str) -> str | bytes:
    """Return the address of a socket of this name, abstract unless there is a folder for them; a zero ends either."""
    folder = os.environ.get("KINETO_IPC_SOCKET_DIR")
    return f"{folder}/{name}" if folder else b"\0" + name.encode() + b"\0"


def _with_ancestors(pid: int) -> list[int]:
    """Return a process and those that have started it, without that of the system; none if it has ended."""
    pids: list[int] = []
    with suppress(OSError):
        while len(pids) <= _MAX_ANCESTORS and (pid > 1 or not pids):
            stat = read_whole(Path(f"/proc/{pid}/stat"), Most.STATUS)
            pids.append(pid)
            pid = int(stat.rpartition(b")")[2].split()[1])
    return pids
