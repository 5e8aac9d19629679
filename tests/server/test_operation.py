"""A running server as an operator sees it: metrics, slow readers, the end, a failed engine."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from culet.errors import BackendError
from culet.server.app import build_app
from culet.server.limits import Limits
from culet.server.run import Server, bind, make_server
from support.live_server import serving, state_for

USER: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
PAGE = Path(__file__).parents[2] / "docs" / "operating.md"


def test_every_metric_is_documented() -> None:
    """And every name in the table exists."""
    state = state_for(lambda prompt, choice: "Hello.")
    with serving(state) as url, httpx.Client(base_url=url, timeout=60) as http:
        http.post("/v1/chat/completions", json={"messages": USER})
        text = http.get("/metrics").text
    names = {
        re.sub(r"_(total|created)$", "", name)
        for name in re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE)
    }
    assert "culet_http_responses" in names and "culet_queue_seconds" in names
    assert set(re.findall(r"`(culet_\w+)`", PAGE.read_text(encoding="utf-8"))) == names


BODY = b"x" * 3_000_000


async def whole_answer(scope: Any, receive: Any, send: Any) -> None:
    """An application that answers everything with more than the system takes at once."""
    headers = [(b"content-length", b"%d" % len(BODY))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": BODY})


@contextmanager
def running(app: Any, limits: Limits, answers: Any = None) -> Iterator[tuple[Server, int]]:
    """A server with small buffers, and its port; it may have ended before the block does."""
    listener = bind("127.0.0.1", 0)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    port = listener.getsockname()[1]
    ready = threading.Event()
    server = make_server(app, limits, ready.set, answers)
    thread = threading.Thread(
        target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True
    )
    thread.start()
    assert ready.wait(60)
    yield server, port
    server.should_exit = True
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize("takes", [0, 1])
def test_a_reader_of_a_whole_answer_that_stops_is_cut_off(takes: int) -> None:
    """Not only of streams: what was computed would be held for as long as the reader likes."""
    with running(whole_answer, Limits(send_seconds=0.3)) as (_, port), socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.settimeout(60)
        reader.connect(("127.0.0.1", port))
        reader.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert b" 200 OK" in reader.recv(200)
        deadline = time.monotonic() + 60
        with pytest.raises(ConnectionResetError):
            while time.monotonic() < deadline:
                time.sleep(0.02)
                reader.send(b"G")  # fails once the server has cut the connection off
                if takes:
                    reader.recv(takes)


def test_a_slow_reader_that_goes_on_gets_all() -> None:
    with running(whole_answer, Limits(send_seconds=1)) as (_, port):
        got = 0
        with httpx.stream("GET", f"http://127.0.0.1:{port}/", timeout=60) as answer:
            for part in answer.iter_raw(300_000):
                got += len(part)
                time.sleep(0.25)
    assert got == len(BODY)


def test_the_end_of_the_time_ends_answers_with_an_error() -> None:
    """For streams, whole answers and embeddings of each family."""
    state = state_for(
        lambda p, c: "word " * 5000, step_seconds=0.02, limits=Limits(drain_seconds=0.5)
    )
    answers: dict[str, httpx.Response] = {}

    def ask(name: str, path: str, body: dict[str, Any]) -> None:
        answers[name] = httpx.post(f"http://127.0.0.1:{port}{path}", json=body, timeout=60)

    asked = [
        ("whole", "/v1/chat/completions", {"messages": USER}),
        ("streamed", "/v1/chat/completions", {"messages": USER, "stream": True}),
        ("anthropic", "/v1/messages", {"messages": USER, "max_tokens": 9999, "stream": True}),
        ("ollama", "/api/chat", {"messages": USER}),
        ("responses", "/v1/responses", {"input": "hi", "stream": True}),
    ]
    with running(build_app(state), state.limits, state) as (server, port):
        threads = [threading.Thread(target=ask, args=one, daemon=True) for one in asked]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 60
        while state.num_open < len(asked) and time.monotonic() < deadline:
            time.sleep(0.01)
        server.should_exit = True
        for thread in threads:
            thread.join(60)
    assert answers["whole"].status_code == 503
    assert answers["whole"].json()["error"]["code"] == "cancelled"
    assert answers["whole"].headers["retry-after"] == "5"
    for name in ("streamed", "anthropic", "ollama", "responses"):
        assert answers[name].status_code == 200, name
        assert "the server is ending" in answers[name].text[-400:], name


def test_a_failed_engine_ends_the_server() -> None:
    """A supervisor can start a new one; the command's exit code is the error's."""
    state = state_for(lambda p, c: "Hello.")
    engine: Any = state.model.engine
    with serving(state) as url:
        assert httpx.get(f"{url}/health").status_code == 200
        engine.failed_with = BackendError("the engine has failed")
        deadline = time.monotonic() + 30
        with pytest.raises(httpx.ConnectError):
            while time.monotonic() < deadline:
                httpx.get(f"{url}/health")
                time.sleep(0.05)
    assert state.failed_with is engine.failed_with
