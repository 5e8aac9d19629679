"""OpenAI's chat completions: wire to job, pieces to chunks."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from culet.chat.constrain import AnswerFormat
from culet.chat.messages import ToolSpec, parse_messages, parse_tools
from culet.chat.stream import CallArguments, CallStart, Content, Thought
from culet.chat.tokenizer import Tokenizer
from culet.engine.sampler import Sampled
from culet.server.errors import Dialect, as_api_error, refused
from culet.server.generation import ChatJob, Generation, Piece, ToolUse, WholeChoice
from culet.server.openai_fields import SamplingFields, usage_of
from culet.server.state import ServerState
from culet.server.stream import SSE, sse
from culet.server.wire import (
    logprob_entries,
    new_id,
    object_or_none,
    require_text_only,
    tool_use,
)

# Tokens of thought for each effort; `high` thinks as long as it likes.
_EFFORTS: dict[str, int | None] = {"low": 512, "medium": 2048, "high": None, "xhigh": None}
_NO_THINKING = ("none", "minimal")


class ChatRequest(SamplingFields):
    """A conversation to be answered."""

    messages: list[dict[str, Any]] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    thinking_budget: int | None = Field(None, ge=0)
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool = False
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None

    # These ask for something that would be missing from the answer.
    unsupported: ClassVar[tuple[str, ...]] = (
        "functions",
        "function_call",
        "audio",
        "prediction",
        "web_search_options",
    )


def chat_job(body: ChatRequest) -> ChatJob:
    """The job that a request means; raises `ApiError` or `RequestError` naming the field."""
    for name in ChatRequest.unsupported:
        if (body.model_extra or {}).get(name) is not None:
            raise refused(f"{name}: this server does not support it", param=name)
    if (body.model_extra or {}).get("modalities", ["text"]) != ["text"]:
        raise refused("modalities: answers are text only", param="modalities")
    check_parts(body.messages)
    thinking, budget = thinking_of(body.reasoning_effort, body.chat_template_kwargs)
    return ChatJob(
        messages=parse_messages(body.messages),
        tools=choose_tools(parse_tools(body.tools), body.tool_choice, body.parallel_tool_calls),
        answer=AnswerFormat.from_request(body.response_format),
        thinking=thinking,
        thinking_budget=budget if body.thinking_budget is None else body.thinking_budget,
        continue_final=body.continue_final_message,
        sampling=_sampling(body),
    )


def check_parts(messages: list[dict[str, Any]]) -> None:
    """Refuse media by their type before anything else looks at them."""
    for index, message in enumerate(messages):
        content = message.get("content")
        for number, part in enumerate(content if isinstance(content, list) else ()):
            kind = part.get("type") if isinstance(part, dict) else None
            if isinstance(kind, str) and kind != "text":
                require_text_only(kind, f"messages[{index}].content[{number}]")


def thinking_of(
    effort: str | None, template_arguments: Mapping[str, Any] | None
) -> tuple[bool | None, int | None]:
    """(thinking, budget) that a request asks for; None where it does not say."""
    wanted = (template_arguments or {}).get("enable_thinking")
    unknown = set(template_arguments or {}) - {"enable_thinking"}
    if unknown:
        raise refused(
            f"chat_template_kwargs: {min(unknown)!r} has no effect here; only enable_thinking does",
            param="chat_template_kwargs",
        )
    if wanted is not None and not isinstance(wanted, bool):
        raise refused("chat_template_kwargs: enable_thinking is true or false")
    if effort is None:
        return wanted, None
    if effort in _NO_THINKING:
        return False if wanted is None else wanted, None
    if effort not in _EFFORTS:
        allowed = ", ".join([*_NO_THINKING, *_EFFORTS])
        raise refused(
            f"reasoning_effort: {effort!r} is not one of {allowed}", param="reasoning_effort"
        )
    return True if wanted is None else wanted, _EFFORTS[effort]


def choose_tools(
    specs: Sequence[ToolSpec], choice: str | dict[str, Any] | None, parallel: bool | None
) -> ToolUse:
    """The tools of a request with what its `tool_choice` and `parallel_tool_calls` say of them."""
    mode, named = _read_tool_choice(choice)
    several = parallel is not False
    if isinstance(choice, dict) and choice.get("type") == "function":
        several = False
    return tool_use(specs, mode, named, several)


def _read_tool_choice(choice: str | dict[str, Any] | None) -> tuple[str, list[str] | None]:
    """(auto, none or required; names that are allowed or None for all)."""
    if choice is None:
        return "auto", None
    if isinstance(choice, str):
        if choice in ("auto", "none", "required"):
            return choice, None
        raise refused(
            f"tool_choice: {choice!r} is not one of auto, none, required", param="tool_choice"
        )
    kind = choice.get("type")
    if kind == "function":
        function = choice.get("function")
        name = function.get("name") if isinstance(function, dict) else choice.get("name")
        if isinstance(name, str):
            return "required", [name]
    if kind == "allowed_tools":
        inner = object_or_none(choice.get("allowed_tools", choice), "tool_choice") or {}
        mode, tools = inner.get("mode", "auto"), inner.get("tools")
        if mode in ("auto", "required") and isinstance(tools, list):
            functions = [t.get("function", t) for t in tools if isinstance(t, dict)]
            names = [f.get("name") for f in functions if isinstance(f, dict)]
            return mode, [n for n in names if isinstance(n, str)]
    raise refused("tool_choice: it names no function", param="tool_choice")


def _sampling(body: ChatRequest) -> dict[str, Any]:
    logprobs = None
    if body.logprobs:
        logprobs = body.top_logprobs or 0
    elif body.top_logprobs:
        raise refused("top_logprobs: it needs logprobs to be true", param="top_logprobs")
    return body.sampling(body.max_completion_tokens or body.max_tokens, logprobs)


async def chat_completions(state: ServerState, request: Request, body: ChatRequest) -> Response:
    """Answer a conversation, streamed or whole."""
    state.model.check_name(body.model)
    job = await state.in_thread(request, lambda: chat_job(body))
    generation = await state.start_chat(request, job)
    frame = _Frame(new_id("chatcmpl-"), int(time.time()), state.model.name)
    if body.stream:
        events = _events(frame, generation, state.model.tokenizer, body.wants_usage)
        return state.stream(request, [generation], events, SSE)
    (choices,) = await state.whole(request, [generation])
    answer = frame.head("chat.completion")
    answer["choices"] = [
        _whole_choice(index, choice, state.model.tokenizer, bool(body.logprobs))
        for index, choice in enumerate(choices)
    ]
    answer["usage"] = usage_of([generation])
    return JSONResponse(answer)


@dataclass(frozen=True, slots=True)
class _Frame:
    """What every chunk of one answer repeats."""

    id: str
    created: int
    model: str

    def head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def chunk(
        self,
        index: int,
        delta: Mapping[str, Any],
        finish: str | None = None,
        logprobs: list[dict[str, Any]] | None = None,
    ) -> bytes:
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": None if logprobs is None else {"content": logprobs},
            "finish_reason": finish,
        }
        return sse({**self.head("chat.completion.chunk"), "choices": [choice]})


def call_entry(name: str, arguments: str) -> dict[str, Any]:
    return {
        "id": new_id("call_"),
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def _whole_choice(
    index: int, choice: WholeChoice, tokenizer: Tokenizer, with_logprobs: bool
) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": choice.content, "refusal": None}
    if choice.thoughts:
        message["reasoning_content"] = choice.thoughts
    if choice.calls:
        message["content"] = choice.content or None
        message["tool_calls"] = [call_entry(c.name, c.arguments) for c in choice.calls]
    logprobs = {"content": logprob_entries(tokenizer, choice.tokens)} if with_logprobs else None
    return {
        "index": index,
        "message": message,
        "logprobs": logprobs,
        "finish_reason": choice.finish,
    }


@dataclass
class _ChoiceChunks:
    """One choice as chunks; log-probabilities wait for the text that their tokens make."""

    frame: _Frame
    index: int
    tokenizer: Tokenizer
    waiting: list[Sampled] = field(default_factory=list)

    def chunks(self, piece: Piece) -> list[bytes]:
        self.waiting += [t for t in piece.tokens if t.logprob is not None]
        out: list[bytes] = []
        for delta in piece.deltas:
            if isinstance(delta, Thought):
                out.append(self.frame.chunk(self.index, {"reasoning_content": delta.text}))
            elif isinstance(delta, Content):
                out.append(
                    self.frame.chunk(self.index, {"content": delta.text}, None, self._take())
                )
            elif isinstance(delta, CallStart):
                # Id, type and name come once and first, then the arguments.
                opening = {"index": delta.index, **call_entry(delta.name, "")}
                out.append(self.frame.chunk(self.index, {"tool_calls": [opening]}))
            elif isinstance(delta, CallArguments):
                more = {"index": delta.index, "function": {"arguments": delta.text}}
                out.append(self.frame.chunk(self.index, {"tool_calls": [more]}))
        if piece.finish is not None:
            out.append(self.frame.chunk(self.index, {}, piece.finish, self._take()))
        return out

    def _take(self) -> list[dict[str, Any]] | None:
        taken, self.waiting = self.waiting, []
        return logprob_entries(self.tokenizer, taken) if taken else None


async def _events(
    frame: _Frame, generation: Generation, tokenizer: Tokenizer, wants_usage: bool
) -> AsyncIterator[bytes]:
    choices = [_ChoiceChunks(frame, i, tokenizer) for i in range(generation.num_choices)]
    try:
        for index in range(generation.num_choices):
            yield frame.chunk(index, {"role": "assistant", "content": ""})
        async for piece in generation.pieces():
            for chunk in choices[piece.choice].chunks(piece):
                yield chunk
    except Exception as error:
        yield sse(as_api_error(error).body(Dialect.OPENAI))
        return
    if wants_usage:
        tail = frame.head("chat.completion.chunk")
        yield sse({**tail, "choices": [], "usage": usage_of([generation])})
    yield sse("[DONE]")
