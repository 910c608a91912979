"""A stand-in for dynolog: answers what asks it for requests to trace, each process once."""

from __future__ import annotations

import os
import socket
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

__all__ = ["DynologDaemon", "dynolog_daemon", "gputrace_config"]

_HEADER, _REQUEST = struct.Struct("=Q32s"), struct.Struct("=iiq")
_ACTIVITIES = 2


def gputrace_config(log_file: Path | str, trigger: str) -> str:
    """The text that the daemon passes on of `dyno gputrace`: as its options say, then a number of its own."""
    options = "\n".join(f"PROFILE_{name}=false" for name in ("REPORT_INPUT_SHAPES", "WITH_STACK", "WITH_FLOPS"))
    return f"\n    ACTIVITIES_LOG_FILE={log_file}\n{trigger}\n{options}\n    REQUEST_TRACE_ID=17015060080269538269"


class DynologDaemon:
    """`requests`: job and processes of each, the one that asks first. `config` is what a process is told, once."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.config = ""
        self.requests: list[tuple[int, tuple[int, ...]]] = []
        self._answered: set[int] = set()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"{folder}/dynolog")

    def serve(self) -> None:
        """Answer until a message of another length comes."""
        while True:
            message, sender = self._socket.recvfrom(1 << 16)
            if len(message) < _HEADER.size:
                return
            payload = message[_HEADER.size :]
            size, name = _HEADER.unpack_from(message)
            assert (size, name.rstrip(b"\0")) == (len(payload), b"req")
            kind, num, job = _REQUEST.unpack_from(payload)
            pids = struct.unpack_from(f"={num}i", payload, _REQUEST.size)
            self.requests.append((job, pids))
            answer = self.config if kind & _ACTIVITIES and pids[0] not in self._answered else ""
            if answer:
                self._answered.add(pids[0])
            self._socket.sendto(_HEADER.pack(len(answer), b"req") + answer.encode(), sender)

    @property
    def variables(self) -> dict[str, str]:
        """Variables of what asks this daemon."""
        return {"KINETO_USE_DAEMON": "1", "KINETO_IPC_SOCKET_DIR": self.folder}


@contextmanager
def dynolog_daemon() -> Iterator[DynologDaemon]:
    """A daemon that runs, in a folder with a short name: that of a socket has 107 bytes at most."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        daemon = DynologDaemon(folder)
        thread = Thread(target=daemon.serve)
        thread.start()
        try:
            yield daemon
        finally:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
                last.sendto(b"end", os.path.join(folder, "dynolog"))
            thread.join()
            daemon._socket.close()
