"""Locations of traces: a local path, or a URL that fsspec opens (s3, gs, hf, http, ssh, ...).

A `Remote` has the few methods of a path that reading needs, so that readers need not distinguish the two. What is
printed of a URL, `as_printed`, has no user, password or value of its query; `place` knows the URL that it stands
for, so that the program hands nothing else around.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BufferedReader, FileIO, RawIOBase
from itertools import count
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from traceq.errors import TraceqError, UnreadableInput

_URL = re.compile(r"^[a-z][a-z0-9+.-]+(::[a-z][a-z0-9+.-]+)*://")
_HTTP = re.compile(r"(^|::)https?://")
_USER = re.compile(r"(?<=://)[^/\s]*@")
_QUERY = re.compile(r"(?<=[?#])[^\s'\"#]*")
_SECRET = "xxxxx"  # no shell and no pattern of paths takes it for something else
_BLOCK, _BUFFER = 16 << 20, 1 << 20
_SECONDS = 60
_HOLE = 64 << 20
"""Bytes of a file without data at which reading ends: as many as the longest event of a trace."""
_SUFFIXES = (".json", ".jsonl", ".gz", ".zst", ".pkl", ".pickle", ".bin")
_OF_SHELL = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")
_BACKEND_ERRORS = (
    ("aiohttp", "ClientError"),
    ("botocore.exceptions", "BotoCoreError"),
    ("botocore.exceptions", "ClientError"),
    ("google.auth.exceptions", "GoogleAuthError"),
    ("httpx", "HTTPError"),
    ("httpx2", "HTTPError"),
    ("gcsfs.retry", "HttpError"),
    ("paramiko.ssh_exception", "SSHException"),
    ("tarfile", "TarError"),
    ("zipfile", "BadZipFile"),
)
"""(module, name) of errors that backends raise and that are no OSError; considered if the module is loaded."""


class Most:
    """Bytes of a file by its kind: a larger one is none. Of a memory snapshot they are a part of the memory."""

    MANIFEST = 16 << 20  # one that names the hosts of 100,000 ranks has a few million
    STEP_LINE = 1 << 20  # of a file without limit; a line has a few hundred
    FLIGHT_DUMP = 128 << 20  # an entry with its stack has about 4,000, and torch keeps the last 2,000 of a rank
    RULES = 1 << 20  # a rule has some hundred
    CACHE_ENTRY = 1 << 30  # the whole cache
    SOURCE = 16 << 20  # of a script; the longest of torch has a million
    STATUS = 16 << 20  # what processes of a recording tell each other: 32 of counters per rank, stacks of all
    LOG_TAIL = 16 << 20  # of a file without limit; a screen of it is shown


_urls: dict[str, str] = {}
"""URL by what is printed of it, where that differs."""


def as_printed(url: str) -> str:
    """Return what is printed of a URL, and stands for it: `https://xxxxx@host/a.json?token=xxxxx`; of a path itself."""
    shown = without_secrets(url) if _URL.match(url) else url
    if shown == url or url in _urls:
        return url
    numbered = (shown.replace(_SECRET, f"{_SECRET}{number or ''}", 1) for number in count())
    return next(each for each in numbered if _urls.setdefault(each, url) == url)  # of two versions each has its own


def without_secrets(text: str) -> str:
    """Return a text without the user, password and values of the query of each URL in it."""
    return _QUERY.sub(_without_values, _USER.sub(f"{_SECRET}@", text)) if "://" in text else text


def _without_values(query: re.Match[str]) -> str:
    members = (each.partition("=") for each in query[0].split("&"))
    return "&".join(f"{name}={_SECRET}" if equals else name and _SECRET for name, equals, _ in members)


@dataclass(frozen=True, slots=True)
class Remote:
    """URL with the methods of a path that reading needs.

    `kind` (file or directory) and `size` in bytes are known if a listing gave them, which saves a request per file; ""
    and -1 if not.
    """

    url: str = field(repr=False)
    kind: str = field(default="", compare=False)
    size: int = field(default=-1, compare=False)

    def __str__(self) -> str:
        return as_printed(self.url)

    def __lt__(self, other: Remote) -> bool:
        return self.url < other.url

    def __truediv__(self, name: str) -> Remote:
        return Remote(f"{self._bare}/{name}")

    @property
    def name(self) -> str:
        """Part after the last slash, without a query, as it can be printed."""
        return str(Remote(self._bare)).rpartition("/")[2]

    @property
    def parent(self) -> Remote:
        """Enclosing folder; of the outermost one itself."""
        folder = self._bare.rpartition("/")[0]
        return self if folder.endswith("/") else Remote(folder)

    @property
    def _is_http(self) -> bool:
        return self.url.startswith(("http://", "https://"))

    @property
    def _bare(self) -> str:
        return (self.url.partition("?")[0] if _HTTP.search(self.url) else self.url).rstrip("/")

    @property
    def has_name_of_a_file(self) -> bool:
        """Whether HTTP, which has no folders, serves a file here: its suffix is that of one."""
        return self._is_http and PurePosixPath(self.name).suffix in _SUFFIXES and not self.url.endswith("/")

    def exists(self) -> bool:
        """Return whether there is a file or a folder."""
        return self._kind() != ""

    def is_file(self) -> bool:
        """Return whether it is an existing file."""
        return self._kind() == "file"

    def is_dir(self) -> bool:
        """Return whether it is an existing folder."""
        return self._kind() == "directory"

    def iterdir(self) -> Iterator[Remote]:
        """Yield the contents of the folder. Raises UnreadableInput."""
        with _as_unreadable(str(self)):
            system, path = _system(self.url)
            for entry in system.ls(path, detail=True):
                url = str(system.unstrip_protocol(entry["name"]))
                if "?" not in url:  # links in the headings of a web server's listing, which sort it
                    yield Remote(url.rstrip("/"), str(entry["type"]), int(entry.get("size") or -1))

    def open(self) -> BufferedReader:
        """Return a stream of its bytes, to be read sequentially: one response over HTTP, else block by block.

        Raises UnreadableInput, as reading from it does. Only `read1` and `readinto1` keep what came before that.
        """
        with _as_unreadable(str(self)):
            system, path = _system(self.url)
            file = system.open(path, "rb", block_size=0 if self._is_http else _BLOCK)
        return BufferedReader(_Transfer(str(self), file), _BUFFER)

    def write(self, content: bytes) -> None:
        """Write a file at once, and its folder: an object store has all of it or nothing. Raises UnreadableInput."""
        with _as_unreadable(str(self)):
            system, path = _system(self.url)
            system.makedirs(path.rpartition("/")[0], exist_ok=True)
            system.pipe_file(path, content)

    def _kind(self) -> str:
        """Return file, directory, or "" if there is nothing.

        HTTP has no folders: any URL whose suffix is not that of a file counts as one.
        """
        if self.kind:
            return self.kind
        with _as_unreadable(str(self)):
            system, path = _system(self.url)
            try:
                kind = str(system.info(path)["type"])
            except FileNotFoundError:
                return ""
        if self._is_http:
            return "file" if self.has_name_of_a_file else "directory"
        return kind


class _Transfer(RawIOBase):
    """Bytes of a file that a backend opened, whose errors it raises as UnreadableInput."""

    def __init__(self, url: str, file: Any) -> None:
        self.size = int(getattr(file, "size", 0) or 0)
        self._url, self._file, self._num_read = url, file, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with _as_unreadable(self._url):
            piece = self._file.read(len(buffer))
        buffer[: len(piece)] = piece
        self._num_read += len(piece)
        return len(piece)

    def tell(self) -> int:
        return self._num_read

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


Place: TypeAlias = Path | Remote


def place(path: str | Path | Remote) -> Place:
    """Return the path or URL that a user names; of a file:// URL the path. Raises TraceqError without a backend."""
    if isinstance(path, Path | Remote):
        return path
    path = _urls.get(path, path)
    if path.startswith("file://"):
        from urllib.request import url2pathname  # loads a client of HTTP, for file:// alone

        return Path(url2pathname(urlsplit(path).path))
    if not _URL.match(path):
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            pass  # what reads it says so
        except OSError as fault:  # such as a name that is too long
            raise UnreadableInput(path, fault.strerror or str(fault)) from None
        return Path(path)
    remote = Remote(path)
    with _as_unreadable(str(remote)):
        _system(remote.url)
    return remote


def open_binary(file: Place) -> BufferedReader:
    """Return a stream of the bytes of a regular file, behind links, or of a pipe that the shell made: `<(zcat ...)`.

    Never waits: a named pipe may have no writer, and a device no end. Ends at the first large hole: `truncate -s 1T`
    takes no disk. Raises OSError, or UnreadableInput for a remote file.
    """
    return BufferedReader(_Regular(file)) if isinstance(file, Path) else file.open()


def read_whole(file: Place, most: int) -> bytes:
    """Return all bytes of such a file, of which more than `most` are none of its kind.

    Raises OSError, also for a larger file, or UnreadableInput for a remote one.
    """
    with open_binary(file) as stream:
        return read_rest(file, stream, most)


def read_rest(file: Place, stream: BufferedReader, most: int) -> bytes:
    """Return what is left of an open file of at most so many bytes; raises as `read_whole` does."""
    size = stored_bytes(file, stream) or most  # unknown of a pipe and of some servers
    content = stream.read(size + 1) if size <= most else b""  # no more than the size: all is allocated at once
    if max(size, len(content)) > most:
        raise OSError(errno.EFBIG, f"larger than {most >> 20:,} MiB", str(file))
    return content


def stored_bytes(file: Place, stream: BufferedReader) -> int:
    """Return the size of an open file as it is stored, in bytes; 0 if unknown."""
    return os.fstat(stream.fileno()).st_size if isinstance(file, Path) else int(getattr(stream.raw, "size", 0) or 0)


class _Regular(FileIO):
    """Such a file up to its first large hole, for a BufferedReader, which reads by `readinto` alone."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), opener=_open_regular)
        self._end = _first_hole(self.fileno())

    def readinto(self, buffer: Any, /) -> int:
        if self._end is not None:
            buffer = memoryview(buffer)[: max(self._end - self.tell(), 0)]
        return int(super().readinto(buffer) or 0)


def _first_hole(descriptor: int) -> int | None:
    """Return where a file has no data for long; None if it has no such hole, or its file system does not say."""
    size = os.fstat(descriptor).st_size
    if size <= _HOLE or not hasattr(os, "SEEK_HOLE"):
        return None
    data = 0
    try:
        while (hole := os.lseek(descriptor, data, os.SEEK_HOLE)) < size - _HOLE:
            try:
                data = os.lseek(descriptor, hole, os.SEEK_DATA)
            except OSError:  # no data follows
                data = size
            if data - hole > _HOLE:
                return hole
    except OSError:
        return None
    finally:
        os.lseek(descriptor, 0, os.SEEK_SET)
    return None


def _open_regular(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    if stat.S_ISFIFO(mode) and path.startswith(_OF_SHELL):
        os.set_blocking(descriptor, True)
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, "not a regular file", path)


def _read_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that reading a remote file can raise."""
    loaded = (getattr(sys.modules.get(module), name, None) for module, name in _BACKEND_ERRORS)
    return (OSError, ValueError, *(error for error in loaded if error is not None))


def _system(url: str) -> tuple[Any, str]:
    """Return (file system, path in it)."""
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise TraceqError(f"{as_printed(url)}: URLs need fsspec: pip install 'traceq-torch[remote]'") from None
    options: dict[str, Any] = {}
    if url.startswith(("http://", "https://")):
        options["client_kwargs"] = {"timeout": _timeouts(url)}
    try:
        system, path = url_to_fs(url, **options)
    except ImportError as fault:  # its message names the package
        raise TraceqError(f"{as_printed(url)}: {_line(fault)}: pip install 'traceq-torch[remote]'") from None
    return system, path


def _timeouts(url: str) -> Any:
    """Return timeouts per read; a whole file, which may be gigabytes, has none."""
    try:
        from aiohttp import ClientTimeout
    except ImportError:
        raise TraceqError(f"{as_printed(url)}: HTTP needs aiohttp: pip install 'traceq-torch[remote]'") from None
    return ClientTimeout(total=None, sock_connect=_SECONDS, sock_read=_SECONDS)


@contextmanager
def _as_unreadable(url: str) -> Iterator[None]:
    """Raise a backend's error as UnreadableInput, in one line."""
    try:
        yield
    except _read_errors() as fault:
        raise UnreadableInput(url, _line(fault)) from None
    except (AttributeError, LookupError, NotImplementedError, TypeError) as fault:  # dir://, or zip:// without a file
        raise UnreadableInput(url, f"incomplete for its file system: {_line(fault)}", "a URL of a file") from None


def _line(fault: BaseException) -> str:
    """Return an exception's message in one line; for a server's response its status."""
    if type(fault).__name__ == "ClientPayloadError":  # of aiohttp, whose message is about a header
        return "the transfer is cut off"
    fault = fault.__cause__ or fault
    if isinstance(status := getattr(fault, "status", None), int):
        return f"the server answers {status} {getattr(fault, 'message', '')}".strip()
    if isinstance(fault, FileNotFoundError):
        return "no such file or folder"
    return " ".join(without_secrets(str(fault)).split()) or type(fault).__name__
