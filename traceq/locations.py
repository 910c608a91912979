"""Where traces lie: a path of this machine, or a URL of what fsspec opens (s3, gs, hf, http, ssh, ...).

A `Remote` answers the few questions that reading asks of a path, so what reads need not know which of the two it has.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias
from urllib.parse import urlsplit
from urllib.request import url2pathname

from traceq.errors import TraceqError, UnreadableInput

__all__ = ["Place", "Remote", "faults", "opened", "place"]

_URL = re.compile(r"^[a-z][a-z0-9+.-]+(::[a-z][a-z0-9+.-]+)*://")
_BLOCK, _BUFFER = 16 << 20, 1 << 20
_SECONDS = 60
_SUFFIXES = (".json", ".jsonl", ".gz", ".zst", ".pkl", ".pickle", ".bin")
_OF_BACKENDS = (
    ("aiohttp", "ClientError"),
    ("botocore.exceptions", "BotoCoreError"),
    ("botocore.exceptions", "ClientError"),
    ("google.auth.exceptions", "GoogleAuthError"),
    ("httpx", "HTTPError"),
    ("httpx2", "HTTPError"),
    ("gcsfs.retry", "HttpError"),
    ("paramiko.ssh_exception", "SSHException"),
)
"""What backends raise that is no OSError, where they are loaded."""


@dataclass(frozen=True, slots=True, order=True)
class Remote:
    """A URL. `kind` is file or directory and `size` its bytes where a listing has told it, so that a thousand files are
    not asked again; "" and -1 where none has.
    """

    url: str
    kind: str = field(default="", compare=False)
    size: int = field(default=-1, compare=False)

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> Remote:
        return Remote(f"{self._bare}/{name}")

    @property
    def name(self) -> str:
        """What stands behind the last slash, without a query."""
        return self._bare.rpartition("/")[2]

    @property
    def parent(self) -> Remote:
        """The folder around it; of the outermost that itself."""
        folder = self._bare.rpartition("/")[0]
        return self if folder.endswith("/") else Remote(folder)

    @property
    def _is_http(self) -> bool:
        return self.url.startswith(("http://", "https://"))

    @property
    def _bare(self) -> str:
        return (self.url.partition("?")[0] if self._is_http else self.url).rstrip("/")

    def exists(self) -> bool:
        """There is something."""
        return self._kind() != ""

    def is_file(self) -> bool:
        """It is there, and no folder."""
        return self._kind() == "file"

    def is_dir(self) -> bool:
        """It is a folder."""
        return self._kind() == "directory"

    def iterdir(self) -> Iterator[Remote]:
        """What the folder holds. Raises UnreadableInput."""
        with _told(self.url):
            system, path = _system(self.url)
            for found in system.ls(path, detail=True):
                url = str(system.unstrip_protocol(found["name"]))
                if "?" not in url:  # headings of a web server's page, which sort it
                    yield Remote(url.rstrip("/"), str(found["type"]), int(found.get("size") or -1))

    def open(self) -> BufferedReader:
        """A stream of its bytes, from the first to the last: over HTTP as one answer, else block by block. Raises
        UnreadableInput.
        """
        with _told(self.url):
            system, path = _system(self.url)
            return BufferedReader(system.open(path, "rb", block_size=0 if self._is_http else _BLOCK), _BUFFER)

    def read_bytes(self) -> bytes:
        """All of it. Raises UnreadableInput."""
        with self.open() as file, _told(self.url):
            return file.read()

    def _kind(self) -> str:
        """file, directory, or "" for nothing. HTTP knows no folders: there what is not called as a file is one."""
        if self.kind:
            return self.kind
        with _told(self.url):
            system, path = _system(self.url)
            try:
                found = str(system.info(path)["type"])
            except FileNotFoundError:
                return ""
        if self._is_http:
            is_file = PurePosixPath(self.name).suffix in _SUFFIXES and not self.url.endswith("/")
            return "file" if is_file else "directory"
        return found


Place: TypeAlias = Path | Remote


def place(path: str | Path | Remote) -> Place:
    """The path or URL that a user names; of a file:// URL the path. Raises TraceqError where nothing here opens it."""
    if isinstance(path, Path | Remote):
        return path
    if path.startswith("file://"):
        return Path(url2pathname(urlsplit(path).path))
    if not _URL.match(path):
        return Path(path)
    with _told(path):
        _system(path)
    return Remote(path)


def opened(file: Place) -> BufferedReader:
    """A stream of its bytes. Raises OSError, and UnreadableInput of a remote one."""
    return file.open("rb") if isinstance(file, Path) else file.open()


def faults() -> tuple[type[Exception], ...]:
    """What reading a remote file can raise."""
    known = (getattr(sys.modules.get(module), name, None) for module, name in _OF_BACKENDS)
    return (OSError, ValueError, *(fault for fault in known if fault is not None))


def _system(url: str) -> tuple[Any, str]:
    """(file system, path in it)."""
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise TraceqError(f"{url}: URLs need fsspec: pip install 'traceq-torch[remote]'") from None
    options: dict[str, Any] = {}
    if url.startswith(("http://", "https://")):
        options["client_kwargs"] = {"timeout": _patience(url)}
    try:
        system, path = url_to_fs(url, **options)
    except ImportError as fault:  # which names the package
        raise TraceqError(f"{url}: {_line(fault)}: pip install 'traceq-torch[remote]'") from None
    return system, path


def _patience(url: str) -> Any:
    """No limit to a whole file, which may be gigabytes, but to each silence."""
    try:
        from aiohttp import ClientTimeout
    except ImportError:
        raise TraceqError(f"{url}: HTTP needs aiohttp: pip install 'traceq-torch[remote]'") from None
    return ClientTimeout(total=None, sock_connect=_SECONDS, sock_read=_SECONDS)


@contextmanager
def _told(url: str) -> Iterator[None]:
    """A fault of a backend as one line."""
    try:
        yield
    except faults() as fault:
        raise UnreadableInput(url, _line(fault.__cause__ or fault)) from None


def _line(fault: BaseException) -> str:
    """What a fault says, in one line; of a server its answer."""
    if isinstance(status := getattr(fault, "status", None), int):
        return f"the server answers {status} {getattr(fault, 'message', '')}".strip()
    if isinstance(fault, FileNotFoundError):
        return "no such file or folder"
    return " ".join(str(fault).split()) or type(fault).__name__
