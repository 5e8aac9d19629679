"""OpenAI's plain completions and embeddings."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from culet.chat.stream import Content
from culet.chat.tokenizer import Tokenizer
from culet.engine.request import EnginePrompt, SamplingParams
from culet.engine.sampler import Sampled
from culet.engine.scheduler import Want
from culet.server.errors import Dialect, as_api_error, cancelled, context_exceeded, refused
from culet.server.generation import Finish, Generation, Piece, TextJob, text_ids
from culet.server.model import ServedModel
from culet.server.openai_fields import SamplingFields, usage_of
from culet.server.state import ServerState
from culet.server.stream import SSE, sse, until_disconnect
from culet.server.wire import Body, new_id, token_entry

_EMBEDDINGS_AT_ONCE = 8  # of one request; others shall get their turn
Prompt = str | list[str] | list[int] | list[list[int]]


class CompletionRequest(SamplingFields):
    """A text, or token ids, to be continued."""

    prompt: Prompt = Field(min_length=1)
    suffix: str | None = None
    max_tokens: int | None = Field(16, ge=0)
    best_of: int | None = None
    echo: bool = False
    logprobs: int | None = Field(None, ge=0, le=20)


def prompts_of(value: Prompt, field: str) -> list[str | list[int]]:
    """One text or id list per prompt, none empty of ids; `ApiError` names `field`."""
    if isinstance(value, str):
        return [value]
    if all(isinstance(item, int) for item in value):
        return [[i for i in value if isinstance(i, int)]]
    prompts = [item for item in value if not isinstance(item, int)]
    if [] in prompts:
        raise refused(f"{field}: a list of ids is empty; at least 1 token is needed", param=field)
    return prompts


async def completions(state: ServerState, request: Request, body: CompletionRequest) -> Response:
    """Continue one or several prompts, streamed or whole."""
    state.model.check_name(body.model)
    if body.suffix:
        raise refused("suffix: this model cannot fill in the middle of a text", param="suffix")
    if body.best_of is not None and body.best_of != body.n:
        raise refused("best_of: it must equal n; answers are not ranked", param="best_of")
    prompts = prompts_of(body.prompt, "prompt")
    if len(prompts) * body.n > state.limits.choices:
        raise refused(
            f"prompt: {len(prompts)} prompts times n = {body.n} is more than the "
            f"{state.limits.choices} choices that are allowed",
            param="prompt",
        )
    echoed = body.logprobs if body.echo else None
    sampling = body.sampling(body.max_tokens, body.logprobs, echoed)
    generations: list[Generation] = []
    try:
        for prompt in prompts:
            generations.append(await state.start_text(request, TextJob(prompt, sampling)))
    except BaseException:
        for generation in generations:
            generation.close()
        raise
    frame = _Frame(new_id("cmpl-"), int(time.time()), state.model, body, prompts)
    if body.stream:
        return state.stream(request, generations, frame.events(generations), SSE)
    wholes = await state.whole(request, generations)
    choices = []
    for number, generation in enumerate(generations):
        for index, whole in enumerate(wholes[number]):
            text, logprobs = frame.opening(number, generation)
            if logprobs is not None:
                logprobs.add_sampled(whole.tokens)
            choices.append(
                frame.choice(number * body.n + index, text + whole.content, whole.finish, logprobs)
            )
    return JSONResponse({**frame.head(), "choices": choices, "usage": usage_of(generations)})


@dataclass
class _Logprobs:
    """The legacy shape: parallel lists, with the offset of each token in the text."""

    tokenizer: Tokenizer
    offset: int = 0

    def __post_init__(self) -> None:
        self.tokens: list[str] = []
        self.values: list[float | None] = []
        self.top: list[dict[str, float] | None] = []
        self.offsets: list[int] = []

    def add_sampled(self, tokens: Sequence[Sampled]) -> None:
        for token in tokens:
            entry = token_entry(self.tokenizer, token.token_id, token.logprob or 0.0)
            self.tokens.append(entry["token"])
            self.offsets.append(self.offset)
            self.offset += len(entry["token"])
            if token.logprob is None:  # nothing predicts the first token of a prompt
                self.values.append(None)
                self.top.append(None)
                continue
            self.values.append(entry["logprob"])
            top = [token_entry(self.tokenizer, i, value) for i, value in token.top]
            self.top.append({t["token"]: t["logprob"] for t in top})

    def body(self) -> dict[str, Any]:
        return {
            "tokens": self.tokens,
            "token_logprobs": self.values,
            "top_logprobs": self.top,
            "text_offset": self.offsets,
        }


@dataclass(frozen=True)
class _Frame:
    """What every chunk of one answer repeats, and how its choices are made."""

    id: str
    created: int
    model: ServedModel
    request: CompletionRequest
    prompts: Sequence[str | list[int]]

    def head(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model.name,
        }

    def choice(
        self, index: int, text: str, finish: Finish | None, logprobs: _Logprobs | None
    ) -> dict[str, Any]:
        return {
            "index": index,
            "text": text,
            "logprobs": None if logprobs is None else logprobs.body(),
            "finish_reason": finish,
        }

    def opening(self, number: int, generation: Generation) -> tuple[str, _Logprobs | None]:
        """What stands before the first sampled token: the prompt, if it is to be echoed."""
        tokenizer = self.model.tokenizer
        logprobs = None if self.request.logprobs is None else _Logprobs(tokenizer)
        if not self.request.echo:
            return "", logprobs
        prompt = self.prompts[number]
        text = prompt if isinstance(prompt, str) else tokenizer.decode(prompt, skip_special=False)
        if logprobs is not None:
            logprobs.add_sampled(generation.handle.prompt_logprobs or [])
        return text, logprobs

    async def events(self, generations: Sequence[Generation]) -> AsyncIterator[bytes]:
        offsets: dict[int, int] = {}
        try:
            async for number, piece in _merged_pieces(generations):
                index = number * self.request.n + piece.choice
                text, logprobs = "", None
                if index not in offsets:
                    text, logprobs = self.opening(number, generations[number])
                elif self.request.logprobs is not None:
                    logprobs = _Logprobs(self.model.tokenizer, offsets[index])
                text += "".join(d.text for d in piece.deltas if isinstance(d, Content))
                if logprobs is not None:
                    logprobs.add_sampled(piece.tokens)
                offsets[index] = 0 if logprobs is None else logprobs.offset
                if text or piece.finish is not None or (logprobs and logprobs.tokens):
                    choice = self.choice(index, text, piece.finish, logprobs)
                    yield sse({**self.head(), "choices": [choice]})
        except Exception as error:
            yield sse(as_api_error(error).body(Dialect.OPENAI))
            return
        if self.request.wants_usage:
            yield sse({**self.head(), "choices": [], "usage": usage_of(generations)})
        yield sse("[DONE]")


async def _merged_pieces(
    generations: Sequence[Generation],
) -> AsyncIterator[tuple[int, Piece]]:
    """Pieces of all generations in the order in which they come."""
    queue: asyncio.Queue[tuple[int, Piece | None]] = asyncio.Queue()

    async def drain(number: int, generation: Generation) -> None:
        try:
            async for piece in generation.pieces():
                queue.put_nowait((number, piece))
        finally:
            queue.put_nowait((number, None))

    tasks = [asyncio.ensure_future(drain(i, g)) for i, g in enumerate(generations)]
    try:
        for _ in tasks:
            while True:
                number, piece = await queue.get()
                if piece is None:
                    break
                yield number, piece
        for task in tasks:
            await task
    finally:
        for task in tasks:
            task.cancel()


class EmbeddingRequest(Body):
    """Texts, or token ids, to be turned into vectors."""

    model: str | None = None
    input: Prompt = Field(min_length=1)
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    user: str | None = None


async def embeddings(state: ServerState, request: Request, body: EmbeddingRequest) -> Response:
    """Mean of the final hidden states of each input, of length 1."""
    state.model.check_name(body.model)
    size = state.model.details.hidden_size
    if body.dimensions is not None and body.dimensions != size:
        raise refused(f"dimensions: {body.dimensions} is not {size}, the only one", "dimensions")
    vectors, num_tokens = await embed(state, request, prompts_of(body.input, "input"), "input")
    data = [
        {"object": "embedding", "index": index, "embedding": _encoded(v, body.encoding_format)}
        for index, v in enumerate(vectors)
    ]
    return JSONResponse(
        {
            "object": "list",
            "data": data,
            "model": state.model.name,
            "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
        }
    )


def _encoded(vector: NDArray[np.float32], encoding: str) -> str | list[float]:
    if encoding == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return [float(x) for x in vector]


async def embed(
    state: ServerState, request: Request, inputs: Sequence[str | list[int]], field: str
) -> tuple[list[NDArray[np.float32]], int]:
    """Vectors float32 [hidden] of length 1, one per input, and how many tokens they took."""
    if len(inputs) > state.limits.embedding_inputs:
        raise refused(
            f"{field}: {len(inputs)} inputs are more than the {state.limits.embedding_inputs} "
            "that are allowed",
            param=field,
        )
    release = state.admit(1)
    try:
        return await until_disconnect(request.receive, _embed_all(state, request, inputs))
    finally:
        release()


async def _embed_all(
    state: ServerState, request: Request, inputs: Sequence[str | list[int]]
) -> tuple[list[NDArray[np.float32]], int]:
    model = state.model
    prompts = await state.in_thread(request, lambda: [text_ids(model, text) for text in inputs])
    longest = max(map(len, prompts))
    if longest > model.context_length:
        raise context_exceeded(longest, model.context_length)
    gate = asyncio.Semaphore(_EMBEDDINGS_AT_ONCE)

    async def one(ids: list[int]) -> NDArray[np.float32]:
        async with gate:
            return await _embed_one(model, ids)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(ids)) for ids in prompts]
    return [task.result() for task in tasks], sum(map(len, prompts))


async def _embed_one(model: ServedModel, ids: list[int]) -> NDArray[np.float32]:
    sums: list[NDArray[np.float64]] = []

    def add(_start: int, hidden: NDArray[np.float32]) -> None:
        sums.append(hidden.sum(axis=0, dtype=np.float64))

    params = SamplingParams(max_tokens=0)
    with model.engine.submit(
        EnginePrompt(ids), params, prompt_want=Want.HIDDEN, sink=add
    ) as handle:
        async for delta in handle:
            if delta.finish_reason == "cancelled":
                raise cancelled()
    total = np.sum(sums, axis=0)
    norm = float(np.linalg.norm(total))
    vector: NDArray[np.float32] = (total / (norm or 1.0)).astype(np.float32)
    return vector
