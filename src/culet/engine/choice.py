"""What the engine keeps of a request and its choices, and what a step's results do to them.

Knows no threads, pages or models.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from culet.engine.handle import Delta, RequestHandle
from culet.engine.request import FinishReason, MediaSpan, SamplingParams, Usage
from culet.engine.runner import PieceResult
from culet.engine.sampler import Sampled, TokenSampler, describe
from culet.engine.scheduler import Chunk, Sequence

PromptSink = Callable[[int, NDArray[np.float32]], None]
"""Takes results of prompt rows, in order: the position of the first one, and float32 [n, vocab]
logits or [n, hidden] states, whichever was asked for. Called in the engine's thread; the array is
only valid within the call."""


@dataclass(slots=True, eq=False)
class Request:
    """One request, shared by its choices.

    Attributes:
        prompt: token ids.
        max_new: tokens that a choice may have.
        stop_ids: tokens that end a choice.
        num_ids: ids from here on are never drawn.
        submitted_at: in seconds of the engine's clock.
        started_at: when its first row was computed; None before.
        sink: of prompt rows; with `sink_hidden` it takes hidden states instead of logits.
        choices: still running.
    """

    handle: RequestHandle
    params: SamplingParams
    prompt: SequenceOf[int]
    media: tuple[MediaSpan, ...]
    max_new: int
    stop_ids: frozenset[int]
    num_ids: int
    submitted_at: float
    sink: PromptSink | None = None
    sink_hidden: bool = False
    started_at: float | None = None
    num_sampled: int = 0
    num_cached: int = 0
    choices: list[Choice] = field(default_factory=list)

    def start(self, now: float, num_cached: int) -> None:
        """Note that the first row is about to be computed."""
        self.started_at = now
        self.num_cached = num_cached
        self.handle.usage = self._usage()

    def finish(self, error: Exception | None = None) -> None:
        """Tell the caller that nothing more comes."""
        self.handle.usage = self._usage()
        self.handle.close(error)

    def _usage(self) -> Usage:
        return Usage(len(self.prompt), self.num_sampled, self.num_cached)

    def receive_prompt(self, chunk: Chunk, result: PieceResult) -> None:
        """Hand on what was wanted of the prompt rows of a chunk."""
        first = chunk.end - chunk.num_kept
        num_rows = len(self.prompt) - first
        if self.sink is not None and num_rows > 0:
            rows = result.hidden if self.sink_hidden else result.logits
            self.sink(first, rows[:num_rows])
        if self.params.prompt_logprobs is None or num_rows <= 0:
            return
        found = self.handle.prompt_logprobs
        if found is None:
            found = self.handle.prompt_logprobs = [Sampled(self.prompt[0])]
        for row, logits in enumerate(result.logits[: len(self.prompt) - 1 - first]):
            token_id = self.prompt[first + row + 1]
            found.append(describe(logits, token_id, self.params.prompt_logprobs))


@dataclass(slots=True, eq=False)
class Choice:
    """One answer in the making.

    Attributes:
        token_at: when its last token was sampled; None before the first.
    """

    index: int
    request: Request
    sequence: Sequence
    sampler: TokenSampler
    num_sampled: int = 0
    token_at: float | None = None

    def receive(self, chunk: Chunk, result: PieceResult) -> FinishReason | None:
        """Take the results of a chunk and hand a token over; why the choice has ended, or None."""
        request = self.request
        if chunk.reports:
            request.receive_prompt(chunk, result)
        if not chunk.ends:
            return None
        if request.max_new == 0:
            self.end("length")
            return "length"
        logits = result.logits[-1][: request.num_ids]
        token = self.sampler.sample(logits, len(self.sequence.tokens))
        self.sequence.append(token.token_id)
        self.num_sampled += 1
        request.num_sampled += 1
        reason: FinishReason | None = None
        if token.token_id in request.stop_ids:
            reason = "stop"
        elif self.num_sampled == request.max_new:
            reason = "length"
        request.handle.put(Delta(self.index, token, reason))
        return reason

    def end(self, reason: FinishReason) -> None:
        """Hand over the last delta of a choice that ends without a token of its own."""
        self.request.handle.put(Delta(self.index, None, reason))
