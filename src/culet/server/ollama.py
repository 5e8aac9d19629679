"""Ollama's own API: wire to job, pieces to lines of JSON, and facts about the model."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from culet.chat.constrain import AnswerFormat
from culet.chat.messages import Message, Role, ToolCall, parse_tools
from culet.chat.stream import Call
from culet.server.errors import ApiError, Dialect, as_api_error, refused
from culet.server.generation import ChatJob, Finish, Generation, TextJob, ToolUse, WholeChoice
from culet.server.openai_text import embed
from culet.server.state import ServerState
from culet.server.stream import NDJSON, ndjson
from culet.server.wire import (
    Body,
    given,
    json_answer,
    require_text_only,
    stop_texts,
    text_or_none,
    tool_use,
)

VERSION = "0.13.0"  # of the API that this follows; clients compare it
_BUDGETS: dict[str, int | None] = {"low": 512, "medium": 2048, "high": None}
# How a model is loaded is this server's start-up business; these are taken and have no effect.
_LOADING = frozenset(
    "num_keep num_batch num_gpu main_gpu use_mmap use_mlock num_thread low_vram numa vocab_only "
    "f16_kv penalize_newline repeat_last_n tfs_z mirostat mirostat_eta mirostat_tau".split()
)
_SAMPLING = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "repeat_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "seed": "seed",
}


class Common(Body):
    """Fields that both ways to ask have. `keep_alive` is taken; the model always stays."""

    model: str | None = None
    stream: bool = True
    format: str | dict[str, Any] | None = None
    options: dict[str, Any] | None = None
    think: bool | str | None = None
    keep_alive: str | int | float | None = None


class ChatRequest(Common):
    """A conversation to be answered."""

    messages: list[dict[str, Any]] = Field(default_factory=list)
    tools: list[dict[str, Any]] | None = None


class GenerateRequest(Common):
    """A text to be answered, or continued with `raw`."""

    prompt: str = ""
    system: str | None = None
    suffix: str | None = None
    template: str | None = None
    raw: bool = False
    images: list[str] | None = None
    context: list[int] | None = None


class EmbedRequest(Body):
    """Texts to be turned into vectors."""

    model: str | None = None
    input: str | list[str] = Field(min_length=1)
    truncate: bool | None = None
    dimensions: int | None = None
    options: dict[str, Any] | None = None
    keep_alive: str | int | float | None = None


class OldEmbedRequest(Body):
    """One text to be turned into a vector, as clients asked before /api/embed."""

    model: str | None = None
    prompt: str = Field(min_length=1)
    options: dict[str, Any] | None = None
    keep_alive: str | int | float | None = None


class NameRequest(Body):
    """A model by name."""

    model: str | None = None
    name: str | None = None
    verbose: bool | None = None


def sampling_of(body: Common, context_length: int) -> dict[str, Any]:
    """Sampling parameters out of `options`; raises `ApiError` naming the option."""
    options = body.options or {}
    unknown = set(options) - set(_SAMPLING) - _LOADING - {"num_ctx", "num_predict", "stop"}
    if unknown:
        raise refused(f"options.{min(unknown)}: there is no such option", param="options")
    asked = _whole_number(options, "num_ctx")
    if asked is not None and asked > context_length:
        raise refused(
            f"options.num_ctx: {asked} is more than the {context_length} tokens that this server "
            "was started with (--ctx)",
            param="options",
        )
    count = _whole_number(options, "num_predict")
    values = {target: options.get(name) for name, target in _SAMPLING.items()}
    stop = options.get("stop")
    if stop is not None and not isinstance(stop, str | list):
        raise refused("options.stop: a text or a list of texts is needed", param="options")
    return given(
        max_tokens=None if count is None or count < 0 else count,
        stop=stop_texts(stop, "options.stop"),
        **values,
    )


def _whole_number(options: Mapping[str, Any], name: str) -> int | None:
    value = options.get(name)
    if value is not None and type(value) is not int:
        raise refused(f"options.{name}: {value!r} is no whole number", param="options")
    return value


def _thinking(think: bool | str | None) -> tuple[bool | None, int | None]:
    if isinstance(think, str):
        if think not in _BUDGETS:
            raise refused(f"think: {think!r} is not one of true, false, {', '.join(_BUDGETS)}")
        return True, _BUDGETS[think]
    return think, None


def _answer(value: str | dict[str, Any] | None) -> AnswerFormat:
    if value is None or value == "":
        return AnswerFormat()
    if value == "json":
        return AnswerFormat(schema=True)
    return json_answer(value, "format")


def read_messages(messages: list[dict[str, Any]]) -> list[Message]:
    """The conversation in the internal vocabulary."""
    found: list[Message] = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        role, content = message.get("role"), message.get("content") or ""
        if message.get("images"):
            require_text_only("images", where)
        if not isinstance(content, str):
            raise refused(f"{where}.content: a string is needed")
        if role not in list(Role):
            raise refused(f"{where}.role: {role!r} is not one of {', '.join(Role)}")
        thinking = message.get("thinking")
        found.append(
            Message(
                Role(role),
                content,
                reasoning=thinking if isinstance(thinking, str) else None,
                tool_calls=_calls(message.get("tool_calls"), f"{where}.tool_calls"),
                tool_call_id=text_or_none(message.get("tool_call_id"), f"{where}.tool_call_id"),
                name=text_or_none(
                    message.get("tool_name", message.get("name")), f"{where}.tool_name"
                ),
            )
        )
    return found


def _calls(value: Any, where: str) -> tuple[ToolCall, ...]:
    calls = []
    if value is not None and not isinstance(value, list):
        raise refused(f"{where}: a list of calls is needed")
    for number, call in enumerate(value or ()):
        function = call.get("function") if isinstance(call, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        arguments = function.get("arguments") if isinstance(function, dict) else None
        if isinstance(arguments, str) and arguments.strip():
            try:
                arguments = json.loads(arguments)
            except (ValueError, RecursionError):
                raise refused(f"{where}[{number}]: the arguments are not JSON") from None
        arguments = arguments or {}
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise refused(f"{where}[{number}]: a function with a name and arguments is needed")
        call_id = call.get("id")
        calls.append(ToolCall(name, arguments, call_id if isinstance(call_id, str) else None))
    return tuple(calls)


def chat_job(state: ServerState, body: ChatRequest) -> ChatJob:
    """The job that a request means; raises `ApiError` naming the field."""
    thinking, budget = _thinking(body.think)
    messages = read_messages(body.messages)
    tools = ToolUse()
    if body.tools:
        tools = tool_use(parse_tools(body.tools), "auto")
    return ChatJob(
        messages=messages,
        tools=tools,
        answer=_answer(body.format),
        thinking=thinking,
        thinking_budget=budget,
        # As in Ollama, a final message of the assistant is continued.
        continue_final=messages[-1].role is Role.ASSISTANT and not messages[-1].tool_calls,
        sampling=sampling_of(body, state.model.context_length),
    )


async def chat(state: ServerState, request: Request, body: ChatRequest) -> Response:
    """Answer a conversation, by default as a stream."""
    state.model.check_name(body.model)
    if not body.messages:
        return JSONResponse(_loaded(state, {"message": {"role": "assistant", "content": ""}}))
    job = await state.in_thread(request, lambda: chat_job(state, body))
    generation = await state.start_chat(request, job)
    return await _reply(state, request, body, generation, _chat_line, bool(job.thinking))


async def generate(state: ServerState, request: Request, body: GenerateRequest) -> Response:
    """Answer or continue one text, by default as a stream."""
    state.model.check_name(body.model)
    for name in ("suffix", "template", "context"):
        if getattr(body, name):
            raise refused(f"{name}: this server does not support it", param=name)
    if body.images:
        require_text_only("images", "images")
    if not body.prompt:
        return JSONResponse(_loaded(state, {"response": ""}))
    sampling = sampling_of(body, state.model.context_length)
    shows_thoughts = False
    if body.raw:
        if not _answer(body.format).is_free:
            raise refused("format: it needs a conversation, not a raw prompt", param="format")
        generation = await state.start_text(request, TextJob(body.prompt, sampling))
    else:
        thinking, budget = _thinking(body.think)
        shows_thoughts = bool(thinking)
        messages = [Message(Role.SYSTEM, body.system)] if body.system else []
        messages.append(Message(Role.USER, body.prompt))
        job = ChatJob(
            messages=messages,
            answer=_answer(body.format),
            thinking=thinking,
            thinking_budget=budget,
            sampling=sampling,
        )
        generation = await state.start_chat(request, job)
    return await _reply(state, request, body, generation, _generate_line, shows_thoughts)


Line = Callable[[str, str, list[Call]], dict[str, Any]]


def _chat_line(content: str, thoughts: str, calls: list[Call]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if thoughts:
        message["thinking"] = thoughts
    if calls:
        message["tool_calls"] = [
            {
                "function": {
                    "index": c.index,
                    "name": c.name,
                    "arguments": json.loads(c.arguments),
                }
            }
            for c in calls
        ]
    return {"message": message}


def _generate_line(content: str, thoughts: str, calls: list[Call]) -> dict[str, Any]:
    return {"response": content, **({"thinking": thoughts} if thoughts else {})}


async def _reply(
    state: ServerState,
    request: Request,
    body: Common,
    generation: Generation,
    line: Line,
    shows_thoughts: bool,
) -> Response:
    if body.stream:
        events = _lines(state, generation, line, shows_thoughts)
        return state.stream(request, [generation], events, NDJSON)
    ((choice,),) = await state.whole(request, [generation])
    thoughts = choice.thoughts if shows_thoughts else ""
    answer = _head(state) | line(choice.content, thoughts, choice.calls)
    return JSONResponse(answer | _tail(generation, choice.finish))


async def _lines(
    state: ServerState, generation: Generation, line: Line, shows_thoughts: bool
) -> AsyncIterator[bytes]:
    finish: Finish = "stop"
    try:
        async for piece in generation.pieces():
            choice = WholeChoice()
            choice.add(piece)
            thoughts = choice.thoughts if shows_thoughts else ""
            if choice.content or thoughts or choice.calls:
                body = line(choice.content, thoughts, choice.calls)
                yield ndjson(_head(state) | body | {"done": False})
            finish = piece.finish or finish
    except Exception as error:
        yield ndjson(as_api_error(error).body(Dialect.OLLAMA))
        return
    yield ndjson(_head(state) | line("", "", []) | _tail(generation, finish))


def _head(state: ServerState) -> dict[str, Any]:
    return {"model": state.model.name, "created_at": _time(time.time())}


def _tail(generation: Generation, finish: Finish) -> dict[str, Any]:
    """What ends an answer; durations in nanoseconds."""
    now = time.monotonic()
    first = now if generation.first_token_at is None else generation.first_token_at
    return {
        "done": True,
        "done_reason": "length" if finish == "length" else "stop",
        "total_duration": _nanoseconds(now - generation.started_at),
        "load_duration": 0,
        "prompt_eval_count": generation.num_prompt_tokens,
        "prompt_eval_duration": _nanoseconds(first - generation.started_at),
        "eval_count": generation.num_answer_tokens,
        "eval_duration": _nanoseconds(now - first),
    }


def _loaded(state: ServerState, body: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to a request that only wants the model to be there."""
    return {**_head(state), **body, "done": True, "done_reason": "load"}


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


async def embeddings(state: ServerState, request: Request, body: EmbedRequest) -> Response:
    """Vectors of one text or several."""
    state.model.check_name(body.model)
    if body.dimensions not in (None, state.model.details.hidden_size):
        raise refused(f"dimensions: only {state.model.details.hidden_size} is there")
    began = time.monotonic()
    texts = [body.input] if isinstance(body.input, str) else list(body.input)
    vectors, num_tokens = await embed(state, request, texts, "input")
    return JSONResponse(
        {
            "model": state.model.name,
            "embeddings": [[float(x) for x in v] for v in vectors],
            "total_duration": _nanoseconds(time.monotonic() - began),
            "load_duration": 0,
            "prompt_eval_count": num_tokens,
        }
    )


async def old_embeddings(state: ServerState, request: Request, body: OldEmbedRequest) -> Response:
    """The vector of one text."""
    state.model.check_name(body.model)
    vectors, _ = await embed(state, request, [body.prompt], "prompt")
    return JSONResponse({"embedding": [float(x) for x in vectors[0]]})


def _listed(state: ServerState, name: str) -> dict[str, Any]:
    details = state.model.details
    return {
        "name": name,
        "model": name,
        "modified_at": _time(details.modified_at),
        "size": details.file_bytes,
        "digest": details.digest,
        "details": _details(state),
    }


def _details(state: ServerState) -> dict[str, Any]:
    details = state.model.details
    return {
        "parent_model": "",
        "format": "gguf",
        "family": details.architecture,
        "families": [details.architecture],
        "parameter_size": f"{details.num_parameters / 1e9:.1f}B",
        "quantization_level": details.quantization,
    }


async def tags(state: ServerState, request: Request) -> Response:
    """The models that are here: the one served, under all its names."""
    return JSONResponse({"models": [_listed(state, name) for name in state.model.names]})


async def running(state: ServerState, request: Request) -> Response:
    """The models in memory."""
    listed = _listed(state, state.model.name)
    del listed["modified_at"]
    listed |= {"expires_at": "9999-12-31T23:59:59Z", "size_vram": 0}
    listed["context_length"] = state.model.context_length
    return JSONResponse({"models": [listed]})


async def show(state: ServerState, request: Request, body: NameRequest) -> Response:
    """Facts about the model."""
    state.model.check_name(body.model or body.name)
    details = state.model.details
    arch = details.architecture
    return JSONResponse(
        {
            "modelfile": "",
            "parameters": "\n".join(f"{k} {v}" for k, v in state.model.defaults.items()),
            "template": details.template,
            "details": _details(state),
            "model_info": {
                "general.architecture": arch,
                "general.parameter_count": details.num_parameters,
                f"{arch}.context_length": state.model.context_length,
                f"{arch}.embedding_length": details.hidden_size,
                f"{arch}.block_count": details.num_layers,
            },
            "capabilities": ["completion", "tools", "thinking"],
            "modified_at": _time(details.modified_at),
        }
    )


async def version(state: ServerState, request: Request) -> Response:
    """The version of the API."""
    return JSONResponse({"version": VERSION})


async def not_here(state: ServerState, request: Request) -> Response:
    """Routes that would change the models: this server serves the one it was started with."""
    raise ApiError(
        501,
        f"{request.url.path} is not supported: this server serves the model it was started with",
        code="not_implemented",
    )
