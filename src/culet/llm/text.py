"""From generated tokens to an answer: text, thoughts, tool calls, stop texts, counts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from culet.chat.stop import StopStrings
from culet.chat.stream import Call, Content, Delta, OutputParser, Thought
from culet.chat.tokenizer import Tokenizer
from culet.engine.generate import Generated
from culet.engine.request import FinishReason, SamplingParams
from culet.llm.results import (
    ChatCompletion,
    Completion,
    Piece,
    TokenLogprob,
    ToolCallResult,
    Usage,
)


@dataclass(slots=True)
class _Answer:
    """What has come so far."""

    num_prompt_tokens: int
    with_logprobs: bool
    seed: int
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    num_generated: int = 0
    text: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCallResult] = field(default_factory=list)
    finish_reason: FinishReason = "length"

    def add(self, generated: Generated) -> bool:
        """Count a token; false for the one that ends the answer and is no part of it."""
        self.num_generated += 1
        if generated.finish_reason == "stop":
            self.finish_reason = "stop"
            return False
        sampled = generated.sampled
        self.token_ids.append(sampled.token_id)
        if sampled.logprob is not None:
            self.logprobs.append(TokenLogprob(sampled.token_id, sampled.logprob, sampled.top))
        return True

    @property
    def usage(self) -> Usage:
        return Usage(self.num_prompt_tokens, self.num_generated)

    def completion(self) -> Completion:
        return Completion(
            text=self.text,
            token_ids=tuple(self.token_ids),
            finish_reason=self.finish_reason,
            logprobs=tuple(self.logprobs) if self.with_logprobs else None,
            usage=self.usage,
            seed=self.seed,
        )

    def chat_completion(self) -> ChatCompletion:
        called = self.tool_calls and self.finish_reason == "stop"
        return ChatCompletion(
            text=self.text,
            reasoning=self.reasoning,
            tool_calls=tuple(self.tool_calls),
            token_ids=tuple(self.token_ids),
            finish_reason="tool_calls" if called else self.finish_reason,
            logprobs=tuple(self.logprobs) if self.with_logprobs else None,
            usage=self.usage,
            seed=self.seed,
        )


def plain_pieces(
    tokens: Iterator[Generated],
    tokenizer: Tokenizer,
    params: SamplingParams,
    num_prompt_tokens: int,
    seed: int,
) -> Iterator[Piece]:
    """Pieces of a plain completion; the last one has the `Completion`."""
    answer = _Answer(num_prompt_tokens, params.logprobs is not None, seed)
    decoder = tokenizer.stream_decoder()
    stops = StopStrings(params.stop)
    for generated in tokens:
        if not answer.add(generated):
            break
        shown = stops.feed(decoder.push(generated.sampled.token_id))
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
    tokens: Iterator[Generated],
    tokenizer: Tokenizer,
    parser: OutputParser,
    params: SamplingParams,
    num_prompt_tokens: int,
    seed: int,
) -> Iterator[Piece]:
    """Pieces of a chat answer; the last one has the `ChatCompletion`."""
    answer = _Answer(num_prompt_tokens, params.logprobs is not None, seed)
    stops = StopStrings(params.stop)
    feed = _feeder(tokenizer, parser)
    for generated in tokens:
        if not answer.add(generated):
            break
        yield from _shown(feed(generated.sampled.token_id), stops, answer)
        if stops.matched is not None or parser.is_done:
            answer.finish_reason = "stop"
            break
    was_cut = answer.finish_reason == "length"
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
