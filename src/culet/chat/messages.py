"""The one vocabulary of a conversation inside culet, and its reading from OpenAI-like dicts.

Every dialect on the wire is turned into these; templates and renderers see nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from culet.errors import RequestError


class Role(StrEnum):
    """Who speaks."""

    SYSTEM = "system"
    DEVELOPER = "developer"  # instructions, like SYSTEM; templates spell the turn by this name
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True)
class TextPart:
    """One of several pieces of content."""

    text: str


@dataclass(frozen=True)
class ToolCall:
    """A function that the assistant asked for; `arguments` is the parsed object."""

    name: str
    arguments: Mapping[str, Any]
    call_id: str | None = None


@dataclass(frozen=True)
class ToolSpec:
    """A function that the assistant may ask for; `parameters` is a JSON schema.

    Attributes:
        is_strict: calls must fit the schema, or the request is refused.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    is_strict: bool = False


@dataclass(frozen=True)
class Message:
    """One turn.

    Attributes:
        content: text as one string, or as several parts, which templates trim one by one.
        reasoning: what the assistant thought before it answered, if the client sent it back.
        tool_calls: what the assistant asked for in this turn.
        tool_call_id: for a tool's message, which call it answers.
        name: for a tool's message, the function's name.
    """

    role: Role
    content: str | tuple[TextPart, ...]
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None

    @property
    def parts(self) -> tuple[str, ...]:
        """The texts of the content, at least one."""
        if isinstance(self.content, str):
            return (self.content,)
        return tuple(part.text for part in self.content) or ("",)


def system_text(message: Message) -> str:
    """Instructions as one text: templates take no list of parts here."""
    return "\n".join(message.parts)


def require_open_end(messages: Sequence[Message], continue_final: bool) -> None:
    """Raises `RequestError` if the final message is to be continued but is not the assistant's."""
    if continue_final and (messages[-1].role is not Role.ASSISTANT or messages[-1].tool_calls):
        raise RequestError(
            "continue_final",
            f"only an assistant's text can be continued, but the last message is of the role "
            f"{messages[-1].role.value!r}",
        )


def parse_messages(messages: object) -> tuple[Message, ...]:
    """Reads `[{"role": "user", "content": "hi"}, ...]`; `Message` objects pass through.

    Raises:
        RequestError: naming the place, such as `messages[2].content[0].type`.
    """
    if isinstance(messages, str) or not isinstance(messages, Sequence):
        raise RequestError(
            "messages",
            f'must be a list such as [{{"role": "user", "content": "hi"}}], not {_kind(messages)}',
        )
    if not messages:
        raise RequestError("messages", "must hold at least one message, but is empty")
    return tuple(_parse_message(m, f"messages[{i}]") for i, m in enumerate(messages))


def parse_tools(tools: object) -> tuple[ToolSpec, ...]:
    """Reads OpenAI's `tools`; None is no tools. Raises `RequestError` naming the place."""
    if tools is None:
        return ()
    if isinstance(tools, str) or not isinstance(tools, Sequence):
        raise RequestError("tools", f"must be a list of tools, not {_kind(tools)}")
    return tuple(_parse_tool(t, f"tools[{i}]") for i, t in enumerate(tools))


def _kind(value: object) -> str:
    return "null" if value is None else type(value).__name__


def _mapping(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(k, str) for k in value):
        raise RequestError(where, f"must be an object, not {_kind(value)}")
    return value


def _string(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise RequestError(where, f"must be a string, not {_kind(value)}")
    return value


def _optional_string(value: object, where: str) -> str | None:
    return None if value is None else _string(value, where)


def _parse_message(message: object, where: str) -> Message:
    if isinstance(message, Message):
        return message
    fields = _mapping(message, where)
    role_name = fields.get("role")
    try:
        role = Role(_string(role_name, f"{where}.role"))
    except ValueError:
        raise RequestError(
            f"{where}.role", f"{role_name!r} is not one of {', '.join(Role)}"
        ) from None
    calls = fields.get("tool_calls")
    if calls is not None and role is not Role.ASSISTANT:
        raise RequestError(f"{where}.tool_calls", f"only the assistant calls tools, not {role}")
    reasoning = fields.get("reasoning_content", fields.get("reasoning"))
    return Message(
        role=role,
        content=_parse_content(fields.get("content"), role, f"{where}.content"),
        reasoning=_optional_string(reasoning, f"{where}.reasoning_content"),
        tool_calls=_parse_calls(calls, f"{where}.tool_calls"),
        tool_call_id=_optional_string(fields.get("tool_call_id"), f"{where}.tool_call_id"),
        name=_optional_string(fields.get("name"), f"{where}.name"),
    )


def _parse_content(content: object, role: Role, where: str) -> str | tuple[TextPart, ...]:
    if content is None and role is Role.ASSISTANT:
        return ""  # usual beside tool calls
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise RequestError(where, f"must be a string or a list of parts, not {_kind(content)}")
    return tuple(_parse_part(p, f"{where}[{i}]") for i, p in enumerate(content))


def _parse_part(part: object, where: str) -> TextPart:
    if isinstance(part, TextPart):
        return part
    fields = _mapping(part, where)
    kind = _string(fields.get("type"), f"{where}.type")
    if kind != "text":
        raise RequestError(
            f"{where}.type", f"{kind!r} is not served: this model is served text-only"
        )
    return TextPart(_string(fields.get("text"), f"{where}.text"))


def _parse_calls(calls: object, where: str) -> tuple[ToolCall, ...]:
    if calls is None:
        return ()
    if isinstance(calls, str) or not isinstance(calls, Sequence):
        raise RequestError(where, f"must be a list of calls, not {_kind(calls)}")
    return tuple(_parse_call(c, f"{where}[{i}]") for i, c in enumerate(calls))


def _parse_call(call: object, where: str) -> ToolCall:
    if isinstance(call, ToolCall):
        return call
    fields = _mapping(call, where)
    function = _mapping(fields.get("function"), f"{where}.function")
    return ToolCall(
        name=_string(function.get("name"), f"{where}.function.name"),
        arguments=_parse_arguments(function.get("arguments"), f"{where}.function.arguments"),
        call_id=_optional_string(fields.get("id"), f"{where}.id"),
    )


def _parse_arguments(arguments: object, where: str) -> Mapping[str, Any]:
    """OpenAI sends arguments as JSON text, others as an object; empty text is no arguments."""
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            raise RequestError(where, f"is not valid JSON ({error})") from error
    return _mapping(arguments, where)


def _parse_tool(tool: object, where: str) -> ToolSpec:
    if isinstance(tool, ToolSpec):
        return tool
    fields = _mapping(tool, where)
    kind = fields.get("type", "function")
    if kind != "function":
        raise RequestError(f"{where}.type", f"{kind!r} is not served, only 'function' is")
    function = _mapping(fields.get("function"), f"{where}.function")
    description = _optional_string(function.get("description"), f"{where}.function.description")
    parameters = function.get("parameters")
    return ToolSpec(
        name=_string(function.get("name"), f"{where}.function.name"),
        description=description or "",
        parameters={}
        if parameters is None
        else _mapping(parameters, f"{where}.function.parameters"),
    )
