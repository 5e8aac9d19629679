"""From a conversation to pieces of an answer, whatever the dialect.

A dialect turns its request into a `ChatJob` or `TextJob`, and the pieces that come back into its
own events; streamed and whole answers are made of the same pieces.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from culet.chat.constrain import AnswerFormat, Constraint, ToolRules
from culet.chat.messages import Message, ToolSpec
from culet.chat.stop import StopStrings
from culet.chat.stream import Call, Content, Delta, OutputParser, Start, Thought, WholeDelta
from culet.chat.tokenizer import Tokenizer
from culet.engine.handle import Delta as EngineDelta
from culet.engine.handle import RequestHandle
from culet.engine.request import EnginePrompt, FinishReason, SamplingParams
from culet.engine.sampler import Sampled
from culet.errors import CuletError
from culet.server.errors import ApiError, cancelled, context_exceeded
from culet.server.model import ServedModel

Finish = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Which tools there are and whether one must be called.

    Attributes:
        allowed: names that may be called; None for all.
    """

    specs: tuple[ToolSpec, ...] = ()
    is_required: bool = False
    allowed: frozenset[str] | None = None
    allow_several: bool = True

    @property
    def callable_specs(self) -> tuple[ToolSpec, ...]:
        if self.allowed is None:
            return self.specs
        return tuple(s for s in self.specs if s.name in self.allowed)


@dataclass(frozen=True, slots=True)
class ChatJob:
    """One request for an answer in a conversation.

    Attributes:
        thinking: None for the model's default.
        thinking_budget: tokens of thought after which it is closed.
        continue_final: go on with the last message, which is the assistant's.
        sampling: fields of `SamplingParams` that the request gives.
    """

    messages: Sequence[Message]
    tools: ToolUse = ToolUse()
    answer: AnswerFormat = AnswerFormat()
    thinking: bool | None = None
    thinking_budget: int | None = None
    continue_final: bool = False
    sampling: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TextJob:
    """One request to go on with a text or with token ids."""

    prompt: str | Sequence[int]
    sampling: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Piece:
    """What became certain in one choice.

    Attributes:
        tokens: sampled tokens of the visible answer, with log-probabilities if asked for.
        finish: with the last piece of a choice.
        stop_text: the stop text that ended the choice.
    """

    choice: int
    deltas: tuple[Delta, ...]
    tokens: tuple[Sampled, ...] = ()
    finish: Finish | None = None
    stop_text: str | None = None


class ChoiceOutput:
    """Tokens of one choice to deltas: control tokens by id, stop texts in the visible answer."""

    def __init__(
        self, tokenizer: Tokenizer, parser: OutputParser | None, stops: Sequence[str]
    ) -> None:
        self._tokenizer = tokenizer
        self._parser = parser
        self._stops = StopStrings(stops)
        self._decoder = tokenizer.stream_decoder()
        self.num_tokens = 0
        self.num_thought_tokens = 0
        self.num_calls = 0
        self.is_finished = False

    @property
    def is_stopped(self) -> bool:
        """A stop text, or the last call that is allowed, is there."""
        return self._stops.matched is not None or (
            self._parser is not None and self._parser.is_done
        )

    @property
    def stop_text(self) -> str | None:
        return self._stops.matched

    def push(self, token_id: int) -> tuple[list[Delta], bool]:
        """Deltas of one more token, and whether it belongs to the visible answer."""
        parser = self._parser
        if parser is None:
            return self._visible(_content(self._decoder.push(token_id))), True
        was_thought, was_content = parser.in_thought, parser.in_content
        is_control = self._tokenizer.is_control(token_id)
        if is_control:
            deltas = parser.feed_text(self._decoder.finish())
            self._decoder = self._tokenizer.stream_decoder()
            deltas += parser.feed_marker(self._tokenizer.control_tokens[token_id])
        else:
            deltas = parser.feed_text(self._decoder.push(token_id))
        self.num_thought_tokens += was_thought or parser.in_thought
        return self._visible(deltas), was_content and parser.in_content and not is_control

    def close(self, was_cut: bool) -> list[Delta]:
        """The rest, once no more tokens come."""
        self.is_finished = True
        tail = self._decoder.finish()
        if self._parser is None:
            rest = _content(tail)
        else:
            rest = self._parser.feed_text(tail) + self._parser.finish(was_cut)
        rest = self._visible(rest)
        return _merged([*rest, *_content(self._stops.finish())])

    def _visible(self, deltas: list[Delta]) -> list[Delta]:
        """Deltas up to a stop text, which is looked for in the visible answer only."""
        shown: list[Delta] = []
        for delta in deltas:
            if self._stops.matched is not None:
                break
            if isinstance(delta, Content):
                shown += _content(self._stops.feed(delta.text))
                continue
            # No stop text reaches across a call or a thought.
            shown += _content(self._stops.finish())
            shown.append(delta)
            self.num_calls += isinstance(delta, Call)
        return shown


def _content(text: str) -> list[Delta]:
    return [Content(text)] if text else []


def _merged(deltas: Sequence[Delta]) -> list[Delta]:
    merged: list[Delta] = []
    for delta in deltas:
        last = merged[-1] if merged else None
        if isinstance(delta, Content) and isinstance(last, Content):
            merged[-1] = Content(last.text + delta.text)
        elif isinstance(delta, Thought) and isinstance(last, Thought):
            merged[-1] = Thought(last.text + delta.text)
        else:
            merged.append(delta)
    return merged


class Generation:
    """A running request: iterate over `pieces()` once, and `close` it whatever happens.

    Attributes:
        error: what ended it before its time, if the client didn't.
    """

    def __init__(
        self, handle: RequestHandle, outputs: Sequence[ChoiceOutput], prompt_ids: Sequence[int]
    ) -> None:
        self.handle = handle
        self.prompt_ids = prompt_ids
        self._outputs = outputs
        self._on_close: list[Callable[[], None]] = []
        self.started_at = time.monotonic()
        self.first_token_at: float | None = None
        self.error: Exception | None = None

    @property
    def num_choices(self) -> int:
        return self.handle.num_choices

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_ids)

    @property
    def num_cached_tokens(self) -> int:
        """Of the prompt, those that were not computed again; known from the first piece on."""
        return self.handle.usage.cached_tokens

    @property
    def num_answer_tokens(self) -> int:
        """Of all choices, up to where each ended; the token that ends an answer counts."""
        return sum(output.num_tokens for output in self._outputs)

    @property
    def num_thought_tokens(self) -> int:
        return sum(output.num_thought_tokens for output in self._outputs)

    def when_closed(self, callback: Callable[[], None]) -> None:
        self._on_close.append(callback)

    def close(self) -> None:
        """Cancel what still runs. May be called twice."""
        if not self.handle.is_done:
            self.handle.cancel()
        callbacks, self._on_close = self._on_close, []
        for callback in callbacks:
            callback()

    async def pieces(self) -> AsyncIterator[Piece]:
        """Pieces of all choices as they come.

        Raises:
            ApiError: the request ran out of its time, or the server ends.
            CuletError: what the engine ended the request with.
        """
        try:
            async for delta in self.handle:
                if self.first_token_at is None:
                    self.first_token_at = time.monotonic()
                output = self._outputs[delta.choice]
                if output.is_finished:
                    continue  # tokens that were on their way when the choice was stopped
                piece = self._piece(output, delta)
                if piece.deltas or piece.tokens or piece.finish:
                    yield piece
                if all(output.is_finished for output in self._outputs):
                    return
        except (ApiError, CuletError) as error:
            self.error = error
            raise

    def _piece(self, output: ChoiceOutput, delta: EngineDelta) -> Piece:
        deltas: list[Delta] = []
        tokens: tuple[Sampled, ...] = ()
        if delta.token is not None:
            output.num_tokens += 1
            if delta.finish_reason != "stop":  # else it is the token that ends the answer
                deltas, is_answer = output.push(delta.token.token_id)
                tokens = (delta.token,) if is_answer else ()
        finish: Finish | None = None
        if output.is_stopped:
            finish = "stop"
            self.handle.stop(delta.choice)
        elif delta.finish_reason is not None:
            finish = _finish_of(delta.finish_reason)
        if finish is None:
            return Piece(delta.choice, tuple(deltas), tokens)
        deltas = _merged([*deltas, *output.close(was_cut=finish != "stop")])
        if finish == "stop" and output.num_calls:
            finish = "tool_calls"
        return Piece(delta.choice, tuple(deltas), tokens, finish, output.stop_text)


def _finish_of(reason: FinishReason) -> Finish:
    match reason:
        case "stop" | "length":
            return reason
        case "deadline":
            raise ApiError(504, "the time for this request is over", code="request_timeout")
        case "cancelled":
            raise cancelled()


async def start_chat(
    model: ServedModel, job: ChatJob, timeout_s: float | None, executor: Executor | None = None
) -> Generation:
    """Render, tokenize and submit, off the event loop.

    Args:
        executor: whose threads do it; None for the event loop's own.

    Raises:
        ApiError: the prompt does not fit.
        RequestError: the messages, the schema or a sampling parameter are wrong.
    """
    return await _off_loop(partial(_start_chat, model, job, timeout_s), executor)


async def start_text(
    model: ServedModel, job: TextJob, timeout_s: float | None, executor: Executor | None = None
) -> Generation:
    """Tokenize and submit, off the event loop; errors as `start_chat`."""
    return await _off_loop(partial(_start_text, model, job, timeout_s), executor)


async def _off_loop(start: Callable[[], Generation], executor: Executor | None) -> Generation:
    """Start in a thread. Whoever waits may be cancelled, the thread may not: its request is."""
    future = asyncio.get_running_loop().run_in_executor(executor, start)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        future.add_done_callback(_abandon)
        raise


def _abandon(future: asyncio.Future[Generation]) -> None:
    if not future.cancelled() and future.exception() is None:
        future.result().close()


@dataclass(frozen=True, slots=True)
class PreparedChat:
    """Ids of a rendered conversation, and where they leave the model."""

    ids: Sequence[int]
    start: Start
    may_think: bool


def prepare_chat(model: ServedModel, job: ChatJob) -> PreparedChat:
    """The prompt of a conversation; this one place decides whether there is thinking."""
    thinking = model.thinks_by_default if job.thinking is None else job.thinking
    prompt = model.template.render(
        job.messages,
        tools=job.tools.callable_specs,
        add_generation_prompt=not job.continue_final,
        enable_thinking=thinking,
        continue_final=job.continue_final,
    )
    require_may_fit(sum(len(s.text) for s in prompt.segments), model)
    last = prompt.segments[-1]
    start = Start.of_prompt(last.text) if last.is_trusted else Start.CONTENT
    ids = model.tokenizer.encode_prompt(prompt)
    return PreparedChat(ids, start, thinking and not job.continue_final)


def _start_chat(model: ServedModel, job: ChatJob, timeout_s: float | None) -> Generation:
    prepared = prepare_chat(model, job)
    _require_room(prepared.ids, model.context_length)
    specs = job.tools.callable_specs
    schemas = {spec.name: spec.parameters for spec in specs}
    rules = None
    if specs:
        strict = frozenset(spec.name for spec in specs if spec.is_strict)
        rules = ToolRules(schemas, strict, job.tools.is_required, job.tools.allow_several)
    max_calls = None if job.tools.allow_several else 1
    params = _params(model, job.sampling)

    def make_mask() -> Constraint | None:
        return model.constraints.build(
            job.answer, rules, prepared.start, prepared.may_think, job.thinking_budget
        )

    first = make_mask()
    masks = iter([first])

    def make_output() -> ChoiceOutput:
        parser = OutputParser(schemas, prepared.start, max_calls)
        return ChoiceOutput(model.tokenizer, parser, params.stop)

    def next_mask() -> Constraint:
        mask = next(masks, None) or make_mask()
        assert mask is not None
        return mask

    return _submit(
        model, prepared.ids, params, make_output, None if first is None else next_mask, timeout_s
    )


def _start_text(model: ServedModel, job: TextJob, timeout_s: float | None) -> Generation:
    ids = text_ids(model, job.prompt)
    params = _params(model, job.sampling)
    if params.max_tokens != 0:
        _require_room(ids, model.context_length)

    def make_output() -> ChoiceOutput:
        return ChoiceOutput(model.tokenizer, None, params.stop)

    return _submit(model, ids, params, make_output, None, timeout_s)


def text_ids(model: ServedModel, prompt: str | Sequence[int]) -> list[int]:
    """Ids of a plain prompt: a text gets BOS once, ids are taken as they are."""
    if isinstance(prompt, str):
        require_may_fit(len(prompt), model)
        return model.tokenizer.encode(prompt, add_bos=True, parse_special=True)
    return list(prompt)


def _submit(
    model: ServedModel,
    ids: Sequence[int],
    params: SamplingParams,
    make_output: Callable[[], ChoiceOutput],
    make_mask: Callable[[], Constraint] | None,
    timeout_s: float | None,
) -> Generation:
    handle = model.engine.submit(
        EnginePrompt(ids),
        params,
        eos_ids=model.tokenizer.stop_ids,
        num_ids=model.num_ids,
        mask=make_mask,
        timeout_s=timeout_s,
    )
    return Generation(handle, [make_output() for _ in range(params.n)], ids)


def _params(model: ServedModel, given: Mapping[str, Any]) -> SamplingParams:
    return SamplingParams(**{**model.defaults, **given})


def require_may_fit(num_chars: int, model: ServedModel) -> None:
    """Refuse, before any work, a text so long that no way to cut it into tokens fits the context.

    Raises:
        ApiError: 400, as for a prompt whose tokens were counted.
    """
    at_least = num_chars // model.tokenizer.longest_piece_bytes
    if at_least > model.context_length:
        raise context_exceeded(at_least, model.context_length, is_lower_bound=True)


def _require_room(ids: Sequence[int], context_length: int) -> None:
    if len(ids) >= context_length:
        raise context_exceeded(len(ids), context_length)


def _whole(deltas: Sequence[Delta]) -> list[WholeDelta]:
    return [d for d in deltas if isinstance(d, Thought | Content | Call)]


@dataclass
class WholeChoice:
    """One choice of a whole answer, joined from its pieces; `deltas` are in order."""

    deltas: list[WholeDelta] = field(default_factory=list)
    tokens: list[Sampled] = field(default_factory=list)
    finish: Finish = "stop"
    stop_text: str | None = None

    @property
    def thoughts(self) -> str:
        return "".join(d.text for d in self.deltas if isinstance(d, Thought))

    @property
    def content(self) -> str:
        return "".join(d.text for d in self.deltas if isinstance(d, Content))

    @property
    def calls(self) -> list[Call]:
        return [d for d in self.deltas if isinstance(d, Call)]

    def add(self, piece: Piece) -> None:
        self.deltas += _whole(piece.deltas)
        self.tokens += piece.tokens
        if piece.finish is not None:
            self.deltas = _whole(_merged(self.deltas))
            self.finish = piece.finish
            self.stop_text = piece.stop_text


async def gather(generation: Generation) -> list[WholeChoice]:
    """All choices of a generation, once it has ended."""
    choices = [WholeChoice() for _ in range(generation.num_choices)]
    async for piece in generation.pieces():
        choices[piece.choice].add(piece)
    return choices
