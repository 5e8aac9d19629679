"""What OpenAI's chat and plain completions share: sampling fields, stream options, usage."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from culet.server.errors import refused
from culet.server.generation import Generation
from culet.server.wire import Body, given, stop_texts

# Not what `str.isdigit` takes: that holds superscripts too, which `int` does not read.
_TOKEN_ID = re.compile(r"\s*[+-]?[0-9]{1,18}\s*")


class StreamOptions(Body):
    include_usage: bool = False


class SamplingFields(Body):
    """How tokens are chosen, and how the answer is delivered."""

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int = 1
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool = False
    user: str | None = None

    def sampling(
        self, max_tokens: int | None, logprobs: int | None, prompt_logprobs: int | None = None
    ) -> dict[str, Any]:
        """Fields of `SamplingParams` that the request gives; raises `ApiError` naming the field."""
        return given(
            n=self.n,
            max_tokens=max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=0 if self.top_k == -1 else self.top_k,
            min_p=self.min_p,
            typical_p=self.typical_p,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            logit_bias=_read_logit_bias(self.logit_bias),
            seed=self.seed,
            stop=stop_texts(self.stop, "stop"),
            ignore_eos=self.ignore_eos,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
        )

    @property
    def wants_usage(self) -> bool:
        """Whether a streamed answer ends with a chunk of usage."""
        return self.stream_options is not None and self.stream_options.include_usage


def _read_logit_bias(value: Mapping[str, float] | None) -> dict[int, float] | None:
    if value is None:
        return None
    wrong = next((key for key in value if not _TOKEN_ID.fullmatch(key)), None)
    if wrong is not None:
        raise refused(f"logit_bias: {wrong!r} is not a token id", param="logit_bias")
    return {int(key): bias for key, bias in value.items()}


def usage_of(generations: Sequence[Generation]) -> dict[str, Any]:
    """OpenAI's `usage` over all prompts of a request; complete once they have ended."""
    prompt = sum(g.num_prompt_tokens for g in generations)
    answer = sum(g.num_answer_tokens for g in generations)
    cached = sum(g.num_cached_tokens for g in generations)
    thoughts = sum(g.num_thought_tokens for g in generations)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "total_tokens": prompt + answer,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": thoughts},
    }
