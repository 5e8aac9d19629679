"""Anthropic's messages: wire to job, pieces to content blocks and their events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from culet.chat.constrain import AnswerFormat
from culet.chat.messages import Message, Role, TextPart, ToolCall, ToolSpec
from culet.chat.stream import Call, CallArguments, CallBroken, CallStart, Content, Delta, Thought
from culet.server.errors import ApiError, Dialect, as_api_error, refused
from culet.server.generation import ChatJob, Generation, ToolUse, WholeChoice, prepare_chat
from culet.server.state import ServerState
from culet.server.stream import SSE, sse
from culet.server.wire import (
    Body,
    given,
    json_answer,
    new_id,
    object_or_none,
    require_text_only,
    stop_texts,
    text_or_none,
    tool_use,
)

_SIGNATURE = "culet"  # thoughts of a local model need no proof; clients want the field


class CountRequest(Body):
    """A conversation whose tokens are counted."""

    model: str | None = None
    messages: list[dict[str, Any]] = Field(min_length=1)
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None


class MessagesRequest(CountRequest):
    """A conversation to be answered."""

    max_tokens: int = Field(ge=1)
    stream: bool = False
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: list[str] | None = None
    output_config: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None


def message_job(body: CountRequest) -> ChatJob:
    """The job that a request means; raises `ApiError` naming the field."""
    thinking, budget = _thinking(body.thinking)
    sampling: dict[str, Any] = {}
    answer = AnswerFormat()
    if isinstance(body, MessagesRequest):
        sampling = given(
            max_tokens=body.max_tokens,
            temperature=body.temperature,
            top_p=body.top_p,
            top_k=body.top_k,
            stop=stop_texts(body.stop_sequences, "stop_sequences"),
        )
        answer = _answer(body)
    messages = read_messages(body)
    return ChatJob(
        messages=messages,
        tools=_tools(body),
        answer=answer,
        thinking=thinking,
        thinking_budget=budget,
        # In this dialect a final message of the assistant is always continued.
        continue_final=messages[-1].role is Role.ASSISTANT and not messages[-1].tool_calls,
        sampling=sampling,
    )


def _thinking(value: Mapping[str, Any] | None) -> tuple[bool | None, int | None]:
    kind = None if value is None else text_or_none(value.get("type"), "thinking.type")
    if value is None or kind == "disabled":
        return (None if value is None else False), None
    if kind not in ("enabled", "adaptive"):
        raise refused(f"thinking: type {kind!r} is not one of enabled, adaptive, disabled")
    budget = value.get("budget_tokens")
    if budget is not None and (type(budget) is not int or budget < 1):
        raise refused(f"thinking: budget_tokens is {budget!r}, not a whole number of 1 or more")
    return True, budget


def _answer(body: MessagesRequest) -> AnswerFormat:
    wanted: Mapping[str, Any] | None = body.output_format
    if body.output_config is not None:
        given_format = body.output_config.get("format", wanted)
        wanted = object_or_none(given_format, "output_config.format")
    if wanted is None:
        return AnswerFormat()
    if wanted.get("type") != "json_schema":
        raise refused(f"output_config: the format {wanted.get('type')!r} is not json_schema")
    return json_answer(wanted.get("schema"), "output_config.format.schema")


def _tools(body: CountRequest) -> ToolUse:
    specs = []
    for index, tool in enumerate(body.tools or ()):
        name, schema = tool.get("name"), tool.get("input_schema")
        if tool.get("type", "custom") != "custom" or not isinstance(name, str):
            raise refused(
                f"tools[{index}]: tools of type {tool.get('type')!r} are not served, only custom "
                "ones with a name and an input_schema are",
                param="tools",
            )
        if not isinstance(schema, dict):
            raise refused(f"tools[{index}].input_schema: an object is needed", param="tools")
        description = str(tool.get("description") or "")
        specs.append(ToolSpec(name, description, schema, tool.get("strict") is True))
    choice = body.tool_choice or {"type": "auto"}
    kind = text_or_none(choice.get("type"), "tool_choice.type")
    modes = {"auto": "auto", "any": "required", "tool": "required", "none": "none"}
    if kind not in modes:
        raise refused(f"tool_choice: type {kind!r} is not one of {', '.join(modes)}", "tool_choice")
    named = [str(choice.get("name"))] if kind == "tool" else None
    several = choice.get("disable_parallel_tool_use") is not True
    return tool_use(specs, modes[kind], named, several)


def read_messages(body: CountRequest) -> list[Message]:
    """The conversation in the internal vocabulary; the system text comes first."""
    messages: list[Message] = []
    if body.system:
        messages.append(Message(Role.SYSTEM, _texts(body.system, "system")))
    names: dict[str, str] = {}
    for index, message in enumerate(body.messages):
        where = f"messages[{index}]"
        role, content = message.get("role"), message.get("content")
        if role == "system":
            messages.append(Message(Role.SYSTEM, _texts(content, where)))
        elif role == "assistant":
            messages.append(_assistant(content, where, names))
        elif role == "user":
            messages += _user(content, where, names)
        else:
            raise refused(f"{where}.role: {role!r} is not one of user, assistant, system")
    return messages


def _blocks(content: Any, where: str) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list) or not all(isinstance(b, dict) for b in content):
        raise refused(f"{where}.content: a string or a list of blocks is needed")
    return content


def _texts(content: Any, where: str) -> tuple[TextPart, ...]:
    parts = []
    for number, block in enumerate(_blocks(content, where)):
        parts.append(_text_part(block, f"{where}.content[{number}]"))
    return tuple(parts)


def _text_part(block: Mapping[str, Any], where: str) -> TextPart:
    if block.get("type") != "text":
        require_text_only(str(block.get("type")), where)
    text = block.get("text")
    if not isinstance(text, str):
        raise refused(f"{where}.text: a string is needed")
    return TextPart(text)


def _assistant(content: Any, where: str, names: dict[str, str]) -> Message:
    parts: list[TextPart] = []
    calls: list[ToolCall] = []
    thoughts: list[str] = []
    for number, block in enumerate(_blocks(content, where)):
        match block.get("type"):
            case "thinking":
                thoughts.append(str(block.get("thinking", "")))
            case "redacted_thinking":
                pass  # nothing in it that a local model could read
            case "tool_use":
                call = _tool_use(block, f"{where}.content[{number}]")
                calls.append(call)
                if call.call_id is not None:
                    names[call.call_id] = call.name
            case _:
                parts.append(_text_part(block, f"{where}.content[{number}]"))
    return Message(
        Role.ASSISTANT, tuple(parts), reasoning="\n".join(thoughts) or None, tool_calls=tuple(calls)
    )


def _tool_use(block: Mapping[str, Any], where: str) -> ToolCall:
    name, arguments, call_id = block.get("name"), block.get("input", {}), block.get("id")
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise refused(f"{where}: a tool_use needs a name and an input that is an object")
    return ToolCall(name, arguments, call_id if isinstance(call_id, str) else None)


def _user(content: Any, where: str, names: Mapping[str, str]) -> list[Message]:
    """Tool results become messages of their own, before the text that came with them."""
    results: list[Message] = []
    parts: list[TextPart] = []
    for number, block in enumerate(_blocks(content, where)):
        place = f"{where}.content[{number}]"
        if block.get("type") != "tool_result":
            parts.append(_text_part(block, place))
            continue
        call_id = block.get("tool_use_id")
        if not isinstance(call_id, str):
            raise refused(f"{place}.tool_use_id: a string is needed")
        texts = _texts(block.get("content") or "", place)
        if block.get("is_error") is True:
            texts = (TextPart("Error: "), *texts)
        results.append(
            Message(
                Role.TOOL,
                "".join(part.text for part in texts),
                tool_call_id=call_id,
                name=names.get(call_id),
            )
        )
    if parts or not results:
        results.append(Message(Role.USER, tuple(parts)))
    return results


async def count_tokens(state: ServerState, request: Request, body: CountRequest) -> Response:
    """How many tokens the conversation has as a prompt."""
    state.model.check_name(body.model)
    prepared = await state.in_thread(request, lambda: prepare_chat(state.model, message_job(body)))
    return JSONResponse({"input_tokens": len(prepared.ids)})


async def messages(state: ServerState, request: Request, body: MessagesRequest) -> Response:
    """Answer a conversation, streamed or whole."""
    state.model.check_name(body.model)
    job = await state.in_thread(request, lambda: message_job(body))
    generation = await state.start_chat(request, job)
    shows_thoughts = bool(job.thinking)
    message_id = new_id("msg_")
    if body.stream:
        events = _events(state, message_id, generation, shows_thoughts)
        return state.stream(request, [generation], events, SSE)
    ((choice,),) = await state.whole(request, [generation])
    answer = _head(state, message_id)
    answer |= {
        "content": _content(choice, shows_thoughts),
        "stop_reason": _stop_reason(choice.finish, choice.stop_text),
        "stop_sequence": choice.stop_text,
        "usage": _usage(generation),
    }
    return JSONResponse(answer)


def _head(state: ServerState, message_id: str) -> dict[str, Any]:
    return {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": state.model.name,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _stop_reason(finish: str, stop_text: str | None) -> str:
    if finish == "tool_calls":
        return "tool_use"
    if finish == "length":
        return "max_tokens"
    return "end_turn" if stop_text is None else "stop_sequence"


def _usage(generation: Generation) -> dict[str, int]:
    return {
        "input_tokens": generation.num_prompt_tokens - generation.num_cached_tokens,
        "cache_read_input_tokens": generation.num_cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": generation.num_answer_tokens,
    }


def _content(choice: WholeChoice, shows_thoughts: bool) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    for delta in choice.deltas:
        if isinstance(delta, Call):
            blocks.append({**_tool_block(delta.name), "input": json.loads(delta.arguments)})
        elif isinstance(delta, Content):
            blocks.append({"type": "text", "text": delta.text})
        elif shows_thoughts:
            blocks.append({"type": "thinking", "thinking": delta.text, "signature": _SIGNATURE})
    return blocks


def _tool_block(name: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": new_id("toolu_"), "name": name, "input": {}}


@dataclass
class _Blocks:
    """Content blocks in a stream: each is opened, filled and closed, one after another."""

    index: int = -1
    kind: str | None = None

    def open(self, kind: str, block: Mapping[str, Any]) -> list[bytes]:
        closed = self.close()
        self.index += 1
        self.kind = kind
        start = {"type": "content_block_start", "index": self.index, "content_block": block}
        return [*closed, sse(start, "content_block_start")]

    def delta(self, delta: Mapping[str, Any]) -> bytes:
        body = {"type": "content_block_delta", "index": self.index, "delta": delta}
        return sse(body, "content_block_delta")

    def close(self) -> list[bytes]:
        if self.kind is None:
            return []
        events = []
        if self.kind == "thinking":
            events.append(self.delta({"type": "signature_delta", "signature": _SIGNATURE}))
        self.kind = None
        stop = {"type": "content_block_stop", "index": self.index}
        return [*events, sse(stop, "content_block_stop")]

    def add(self, delta: Delta) -> list[bytes]:
        """Events of a delta.

        Raises:
            ApiError: what had begun as a call is none. Clients of this dialect complete JSON that
                ends early by themselves and would run a tool with half of its input.
        """
        match delta:
            case Thought(text):
                block = {"type": "thinking", "thinking": "", "signature": ""}
                opened = self._opened("thinking", block)
                return [*opened, self.delta({"type": "thinking_delta", "thinking": text})]
            case Content(text):
                opened = self._opened("text", {"type": "text", "text": ""})
                return [*opened, self.delta({"type": "text_delta", "text": text})]
            case CallStart(_, name):
                return self.open("tool_use", _tool_block(name))
            case CallArguments(_, text):
                return [self.delta({"type": "input_json_delta", "partial_json": text})]
            case CallBroken(_, reason, was_cut) if not was_cut:
                raise ApiError(
                    502,
                    f"the model began a call and did not end it as one: {reason}",
                    code="unreadable_call",
                )
        return self.close()

    def _opened(self, kind: str, block: Mapping[str, Any]) -> list[bytes]:
        return [] if self.kind == kind else self.open(kind, block)


async def _events(
    state: ServerState, message_id: str, generation: Generation, shows_thoughts: bool
) -> AsyncIterator[bytes]:
    head = _head(state, message_id)
    head["usage"] = {**_usage(generation), "output_tokens": 0}
    yield sse({"type": "message_start", "message": head}, "message_start")
    yield sse({"type": "ping"}, "ping")
    blocks = _Blocks()
    finish, stop_text = "stop", None
    try:
        async for piece in generation.pieces():
            for delta in piece.deltas:
                if isinstance(delta, Thought) and not shows_thoughts:
                    continue
                for event in blocks.add(delta):
                    yield event
            if piece.finish is not None:
                finish, stop_text = piece.finish, piece.stop_text
    except Exception as error:
        yield sse(as_api_error(error).body(Dialect.ANTHROPIC), "error")
        return
    for event in blocks.close():
        yield event
    reason = {"stop_reason": _stop_reason(finish, stop_text), "stop_sequence": stop_text}
    tail = {"type": "message_delta", "delta": reason, "usage": _usage(generation)}
    yield sse(tail, "message_delta")
    yield sse({"type": "message_stop"}, "message_stop")
