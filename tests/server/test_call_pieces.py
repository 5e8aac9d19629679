"""Calls in streams: arguments in pieces as they are written, in each dialect's own events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest

from culet.chat.syntax import CALL_CLOSE, CALL_OPEN, QUOTE, TURN_CLOSE
from support.live_server import serving, state_for

TEXT = 'def f():\n    return {"a": [1, 2]}\n' * 5
WRITTEN = {
    "good": f"call:save{{lines:3,path:{QUOTE}a.py{QUOTE},text:{QUOTE}{TEXT}{QUOTE}}}",
    "bad": f"call:save{{path:{QUOTE}a.py{QUOTE} and so on}}",
    "late": "call:save{path:a.py,text:plain}",
    "none": "call:save{}",
}
ARGUMENTS = {
    "good": {"lines": 3, "path": "a.py", "text": TEXT},
    "late": {"path": "a.py", "text": "plain"},
    "none": {},
}
SCHEMA = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "text": {"type": "string"},
        "lines": {"type": "integer"},
    },
}


def script(prompt: str, choice: int) -> str:
    asked = prompt.rpartition("<|turn>user\n")[2].partition("<turn|>")[0]
    calls = "".join(CALL_OPEN + WRITTEN[name] + CALL_CLOSE for name in asked.split())
    return f"ok {calls}{TURN_CLOSE}"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(state_for(script)) as address:
        yield address


@pytest.fixture(scope="module")
def openai_client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        yield client


@pytest.fixture(scope="module")
def anthropic_client(url: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def openai_chunks(url: str, asked: str, **fields: Any) -> list[Any]:
    tool = {"type": "function", "function": {"name": "save", "parameters": SCHEMA}}
    body = {"messages": [{"role": "user", "content": asked}], "tools": [tool], **fields}
    answer = httpx.post(f"{url}/v1/chat/completions", json={**body, "stream": True}, timeout=60)
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
    return [json.loads(line)["choices"][0] for line in lines]


def call_deltas(chunks: list[Any]) -> list[Any]:
    return [call for c in chunks for call in c["delta"].get("tool_calls", ())]


def test_openai_gets_pieces_as_they_come(url: str) -> None:
    deltas = call_deltas(openai_chunks(url, "good"))
    opening, *rest = deltas
    assert opening["function"] == {"name": "save", "arguments": ""} and opening["id"]
    assert all(set(d) == {"index", "function"} for d in rest)
    pieces = [d["function"]["arguments"] for d in rest]
    assert len(pieces) > len(TEXT) // 4 and all(pieces)
    assert json.loads("".join(pieces)) == ARGUMENTS["good"]
    for end in range(len(pieces)):
        with pytest.raises(ValueError):
            json.loads("".join(pieces[:end]))


def test_openai_calls_keep_their_indices(url: str) -> None:
    deltas = call_deltas(openai_chunks(url, "good late none good"))
    whole = ["", "", "", ""]
    ids = set()
    for delta in deltas:
        whole[delta["index"]] += delta["function"]["arguments"]
        ids |= {delta["id"]} if "id" in delta else set()
    wanted = [ARGUMENTS[n] for n in ("good", "late", "none", "good")]
    assert [json.loads(w) for w in whole] == wanted and len(ids) == 4


def test_openai_a_call_that_breaks_is_text_and_no_json(url: str) -> None:
    chunks = openai_chunks(url, "bad")
    with pytest.raises(ValueError):
        json.loads("".join(d["function"]["arguments"] for d in call_deltas(chunks)))
    content = "".join(c["delta"].get("content") or "" for c in chunks)
    assert content == f"ok {CALL_OPEN}{WRITTEN['bad']}{CALL_CLOSE}"
    assert chunks[-1]["finish_reason"] == "stop"


def test_openai_client_reads_the_pieces(openai_client: openai.OpenAI) -> None:
    tool: Any = {"type": "function", "function": {"name": "save", "parameters": SCHEMA}}
    messages: Any = [{"role": "user", "content": "good late"}]
    with openai_client.chat.completions.stream(
        model="m", messages=messages, tools=[tool]
    ) as stream:
        for _ in stream:
            pass
        calls = stream.get_final_completion().choices[0].message.tool_calls
    assert calls is not None
    assert [json.loads(c.function.arguments) for c in calls] == [
        ARGUMENTS["good"],
        ARGUMENTS["late"],
    ]


def anthropic_stream(client: anthropic.Anthropic, asked: str, max_tokens: int = 4000) -> Any:
    tool: Any = {"name": "save", "input_schema": SCHEMA}
    return client.messages.stream(
        model="m",
        max_tokens=max_tokens,
        messages=[{"role": "user", "content": asked}],
        tools=[tool],
    )


def test_anthropic_gets_pieces_as_they_come(anthropic_client: anthropic.Anthropic) -> None:
    with anthropic_stream(anthropic_client, "good none late") as stream:
        pieces = [e.partial_json for e in stream if e.type == "input_json"]
        message = stream.get_final_message()
    assert len(pieces) > len(TEXT) // 4
    used = [b for b in message.content if b.type == "tool_use"]
    assert [b.input for b in used] == [ARGUMENTS[n] for n in ("good", "none", "late")]
    assert len({b.id for b in used}) == 3 and message.stop_reason == "tool_use"


def test_anthropic_a_call_that_breaks_is_an_error(anthropic_client: anthropic.Anthropic) -> None:
    """Its client completes JSON that ends early, and would run a tool with half of its input."""
    with (
        anthropic_stream(anthropic_client, "bad") as stream,
        pytest.raises(anthropic.APIError, match="did not end it as one"),
    ):
        for _ in stream:
            pass
    with anthropic_stream(anthropic_client, "good", max_tokens=60) as stream:
        assert stream.get_final_message().stop_reason == "max_tokens"


def test_responses_gets_pieces_as_they_come(openai_client: openai.OpenAI) -> None:
    client = openai_client
    tool: Any = {"type": "function", "name": "save", "parameters": SCHEMA, "strict": False}
    events = list(client.responses.create(model="m", input="good", tools=[tool], stream=True))
    pieces = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
    assert len(pieces) > len(TEXT) // 4
    (done,) = (e for e in events if e.type == "response.function_call_arguments.done")
    assert done.arguments == "".join(pieces) and json.loads(done.arguments) == ARGUMENTS["good"]
    final: Any = events[-1]
    assert final.response.output[-1].arguments == done.arguments
    whole = client.responses.create(model="m", input="good", tools=[tool])
    assert [i.type for i in whole.output] == [i.type for i in final.response.output]
    broken: Any = list(client.responses.create(model="m", input="bad", tools=[tool], stream=True))
    kinds = [(i.type, i.status) for i in broken[-1].response.output]
    assert kinds == [
        ("message", "completed"),
        ("function_call", "incomplete"),
        ("message", "completed"),
    ]
    assert not [e for e in broken if e.type == "response.function_call_arguments.done"]
    shown = client.responses.create(model="m", input="bad", tools=[tool])
    assert [i.type for i in shown.output] == ["message"]
