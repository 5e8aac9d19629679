"""Who may call, how much, how slowly; and how the server ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from culet.cli.main import build_parser
from culet.cli.serve import read_keys
from culet.errors import UsageError
from culet.server.limits import Access, Limits, host_name, require_safe_bind
from culet.server.routes import API_ROUTES
from culet.server.state import ServerState
from support.live_server import serving, state_for

USER: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]


def script(prompt: str, choice: int) -> str:
    return "Hello."


@contextmanager
def client(access: Access | None = None, **options: Any) -> Iterator[httpx.Client]:
    state = state_for(script, **options)
    if access is not None:
        state.access = access
    with serving(state) as url, httpx.Client(base_url=url, timeout=20) as http:
        yield http


def test_every_route_wants_the_key_but_health_and_the_page() -> None:
    with client(Access(keys=("one", "two"))) as http:
        for route in API_ROUTES:
            path = route.path.replace("{name:path}", "tiny")
            answer = http.request(route.method, path, json={})
            assert answer.status_code == (200 if path == "/health" else 401), path
        for path in ("/docs", "/openapi.json", "/nothing"):
            assert http.get(path).status_code == 401
        for path in ("/", "/web/app.js", "/web/style.css"):
            assert http.get(path).status_code == 200
        for headers in (
            {"authorization": "Bearer one"},
            {"authorization": "bearer two"},
            {"x-api-key": "two"},
        ):
            assert http.get("/v1/models", headers=headers).status_code == 200
        for headers in (
            {"authorization": "Bearer three"},
            {"authorization": "Basic one"},
            {"x-api-key": ""},
            {"x-api-key": "onetwo"},
            {"x-api-key": b"\xff\xfe"},
        ):
            assert http.get("/v1/models", headers=headers).status_code == 401  # type: ignore[arg-type]


def test_web_pages_do_not_reach_a_local_server() -> None:
    with client(Access(hosts=frozenset({"gemma.lan"}))) as http:
        body = {"messages": USER}
        post = "/v1/chat/completions"
        for host in ("evil.example", "evil.example:80", "localhost.evil.example", ""):
            assert http.post(post, json=body, headers={"host": host}).status_code == 403
        for host in (
            "localhost",
            "LOCALHOST:1",
            "127.0.0.1",
            "[::1]:8",
            "192.168.1.5",
            "gemma.lan",
        ):
            assert http.post(post, json=body, headers={"host": host}).status_code == 200
        simple = {"content-type": "text/plain", "origin": "https://evil.example"}
        assert http.post(post, content=json.dumps(body), headers=simple).status_code == 403
        del simple["origin"]
        assert http.post(post, content=json.dumps(body), headers=simple).status_code == 415
        null = {"origin": "null"}
        assert http.post(post, json=body, headers=null).status_code == 403
        same = {"origin": str(http.base_url).rstrip("/")}
        assert http.post(post, json=body, headers=same).status_code == 200
        charset = {"content-type": "application/json; charset=utf-8"}
        assert http.post(post, content=json.dumps(body), headers=charset).status_code == 200


def test_any_origin_only_where_it_is_said() -> None:
    with client(Access(origins=frozenset({"*"}))) as http:
        headers = {"origin": "https://a.example"}
        answer = http.post("/v1/chat/completions", json={"messages": USER}, headers=headers)
        assert answer.headers["access-control-allow-origin"] == "https://a.example"
        assert "access-control-allow-credentials" not in answer.headers


def test_host_names() -> None:
    assert host_name("A.b:80") == "a.b" and host_name("[::1]:80") == "::1"
    assert host_name("[::1].evil.example") == "[::1].evil.example"


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.168.1.5", "my.host"])
def test_a_public_address_needs_a_key(address: str) -> None:
    with pytest.raises(UsageError, match="--api-key"):
        require_safe_bind(address, (), allow_no_key=False)
    require_safe_bind(address, ("key",), allow_no_key=False)
    require_safe_bind(address, (), allow_no_key=True)
    for local in ("127.0.0.1", "127.9.9.9", "::1", "localhost"):
        require_safe_bind(local, (), allow_no_key=False)


def test_keys_come_from_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys"
    file.write_text("c\n\n d \nc\n")
    monkeypatch.setenv("CULET_API_KEY", "b")
    words = ["serve", "m", "--api-key", "a", "--api-key-file", str(file)]
    assert read_keys(build_parser("serve").parse_args(words)) == ("a", "b", "c", "d")
    monkeypatch.delenv("CULET_API_KEY")
    file.write_text("\n")
    for wrong in (
        ["serve", "m", "--api-key", " "],
        ["serve", "m", "--api-key-file", str(file)],
        ["serve", "m", "--api-key-file", str(tmp_path / "none")],
    ):
        with pytest.raises(UsageError):
            read_keys(build_parser("serve").parse_args(wrong))


@pytest.mark.parametrize("origin", ["example.com", "https://example.com/", "HTTPS://A", ""])
def test_an_origin_that_no_browser_sends_is_refused(
    origin: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        build_parser("serve").parse_args(["serve", "--cors-origin", origin])
    assert f"{origin!r} is not an origin such as" in capsys.readouterr().err
    for good in ("https://example.com", "http://localhost:3000", "*", "chrome-extension://abc"):
        args = build_parser("serve").parse_args(["serve", "--cors-origin", good])
        assert args.cors_origin == [good]


def test_sizes_are_limited() -> None:
    limits = Limits(body_bytes=2000, messages=3, tools=1, choices=2)
    with client(limits=limits) as http:
        post = "/v1/chat/completions"
        large = {"messages": [{"role": "user", "content": "x" * 3000}]}
        assert http.post(post, json=large).status_code == 413

        def drip() -> Iterator[bytes]:
            yield b'{"messages": "'
            for _ in range(30):
                yield b"x" * 100

        headers = {"content-type": "application/json"}
        assert http.post(post, content=drip(), headers=headers).status_code == 413
        tool = {"type": "function", "function": {"name": "a"}}
        other = {"type": "function", "function": {"name": "b"}}
        for body in (
            {"messages": USER * 4},
            {"messages": USER, "tools": [tool, other]},
            {"messages": USER, "n": 3},
        ):
            answer = http.post(post, json=body)
            assert answer.status_code == 400 and "at most" in answer.text or "1 to 2" in answer.text
        for broken in (b"", b"{", b"[1]", b"\xff\xfe", b"[" * 1900, b'{"messages": NaN}'):
            assert http.post(post, content=broken, headers=headers).status_code == 400


def test_names_of_models() -> None:
    with client(aliases=("gemma", "gpt-4o")) as http:
        assert [m["id"] for m in http.get("/v1/models").json()["data"]] == [
            "tiny",
            "gemma",
            "gpt-4o",
        ]
        body = {"model": "whatever", "messages": USER}
        assert http.post("/v1/chat/completions", json=body).json()["model"] == "tiny"
    with client(aliases=("gemma",), strict_names=True) as http:
        for name, status in (("whatever", 404), ("gemma", 200), ("tiny:latest", 200)):
            for path, more in (
                ("/v1/chat/completions", {"messages": USER}),
                ("/v1/messages", {"messages": USER, "max_tokens": 5}),
                ("/api/chat", {"messages": USER}),
                ("/v1/embeddings", {"input": "x"}),
            ):
                answer = http.post(path, json={"model": name, **more})
                assert answer.status_code == status


@pytest.mark.parametrize(
    "path, shape",
    [
        ("/v1/nothing", lambda b: b["error"]["code"] == "not_found"),
        ("/v1/messages/nothing", lambda b: b["error"]["type"] == "not_found_error"),
        ("/api/nothing", lambda b: isinstance(b["error"], str)),
    ],
)
def test_errors_have_the_shape_of_their_family(path: str, shape: Any) -> None:
    with client() as http:
        answer = http.get(path)
        assert answer.status_code == 404 and shape(answer.json())
        assert http.get("/v1/chat/completions").status_code == 405


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/chat/completions", "; /v1/chat/completions is (look at the base URL)"),
        ("/v1/v1/messages", "; /v1/messages is (look at the base URL)"),
        ("/v1/api/chat", "; /api/chat is (look at the base URL)"),
        ("/v1/nothing", " is not a route of this server"),
    ],
)
def test_a_wrong_base_url_is_told_the_right_route(path: str, hint: str) -> None:
    with client() as http:
        error = http.post(path, json={}).json()["error"]
        message = error if isinstance(error, str) else error["message"]
        assert message.endswith(hint)
        assert http.get("/v1/messages").json()["error"]["message"].endswith("takes POST")


def _connect(http: httpx.Client, receive_buffer: int | None = None) -> socket.socket:
    url = http.base_url
    made = socket.socket()
    if receive_buffer is not None:  # before connecting: the window is agreed upon then
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    made.settimeout(10)
    made.connect((url.host, url.port or 80))
    return made


def _all_that_comes(made: socket.socket) -> bytes:
    """What arrives until the server ends the connection, be it by a reset."""
    parts = []
    with contextlib.suppress(ConnectionError):
        while part := made.recv(65536):
            parts.append(part)
    return b"".join(parts)


def _closed_after(made: socket.socket, feed: bytes = b"") -> float:
    """Seconds until the server closes, while a byte of `feed` goes out now and then."""
    began = time.monotonic()
    made.settimeout(0.1)
    while time.monotonic() - began < 8:
        try:
            if feed:
                made.sendall(feed[:1])
            if made.recv(4096) == b"":
                return time.monotonic() - began
        except TimeoutError:
            continue
        except OSError:
            return time.monotonic() - began
    raise AssertionError("the connection stays open")


def test_slow_clients_are_let_go() -> None:
    limits = Limits(body_seconds=0.6, idle_seconds=1)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
    with client(limits=limits) as http:
        with _connect(http) as silent:
            assert _closed_after(silent) < 3
        with _connect(http) as trickle:
            trickle.sendall(b"GET /health HTTP/1.1\r\nx: ")
            assert _closed_after(trickle, b"a") < 3
        with _connect(http) as stuck:
            stuck.sendall(head + b"content-type: application/json\r\ncontent-length: 99\r\n\r\n{")
            stuck.settimeout(5)
            assert b"408" in stuck.recv(4096)
        with _connect(http) as idle:
            idle.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            idle.settimeout(5)
            assert b"200" in idle.recv(4096)
            assert _closed_after(idle) < 4
        assert http.get("/health").status_code == 200


def test_a_reader_that_stops_reading_ends_its_request() -> None:
    state = state_for(lambda p, c: "word " * 10_000, limits=Limits(send_seconds=0.5))
    body = json.dumps({"messages": USER, "stream": True}).encode()
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
        b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    )
    # Small buffers are full after some hundred events, of which each word makes one.
    with serving(state, send_buffer=4096) as url, httpx.Client(base_url=url, timeout=20) as http:
        with _connect(http, receive_buffer=4096) as reader:
            reader.sendall(head + body)
            began = reader.recv(1024)
            assert b" 200 OK" in began and state.num_open == 1
            deadline = time.monotonic() + 120
            while state.num_open and time.monotonic() < deadline:
                time.sleep(0.01)
            assert state.num_open == 0
            rest = _all_that_comes(reader)
            assert rest and b"[DONE]" not in rest, "the answer is cut off"
        assert http.get("/health").status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_running_answers_end(model_path: Path, sign: int) -> None:
    command = [sys.executable, "-m", "culet", "serve", str(model_path), "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [*command, "--backend", "reference"],
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stderr is not None
    url = ""
    for line in process.stderr:
        if "ready: " in line:
            url = line.partition(" at ")[2].partition(" (")[0]
            break
    num_tokens = 80
    body = {
        "prompt": "hello",
        "max_tokens": num_tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=120) as answer:
        events = (line for line in answer.iter_lines() if line)
        first = next(events)
        process.send_signal(sign)
        later = list(events)
    rest = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) == 0, rest
    assert json.loads(first[6:])["choices"][0]["finish_reason"] is None
    assert later[-1] == "data: [DONE]"
    assert json.loads(later[-2][6:])["usage"]["completion_tokens"] == num_tokens
    assert "Traceback" not in rest


def test_the_access_log_has_no_prompts(caplog: pytest.LogCaptureFixture) -> None:
    for logs_prompts in (False, True):
        caplog.clear()
        state = state_for(script)
        state.logs_prompts = logs_prompts
        with caplog.at_level("INFO"), serving(state) as url:
            httpx.post(
                f"{url}/v1/chat/completions",
                json={"messages": [{"role": "user", "content": "a secret"}]},
            )
        assert ("a secret" in caplog.text) is logs_prompts
        assert "POST /v1/chat/completions 200" in caplog.text and "tokens" in caplog.text


def test_places_are_given_back_once() -> None:
    state = ServerState(state_for(script).model, Limits(requests=3))
    first, second = state.admit(2), state.admit(1)
    first()
    first()
    assert state.num_open == 1
    second()
    assert state.num_open == 0
