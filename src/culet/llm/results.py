"""What a caller of `LLM` gets back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from culet.engine.request import FinishReason, Usage

ChatFinishReason = Literal["stop", "length", "cancelled", "deadline", "tool_calls"]


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The log-probability of a token under the model, temperature and filters aside.

    Attributes:
        top: the most probable token ids and their log-probabilities, descending.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Completion:
    """The answer to `LLM.generate`.

    Attributes:
        text: without stop texts and control tokens.
        token_ids: of the answer, without the token that ended it.
        finish_reason: why it ended.
        logprobs: one for each of `token_ids`; None unless asked for.
        seed: with it as the request's seed, the answer comes again.
        prompt_logprobs: one for each token of the prompt but the first, which nothing predicts;
            None unless asked for.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    logprobs: tuple[TokenLogprob, ...] | None
    usage: Usage
    seed: int
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None


@dataclass(frozen=True, slots=True)
class ToolCallResult:
    """A function that the model asks for; `arguments` is parsed JSON."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ChatCompletion:
    """The answer to `LLM.chat`.

    Attributes:
        text: the visible answer.
        reasoning: the thinking channel's text, empty without one.
        finish_reason: as of a completion, or `tool_calls`.
    """

    text: str
    reasoning: str
    tool_calls: tuple[ToolCallResult, ...]
    token_ids: tuple[int, ...]
    finish_reason: ChatFinishReason
    logprobs: tuple[TokenLogprob, ...] | None
    usage: Usage
    seed: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of an answer as it comes; joined, the parts are the whole.

    Attributes:
        completion: the whole answer, with the last piece; None before.
    """

    text: str = ""
    reasoning: str = ""
    tool_call: ToolCallResult | None = None
    completion: Completion | ChatCompletion | None = None
