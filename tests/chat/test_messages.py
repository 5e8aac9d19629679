"""Reading messages and tools from OpenAI-like dicts; every error names its place."""

from __future__ import annotations

from typing import Any

import pytest

from culet.chat.messages import (
    Message,
    Role,
    TextPart,
    ToolCall,
    ToolSpec,
    parse_messages,
    parse_tools,
)
from culet.errors import RequestError


def call(arguments: Any) -> list[dict[str, Any]]:
    return [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": arguments}}],
        }
    ]


def test_plain_messages() -> None:
    parsed = parse_messages(
        [
            {"role": "system", "content": "s"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, TextPart("b")]},
            Message(Role.ASSISTANT, "c"),
        ]
    )
    assert parsed == (
        Message(Role.SYSTEM, "s"),
        Message(Role.USER, (TextPart("a"), TextPart("b"))),
        Message(Role.ASSISTANT, "c"),
    )
    assert [m.parts for m in parsed] == [("s",), ("a", "b"), ("c",)]
    assert Message(Role.USER, ()).parts == ("",)


@pytest.mark.parametrize("fields", [{"content": None}, {}, {"content": ""}, {"content": []}])
def test_empty_content_of_an_assistant(fields: dict[str, Any]) -> None:
    (message,) = parse_messages([{"role": "assistant", **fields}])
    assert message.parts == ("",)


@pytest.mark.parametrize(
    ("sent", "parsed"),
    [
        ('{"a": 1, "s": "x"}', {"a": 1, "s": "x"}),
        ("{}", {}),
        ("", {}),
        ("  ", {}),
        (None, {}),
        ({"n": None, "f": -0.5, "l": [], "o": {}}, {"n": None, "f": -0.5, "l": [], "o": {}}),
    ],
)
def test_tool_arguments(sent: Any, parsed: dict[str, Any]) -> None:
    (message,) = parse_messages(call(sent))
    assert message.tool_calls == (ToolCall("f", parsed, "1"),)
    assert message.content == ""


def test_tool_results_stay_strings() -> None:
    for content in ("[DIR] src", "{not json", "12", "", "null", "🙂"):
        (message,) = parse_messages([{"role": "tool", "tool_call_id": "1", "content": content}])
        assert message.content == content


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
def test_reasoning_has_two_names(key: str) -> None:
    (message,) = parse_messages([{"role": "assistant", "content": "a", key: "hm"}])
    assert message.reasoning == "hm"


@pytest.mark.parametrize(
    ("messages", "field", "message"),
    [
        (None, "messages", "not null"),
        ("hi", "messages", "not str"),
        ([], "messages", "is empty"),
        ([1], "messages[0]", "must be an object, not int"),
        ([{"content": "x"}], "messages[0].role", "must be a string, not null"),
        ([{"role": "robot", "content": "x"}], "messages[0].role", "'robot' is not one of system"),
        ([{"role": "user"}], "messages[0].content", "not null"),
        ([{"role": "user", "content": 5}], "messages[0].content", "not int"),
        ([{"role": "user", "content": [5]}], "messages[0].content[0]", "not int"),
        ([{"role": "user", "content": [{}]}], "messages[0].content[0].type", "not null"),
        (
            [{"role": "user", "content": [{"type": "text"}]}],
            "messages[0].content[0].text",
            "not null",
        ),
        (
            [
                {"role": "user", "content": "a"},
                {"role": "user", "content": [{"type": "image_url"}]},
            ],
            "messages[1].content[0].type",
            "'image_url' is not served",
        ),
        (
            [{"role": "user", "content": "a", "tool_calls": []}],
            "messages[0].tool_calls",
            "only the assistant",
        ),
        (call("not json"), "messages[0].tool_calls[0].function.arguments", "is not valid JSON"),
        (call("[1]"), "messages[0].tool_calls[0].function.arguments", "not list"),
        (call("[" * 100_000), "messages[0].tool_calls[0].function.arguments", "not valid JSON"),
    ],
)
def test_errors_name_the_place(messages: Any, field: str, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_messages(messages)
    assert caught.value.field == field
    assert message in str(caught.value)


def test_tools() -> None:
    schema = {"type": "object", "properties": {"type": {"type": "string"}}}
    function = {"name": "f", "description": None, "parameters": schema}
    assert parse_tools([{"type": "function", "function": function}]) == (ToolSpec("f", "", schema),)
    assert parse_tools([{"function": {"name": "g"}}]) == (ToolSpec("g"),)
    assert parse_tools(None) == ()


@pytest.mark.parametrize(
    ("tools", "field"),
    [
        ("f", "tools"),
        ([1], "tools[0]"),
        ([{"type": "web_search"}], "tools[0].type"),
        ([{"function": {}}], "tools[0].function.name"),
        ([{"function": {"name": "f", "parameters": 3}}], "tools[0].function.parameters"),
        ([{"function": {"name": "f", "description": 3}}], "tools[0].function.description"),
    ],
)
def test_errors_of_tools_name_the_place(tools: Any, field: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_tools(tools)
    assert caught.value.field == field
