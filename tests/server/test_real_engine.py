"""HTTP over the real engine and a tiny random E-series model: nothing depends on the neighbours."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import culet
from culet.server.state import ServerState
from support.http_requests import ask_all, serve_llm
from support.live_server import serving

SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["a", "b", "c"]}, "n": {"type": "integer", "maximum": 99}},
    "required": ["kind", "n"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {
        "name": "pick",
        "parameters": {
            "type": "object",
            "properties": {"side": {"enum": ["left", "right"]}, "n": {"type": "boolean"}},
            "required": ["side", "n"],
        },
    },
}


_WORDS = ("red", "blue", "sea", "sky", "12", "née")


@pytest.fixture(scope="module")
def llm(model_path: Path) -> Iterator[culet.LLM]:
    with culet.load(model_path, backend="cpu", threads=1, context_length=512) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def state(llm: culet.LLM) -> ServerState:
    return serve_llm(llm)


@pytest.fixture(scope="module")
def url(state: ServerState) -> Iterator[str]:
    with serving(state) as address:
        yield address


def requests(count: int) -> list[tuple[str, dict[str, Any]]]:
    """Plain, streamed, constrained and tool requests, each with a seed of its own."""
    rng = random.Random(48)
    made: list[tuple[str, dict[str, Any]]] = []
    for number in range(count):
        words = " ".join(
            rng.choices(("red", "blue", "sea", "sky", "12", "née"), k=rng.randint(1, 30))
        )
        body: dict[str, Any] = {
            "messages": [{"role": "user", "content": f"{number} {words}"}],
            "max_tokens": rng.randint(20, 60),
            "seed": number,
            "temperature": rng.choice((0.0, 1.0, 2.0)),
            "stream": number % 2 == 0,
        }
        match number % 4:
            case 1:
                form = {"type": "json_schema", "json_schema": {"schema": SCHEMA}}
                body |= {"response_format": form, "max_tokens": 200}
            case 2:
                body |= {"tools": [TOOL], "tool_choice": "required", "max_tokens": 400}
                body |= {"parallel_tool_calls": False}
        path = "/v1/chat/completions"
        if number % 4 == 3:
            path = "/v1/completions"
            body["prompt"] = body.pop("messages")[0]["content"]
            body["ignore_eos"] = True
        made.append((path, body))
    return made


def test_forty_eight_requests_at_once_equal_each_alone(url: str, state: ServerState) -> None:
    made = requests(48)
    together = asyncio.run(ask_all(url, made, 16))
    alone = asyncio.run(ask_all(url, made, 1))
    flipped = [(p, {**b, "stream": not b["stream"]}) for p, b in made]
    other_mode = asyncio.run(ask_all(url, flipped, 16))
    assert together == alone == other_mode
    assert len({json.dumps(answer) for answer in together}) > 24
    for (_, body), (text, calls, finish) in zip(made, together, strict=True):
        if "response_format" in body:
            value = json.loads(text)
            assert value["kind"] in "abc" and value["n"] <= 99 and finish == "stop"
        if "tools" in body:
            ((name, arguments),) = calls
            value = json.loads(arguments)
            assert name == "pick" and value["side"] in ("left", "right")
            assert type(value["n"]) is bool and finish == "tool_calls"
    assert state.num_open == 0


def test_usage_counts_what_was_cached(url: str) -> None:
    body = {"prompt": "one two three " * 20, "max_tokens": 4, "temperature": 0}
    first = httpx.post(f"{url}/v1/completions", json=body).json()["usage"]
    again = httpx.post(f"{url}/v1/completions", json=body).json()["usage"]
    assert again["prompt_tokens"] == first["prompt_tokens"]
    assert again["prompt_tokens_details"]["cached_tokens"] > 0


def test_embeddings_are_the_mean_of_the_hidden_states(url: str, llm: culet.LLM) -> None:
    answer = httpx.post(f"{url}/v1/embeddings", json={"input": ["red", "red", "blue sky"]}).json()
    first, same, other = (entry["embedding"] for entry in answer["data"])
    assert first == same != other
    assert sum(x * x for x in other) == pytest.approx(1.0, abs=1e-5)


def test_echo_gives_logprobs_of_the_prompt(url: str, llm: culet.LLM) -> None:
    ids = llm.tokenizer.encode("red blue sky")
    body = {"prompt": ids, "max_tokens": 0, "echo": True, "logprobs": 1}
    entry = httpx.post(f"{url}/v1/completions", json=body).json()["choices"][0]["logprobs"]
    logits = llm.logits(ids)
    assert entry["token_logprobs"][0] is None and len(entry["tokens"]) == len(ids)
    for position, wanted in enumerate(ids[1:]):
        row = logits[position].astype("float64")
        logprob = row[wanted] - row.max() - _log_sum(row - row.max())
        # Both are sums over the vocabulary in float32 and float64.
        assert entry["token_logprobs"][position + 1] == pytest.approx(float(logprob), abs=1e-4)


def _log_sum(values: Any) -> float:
    return float(np.log(np.exp(values).sum()))


@pytest.mark.parametrize("stream", [True, False])
def test_fault_152_clients_that_leave_free_everything(
    url: str, state: ServerState, llm: culet.LLM, stream: bool
) -> None:
    """While queued, in the prompt and while decoding: twenty times."""
    metrics = llm.engine.metrics
    body = {"prompt": "word " * 60, "max_tokens": 400, "ignore_eos": True, "stream": stream}
    for number in range(20):
        with contextlib.suppress(httpx.TimeoutException):
            httpx.post(f"{url}/v1/completions", json=body, timeout=0.01 + 0.005 * (number % 6))
    deadline = time.monotonic() + 20
    while (state.num_open or metrics.running.value) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert state.num_open == 0 and metrics.running.value == 0 and metrics.waiting.value == 0
    answer = httpx.post(f"{url}/v1/completions", json={"prompt": "a", "max_tokens": 2})
    assert answer.status_code == 200


@pytest.mark.slow
def test_two_thousand_short_requests_from_two_hundred_connections(
    url: str, state: ServerState
) -> None:
    """None is lost and memory stays flat."""
    made = [
        ("/v1/completions", {"prompt": f"{n} words", "max_tokens": 3, "stream": n % 2 == 0})
        for n in range(2000)
    ]
    asyncio.run(ask_all(url, made[:200], 100))
    before = _resident_bytes()
    answers = asyncio.run(ask_all(url, made, 200))
    assert len(answers) == 2000
    assert state.num_open == 0 and threading.active_count() < 60
    # The prefix cache fills up within its plan; nothing else may grow.
    assert _resident_bytes() - before < 60 * 2**20


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
