"""Traces behind a URL are read as those beside it are: memory://, file:// and HTTP stand for all that fsspec opens."""

from __future__ import annotations

import gzip
import io
import json
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from functools import partial, partialmethod
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from builder import launch, op, step, text, world, write
from paths import FIXTURES
from terminal import traceq

import traceq as library
from traceq.errors import TraceqError, UnreadableInput
from traceq.locations import Remote, place, read_whole

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
aiohttp = pytest.importorskip("aiohttp", reason="aiohttp is not installed")
zstandard = pytest.importorskip("zstandard", reason="zstandard is not installed")

NUM_RANKS = 12
EVENTS = [step(0, 100), *(op("aten::mm", 5 * n, 3) for n in range(20)), launch(50, 2, 1)]


class Served(SimpleHTTPRequestHandler):
    """A folder, with a note of what was asked; nothing else is written anywhere."""

    requests: list[str]

    def log_message(self, *_: Any) -> None:
        self.requests.append(f"{self.command} {self.path}")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "job"
    for rank in range(NUM_RANKS):
        write(folder / f"rank{rank}.json.gz", *EVENTS, **world(rank, NUM_RANKS))
    return folder


@pytest.fixture
def server(job: Path) -> Iterator[tuple[str, list[str]]]:
    """(URL of the folder around the job, what was asked of it)."""
    requested: list[str] = []
    handler = partial(type("Handler", (Served,), {"requests": requested}), directory=str(job.parent))
    serving = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=serving.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{serving.server_port}", requested
    serving.shutdown()
    serving.server_close()
    thread.join()


@pytest.fixture
def memory(job: Path) -> str:
    system = fsspec.filesystem("memory")
    system.store.clear()
    system.pseudo_dirs[:] = [""]
    system.put(str(job), "/job", recursive=True)
    system.put(str(FIXTURES / "outlier_ab"), "/runs/outlier_ab", recursive=True)
    return "memory://"


def show_json(*words: str | Path) -> dict[str, Any]:
    """What `show --json` prints, without the path."""
    done = traceq("show", "--json", *words)
    assert done.code == 0, done.err
    result: dict[str, Any] = json.loads(done.out)
    del result["source"]["path"]
    return result


@pytest.mark.slow
def test_a_folder_behind_a_url_is_shown_as_the_folder(job: Path, server: tuple[str, list[str]], memory: str) -> None:
    local = show_json(job)
    assert local["source"]["ranks"] == list(range(NUM_RANKS))
    assert show_json(f"{server[0]}/job") == show_json(f"{server[0]}/job/") == local
    assert show_json(f"{memory}job") == show_json(job.as_uri()) == local


def test_a_file_behind_a_url_is_shown_as_the_file(job: Path, server: tuple[str, list[str]], memory: str) -> None:
    local = show_json(job / "rank7.json.gz")
    for folder in (f"{server[0]}/job", f"{memory}job", job.as_uri()):
        assert show_json(f"{folder}/rank7.json.gz") == local
    assert show_json(f"{server[0]}/job/rank7.json.gz?token=secret") == local


@pytest.mark.slow
def test_ranks_that_are_not_asked_for_are_not_fetched(server: tuple[str, list[str]]) -> None:
    url, requested = server
    assert show_json(f"{url}/job", "--ranks", "3,8")["source"]["ranks"] == [3, 8]
    assert {line for line in requested if ".json.gz" in line and line.startswith("GET")} == {
        "GET /job/rank3.json.gz",
        "GET /job/rank8.json.gz",
    }


@pytest.mark.slow
def test_each_file_is_fetched_once_and_none_is_asked_what_it_is(server: tuple[str, list[str]]) -> None:
    url, requested = server
    show_json(f"{url}/job")
    files = [line for line in requested if ".json.gz" in line]
    assert sorted(files) == sorted(
        f"{how} /job/rank{rank}.json.gz" for how in ("GET", "HEAD") for rank in range(NUM_RANKS)
    )
    assert len(requested) - len(files) < 20  # whatever the number of ranks


@pytest.mark.slow
def test_a_recorded_run_its_arms_and_their_diff_are_read_through_a_url(memory: str) -> None:
    run = f"{memory}runs/outlier_ab"
    assert show_json(run) == show_json(FIXTURES / "outlier_ab")
    assert show_json(f"{run}/on") == show_json(FIXTURES / "outlier_ab" / "on")
    remote, local = traceq("diff", run), traceq("diff", FIXTURES / "outlier_ab")
    assert remote.out.replace(run, "RUN") == local.out.replace(str(FIXTURES / "outlier_ab"), "RUN")
    assert traceq("diff", f"{run}/off", f"{run}/on").code == 0


def test_a_cut_off_archive_gives_what_it_holds_wherever_it_lies(job: Path, server: tuple[str, list[str]]) -> None:
    packed = gzip.compress(text(*EVENTS * 200))
    (job.parent / "cut.json.gz").write_bytes(packed[: len(packed) // 2])
    local, remote = (library.read(f"{folder}/cut.json.gz") for folder in (job.parent, server[0]))
    assert len(remote.traces[0].events) == len(local.traces[0].events) > 100
    assert [caveat.code for caveat in remote.caveats] == [caveat.code for caveat in local.caveats] == ["truncated"]


@pytest.mark.parametrize("ending", ["json", "json.gz", "json.zst"])
def test_a_dropped_transfer_gives_what_a_file_gives_that_ends_there(
    ending: str, memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = text(step(0, 10**6), *(op(f"aten::mm{n * 7919 % 10007}", 5 * n, 3) for n in range(5000)))
    content = {"json": bytes, "json.gz": gzip.compress, "json.zst": zstandard.compress}[ending](content)
    size = len(content) // 2
    (tmp_path / f"cut.{ending}").write_bytes(content[:size])
    fsspec.filesystem("memory").pipe(f"/cut.{ending}", content)
    monkeypatch.setattr(fsspec.implementations.memory.MemoryFile, "read", partialmethod(read_until_dropped, end=size))
    local, remote = (library.read(f"{folder}cut.{ending}") for folder in (f"{tmp_path}/", memory))
    assert len(remote.traces[0].events) == len(local.traces[0].events) > 1000
    assert "the transfer is cut off" in remote.caveats[0].text
    assert [caveat.code for caveat in remote.caveats] == ["truncated"]


def read_until_dropped(file: io.BytesIO, size: int, *, end: int) -> bytes:
    if file.tell() == end:
        raise aiohttp.ClientPayloadError("Response payload is not completed")
    return io.BytesIO.read(file, min(size, end - file.tell()))


def test_no_part_of_a_dropped_transfer_is_taken_for_a_whole_file(memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fsspec.implementations.memory.MemoryFile, "read", partialmethod(read_until_dropped, end=100))
    with pytest.raises(UnreadableInput, match="cut off"):
        read_whole(place(f"{memory}runs/outlier_ab/run.json"), 1 << 20)


def test_a_connection_that_is_reset_is_one_line(server: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    def reset(handler: Served, source: Any, output: Any) -> None:
        output.write(source.read(100))
        output.flush()
        handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        handler.connection.close()

    monkeypatch.setattr(Served, "copyfile", reset)
    done = traceq("show", f"{server[0]}/job/rank7.json.gz")
    assert (done.code, done.err.count("\n")) == (1, 1)


def test_nothing_is_asked_for_below_a_file(server: tuple[str, list[str]]) -> None:
    library.read(f"{server[0]}/job/rank7.json.gz")
    assert not [line for line in server[1] if "run.json" in line]


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("{server}/nothing.json", "the server answers 404 "),
        ("{server}/nothing", "the server answers 404 "),
        ("http://127.0.0.1:1/a.json", "Cannot connect to host 127.0.0.1:1"),
        ("memory://nothing.json", "no such file or folder"),
        ("nonsense://a/b", "Protocol not known: nonsense"),
    ],
)
def test_what_cannot_be_read_is_one_line(server: tuple[str, list[str]], path: str, problem: str) -> None:
    path = path.format(server=server[0])
    done = traceq("show", path)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(f"traceq: {path}: {problem}")
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("missing", "url"),
    [("fsspec.core", "memory://a.json"), ("aiohttp", "https://host/a.json"), ("s3fs", "s3://bucket/a.json")],
)
def test_a_package_that_is_missing_is_one_line_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, missing: str, url: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    done = traceq("show", url)
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert done.err.startswith(f"traceq: {url}: ")
    assert done.err.endswith(": pip install 'traceq-torch[remote]'\n")


def test_a_path_is_a_path_and_a_url_has_names_as_a_path_has() -> None:
    assert place("a/b.json") == Path("a/b.json")
    assert place("file:///a/b%20c.json") == Path("/a/b c.json")
    assert place(Path("a")) == Path("a")
    folder = Remote("s3://bucket/runs/one/")
    assert (folder.name, str(folder.parent), str(folder / "on")) == (
        "one",
        "s3://bucket/runs",
        "s3://bucket/runs/one/on",
    )
    assert Remote("s3://bucket").parent == Remote("s3://bucket")
    signed = Remote("https://host/a/rank0.json?X-Signature=b/c")
    assert (signed.name, str(signed.parent)) == ("rank0.json", "https://host/a")


def test_reading_by_the_library_raises_what_it_says() -> None:
    with pytest.raises(UnreadableInput):
        library.read("memory://nothing.json")
    with pytest.raises(TraceqError):
        library.diff("nonsense://a", "nonsense://b")
