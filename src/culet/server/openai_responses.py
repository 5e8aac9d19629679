"""OpenAI's responses, without state: wire to job, pieces to output items and their events."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from culet.chat.constrain import AnswerFormat
from culet.chat.messages import Message, parse_messages, parse_tools
from culet.chat.stream import Call, CallArguments, CallBroken, CallStart, Delta, Thought
from culet.server.errors import ApiError, Dialect, as_api_error, refused
from culet.server.generation import ChatJob, Finish, Generation
from culet.server.openai_chat import choose_tools, thinking_of
from culet.server.state import ServerState
from culet.server.stream import SSE, sse
from culet.server.wire import (
    Body,
    given,
    new_id,
    object_or_none,
    require_text_only,
    text_or_none,
)


class ResponsesRequest(Body):
    """A conversation to be answered; nothing is stored here, so that all of it is sent."""

    model: str | None = None
    input: str | list[dict[str, Any]] = Field(min_length=1)
    instructions: str | None = None
    stream: bool = False
    max_output_tokens: int | None = Field(None, ge=1)
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    background: bool | None = None
    store: bool | None = None
    user: str | None = None
    metadata: dict[str, Any] | None = None
    truncation: str | None = None
    include: list[str] | None = None


_STATEFUL = ("previous_response_id", "conversation", "background")


def response_job(body: ResponsesRequest) -> ChatJob:
    """The job that a request means; raises `ApiError` or `RequestError` naming the field."""
    for name in _STATEFUL:
        if getattr(body, name):
            raise refused(
                f"{name}: this server keeps no responses; send the whole conversation as input",
                param=name,
            )
    if body.truncation not in (None, "disabled"):
        raise refused("truncation: a prompt is never cut; only 'disabled' is served", "truncation")
    effort = text_or_none((body.reasoning or {}).get("effort"), "reasoning.effort")
    thinking, budget = thinking_of(effort, None)
    declared = [_tool(tool, index) for index, tool in enumerate(body.tools or ())]
    return ChatJob(
        messages=read_input(body),
        tools=choose_tools(parse_tools(declared), body.tool_choice, body.parallel_tool_calls),
        answer=AnswerFormat.from_request(
            object_or_none((body.text or {}).get("format"), "text.format")
        ),
        thinking=thinking,
        thinking_budget=budget,
        sampling=given(
            max_tokens=body.max_output_tokens,
            temperature=body.temperature,
            top_p=body.top_p,
            top_k=body.top_k,
            seed=body.seed,
        ),
    )


def _tool(tool: Mapping[str, Any], index: int) -> dict[str, Any]:
    """Here a function's fields lie flat; inside they are nested as in chat completions."""
    if tool.get("type") != "function":
        raise refused(
            f"tools[{index}].type: {tool.get('type')!r} is not served, only 'function' is", "tools"
        )
    return {"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}}


def read_input(body: ResponsesRequest) -> tuple[Message, ...]:
    """Items to messages; calls and thoughts join the assistant's turn that they belong to."""
    messages: list[dict[str, Any]] = []
    if body.instructions:
        messages.append({"role": "system", "content": body.instructions})
    items = body.input
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    thoughts = ""
    for index, item in enumerate(items):
        where = f"input[{index}]"
        match item.get("type", "message"):
            case "message":
                message = {"role": item.get("role"), "content": _content(item, where)}
                if message["role"] == "assistant" and thoughts:
                    message["reasoning_content"], thoughts = thoughts, ""
                messages.append(message)
            case "function_call":
                call = {
                    "id": item.get("call_id"),
                    "function": {"name": item.get("name"), "arguments": item.get("arguments")},
                }
                last = messages[-1] if messages else {}
                if last.get("role") != "assistant":
                    last = {"role": "assistant", "content": ""}
                    messages.append(last)
                if thoughts:
                    last["reasoning_content"], thoughts = thoughts, ""
                last.setdefault("tool_calls", []).append(call)
            case "function_call_output":
                text = _content({"content": item.get("output")}, where)
                messages.append(
                    {"role": "tool", "content": text, "tool_call_id": item.get("call_id")}
                )
            case "reasoning":
                parts = item.get("content") or item.get("summary") or []
                if not isinstance(parts, list):
                    raise refused(f"{where}: a list of parts is needed", "input")
                thoughts += "".join(str(p.get("text", "")) for p in parts if isinstance(p, dict))
            case kind:
                raise refused(f"{where}.type: items of type {kind!r} are not served", "input")
    return parse_messages(messages)


def _content(item: Mapping[str, Any], where: str) -> Any:
    content = item.get("content")
    if not isinstance(content, list):
        return content
    parts = []
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in ("input_text", "output_text", "text"):
            require_text_only(str(kind), f"{where}.content[{number}]")
        parts.append({"type": "text", "text": part.get("text")})
    return parts


async def responses(state: ServerState, request: Request, body: ResponsesRequest) -> Response:
    """Answer a conversation, streamed or whole."""
    state.model.check_name(body.model)
    job = await state.in_thread(request, lambda: response_job(body))
    generation = await state.start_chat(request, job)
    record = _Record(new_id("resp_"), int(time.time()), state.model.name, body)
    if body.stream:
        return state.stream(request, [generation], _events(record, generation), SSE)
    ((choice,),) = await state.whole(request, [generation])
    items = _Items()
    for delta in choice.deltas:
        items.add(delta)
    items.end()
    return JSONResponse(record.body(items.done, choice.finish, generation))


@dataclass(frozen=True)
class _Record:
    """The response object around the items."""

    id: str
    created_at: int
    model: str
    request: ResponsesRequest

    def body(
        self, items: list[dict[str, Any]], finish: Finish | None, generation: Generation | None
    ) -> dict[str, Any]:
        """`finish` None: still running."""
        request = self.request
        status = "in_progress"
        if finish is not None:
            status = "incomplete" if finish == "length" else "completed"
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created_at,
            "status": status,
            "model": self.model,
            "output": items,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if finish == "length" else None,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "metadata": request.metadata or {},
            "parallel_tool_calls": request.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": (request.reasoning or {}).get("effort"), "summary": None},
            "store": False,
            "temperature": request.temperature,
            "text": request.text or {"format": {"type": "text"}},
            "tool_choice": request.tool_choice or "auto",
            "tools": request.tools or [],
            "top_p": request.top_p,
            "truncation": "disabled",
            "usage": None if generation is None else _usage(generation),
        }


def _usage(generation: Generation) -> dict[str, Any]:
    return {
        "input_tokens": generation.num_prompt_tokens,
        "input_tokens_details": {"cached_tokens": generation.num_cached_tokens},
        "output_tokens": generation.num_answer_tokens,
        "output_tokens_details": {"reasoning_tokens": generation.num_thought_tokens},
        "total_tokens": generation.num_prompt_tokens + generation.num_answer_tokens,
    }


Event = dict[str, Any]


@dataclass
class _Items:
    """Output items: one is open at a time; `add` and `end` return the events that tell of it."""

    done: list[dict[str, Any]] = field(default_factory=list)
    kind: type[Delta] | None = None
    item_id: str = ""
    text: str = ""
    call: dict[str, Any] = field(default_factory=dict)

    @property
    def index(self) -> int:
        return len(self.done)

    def add(self, delta: Delta) -> list[Event]:
        match delta:
            case CallStart(_, name):
                return self._open_call(name)
            case CallArguments(_, text):
                self.text += text
                return [self._event("response.function_call_arguments.delta", delta=text)]
            case CallBroken():
                return self._end_call("incomplete")
            case Call(_, name, arguments):
                # A whole answer holds the call only, a stream its pieces before.
                opened = [] if self.kind is Call else self._open_call(name)
                self.text = arguments
                return [*opened, *self._end_call("completed")]
        events = [] if isinstance(delta, self.kind or ()) else self._open(type(delta))
        self.text += delta.text
        name = "reasoning_text" if isinstance(delta, Thought) else "output_text"
        return [*events, self._event(f"response.{name}.delta", delta=delta.text, part=True)]

    def _event(self, kind: str, part: bool = False, **fields: Any) -> Event:
        event = {"type": kind, "item_id": self.item_id, "output_index": self.index}
        if part:
            event["content_index"] = 0
            if "output_text" in kind:
                event["logprobs"] = []
        return event | fields

    def _open(self, kind: type[Delta]) -> list[Event]:
        events = self.end()
        self.kind, self.text = kind, ""
        self.item_id = new_id("rs_" if kind is Thought else "msg_")
        added = {"type": "response.output_item.added", "output_index": self.index}
        return [
            *events,
            {**added, "item": self._item("in_progress", with_part=False)},
            self._event("response.content_part.added", part=True) | {"part": self._part("")},
        ]

    def _part(self, text: str) -> dict[str, Any]:
        if self.kind is Thought:
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def _item(self, status: str, with_part: bool) -> dict[str, Any]:
        content = [self._part(self.text)] if with_part else []
        if self.kind is Thought:
            return {
                "type": "reasoning",
                "id": self.item_id,
                "summary": [],
                "content": content,
                "status": status,
            }
        return {
            "type": "message",
            "id": self.item_id,
            "role": "assistant",
            "status": status,
            "content": content,
        }

    def end(self) -> list[Event]:
        """Close the open item."""
        if self.kind is None:
            return []
        name = "reasoning_text" if self.kind is Thought else "output_text"
        item = self._item("completed", with_part=True)
        events = [
            self._event(f"response.{name}.done", part=True, text=self.text),
            self._event("response.content_part.done", part=True) | {"part": self._part(self.text)},
            {"type": "response.output_item.done", "output_index": self.index, "item": item},
        ]
        self.done.append(item)
        self.kind = None
        return events

    def _open_call(self, name: str) -> list[Event]:
        events = self.end()
        self.kind, self.text = Call, ""
        self.item_id = new_id("fc_")
        self.call = {
            "type": "function_call",
            "id": self.item_id,
            "call_id": new_id("call_"),
            "name": name,
        }
        item = {**self.call, "arguments": "", "status": "in_progress"}
        added = {"type": "response.output_item.added", "output_index": self.index, "item": item}
        return [*events, added]

    def _end_call(self, status: str) -> list[Event]:
        item = {**self.call, "arguments": self.text, "status": status}
        done = {"type": "response.output_item.done", "output_index": self.index, "item": item}
        events = [done]
        if status == "completed":
            kind = "response.function_call_arguments.done"
            whole = self._event(kind, arguments=self.text, name=self.call["name"])
            events = [whole, done]
        self.done.append(item)
        self.kind = None
        return events


async def _events(record: _Record, generation: Generation) -> AsyncIterator[bytes]:
    number = -1

    def numbered(event: Mapping[str, Any]) -> bytes:
        nonlocal number
        number += 1
        return sse({**event, "sequence_number": number}, str(event["type"]))

    started = record.body([], None, None)
    yield numbered({"type": "response.created", "response": started})
    yield numbered({"type": "response.in_progress", "response": started})
    items = _Items()
    finish: Finish = "stop"
    try:
        async for piece in generation.pieces():
            for delta in piece.deltas:
                for event in items.add(delta):
                    yield numbered(event)
            finish = piece.finish or finish
    except Exception as error:
        yield numbered(_failure(as_api_error(error)))
        return
    for event in items.end():
        yield numbered(event)
    kind = "response.incomplete" if finish == "length" else "response.completed"
    yield numbered({"type": kind, "response": record.body(items.done, finish, generation)})


def _failure(error: ApiError) -> Event:
    inner = error.body(Dialect.OPENAI)["error"]
    return {"type": "error", **{k: inner[k] for k in ("message", "param", "code")}}
