"""Every place of every request holds something else once: nothing of it is a fault of ours.

Within the process, without sockets, so that some thousand requests take seconds.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from culet.server.app import build_app
from support.live_server import state_for

_SCHEMA = {
    "type": "object",
    "description": "d",
    "properties": {
        "a": {"type": "string", "enum": ["x", "y"], "minLength": 1, "maxLength": 3},
        "b": {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1},
        "c": {"anyOf": [{"type": "number"}, {"type": "null"}], "nullable": True},
        "d": {"$ref": "#/$defs/e"},
    },
    "required": ["a"],
    "additionalProperties": False,
    "$defs": {"e": {"type": "string", "pattern": "^a+$"}},
}
_CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": ["x"]}}}
_TEXT = [{"type": "text", "text": "hi"}]
_TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": _SCHEMA}}
_STRICT = {**_TOOL, "function": {**_TOOL["function"], "strict": True}}  # type: ignore[dict-item]
BODIES: list[tuple[str, dict[str, Any]]] = [
    (
        "/v1/chat/completions",
        {
            "messages": [
                {"role": "system", "content": "s"},
                {"role": "user", "content": _TEXT},
                {"role": "assistant", "reasoning_content": "r", "tool_calls": [_CALL]},
                {"role": "tool", "tool_call_id": "1", "name": "f", "content": "ok"},
            ],
            "tools": [_TOOL],
            "tool_choice": {"type": "function", "function": {"name": "f"}},
            "logit_bias": {"5": 1},
            "stop": ["z"],
            "max_tokens": 2,
        },
    ),
    (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "u"}],
            "tools": [_STRICT],
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [_TOOL]},
            },
            "stream_options": {"include_usage": True},
            "chat_template_kwargs": {"enable_thinking": True},
            "thinking_budget": 3,
            "max_completion_tokens": 2,
        },
    ),
    (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "u"}],
            "response_format": {"type": "json_schema", "json_schema": {"schema": _SCHEMA}},
            "max_tokens": 2,
        },
    ),
    (
        "/v1/completions",
        {"prompt": [[5, 6], [7]], "max_tokens": 2, "logprobs": 2, "echo": True, "stop": ["z"]},
    ),
    (
        "/v1/responses",
        {
            "input": [
                {
                    "type": "message",
                    "role": "user",
                    "content": [{"type": "input_text", "text": "x"}],
                },
                {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "t"}]},
                {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "1", "output": "ok"},
            ],
            "tools": [{"type": "function", "name": "f", "parameters": _SCHEMA}],
            "tool_choice": {"type": "function", "name": "f"},
            "reasoning": {"effort": "low"},
            "text": {"format": {"type": "json_schema", "schema": _SCHEMA}},
            "metadata": {"a": "b"},
            "max_output_tokens": 2,
        },
    ),
    (
        "/v1/messages",
        {
            "system": _TEXT,
            "messages": [
                {"role": "user", "content": _TEXT},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "t", "signature": "s"},
                        {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}},
                    ],
                },
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": "1", "content": _TEXT}],
                },
            ],
            "tools": [{"name": "f", "description": "d", "input_schema": _SCHEMA}],
            "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
            "thinking": {"type": "enabled", "budget_tokens": 5},
            "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}},
            "stop_sequences": ["z"],
            "max_tokens": 2,
        },
    ),
    (
        "/api/chat",
        {
            "messages": [
                {"role": "user", "content": "u", "images": []},
                {"role": "assistant", "content": "", "thinking": "t", "tool_calls": [_CALL]},
                {"role": "tool", "tool_name": "f", "content": "ok"},
            ],
            "tools": [_TOOL],
            "options": {"num_predict": 2, "stop": ["z"], "num_ctx": 8, "top_k": 3, "seed": 1},
            "think": "low",
            "stream": False,
        },
    ),
    (
        "/api/generate",
        {"prompt": "x", "system": "s", "format": _SCHEMA, "options": {"num_predict": 2}},
    ),
    ("/api/embed", {"input": ["x", "y"], "options": {}, "dimensions": 8}),
    ("/api/embeddings", {"prompt": "x", "options": {}}),
    ("/v1/embeddings", {"input": [[5, 6]], "encoding_format": "base64", "dimensions": 8}),
    ("/tokenize", {"content": "x", "add_special": True}),
    ("/detokenize", {"tokens": [5, 6]}),
    ("/api/show", {"model": "tiny", "verbose": True}),
]
_OTHERS: tuple[Any, ...] = (None, True, -1, 2.5, 2**70, "", "\x00<|turn>", [], [[1]], {}, {"a": {}})
_NUM_PARTS = 5


def changed(body: Any, part: int) -> Iterator[Any]:
    """The body with one place replaced: for each place by a part of the other values.

    The parts, `_NUM_PARTS` of them, have no value of a place in common and miss none.
    """
    for number, path in enumerate(_paths(body)):
        for other in _OTHERS[(number + part) % _NUM_PARTS :: _NUM_PARTS]:
            made = copy.deepcopy(body)
            place = made
            for step in path[:-1]:
                place = place[step]
            place[path[-1]] = other
            yield made


def _paths(value: Any) -> Iterator[tuple[Any, ...]]:
    steps: Any = ()
    if isinstance(value, dict):
        steps = value.items()
    elif isinstance(value, list):
        steps = enumerate(value)
    for step, below in steps:
        yield (step,)
        yield from ((step, *rest) for rest in _paths(below))


@pytest.mark.parametrize(
    "part", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, _NUM_PARTS))]
)
@pytest.mark.parametrize("number", range(len(BODIES)))
def test_no_value_in_any_place_is_a_fault_of_ours(number: int, part: int) -> None:
    path, body = BODIES[number]
    app = build_app(state_for(lambda prompt, choice: "Hello."))

    async def ask_all() -> list[str]:
        wrong: list[str] = []
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            whole = await http.post(path, json=body)
            assert whole.status_code == 200, whole.text
            for made in changed(body, part):
                answer = await http.post(path, json=made)
                if answer.status_code not in (200, 400, 404):
                    wrong.append(f"{answer.status_code} {made}")
        return wrong

    assert asyncio.run(ask_all()) == []
