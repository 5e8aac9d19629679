"""From generated tokens to an answer: text, thoughts, tool calls, stop texts, counts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from culet.chat.stop import StopStrings
from culet.chat.stream import Call, Content, Delta, OutputParser, Thought
from culet.chat.tokenizer import Tokenizer
from culet.engine.handle import Delta as TokenDelta
from culet.engine.handle import RequestHandle
from culet.engine.request import FinishReason, SamplingParams, Usage
from culet.engine.sampler import Sampled
from culet.llm.results import (
    ChatCompletion,
    Completion,
    Piece,
    TokenLogprob,
    ToolCallResult,
)


@dataclass(frozen=True, slots=True, eq=False)
class Started:
    """A submitted request.

    Attributes:
        seed: of its draws, whether the caller gave it or not.
    """

    handle: RequestHandle
    params: SamplingParams
    seed: int

    def deltas(self) -> Iterator[TokenDelta]:
        """Of a request with one choice; closing the iterator ends the request."""
        try:
            yield from self.handle
        finally:
            self.handle.stop()


@dataclass(slots=True)
class _Answer:
    """What has come so far."""

    started: Started
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    num_generated: int = 0
    text: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCallResult] = field(default_factory=list)
    finish_reason: FinishReason = "length"

    def add(self, delta: TokenDelta) -> int | None:
        """Count a token; its id, or None if it ends the answer and is no part of it."""
        token = delta.token
        self.num_generated += token is not None
        if delta.finish_reason is not None:
            self.finish_reason = delta.finish_reason
        if token is None or delta.finish_reason == "stop":
            return None
        self.token_ids.append(token.token_id)
        self.logprobs += _logprobs([token])
        return token.token_id

    @property
    def usage(self) -> Usage:
        return replace(self.started.handle.usage, completion_tokens=self.num_generated)

    @property
    def shown_logprobs(self) -> tuple[TokenLogprob, ...] | None:
        return tuple(self.logprobs) if self.started.params.logprobs is not None else None

    def completion(self) -> Completion:
        of_prompt = self.started.handle.prompt_logprobs
        return Completion(
            text=self.text,
            token_ids=tuple(self.token_ids),
            finish_reason=self.finish_reason,
            logprobs=self.shown_logprobs,
            usage=self.usage,
            seed=self.started.seed,
            prompt_logprobs=None if of_prompt is None else tuple(_logprobs(of_prompt)),
        )

    def chat_completion(self) -> ChatCompletion:
        called = self.tool_calls and self.finish_reason == "stop"
        return ChatCompletion(
            text=self.text,
            reasoning=self.reasoning,
            tool_calls=tuple(self.tool_calls),
            token_ids=tuple(self.token_ids),
            finish_reason="tool_calls" if called else self.finish_reason,
            logprobs=self.shown_logprobs,
            usage=self.usage,
            seed=self.started.seed,
        )


def _logprobs(tokens: Iterable[Sampled]) -> list[TokenLogprob]:
    """Of the tokens that have one."""
    return [
        TokenLogprob(token.token_id, token.logprob, token.top)
        for token in tokens
        if token.logprob is not None
    ]


def plain_pieces(
    started: Started, deltas: Iterable[TokenDelta], tokenizer: Tokenizer
) -> Iterator[Piece]:
    """Pieces of a plain completion, from one choice's deltas; the last has the `Completion`."""
    answer = _Answer(started)
    decoder = tokenizer.stream_decoder()
    stops = StopStrings(started.params.stop)
    for delta in deltas:
        token_id = answer.add(delta)
        if token_id is None:
            break
        shown = stops.feed(decoder.push(token_id))
        answer.text += shown
        if shown:
            yield Piece(text=shown)
        if stops.matched is not None:
            answer.finish_reason = "stop"
            break
    rest = stops.feed(decoder.finish()) + stops.finish()
    answer.text += rest
    yield Piece(text=rest, completion=answer.completion())


def chat_pieces(
    started: Started,
    deltas: Iterable[TokenDelta],
    tokenizer: Tokenizer,
    parser: OutputParser,
) -> Iterator[Piece]:
    """Pieces of a chat answer, from one choice's deltas; the last has the `ChatCompletion`."""
    answer = _Answer(started)
    stops = StopStrings(started.params.stop)
    feed = _feeder(tokenizer, parser)
    for delta in deltas:
        token_id = answer.add(delta)
        if token_id is None:
            break
        yield from _shown(feed(token_id), stops, answer)
        if stops.matched is not None or parser.is_done:
            answer.finish_reason = "stop"
            break
    was_cut = answer.finish_reason != "stop"
    yield from _shown([*feed(None), *parser.finish(was_cut)], stops, answer)
    rest = stops.finish()
    answer.text += rest
    yield Piece(text=rest, completion=answer.chat_completion())


def _feeder(tokenizer: Tokenizer, parser: OutputParser) -> Callable[[int | None], list[Delta]]:
    """Gives the parser each token as text or as a marker; None ends the text before."""
    decoder = tokenizer.stream_decoder()

    def feed(token_id: int | None) -> list[Delta]:
        nonlocal decoder
        if token_id is not None and not tokenizer.is_control(token_id):
            return parser.feed_text(decoder.push(token_id))
        deltas = parser.feed_text(decoder.finish())
        decoder = tokenizer.stream_decoder()
        if token_id is not None:
            deltas += parser.feed_marker(tokenizer.control_tokens[token_id])
        return deltas

    return feed


def _shown(deltas: list[Delta], stops: StopStrings, answer: _Answer) -> Iterator[Piece]:
    """Pieces of deltas, up to a stop text, which only the visible answer can have."""
    for delta in deltas:
        if stops.matched is not None:
            return
        if isinstance(delta, Thought):
            answer.reasoning += delta.text
            yield Piece(reasoning=delta.text)
        elif isinstance(delta, Content):
            shown = stops.feed(delta.text)
            answer.text += shown
            if shown:
                yield Piece(text=shown)
        elif isinstance(delta, Call):
            call = ToolCallResult(delta.name, json.loads(delta.arguments))
            answer.tool_calls.append(call)
            yield Piece(tool_call=call)
