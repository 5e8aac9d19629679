"""Streams, cancellation, full queues and faults of the engine, over a real socket."""

from __future__ import annotations

import threading
import time
from typing import Any

import httpx
import pytest

from culet.server.limits import Limits
from support.live_server import serving, state_for

USER: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("stream", [True, False])
def test_fault_152_client_gone(stream: bool) -> None:
    state = state_for(lambda prompt, choice: "word " * 4000, step_seconds=0.005)
    engine: Any = state.model.engine
    with serving(state) as url:
        for _ in range(5):
            body = {"messages": USER, "stream": stream}
            with httpx.Client(timeout=30) as http:
                request = http.build_request("POST", f"{url}/v1/chat/completions", json=body)
                if stream:
                    answer = http.send(request, stream=True)
                    next(answer.iter_bytes())
                    answer.close()
                else:
                    with pytest.raises(httpx.ReadTimeout):
                        httpx.post(f"{url}/v1/chat/completions", json=body, timeout=0.15)
        deadline = time.monotonic() + 5
        while engine.num_active and time.monotonic() < deadline:
            time.sleep(0.01)
        assert engine.num_active == 0 and state.num_open == 0
        sampled = engine.num_sampled
        time.sleep(0.1)
        assert engine.num_sampled == sampled


def test_streaming_is_real() -> None:
    """The first delta leaves before the third token is sampled."""
    state = state_for(lambda prompt, choice: "abcdefgh", step_seconds=0.2)
    engine: Any = state.model.engine
    with serving(state) as url, httpx.Client(timeout=30) as http:
        body = {"messages": USER, "stream": True}
        with http.stream("POST", f"{url}/v1/chat/completions", json=body) as answer:
            for line in answer.iter_lines():
                if '"content":"a"' in line:
                    break
            assert len(engine.sampled_at) < 3


def test_a_full_queue_says_when_to_come_back() -> None:
    may_speak = threading.Event()

    def script(prompt: str, choice: int) -> str:
        may_speak.wait(120)
        return "word"

    state = state_for(script, limits=Limits(requests=2))
    with serving(state) as url, httpx.Client(base_url=url, timeout=120) as http:
        running = [
            threading.Thread(
                target=http.post,
                args=("/v1/chat/completions",),
                kwargs={"json": {"messages": USER}},
            )
            for _ in range(2)
        ]
        for thread in running:
            thread.start()
        deadline = time.monotonic() + 60
        while state.num_open < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        for path, body in (
            ("/v1/chat/completions", {"messages": USER}),
            ("/v1/messages", {"messages": USER, "max_tokens": 3}),
            ("/api/chat", {"messages": USER}),
        ):
            answer = http.post(path, json=body)
            assert answer.status_code == 429 and answer.headers["retry-after"] == "1"
        may_speak.set()
        for thread in running:
            thread.join()
        assert http.post("/api/chat", json={"messages": USER}).status_code == 200


def test_a_fault_of_the_engine_ends_its_request_only() -> None:
    state = state_for(lambda prompt, choice: "Hello.")
    engine: Any = state.model.engine
    with serving(state) as url, httpx.Client(base_url=url) as http:
        engine.failure = RuntimeError("secret detail")
        for path, body in (
            ("/v1/chat/completions", {"messages": USER}),
            ("/v1/messages", {"messages": USER, "max_tokens": 3}),
            ("/api/chat", {"messages": USER, "stream": False}),
        ):
            answer = http.post(path, json=body)
            assert answer.status_code == 500 and "secret" not in answer.text
            streamed = http.post(path, json={**body, "stream": True})
            assert streamed.status_code == 200 and "error" in streamed.text
            assert "secret" not in streamed.text
        engine.failure = None
        assert http.post("/v1/chat/completions", json={"messages": USER}).status_code == 200
